"""Parse a user's input to a base and named agents, with the limits of a public Space."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ram_studio.app.settings import Settings
from ram_studio.checkpoints.opening import is_local_source
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.checkpoints.record.recipe import check_agent_name
from ram_studio.errors import SettingsError
from ram_studio.resources import asset_path

MAX_AGENTS = 8
_DEPTH = 3
_MOST_FOLDERS = 200


class Sources(NamedTuple):
    """A base and its agents by name, each a folder or a Hub id."""

    base: str
    agents: dict[str, str]


def find_models(folder: Path | None) -> list[str]:
    """Return the folders with safetensors files under ``folder``, up to three levels down."""
    if folder is None:
        return []
    depths = ("*/" * depth for depth in range(_DEPTH + 1))
    files = (file for depth in depths for file in folder.glob(f"{depth}*.safetensors"))
    seen = {
        str(file.parent)
        for file in files
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
    }
    return sorted(seen)[:_MOST_FOLDERS]


def offered_models(settings: Settings) -> dict[str, str]:
    """Return the folders of --models-dir by their names in the form.

    On a shared server, names do not contain the folder's path.
    """
    found = find_models(settings.models_dir)
    if not settings.is_public:
        return {folder: folder for folder in found}
    return {os.path.relpath(folder, settings.models_dir or ""): folder for folder in found}


def public_name(source: str, settings: Settings) -> str:
    """Return the name of a source of ``read_sources`` on a shared server.

    The example's folders are named as in the repository, those of --models-dir relative to it.
    """
    path = Path(source)
    if not settings.is_public or not path.is_absolute():
        return source
    for root in (settings.models_dir, asset_path("independent").parents[1]):
        if root is not None and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.name


def name_from(source: str) -> str:
    """Return an agent name made from a folder or Hub id, "" when nothing usable is left."""
    last = re.split(r"[\\/]", source.strip().rstrip("\\/"))[-1].split("@")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:64]


def read_sources(
    base: str | None, names: Sequence[str | None], sources: Sequence[str | None], settings: Settings
) -> Sources:
    """Return the base and agents of the form; rows without a source are left out.

    Raises: SettingsError with what to enter, for the first fault.
    """
    base_text = (base or "").strip()
    if not base_text:
        raise SettingsError(
            "No base model is given. Enter the folder or Hub id of the model the agents started "
            "from."
        )
    agents: dict[str, str] = {}
    for name_given, source_given in zip(names, sources, strict=True):
        source = (source_given or "").strip()
        if not source:
            continue
        name = (name_given or "").strip() or name_from(source)
        try:
            check_agent_name(name)
        except ValueError as error:
            raise SettingsError(f"{error}.".replace("agent name", "The agent's name is")) from error
        if name in agents:
            raise SettingsError(f"Two agents are called {name}. Give each agent its own name.")
        agents[name] = source
    if not agents:
        raise SettingsError("No agent is given. Enter the folder or Hub id of at least one agent.")
    result = Sources(base_text, agents)
    return _resolve_offered(result, settings) if settings.is_public else result


def is_local(source: str, settings: Settings, *, name: str) -> bool:
    """Return whether a source of ``read_sources`` is a local folder, not a Hub id.

    Raises: CheckpointError when it is neither.
    """
    # On a shared server only the offered folders are absolute: see _resolve_offered.
    return Path(source).is_absolute() if settings.is_public else is_local_source(source, name=name)


def _resolve_offered(sources: Sources, settings: Settings) -> Sources:
    """Return the sources, with names of offered folders replaced by their paths.

    A shared server accepts only folders of --models-dir and Hub ids: it never searches the disk for
    a user's input, so no answer reveals which paths exist.

    Raises: SettingsError for anything else.
    """
    offered = offered_models(settings)

    def find(who: str, source: str) -> str:
        if source in offered:
            return offered[source]
        if split_hub_id(source) is None:
            raise SettingsError(
                f"{who} is {source[:120]!r}, which is not a Hub id. Enter it as owner/name or "
                "owner/name@revision"
                + (", or choose one from the list" if offered else "")
                + "; this public app opens nothing else."
            )
        return source

    agents = {name: find(f"Agent {name}", source) for name, source in sources.agents.items()}
    return Sources(find("The base", sources.base), agents)
