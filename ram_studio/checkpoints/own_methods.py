"""Methods that somebody brings along: ``--method FILE.py:NAME``, or a package's entry point.

Such a file is a program and runs with all the rights of whoever starts it. So only the command line
and Python load one, by its own words; a recipe holds the method's name alone, and the app and its
API know the built-in methods only.

    import ram_studio as rs
    rs.use_method("median.py:MEDIAN")
    rs.merge(rs.make_recipe({..., "method": "median"}), "merged")
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ram_studio.algorithm.methods import METHODS, NAMED, OWN, BlockInput, Method
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.provenance import OwnMethodRecord
from ram_studio.errors import SettingsError, raise_as

GROUP = "ram_studio.methods"
"""Entry points of this group are methods, called as they are."""

_NAME = re.compile(r"[a-z][a-z0-9+-]{0,40}")
_RECORDS: dict[str, OwnMethodRecord] = {}


def use_method(source: str) -> Method:
    """Load a method of one's own; recipes may name it from now on, in this process.

    Args:
        source: ``FILE.py:NAME``, NAME being a `Method` in the file, or an entry point's name.

    Raises: SettingsError for a file or name that is not there or holds no such method, and for a
    name that a built-in method has.
    """
    file, colon, name = source.rpartition(":")
    if colon:
        data, module = _run(Path(file))
        found, shown = getattr(module, name, None), f"{Path(file).name}:{name}"
    else:
        found, data, shown = _entry_point(source)
    if not isinstance(found, Method) or (found.rule is None and found.merge_block is None):
        raise SettingsError(
            f"{printable(shown)} is {type(found).__name__}; expected a Method with a rule or a "
            "merge_block."
        )
    if found.name in {*METHODS, *NAMED} or not _NAME.fullmatch(found.name):
        why = "is built in" if found.name in {*METHODS, *NAMED} else "is not a lower-case word"
        raise SettingsError(
            f"{printable(shown)}: the name {printable(found.name, 60)!r} {why}; give it another."
        )
    if (formula := found.merge_block) is not None:
        found = replace(found, merge_block=lambda *given: formula(_copied(given[0]), *given[1:]))
    OWN[found.name] = found
    _RECORDS[found.name] = OwnMethodRecord(source=shown, sha256=hashlib.sha256(data).hexdigest())
    return found


def _copied(block: BlockInput) -> BlockInput:
    """Return a block that a formula may change: what it merged is measured against the real one."""
    return block._replace(base=block.base.clone(), agents=block.agents.clone())


def bring_method(text: str) -> str:
    """Return the name of a method given on the command line, after loading one's own.

    Raises: as ``use_method``, and for a second one of the same name; an unknown word comes back as
    it is.
    """
    if text in METHODS or not (
        ":" in text or text in importlib.metadata.entry_points(group=GROUP).names
    ):
        return NAMED.get(text, text)
    known = {name: own_record(name) for name in OWN}
    name = use_method(text).name
    if name in known and known[name] != own_record(name):
        raise SettingsError(f"Two methods are called {name!r}; give one of them another name.")
    return name


def own_record(name: str) -> OwnMethodRecord | None:
    """Return what provenance says of a method that was brought along; None for all others."""
    return _RECORDS.get(name) if name in OWN else None


def _run(path: Path) -> tuple[bytes, ModuleType]:
    """Run a file as a module; return the bytes that ran, and it."""
    with raise_as(SettingsError, f"{printable(path)} cannot be read"):
        data = path.read_bytes()
    module = ModuleType(f"ram_studio_own_{hashlib.sha256(data).hexdigest()[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where pydantic looks names up
    try:
        exec(compile(data, str(path), "exec"), vars(module))
    except Exception as error:
        raise SettingsError(
            f"{printable(path)} does not run: {type(error).__name__}: {printable(error, 200)}."
        ) from error
    return data, module


def _entry_point(name: str) -> tuple[Any, bytes, str]:
    """Return what an entry point is, its module's bytes, and which package has it."""
    entries = importlib.metadata.entry_points(group=GROUP)
    if name not in entries.names:
        raise SettingsError(
            f"There is no method {printable(name, 60)!r} among the entry points {GROUP}; give "
            "FILE.py:NAME."
        )
    entry = entries[name]
    try:
        found = entry.load()
        data = Path(str(sys.modules[entry.module].__file__)).read_bytes()
    except Exception as error:
        raise SettingsError(
            f"Entry point {printable(name, 60)} does not load: {printable(error, 200)}."
        ) from error
    package = entry.dist and f"{entry.dist.name} {entry.dist.version}"
    return found, data, f"{package}, {entry.value}"
