"""Formats names and sizes in messages of the checkpoints layer.

A message is one line, for any content of a hostile file's tensor names.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence

BASE_NAME = "base"
MERGED_NAME = "merged model"
"""Name of a merge that is opened for inspection; no agent can have it, because of the space."""


def who(name: str | None) -> str:
    """Return the beginning of a message about one checkpoint: `Base: `, `Agent "x": ` or nothing.

    A checkpoint that is opened by itself is named by its kind: base, agent or merged model.
    """
    if name is None:
        return ""
    if name in (BASE_NAME, "agent", MERGED_NAME):
        return f"{name.capitalize()}: "
    return f'Agent "{printable(name)}": '


def printable(text: object, limit: int = 160) -> str:
    """Return `text` on one line: control characters escaped, the middle cut out beyond `limit`."""
    shown = str(text)[: 4 * limit]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
    if len(shown) <= limit:
        return shown
    return f"{shown[: limit // 2]}...{shown[-limit // 4 :]}"


def shell_word(path: object) -> str:
    """Return a path in full, quoted for a shell: for commands in messages."""
    return shlex.quote(text if (text := str(path)).isprintable() else printable(text))


def quoted(text: object) -> str:
    """Return `text` on one line between backticks, as tensor and file names are shown."""
    return f"`{printable(text)}`"


def shown_list(
    items: Sequence[str], limit: int = 3, separator: str = "; ", show: Callable[[str], str] = str
) -> str:
    """Join the first `limit` items, each formatted by `show`, and count the others."""
    text = separator.join(map(show, items[:limit]))
    return text if len(items) <= limit else f"{text}{separator}and {len(items) - limit} more"


def shown_shape(shape: Iterable[int]) -> str:
    """Return a shape in Python's notation: `(2, 3)`, `(5,)`, `()`."""
    return printable(tuple(shape), limit=80)


def shown_bytes(count: int) -> str:
    """Return a byte count in decimal units, as the Hub does: `15.23 GB`, `812 bytes`."""
    if count < 1000:
        return f"{count} bytes"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.995:
            return f"{value:.2f} {unit}"
    return f"{value / 1000:.2f} TB"


def plural(count: int, noun: str) -> str:
    """Return `1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
