"""Methods of users: ``--method FILE.py:NAME``, or a package's entry point.

Such a file is a program and runs with all rights of the user. So only the command line and Python
load one, on explicit request; a recipe holds the method's name alone, and the app and its
API have the built-in methods only.

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
"""Entry points of this group are methods, by their names."""

_NAME = re.compile(r"[a-z][a-z0-9+-]{0,40}")
_RECORDS: dict[str, OwnMethodRecord] = {}


def use_method(source: str) -> Method:
    """Load a user's method; recipes of this process may then name it.

    Args:
        source: ``FILE.py:NAME``, NAME being a `Method` in the file, or an entry point's name.

    Raises: SettingsError for a file or name that does not exist or is not such a method, and for
    the name of a built-in method.
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
    """Return a copy of a block: a formula may change it, and the original is measured."""
    return block._replace(base=block.base.clone(), agents=block.agents.clone())


def bring_method(text: str) -> str:
    """Return the name of a method given on the command line, after loading a user's method.

    Raises: as ``use_method``, and for a second one of the same name; an unknown word is returned
    unchanged.
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
    """Return the provenance record of a user's method; None for all others."""
    return _RECORDS.get(name) if name in OWN else None


def _run(path: Path) -> tuple[bytes, ModuleType]:
    """Run a file as a module; return its bytes, and the module."""
    with raise_as(SettingsError, f"{printable(path)} cannot be read"):
        data = path.read_bytes()
    module = ModuleType(f"ram_studio_own_{hashlib.sha256(data).hexdigest()[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # pydantic resolves names there
    try:
        exec(compile(data, str(path), "exec"), vars(module))
    except Exception as error:
        raise SettingsError(
            f"{printable(path)} does not run: {type(error).__name__}: {printable(error, 200)}."
        ) from error
    return data, module


def _entry_point(name: str) -> tuple[Any, bytes, str]:
    """Return an entry point's object, its module's bytes, and its package."""
    entries = importlib.metadata.entry_points(group=GROUP)
    if name not in entries.names:
        raise SettingsError(
            f"No method {printable(name, 60)!r} is among the entry points {GROUP}; give "
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
