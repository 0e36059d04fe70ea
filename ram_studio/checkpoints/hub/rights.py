"""Whose rights are used at the Hub.

By default they are those of whoever huggingface_hub finds logged in. A shared server
acts as nobody, or as the user who asks. Its cache holds what others were allowed to read, so
there the Hub is asked before anything is taken from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Token = str | bool | None
"""As huggingface_hub takes it: False sends none, None its own."""

LOG_IN = "log in with `hf auth login` (or set HF_TOKEN)"

_user: ContextVar[str | None] = ContextVar("ram_studio_hub_token", default=None)
_shared_advice: str | None = None


def share(advice: str) -> None:
    """Act as nobody from now on, but for ``acting_as``; advice: what a user can do instead."""
    global _shared_advice
    _shared_advice = advice


def is_shared() -> bool:
    """Whether other users share this process."""
    return _shared_advice is not None


@contextmanager
def acting_as(token: str | None) -> Iterator[None]:
    """Use a user's token for what this thread asks the Hub inside the block; None: as before."""
    before = _user.set(token)
    try:
        yield
    finally:
        _user.reset(before)


def token() -> Token:
    """Return the token to use."""
    return _user.get() or (False if is_shared() else None)


def advice() -> str:
    """Return how somebody who may read a model gets at it, the middle of a sentence."""
    if _shared_advice is None:
        return LOG_IN
    return "use an account that may read it" if _user.get() else _shared_advice
