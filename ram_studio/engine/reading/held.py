"""Small arrays that many blocks of a pass need: made once, and held while they are in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ram_studio.checkpoints.read.header import TensorInfo

HELD_BYTES = 256 << 20
"""Experts of a large model take 33 MB each: one for each of a base and six agents."""

Key = tuple[TensorInfo, int]
"""A stored tensor, and which part of it."""


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    array: np.ndarray | None = None


class Held:
    """What was made of stored tensors, the latest used first; safe to share among threads."""

    def __init__(self, limit: int = HELD_BYTES) -> None:
        """limit: bytes; the one asked for last is held whatever its size."""
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    def get(self, key: Key, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what `make` returns for this key; it is called by one thread only."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.array is None:
                entry.array = make()
                self._let_go(key)
            return entry.array

    def maker(
        self, tensor: TensorInfo, make: Callable[[int], np.ndarray]
    ) -> Callable[[int], np.ndarray]:
        """Return `make`, which makes a tensor's part of some number, made to hold what it did."""
        return lambda number: self.get((tensor, number), lambda: make(number))

    def _let_go(self, newest: Key) -> None:
        with self._lock:
            made = {k: e.array.nbytes for k, e in self._entries.items() if e.array is not None}
            total = sum(made.values())
            for key, nbytes in made.items():
                if total <= self._limit:
                    return
                if key != newest:
                    del self._entries[key]
                    total -= nbytes
