"""Licenses of what goes into a merge, from the front matter of the sources' model cards.

A merge is a derivative of every source, so it stands under the terms of all of them; the most
restrictive one is named. The order is by what a license asks of somebody who shares a derivative,
and nothing stated counts as nothing allowed. A plain reading of names, and no legal advice.
"""

from __future__ import annotations

import re
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

RANKS: tuple[tuple[str, str, str], ...] = (
    ("public-domain", "no conditions", r"cc0-1\.0|unlicense|pddl|wtfpl|0bsd|mit-0"),
    (
        "permissive",
        "keep the notices",
        r"mit|isc|zlib|bsd(-.*)?|ncsa|bsl-1\.0|postgresql|afl-3\.0|artistic-2\.0|ecl-2\.0|apache-2\.0"
        r"|ms-pl|cc-by-[234]\.\d|cdla-permissive-.*|odc-by|lppl-1\.3c|etalab-2\.0",
    ),
    (
        "weak-copyleft",
        "share changes to it alike",
        r"mpl-2\.0|lgpl(-.*)?|epl-.*|eupl-.*|c-uda|cdla-sharing-1\.0|deepfloyd-if-license",
    ),
    ("copyleft", "share derivatives alike", r"gpl(-.*)?|agpl-3\.0|cc-by-sa-.*|osl-3\.0|odbl|gfdl"),
    (
        "use-restricted",
        "pass its rules of use on",
        r"(bigscience-|bigcode-|creativeml-)?openrail(-.*|\+\+)?|bigscience-bloom-rail-1\.0|gemma"
        r"|llama[-_0-9.]*|apple-amlr|apple-ascl|intel-research|.*-(community|acceptable-use).*",
    ),
    (
        "non-commercial",
        "no commercial use",
        r"cc-by-nc(-sa)?(-.*)?|cc-by-nc-sa-.*|fair-noncommercial-research-license|qwen-research"
        r"|.*non-?commercial.*|.*(-|^)research(-|$).*|.*-nc(-.*)?|h-research",
    ),
    ("no-derivatives", "no derivatives may be shared", r"cc-by-(nc-)?nd(-.*)?"),
    ("custom", "terms of its own: read them", r".+"),
    ("unknown", "nothing is stated, so nothing is known to be allowed", r""),
)
"""(rank, what it asks, names it matches), from the least to the most restrictive.

In which order they are tried, `License.rank` says.
"""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class License:
    """What a model card states, as provenance files keep it.

    Attributes:
        id: `license` as the Hub spells it; None where nothing is stated.
        name, link: `license_name` and `license_link`, given when the id is "other".
    """

    id: str | None = None
    name: str | None = None
    link: str | None = None

    @property
    def shown(self) -> str:
        """The name people know it by."""
        if self.id in (None, "unknown"):
            return "unknown"
        return self.name or self.id if self.id == "other" else self.id

    @property
    def rank(self) -> str:
        """The rank in `RANKS`: by its id, for "other" by its name.

        A name matches the first rank in the order no-derivatives, non-commercial, then from
        public-domain on; one that nobody ranked here is "custom", more restrictive than all others.
        """
        name = self.shown.strip().lower().replace(" ", "-").replace("_", "-")
        if name == "unknown":
            return "unknown"
        if name != "other":
            patterns = {rank: pattern for rank, _, pattern in RANKS}
            for rank in ("no-derivatives", "non-commercial", *patterns):
                if re.fullmatch(patterns[rank], name):
                    return rank
        return "custom"

    @property
    def asks(self) -> str:
        """What it asks of somebody who shares a derivative, in a few words."""
        return next(asks for rank, asks, _ in RANKS if rank == self.rank)


def most_restrictive(licenses: Iterable[License]) -> License:
    """Return the most restrictive of some licenses by their rank; of equal ones the first given.

    None at all: unknown.
    """
    order = [rank for rank, _, _ in RANKS]
    return max(licenses, key=lambda license: order.index(license.rank), default=License())


def license_of(checkpoint: Checkpoint) -> License:
    """Return the license that a checkpoint's README.md states in its front matter.

    Nothing stated, no card, a damaged one or a link out of the folder: `License()`, unknown. Of a
    list of licenses the most restrictive counts.
    """
    fields = _card_fields(checkpoint, "license")
    name, link = (_text(fields.get(key)) for key in ("license_name", "license_link"))
    return most_restrictive(License(i.lower(), name, link) for i in _texts(fields.get("license")))


def bases_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the models that a checkpoint's README.md names as its base, none where it says none.

    A card may name its base's base too.
    """
    return tuple(_texts(_card_fields(checkpoint, "base_model").get("base_model")))


def _card_fields(checkpoint: Checkpoint, prefix: str) -> dict[str, Any]:
    """Return the fields of a card's front matter that begin so; none where it cannot be read."""
    try:
        path = check_link(checkpoint.folder / "README.md", "")
        text = read_bounded(path, "", limit=MAX_CARD_BYTES)
    except CheckpointError:
        return {}
    return _fields(text.decode("utf-8", "replace"), prefix)


def _fields(card: str, prefix: str) -> dict[str, Any]:
    """Return the fields of the front matter that begin with `prefix`.

    Cards hold kilobytes of scores, some of them no valid YAML: only these lines are parsed.
    """
    lines = card.removeprefix("\ufeff").splitlines()[:_MAX_FRONT_LINES]
    if not lines or lines[0].rstrip() != "---":
        return {}
    kept: list[str] = []
    is_ours = False
    for line in lines[1:]:
        if line.rstrip() == "---":
            break
        if line[:1].strip() and not line.startswith("- "):
            is_ours = line.startswith(prefix)
        if is_ours and len(line) <= 2 * _MAX_TEXT and len(kept) < 60:
            kept.append(line)
    else:
        return {}  # front matter without an end is none
    try:
        fields = yaml.safe_load("\n".join(kept))
    except (yaml.YAMLError, ValueError, RecursionError):
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
