"""Whose rights are used at the Hub.

By default those of the login that huggingface_hub finds. A shared server is anonymous, or uses the
login of the requesting user. Its cache holds files that others were allowed to read, so
permission is checked with the Hub before anything is read from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Token = str | bool | None
"""As in huggingface_hub: False sends no token, None its own."""

LOG_IN = "log in with `hf auth login` (or set HF_TOKEN)"

_user: ContextVar[str | None] = ContextVar("ram_studio_hub_token", default=None)
_shared_advice: str | None = None


def share(advice: str) -> None:
    """Send no token from now on, except in ``acting_as``; advice: what a user can do instead."""
    global _shared_advice
    _shared_advice = advice


def is_shared() -> bool:
    """Whether other users share this process."""
    return _shared_advice is not None


@contextmanager
def acting_as(token: str | None) -> Iterator[None]:
    """Use a user's token for this thread's requests inside the block; None: as before."""
    before = _user.set(token)
    try:
        yield
    finally:
        _user.reset(before)


def token() -> Token:
    """Return the token to use."""
    return _user.get() or (False if is_shared() else None)


def advice() -> str:
    """Return how a user with access to a model can open it, as part of a sentence."""
    if _shared_advice is None:
        return LOG_IN
    return "use an account that may read it" if _user.get() else _shared_advice
