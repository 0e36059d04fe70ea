"""Values as plain data: the only exchange between a sealed program and its judge.

`encode` runs in the program's process and need not be trusted; `decode` builds only Python's own
types, so that no comparison runs a method of the program. A value without a plain form becomes
`Opaque`, which equals nothing and holds only its truth value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sized

# typing would take a fifth of a sealed process's start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 64 * 1024  # of one message; also bounds what a hostile one can cost to decode
_PLAIN = (bool, int, float, str)
_SERIES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "sized": deque}


class Opaque:
    """A value of a type that the program defines."""

    def __init__(self, truth: bool) -> None:
        self.truth = truth

    def __bool__(self) -> bool:
        return self.truth


def encode(value: Any) -> list[Any]:
    """Return value as [kind, content] for JSON; subclasses become their built-in base type."""
    if value is None or type(value) in _PLAIN:
        return ["plain", value]
    for kind in _PLAIN:
        if isinstance(value, kind):
            return ["plain", kind(value)]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(value[key])] for key in value]]
    for name in ("list", "tuple", "set", "frozenset"):
        if isinstance(value, _SERIES[name]):
            return [name, [encode(item) for item in value]]
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        name = "sized" if isinstance(value, Sized) else "iterator"
        return [name, [encode(item) for item in value]]
    return ["opaque", bool(value)]


def decode(data: Any) -> Any:
    """Return the value that `encode` encoded.

    Raises: ValueError or TypeError: `encode` does not write such data.
    """
    kind, content = data
    if kind == "plain":
        if content is not None and type(content) not in _PLAIN:
            raise ValueError(f"not a plain value: {type(content).__name__}")
        return content
    if kind == "opaque":
        return Opaque(content is True)
    if kind == "dict":
        return {decode(key): decode(value) for key, value in content}
    if kind == "iterator":
        return iter([decode(item) for item in content])
    if kind not in _SERIES:
        raise ValueError(f"not a kind of value: {kind!r:.40}")
    return _SERIES[kind](decode(item) for item in content)


def copy_changes(arguments: Iterable[Any], after: Iterable[Any]) -> None:
    """Update lists and dicts among arguments to their state after a call in the other process."""
    for own, changed in zip(arguments, after, strict=True):
        if type(own) is list and type(changed) is list:
            own[:] = changed
        elif type(own) is dict and type(changed) is dict:
            own.clear()
            own.update(changed)
