"""What decides the weights of a merge, before it is made: equal digests are one merge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import float32_threshold
from ram_studio.algorithm.methods import make_settings
from ram_studio.algorithm.methods.ram import RamSettings
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.events import CancelToken
from ram_studio.engine.job import MergeJob
from ram_studio.engine.passes.driver import RunOptions


class MergeIdentity(NamedTuple):
    """digest: 32 hex digits; factors: lambda by agent where one number says it, else empty."""

    digest: str
    factors: Mapping[str, float | None]


def identify(
    report: CompatibilityReport,
    recipe: Recipe,
    *,
    analysis: Analysis | None = None,
    device: str = "auto",
    cancel: CancelToken | None = None,
) -> MergeIdentity:
    """Return a digest that is equal for recipes whose merges are the same weights, and lambda.

    For RAM, RAM+ and RAM+s it covers the threshold and every lambda, not how it came about: r = 0
    in RAM+ is RAM, and an alpha above every rho is any other such alpha. For other methods it
    covers the settings. What all share: fingerprints of base and agents (in order), dtype, rounding
    and seed. Different digests do not prove different weights.

    Reads no tensors when the analysis has the recipe's epsilon, or the method needs no counts.

    Args: report: of the base and exactly the recipe's agents. analysis: of the same files.
    """
    settings = make_settings(recipe.method, recipe.settings)
    rule: Any
    known: dict[str, float | None] = {}
    if isinstance(settings, RamSettings):
        job = MergeJob(report, recipe, RunOptions.of(device, cancel=cancel))
        prepared = job.plan(analysis).prepared
        assert prepared.factors is not None, "the family's lambda"
        factors = hashlib.blake2b(prepared.factors.tobytes(), digest_size=16).hexdigest()
        is_uniform = job.choices is None and (prepared.factors == prepared.factors[:1]).all()
        if len(prepared.factors) and is_uniform:
            known = dict(zip(job.names, prepared.factors[0].tolist(), strict=True))
        epsilon = float(float32_threshold(settings.epsilon))
        rule = ["ram", epsilon, factors, settings.shared == "ties"]
    else:
        values = settings.model_dump(mode="json")
        if values.get("files") is not None:
            values["files"] = _files(Path(values["files"]))
        rule = [recipe.method, values]
    parts: list[Any] = [
        report.base.fingerprint,
        [[agent.name, agent.fingerprint] for agent in report.agents],
        [recipe.dtype, recipe.rounding, recipe.seed, recipe.missing, recipe.extra, recipe.rows],
        rule,
    ]
    own = recipe.model_dump(mode="json", include={"weights", "densities", "filters"})
    if any(own.values()):
        parts.append(own)
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    return MergeIdentity(digest, known)


def _files(folder: Path) -> list[Any]:
    """Return what tells one state of a folder of Fisher files from another, without reading it."""
    found = sorted(folder.glob("*.safetensors"))
    return [[file.name, (stat := file.stat()).st_size, stat.st_mtime_ns] for file in found]
