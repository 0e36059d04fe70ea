"""A cache of a few small loaded models; large ones are freed after use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ram_studio.evals.answering.local import LocalEngine

SMALL_BYTES = 200_000_000
_MOST_ENGINES = 8


class Engines:
    """The cache of small models. One job at a time uses an engine."""

    def __init__(self) -> None:
        self._engines: OrderedDict[str, LocalEngine] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, checkpoint: Any) -> Iterator[LocalEngine]:
        """Yield an engine for an opened checkpoint."""
        from ram_studio.evals.answering.local import LocalEngine

        # A folder's name may be reused for another merge.
        key = f"{checkpoint.folder}|{checkpoint.fingerprint}"
        with self._lock:
            engine = self._engines.pop(key, None)
        engine = engine or LocalEngine(Path(checkpoint.folder))
        try:
            yield engine
        finally:
            engine.on_tokens = None
            with self._lock:
                if checkpoint.nbytes < SMALL_BYTES:
                    self._engines[key] = engine
                else:
                    engine.close()
                while len(self._engines) > _MOST_ENGINES:
                    self._engines.popitem(last=False)[1].close()
