"""The output of Merge: the plan before it runs (size, needs, losses), and the result."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from ram_studio.algorithm.epsilon_grid import snap
from ram_studio.algorithm.meters.relation_preview import rounding_preview, rounding_warning
from ram_studio.algorithm.meters.rounding_meter import rounding_advice
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import RULES, has_lambda
from ram_studio.algorithm.verdict import find_lost_agents
from ram_studio.app import templates
from ram_studio.app.merge.work import SLOW, output_bytes, output_dtype
from ram_studio.app.session.session import LoadedModels, MergedModel
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.fit.mismatches import OPTION_WORDS
from ram_studio.checkpoints.record.recipe import Recipe

_START_SECONDS = 0.2

RESCALING = tuple(rule for rule in RULES if rule != "ram")
_TRAP = (
    "In {dtype}, rounding to nearest can lose part of the rescaling: RL changes are often a single "
    "step of that format, and λ × one step rounds back to one step. Stochastic rounding keeps λ "
    "on average, float32 exactly. The result shows the λ that was stored."
)


class Plan(NamedTuple):
    """A merge before it runs.

    needed, free: bytes of disk. seconds: None without a similar measured one. caution: possible
    rounding loss, "" for none. remote: bytes read from the Hub, not stored. lost: a sentence on
    agents whose update is all below epsilon, "" for none.
    """

    dtype: str
    needed: int
    free: int
    seconds: float | None
    caution: str
    remote: int
    lost: str


def plan_merge(
    loaded: LoadedModels, recipe: Recipe, folder: Path, made: Iterable[MergedModel] = ()
) -> Plan:
    """Return the plan of a merge into ``folder`` (which need not exist).

    made: earlier merges of the same models, to estimate the time.
    """
    dtype = output_dtype(loaded, recipe.dtype)
    needed = output_bytes(loaded, dtype)
    while not folder.exists():
        folder = folder.parent
    seconds = _seconds(loaded, recipe.method, needed, made)
    caution = rounding_caution(loaded, recipe, dtype)
    free = shutil.disk_usage(folder).free
    lost = epsilon_caution(loaded, recipe)
    return Plan(dtype, needed, free, seconds, caution, loaded.remote_bytes, lost)


def _seconds(
    loaded: LoadedModels, method: str, written: int, made: Iterable[MergedModel]
) -> float | None:
    """Return a merge's estimated time, from the last similar one or the analysis's reading speed.

    None where neither was measured here; for slow methods reading does not predict the time.
    """
    for merged in reversed(list(made)):
        if merged.method == method and merged.result["bytes_written"] > 0:
            seconds: float = merged.result["seconds"]
            return seconds * max(1.0, written / merged.result["bytes_written"])
    if method in SLOW or loaded.read_rate is None:
        return None
    read = output_bytes(loaded, None) * (1 + len(loaded.agents))
    return _START_SECONDS + (read + written) / loaded.read_rate


def epsilon_caution(loaded: LoadedModels, recipe: Recipe) -> str:
    """Return a sentence on agents whose update is all below the recipe's epsilon, "" for none."""
    lost = find_lost_agents(loaded.analysis, snap(recipe.settings.get("epsilon", 0.0)))
    return "" if lost is None else lost.finding.text


def rounding_caution(loaded: LoadedModels, recipe: Recipe, dtype: str) -> str:
    """Return a sentence where rounding to nearest loses much of the rescaling, "" elsewhere.

    With the analysis's statistics it names agents and factors; without, it is general.
    """
    own = recipe.settings
    is_exposed = recipe.rounding == "nearest" and dtype != "float32" and own.get("r", 0) > 0
    if recipe.method not in RESCALING or not is_exposed:
        return ""
    analysis, weights = loaded.analysis, recipe.weights
    is_one = own["scope"] == "global" and not any(isinstance(w, tuple) for w in weights.values())
    if analysis.steps is None or not is_one:
        return _TRAP.format(dtype=dtype)
    point, tuned = snap(own["epsilon"]), [own[name] for name in ("r", "alpha") if name in own]
    agents = analysis.preview(point, recipe.method, *tuned)["agents"]
    factors = {name: own["lambda"] * weights.get(name, 1.0) for name, own in agents.items()}
    # The meter knows what is scaled up.
    factors = {name: factor for name, factor in factors.items() if factor >= 1}
    rounding = rounding_preview(analysis, point, factors)
    assert rounding is not None, "the analysis has steps"
    return rounding_warning(analysis, rounding, dtype)


def plan_html(plan: Plan, method: str) -> Markup:
    """Return a plan in words, with its cautions."""
    return templates.render(
        "merge/plan.html.j2",
        plan=plan,
        method=method,
        formula=METHODS[method].formula,
        is_slow=method in SLOW,
    )


def result_html(merged: MergedModel, settings: Settings) -> Markup:
    """Return a finished merge: requested and effective lambda per agent, sizes, time, folder."""
    agents = merged.result["agents"]
    factors = {n: (a.get("lambda"), a.get("effective_lambda")) for n, a in agents.items()}
    return templates.render(
        "merge/result.html.j2",
        merged=merged,
        result=merged.result,
        shows_lambda=has_lambda(merged.method),
        advice=rounding_advice(None, factors),
        folder=None if settings.is_public else merged.folder,
    )


def in_form_words(text: str) -> str:
    """Return a message with the form's name of the option."""
    return text.replace(OPTION_WORDS["other base"], "tick “Merge although …” in the form")
