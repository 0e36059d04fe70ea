"""A cancel token that asks a function, for work that is watched by polling."""

from __future__ import annotations

from collections.abc import Callable

from ram_studio.engine.events import CancelToken
from ram_studio.errors import Stopped


class PolledToken(CancelToken):
    """Cancelled by `cancel` or once `should_stop` returns True; `message` is what it says."""

    def __init__(self, should_stop: Callable[[], bool] | None, message: str) -> None:
        super().__init__()
        self._should_stop = should_stop
        self._message = message

    @property
    def is_cancelled(self) -> bool:
        """Whether stopping was asked for."""
        return super().is_cancelled or bool(self._should_stop and self._should_stop())

    def raise_if_cancelled(self) -> None:
        """Raise Stopped once stopping was asked for."""
        if self.is_cancelled:
            raise Stopped(self._message)
