"""Searches beyond RAM+ at the paper's settings: settings, weights, ramps over the layers.

Each search uses prompts of the "validation" split, like rivals. All winners are compared with RAM+
on the same held-out questions, which no choice used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.engine.analyze import analyze
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.experiment.run import compare_methods, sweep
from ram_studio.evals.experiment.space import with_method
from ram_studio.evals.suites import offer_suite
from training.shipped.rivals import REFERENCE, VALIDATION, VALIDATION_SEED, recipe_of, rows_of


@dataclass(frozen=True)
class Searched:
    """One search: its start, its axes, and its type."""

    over: Mapping[str, str]
    method: str = "ram+"
    search: str = "optuna"
    trials: int = 24


SEARCHES: dict[str, Searched] = {
    "RAM+: r, alpha, epsilon": Searched(
        {"r": "0:0.5", "alpha": "0.5:4", "epsilon": "1e-6:1e-3:log"}
    ),
    "RAM+: weights": Searched({"weight": "0:3"}),
    "RAM+: weights by SLIM": Searched({"weight": "0:1"}, search="slim"),
    "RAM+: ramps over the layers": Searched({"ramp": "0:3"}),
    "weighted average by SLIM": Searched({"weight": "0:1"}, "linear", "slim"),
}


def search_settings(
    base: Path,
    agents: Mapping[str, Path],
    *,
    seed: int,
    limit: int = 300,
    validation: int = 60,
    searches: Mapping[str, Searched] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return {"validation", "n", "found", "rows"} of one set of agents.

    found: by search its winner ("settings", "weights", "score" on validation, "tried", and for SLIM
    "foretold" and "measured": the surrogate's and the measured score of RAM+ or the mean, to which
    it was not fitted). rows: held-out scores with their 95 % interval, and against RAM+.

    Args:
        base, agents: folders.
        seed: of the held-out questions; limit: how many a domain.
        validation: prompts per domain for a search.
        searches: by name; `SEARCHES` by default.
    """
    recipe = recipe_of(base, agents)
    analysis = analyze(base, dict(agents), device="cpu", relations=True)
    found, rows = {}, {REFERENCE: with_method(recipe, "ram+", {})}
    for name, own in (SEARCHES if searches is None else searches).items():
        state = _search(with_method(recipe, own.method, {}), own, analysis, validation)
        best = state.best
        assert best is not None, "the start can be merged"
        own_recipe = {"method": best.method, "settings": best.settings, "weights": best.weights}
        rows[name] = make_recipe({**recipe.model_dump(), **own_recipe})
        found[name] = _found(state, own)
        say(f"{name}: {best.label} of {len(state.measured)}, {best.average.score:.3f}")
    table = compare_methods(
        rows,
        reference=REFERENCE,
        limit=limit,
        seed=seed,
        analysis=analysis,
        sources=False,
        device="cpu",
    )
    held_out = rows_of(table)
    for row in table.rows:
        held_out[row.label]["ci95"] = [round(end, 4) for end in row.average.ci95]
    chosen_by = {"seed": VALIDATION_SEED, "n": validation}
    return {"validation": chosen_by, "n": limit, "found": found, "rows": held_out}


def _search(start: Recipe, own: Searched, analysis: Analysis, validation: int) -> ExperimentResult:
    with offer_suite(VALIDATION):
        return sweep(
            start,
            own.over,
            search=own.search,
            trials=own.trials,
            suites=VALIDATION.name,
            limit=validation,
            held_out=0,
            seed=VALIDATION_SEED,
            analysis=analysis,
            device="cpu",
        )


def _found(state: ExperimentResult, own: Searched) -> dict[str, Any]:
    best = state.best
    assert best is not None, "checked before"
    told: dict[str, Any] = {
        "settings": {name: best.settings[name] for name in own.over if name in best.settings},
        "weights": {n: list(w) if isinstance(w, tuple) else w for n, w in best.weights.items()},
        "tried": len(state.measured),
        "score": round(best.average.score, 4),
    }
    if state.surrogate is not None:
        start = next(row for row in state.rows if row.is_start)
        shares = state.surrogate.shares_of(start.weights)
        assert shares is not None, "weights of 1 are within the range"
        told["foretold"] = round(state.surrogate.predict(shares), 4)
        told["measured"] = round(start.average.score, 4)
    return told
