"""Checking of array shapes at each call, but of functions inside others, made at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that checks its annotations; one of another's own as it is."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
