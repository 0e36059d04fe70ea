"""Agents whose tensors have other names than the same tensors of the base.

A text model that was trained out of a vision-language model, or by a library that loads only its
language part, has `model.layers.0...` where the base has `model.language_model.layers.0...` or
`language_model.model.layers.0...`. The prefixes are matched from the names themselves; the user
has to confirm the match.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ram_studio.algorithm.meters.storage import Finding
from ram_studio.algorithm.naming import LANGUAGE, tower_of
from ram_studio.checkpoints.fit.mismatches import OPTION_WORDS
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import plural, quoted
from ram_studio.checkpoints.virtual.adapters import PREFIX
from ram_studio.errors import CompatibilityError

_LAYERS = re.compile(r"(?P<prefix>(?:.+?\.)?)(?:layers|h|blocks)\.\d+\.")
_FACTORS = re.compile(r"\.(lora_|token_adapter\.|base_layer\.|modules_to_save\.)")


def map_names(
    base: Checkpoint, agent: Checkpoint, policies: Mapping[str, Any]
) -> tuple[Checkpoint, Finding | None]:
    """Return an agent with the base's names, and a note where it has others.

    policies: see ``check_compatibility``; names "mapped" where the user confirmed it. An agent
    whose names cannot all be matched stays unchanged; the fit check reports its tensors.

    Raises: CompatibilityError for unconfirmed other names, or a language model alone.
    """
    if agent.delta is not None or agent.tensors.keys() == base.tensors.keys():
        return agent, None
    ours, theirs = _prefix(base.tensors), _prefix(_plain(name) for name in agent.tensors)
    if ours is None or theirs is None:
        return agent, None
    towers = sum(tower_of(name) != LANGUAGE for name in base.tensors)
    is_alone = agent.adapter is None and towers > 0
    is_alone &= all(tower_of(name) == LANGUAGE for name in agent.tensors)
    if ours == theirs and (not is_alone or policies["missing"] == "keep-base"):
        return agent, None
    known = _modules(base.tensors)
    names = {name: _base_name(name, theirs, ours, known) for name in agent.tensors}
    if not all(names.values()) or len(set(names.values())) < len(names):
        return agent, None
    found = f"it names its layers {quoted(f'{theirs}layers...')}, the base {quoted(f'{ours}...')}"
    found = found if ours != theirs else "it holds the base's language model alone"
    towers_note = f"; {plural(towers, 'tensor')} of the base's other towers stay as they are"
    towers_note = towers_note if is_alone else ""
    if policies["names"] != "mapped":
        raise CompatibilityError(
            f"{agent.at}: {found}. With the base's names, all its {plural(len(names), 'tensor')} "
            f"are in the base{towers_note}. If it was trained from this base, "
            f"{OPTION_WORDS['names']} to merge it."
        )
    tensors = {str(new): agent.tensors[old].renamed(str(new)) for old, new in names.items()}
    text = f"{agent.who}{found}; it is read by the base's names{towers_note}."
    return replace(agent, tensors=tensors), Finding("sources", text, (agent.name,), level="note")


def _plain(name: str) -> str:
    return name.removeprefix(PREFIX)


def _prefix(names: Iterable[str]) -> str | None:
    """Return the prefix of the language model's layers; None where it is not unique."""
    found = {
        match["prefix"]
        for name in names
        if tower_of(name) == LANGUAGE and (match := _LAYERS.match(name)) is not None
    }
    return found.pop() if len(found) == 1 else None


def _modules(names: Iterable[str]) -> set[str]:
    """Return the names of tensors and of all modules that they are in."""
    found = set(names)
    for name in tuple(found):
        while (name := name.rpartition(".")[0]) and name not in found:
            found.add(name)
    return found


def _base_name(name: str, theirs: str, ours: str, known: Container[str]) -> str | None:
    """Return a tensor's name with the base's prefix, None where the base does not have it.

    For adapters, a factor's name; its module must be in the base. known: see ``_modules``.
    """
    plain = _plain(name)
    module = _FACTORS.split(plain)[0]
    for old, new in ((theirs, ours), ("", ours.removesuffix("model.")), ("", "")):
        if not module.startswith(old):
            continue
        if new + module.removeprefix(old) in known:
            return name[: len(name) - len(plain)] + new + plain.removeprefix(old)
    return None
