"""Licenses of a merge's sources, from the front matter of their model cards.

A merge is a derivative of every source, so the terms of all of them apply. This only compares
names; it is not legal advice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.json_files import check_link, read_bounded
from ram_studio.errors import CheckpointError

MAX_CARD_BYTES = 4_000_000
_MAX_FRONT_LINES = 20_000
_MAX_TEXT = 300
_DAMAGED = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of PyYAML for text that does not match its tag, and for text that is not YAML."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class License:
    """The license in a model card, as stored in provenance files.

    Attributes:
        id: `license` as the Hub spells it; None where nothing is stated.
        name, link: `license_name` and `license_link`, given when the id is "other".
    """

    id: str | None = None
    name: str | None = None
    link: str | None = None

    @property
    def shown(self) -> str:
        """Its name to show."""
        if self.id in (None, "unknown"):
            return "unknown"
        return self.name or self.id if self.id == "other" else self.id


def combine_licenses(licenses: Iterable[License]) -> License:
    """Return the common license; where they differ "other", with all names.

    Unknown if any is unknown.
    """
    found = list(dict.fromkeys(licenses))
    if len(found) == 1:
        return found[0]
    names = list(dict.fromkeys(license.shown for license in found))
    return License() if "unknown" in names or not names else License("other", " and ".join(names))


def license_of(checkpoint: Checkpoint) -> License:
    """Return the license that a checkpoint's README.md states in its front matter.

    Without a license, for a missing or damaged card, or a link out of the folder: unknown.
    """
    fields = _card_fields(checkpoint, "license")
    name, link = (_text(fields.get(key)) for key in ("license_name", "license_link"))
    return combine_licenses(License(i.lower(), name, link) for i in _texts(fields.get("license")))


def bases_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the models that a checkpoint's README.md names as its base, () without any.

    A card may also name the base of its base.
    """
    return tuple(_texts(_card_fields(checkpoint, "base_model").get("base_model")))


def _card_fields(checkpoint: Checkpoint, prefix: str) -> dict[str, Any]:
    """Return the card's front matter fields with this prefix; {} where it cannot be read."""
    try:
        path = check_link(checkpoint.folder / "README.md", "")
        text = read_bounded(path, "", limit=MAX_CARD_BYTES)
    except CheckpointError:
        return {}
    return _fields(text.decode("utf-8", "replace"), prefix)


def _fields(card: str, prefix: str) -> dict[str, Any]:
    """Return the fields of the front matter that begin with `prefix`.

    Cards hold kilobytes of scores, some of them invalid YAML: only these lines are parsed.
    """
    lines = card.removeprefix("\ufeff").splitlines()[:_MAX_FRONT_LINES]
    if not lines or lines[0].rstrip() != "---":
        return {}
    yaml_lines: list[str] = []
    is_ours = False
    for line in lines[1:]:
        if line.rstrip() == "---":
            break
        if line[:1].strip() and not line.startswith("- "):
            is_ours = line.startswith(prefix)
        if is_ours and len(line) <= 2 * _MAX_TEXT and len(yaml_lines) < 60:
            yaml_lines.append(line)
    else:
        return {}  # front matter without an end does not count
    try:
        fields = yaml.safe_load("\n".join(yaml_lines))
    except _DAMAGED:
        return {}
    return fields if isinstance(fields, dict) else {}


def _text(value: Any) -> str | None:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    text = printable(str(value).strip(), _MAX_TEXT)
    return text or None


def _texts(stated: Any) -> list[str]:
    found = map(_text, stated if isinstance(stated, list) else [stated])
    return [text for text in found if text is not None]
