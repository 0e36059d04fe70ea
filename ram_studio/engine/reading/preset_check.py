"""Compares published sets with the Hub, from headers and a few pages, before any download.

Where a model has another dtype, license, size, shape or base than its set lists, the set is
refused: the model was replaced, or the list is wrong.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, check_compatibility
from ram_studio.checkpoints.fit.licenses import bases_of, license_of
from ram_studio.checkpoints.hub.presets import ListedModel, Preset
from ram_studio.checkpoints.hub.transfer import cache_folder
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import BASE_NAME, printable, who
from ram_studio.checkpoints.write.output_folder import nearest_folder
from ram_studio.engine.reading.sampling import other_bases, sample_changes
from ram_studio.errors import CompatibilityError, HubError, RamStudioError

BYTES_PER_SECOND = 50e6
"""Assumed network speed, for time estimates."""


@dataclass(frozen=True)
class HubModel:
    """One model on the Hub.

    Attributes:
        listed: its entry in the set.
        revision: its current commit. license: from its card.
        dtypes: {dtype: stored elements}. nbytes: of its weights.
        is_here: its weights are in the cache.
    """

    listed: ListedModel
    revision: str
    license: str
    dtypes: dict[str, int]
    nbytes: int
    is_here: bool

    @property
    def source(self) -> str:
        """The Hub id with its commit."""
        return f"{self.listed.repository}@{self.revision}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.listed.name,
            "source": self.source,
            "revision": self.revision,
            "pinned": self.listed.revision is not None,
            "license": self.license,
            "dtypes": self.dtypes,
            "nbytes": self.nbytes,
            "is_here": self.is_here,
        }


@dataclass(frozen=True)
class PresetReport:
    """A set and the results of its check.

    Attributes:
        preset: the set.
        models: those that could be opened.
        refusals: differences from the list, and reasons that prevent a merge.
        problem: why the set could not be checked, None where it could.
        sampled: share of elements that each agent changed, by a few pages.
        warnings: of `check_compatibility`.
        free_bytes: on the disk of the Hub's cache.
    """

    preset: Preset
    models: tuple[HubModel, ...] = ()
    refusals: tuple[str, ...] = ()
    problem: str | None = None
    sampled: dict[str, float] | None = None
    warnings: tuple[str, ...] = ()
    free_bytes: int = 0

    @property
    def is_fine(self) -> bool:
        """Whether the models are as listed, and fit together."""
        return self.problem is None and not self.refusals

    @property
    def fetch_bytes(self) -> int:
        """Bytes to read over the network: once, for an analysis or a download."""
        return sum(model.nbytes for model in self.models if not model.is_here)

    @property
    def seconds(self) -> float:
        """Estimated time to fetch at BYTES_PER_SECOND."""
        return self.fetch_bytes / BYTES_PER_SECOND

    @property
    def merge_bytes(self) -> int:
        """Disk space for a merge: models not yet in the cache, and the merged model."""
        return self.fetch_bytes + (self.models[0].nbytes if self.models else 0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.preset.key,
            "title": self.preset.title,
            "is_fine": self.is_fine,
            "refusals": list(self.refusals),
            "problem": self.problem,
            "models": [model.to_dict() for model in self.models],
            "sampled": self.sampled,
            "fetch_bytes": self.fetch_bytes,
            "seconds": self.seconds,
            "merge_bytes": self.merge_bytes,
            "free_bytes": self.free_bytes,
            "warnings": list(self.warnings),
        }


def check_preset(preset: Preset) -> PresetReport:
    """Check a set by its models' headers, cards, and a few pages of their weights.

    Raises nothing: errors are in the report.
    """
    free = shutil.disk_usage(nearest_folder(cache_folder() / "x")).free
    opened: list[Checkpoint] = []
    try:
        for listed in preset.models:
            opened.append(
                open_checkpoint(listed.source, name=listed.name, local_ok=False, stream=True)
            )
    except HubError as error:
        return PresetReport(preset, problem=str(error), free_bytes=free)
    except RamStudioError as error:
        return PresetReport(preset, refusals=(str(error),), free_bytes=free)
    models = tuple(map(_hub_model, preset.models, opened))
    refusals = [text for model in models for text in _differences(model)]
    refusals += _other_bases_named(preset, opened)
    sampled: dict[str, float] | None = None
    warnings: tuple[str, ...] = ()
    try:
        fit = check_compatibility(opened[0], opened[1:])
        warnings = fit.warnings
        if not refusals:
            found = sample_changes(fit)
            sampled = {name: own.changed for name, own in found.items()}
            refusals += [finding.text for finding in other_bases(found)]
    except CompatibilityError as error:
        refusals.append(str(error))
    except HubError as error:
        return PresetReport(preset, models, problem=str(error), free_bytes=free)
    return PresetReport(preset, models, tuple(refusals), None, sampled, warnings, free)


def differences_from_list(preset: Preset, fit: CompatibilityReport) -> list[str]:
    """Return the differences of a set's opened checkpoints from its list."""
    models = map(_hub_model, preset.models, fit.checkpoints)
    texts = [text for model in models for text in _differences(model)]
    return texts + _other_bases_named(preset, fit.checkpoints)


def _hub_model(listed: ListedModel, opened: Checkpoint) -> HubModel:
    return HubModel(
        listed,
        revision=opened.revision or "",
        license=license_of(opened).shown,
        dtypes=opened.dtypes,
        nbytes=opened.nbytes,
        is_here=opened.is_local,
    )


def _differences(model: HubModel) -> list[str]:
    listed = model.listed
    most = max(model.dtypes, key=model.dtypes.__getitem__)
    elements = sum(model.dtypes.values())
    pairs = (
        ("revision", listed.revision, model.revision),
        ("license", listed.license, model.license),
        ("dtype", listed.dtype, most),
        ("number of stored elements", listed.elements, elements),
    )
    return [
        f"{who(listed.name)}{listed.repository} is not as listed: its {what} is "
        f"{printable(found)}, expected {printable(wanted)}."
        for what, wanted, found in pairs
        if wanted is not None and found != wanted
    ]


def _other_bases_named(
    preset: Preset, opened: list[Checkpoint] | tuple[Checkpoint, ...]
) -> list[str]:
    texts = []
    for agent in opened:
        named = bases_of(agent) if agent.name != BASE_NAME else ()
        if named and preset.base.repository.lower() not in {name.lower() for name in named}:
            texts.append(
                f"{agent.who}its card names another base ({printable(', '.join(named))}), "
                f"the set lists {preset.base.repository}."
            )
    return texts
