"""RAM and tuned rivals: settings chosen on validation prompts, scored on held-out ones.

Ranges are those of the paper's Table 11: scales of task arithmetic; the same scales and densities
for TIES; drop rates from .1 to .9 for DARE, every second one. Rivals outside them are in `BEYOND`.
A rival's settings are chosen by a sweep on prompts of the "validation" split, on which no scores
are reported. RAM and RAM+ stay at the paper's numbers.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods.magmax import MAGMAX
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyze import analyze
from ram_studio.evals.experiment.result import ExperimentResult, Row
from ram_studio.evals.experiment.run import compare_methods, sweep
from ram_studio.evals.experiment.space import with_method
from ram_studio.evals.report.eval_report import ModelAnswers
from ram_studio.evals.suites import offer_suite
from ram_studio.evals.suites.demo.tasks import judge, make
from ram_studio.evals.suites.suite import Suite
from training.shipped.rival_methods import SCALES_BY_AGENT, rival_methods

VALIDATION = Suite(
    "demo-validation", 1, "Validation prompts", partial(make, split="validation"), judge
)
VALIDATION_SEED = 11

SCALES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
KEPT_RATIOS = (0.1, 0.2, 0.3)
DROP_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
TENTHS = tuple(round(0.1 * i, 1) for i in range(1, 11))

REFERENCE = "RAM+"
UNTRIMMED = "DARE + TIES, untrimmed"
FIXED: dict[str, tuple[str, dict[str, float]]] = {
    "average": ("task-arithmetic", {}),
    "sum": ("task-arithmetic", {"scale": 1.0}),
    "RAM": ("ram", {}),
    REFERENCE: ("ram+", {}),
}
# Method, fixed settings, and tuned settings with their values.
Rival = tuple[str, dict[str, float], dict[str, tuple[float, ...]]]
TUNED: dict[str, Rival] = {
    "task arithmetic": ("task-arithmetic", {}, {"scale": SCALES}),
    "TIES": ("ties", {}, {"density": KEPT_RATIOS, "scale": SCALES}),
    "DARE + task arithmetic": ("dare-ta", {}, {"drop_rate": DROP_RATES, "scale": SCALES}),
    "DARE + TIES": (
        "dare-ties",
        {},
        {"drop_rate": DROP_RATES, "density": KEPT_RATIOS, "scale": SCALES},
    ),
}
"""Rivals within the ranges of the paper's Table 11."""

WIDE_TIES = "TIES, any density"
SCALE_PER_AGENT = "task arithmetic, a scale per agent"
BEYOND: dict[str, Rival] = {
    UNTRIMMED: ("dare-ties", {"density": 1.0}, {"drop_rate": DROP_RATES, "scale": SCALES}),
    WIDE_TIES: ("ties", {}, {"density": TENTHS, "scale": TENTHS}),
    "MagMax": (MAGMAX.name, {}, {"scale": TENTHS}),
    SCALE_PER_AGENT: (SCALES_BY_AGENT.name, {}, {"scales": SCALES}),
}
"""Rivals outside it: other densities, finer steps, other methods."""


@rival_methods()
def compare_with_rivals(
    base: Path,
    agents: Mapping[str, Path],
    *,
    seed: int,
    limit: int = 300,
    validation: int = 60,
    tuned: Mapping[str, Rival] = TUNED | BEYOND,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return {"validation", "chosen", "rows"} of one set of agents.

    Args:
        base, agents: folders.
        seed: of the held-out questions; limit: how many a domain.
        validation: prompts per domain for tuning.
        tuned: rivals, as `TUNED` and `BEYOND`.
    """
    recipe = recipe_of(base, agents)
    analysis = analyze(base, dict(agents), device="cpu", relations=True)
    chosen, rows = {}, {n: with_method(recipe, *method) for n, method in FIXED.items()}
    for name, (method, fixed, over) in tuned.items():
        start = with_method(recipe, method, fixed)
        found, rows[name] = _choose(start, axes_for(over, len(agents)), analysis, validation)
        chosen[name] = found
        say(f"{name}: {found['settings']} of {found['tried']}, {found['score']:.3f} on validation")
    table = compare_methods(
        rows, reference=REFERENCE, limit=limit, seed=seed, analysis=analysis, device="cpu"
    )
    return {
        "validation": {"seed": VALIDATION_SEED, "n": validation},
        "chosen": chosen,
        "rows": rows_of(table),
    }


def recipe_of(base: Path, agents: Mapping[str, Path]) -> Recipe:
    """Return the recipe of a merge of folders, with the default method and settings."""
    return Recipe(base=str(base), agents={name: str(path) for name, path in agents.items()})


def axes_for(over: Mapping[str, tuple[float, ...]], agents: int) -> dict[str, tuple[Any, ...]]:
    """Return the values for a rival's settings, for this many agents.

    With one scale per agent, these are all combinations.
    """
    axes: dict[str, tuple[Any, ...]] = dict(over)
    if "scales" in axes:
        axes["scales"] = tuple(product(axes["scales"], repeat=agents))
    return axes


def _choose(
    start: Recipe, over: Mapping[str, tuple[Any, ...]], analysis: Analysis, items: int
) -> tuple[dict[str, Any], Recipe]:
    """Return the record of a rival's tuning, and the tuned rival."""
    with offer_suite(VALIDATION):
        state = sweep(
            start,
            over,
            suites=VALIDATION.name,
            limit=items,
            held_out=0,
            max_settings=10_000,
            seed=VALIDATION_SEED,
            analysis=analysis,
            device="cpu",
        )
    best = state.best
    assert best is not None, "every grid has a setting that can be merged"
    settings = {name: best.settings[name] for name in over}
    found = {"settings": settings, "tried": len(state.rows), "score": round(best.average.score, 4)}
    return found, with_method(start, start.method, {**start.settings, **settings})


def rows_of(table: ExperimentResult) -> dict[str, Any]:
    """Return every row: scores, and the outcome against RAM+ on the same questions."""
    found: dict[str, Any] = {row.label: rounded(row) for row in table.rows}
    for row in table.rows:
        if (versus := row.versus) is not None:
            found[row.label]["versus"] = {
                "wins": versus.counts.wins,
                "losses": versus.counts.losses,
                "p_adjusted": versus.p_adjusted,
                "outcome": versus.outcome,
            }
    return found


def rounded(row: Row | ModelAnswers) -> dict[str, float]:
    """Return a model's score by domain and its average over skills, to four decimals."""
    scores = {domain: round(score.score, 4) for domain, score in row.domains.items()}
    return {**scores, "average": round(row.average.score, 4)}
