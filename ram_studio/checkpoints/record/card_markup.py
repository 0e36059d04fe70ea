"""How a model card shows sources and other people's text: linked, escaped, without local paths."""

from __future__ import annotations

import re
from pathlib import PurePath

from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.passport import SourceRecord


def hub_id_of(record: SourceRecord) -> str | None:
    """Return the repository of a source that came from the Hub, which alone has a revision."""
    parts = split_hub_id(record.source) if record.revision is not None else None
    return parts[0] if parts else None


def display_name(record: SourceRecord) -> str:
    """Return a source's name without a path: its Hub id, or its folder's last name."""
    return hub_id_of(record) or PurePath(record.source).name or "base"


def linked(record: SourceRecord) -> str:
    """Return a link to a source's commit on the Hub, or a local one's name."""
    hub_id = hub_id_of(record)
    if hub_id is None:
        return f"{escaped(display_name(record))} (local)"
    return f"[{escaped(hub_id)}](https://huggingface.co/{hub_id}/tree/{record.revision})"


def escaped(text: object) -> str:
    """Return text that Markdown, its tables, its formulas and HTML show as it is, on one line."""
    shown = printable(text, limit=600)
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|$~#])", r"\\\1", shown)
