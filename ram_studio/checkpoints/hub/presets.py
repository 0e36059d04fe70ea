"""Published sets of RL agents that share a base, as assets/presets.json lists them.

Only known facts of a model are listed; ``engine.reading.preset_check`` compares them with the Hub.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pydantic import TypeAdapter

from ram_studio.errors import SettingsError, did_you_mean
from ram_studio.resources import asset_path


@dataclass(frozen=True)
class ListedModel:
    """Listed facts of one model; None where unknown.

    Attributes:
        name: "base" or the agent's name.
        repository: `owner/name`.
        revision: the commit it is pinned to.
        license: from its card. dtype: of its weights, by its safetensors name.
        elements: stored elements, all tensors together.
    """

    name: str
    repository: str
    revision: str | None = None
    license: str | None = None
    dtype: str | None = None
    elements: int | None = None

    @property
    def source(self) -> str:
        """The Hub id, with its commit where it is pinned."""
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


@dataclass(frozen=True)
class Preset:
    """A set: its key, its title, its base and its agents."""

    key: str
    title: str
    base: ListedModel
    agents: tuple[ListedModel, ...]

    @property
    def models(self) -> tuple[ListedModel, ...]:
        return (self.base, *self.agents)


@lru_cache(maxsize=1)
def presets() -> dict[str, Preset]:
    """Return all sets by key, in file order."""
    found = TypeAdapter(list[Preset]).validate_json(asset_path("presets.json").read_bytes())
    return {preset.key: preset for preset in found}


def find_preset(key: str) -> Preset:
    """Return a set. Raises: SettingsError for a key that is not listed."""
    if key not in presets():
        raise SettingsError(
            f"The set is {key!r}; expected one of {', '.join(presets())}"
            f"{did_you_mean(key, presets()) or '.'}"
        )
    return presets()[key]
