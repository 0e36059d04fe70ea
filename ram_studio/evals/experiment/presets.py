"""Named sets of merges: the paper's analyses, ready grids, and the standard comparison.

Each is a function from one recipe (base, agents and common settings) to plain recipes by label, to
be scored (`experiment.run.compare_methods`) or written (`merge.merge`).

The grids' values are those of the paper's Table 11, and for r of its Table 2; descriptions mark
values of this project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ram_studio.algorithm.methods import get_method, make_settings
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import SettingsError
from ram_studio.evals.experiment.space import (
    MAX_WEIGHT,
    Candidate,
    Space,
    parse_axes,
    setting_label,
    with_method,
)


@dataclass(frozen=True)
class Experiment:
    """A set of merges. title, description: for display; build: recipe -> recipes by label."""

    title: str
    description: str
    build: Callable[[Recipe], dict[str, Recipe]]


def full_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe with all settings of its method, ready for JSON; paths only where given."""
    settings = make_settings(recipe.method, recipe.settings).model_dump(mode="json")
    settings = {k: v for k, v in settings.items() if k != "files" or v is not None}
    return {**recipe.model_dump(mode="json"), "settings": settings}


def with_agents(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    return recipe.model_copy(
        update={
            "agents": {name: recipe.agents[name] for name in names},
            "tokenizer": recipe.tokenizer if recipe.tokenizer in names else "base",
        }
    )


def label_of(
    method: str,
    settings: Mapping[str, Any],
    varied: Mapping[str, Any] | None = None,
    digits: int = 4,
) -> str:
    """Return a row's label: the method, and its settings where they differ from the defaults.

    varied: settings that are always shown. digits: of numbers.
    """
    defaults = get_method(method).settings().model_dump()
    changed = {k: v for k, v in settings.items() if v is not None and defaults.get(k) != v}
    return setting_label(method, {**(varied or {}), **changed}, digits)


def rows_of(recipe: Recipe, rows: list[tuple[str, dict[str, Any]]]) -> dict[str, Recipe]:
    """Return recipes by label for a list of (method, settings).

    A row's label has every setting in which rows of its method differ, also at its default: a
    verdict on "ties" applies to its settings only. Rows equal in four digits are shown with all
    digits.
    """
    every = [(m, make_settings(m, values).model_dump(mode="json")) for m, values in rows]
    made: list[tuple[str, str, Recipe]] = []
    for (method, values), (_, own) in zip(rows, every, strict=True):
        rivals = [theirs for name, theirs in every if name == method]
        varied = {k: v for k, v in own.items() if any(theirs[k] != v for theirs in rivals)}
        if "scale" in varied and varied["scale"] is None:
            varied["scale"] = f"1/{len(recipe.agents)}"
        label, whole = (label_of(method, values, varied, digits) for digits in (4, 12))
        made.append((label, whole, with_method(recipe, method, values)))
    return {
        whole if any(label == own and row != one for own, _, row in made) else label: one
        for label, whole, one in made
    }


def _standard(recipe: Recipe) -> dict[str, Recipe]:
    part = 1.0 / len(recipe.agents)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("task-arithmetic", {}),
        ("task-arithmetic", {"scale": 1.0}),
        ("fisher", {}),
        ("ties", {}),
        ("ties", {"scale": part}),
        ("dare-ta", {}),
        ("dare-ta", {"scale": 1.0}),
        ("dare-ties", {}),
        ("wudi", {}),
        ("tsv-m", {}),
        ("iso-c", {}),
        ("ram", {}),
        ("ram+", {}),
        ("ram+s", {}),
        ("ram+m", {}),
    ]
    return rows_of(recipe, rows)


def _unique_region(recipe: Recipe) -> dict[str, Recipe]:
    """Three probes per agent, with the recipe's epsilon where its method has one."""
    n, epsilon = len(recipe.agents), _epsilon(recipe)
    probes: dict[str, dict[str, Any]] = {
        "unique region": {"part": "unique", "scale": 1.0},
        f"unique region x 1/{n}": {"part": "unique", "scale": 1.0 / n},
        f"all changes x 1/{n}": {"part": "whole", "scale": 1.0 / n},
    }
    return {
        f"{name}: {label}": with_method(recipe, "region", {"agent": name, **values, **epsilon})
        for name in recipe.agents
        for label, values in probes.items()
    }


def _epsilon(recipe: Recipe) -> dict[str, Any]:
    return {k: v for k, v in recipe.settings.items() if k == "epsilon"}


RAM_ALONE = "RAM"
"""Label of both regions at full strength, the first point of the mechanism's two curves."""


def _mechanism(recipe: Recipe) -> dict[str, Recipe]:
    """One region scaled, the other unchanged, with the recipe's epsilon as above.

    The shared region grows to N times its mean, as in the plain sum; the unique ones shrink to 1/N,
    as in the average.
    """
    n = len(recipe.agents)
    if n < 2:
        raise SettingsError("Regions are shared by at least two agents; the recipe has one.")
    grown = [*(scale for scale in (1.5, 2.0, 3.0) if scale < n), float(n)]
    shrunk = [*(scale for scale in (0.7, 0.5) if scale > 1.0 / n), 1.0 / n]
    epsilon = _epsilon(recipe)
    found = {RAM_ALONE: with_method(recipe, "two-regions", epsilon)}
    for region, scales in (("shared", grown), ("unique", shrunk)):
        for scale in scales:
            values = {f"{region}_scale": scale, **epsilon}
            found[f"{region} x {scale:.4g}"] = with_method(recipe, "two-regions", values)
    return found


def _leave_one_out(recipe: Recipe) -> dict[str, Recipe]:
    names = tuple(recipe.agents)
    found = {f"all {len(names)} agents": recipe}
    for left_out in names if len(names) > 1 else ():
        rest = tuple(name for name in names if name != left_out)
        found[f"without {left_out}"] = with_agents(recipe, rest)
    return found


def _pairwise(recipe: Recipe) -> dict[str, Recipe]:
    names = tuple(recipe.agents)
    if len(names) < 2:
        raise SettingsError("Pairwise merges need at least two agents; the recipe has one.")
    return {f"{a} + {b}": with_agents(recipe, (a, b)) for a, b in combinations(names, 2)}


def _grid(method: str, **values: str) -> Callable[[Recipe], dict[str, Recipe]]:
    """Return the builder of every combination of a method's settings, see `space`."""

    def build(recipe: Recipe) -> dict[str, Recipe]:
        plain = with_method(recipe, method, {})
        found = Space(plain, parse_axes(values)).grid()
        # Every value is shown, also a default: it is the only difference between rows.
        return {c.label: c.recipe for c in found if c.recipe is not None}

    return build


_SCALES = "0.1,0.3,0.5,0.7,0.9,1"
_DROP_RATES = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"

EXPERIMENTS: dict[str, Experiment] = {
    "standard": Experiment(
        "Methods at their defaults",
        "The RAM family, Fisher, DARE + TIES, WUDI, TSV-M and Iso-C; task arithmetic, TIES and "
        "DARE + task arithmetic in full and averaged.",
        _standard,
    ),
    "unique-region": Experiment(
        "One agent's unique region alone",
        "What an agent's own elements carry, at full strength and diluted by 1/N, beside all "
        "its changes diluted by 1/N (the paper's Fig. 3).",
        _unique_region,
    ),
    "mechanism": Experiment(
        "Overshoot and dilution",
        "RAM with what is shared multiplied by up to N, as the sum does, and with what is unique "
        "multiplied by down to 1/N, as the average does (ours).",
        _mechanism,
    ),
    "leave-one-out": Experiment(
        "Leave one agent out",
        "The recipe with all agents, and without each of them.",
        _leave_one_out,
    ),
    "pairwise": Experiment(
        "Pairs of agents",
        "The recipe for every two of the agents (the paper's Fig. 5).",
        _pairwise,
    ),
    "r-ablation": Experiment(
        "Strength of the rescaling",
        "RAM+ at the r of the paper's Table 2: 0, 0.05, 0.1, 0.15 and 0.2.",
        _grid("ram+", r="0,0.05,0.1,0.15,0.2"),
    ),
    "epsilon-ablation": Experiment(
        "Threshold of change",
        "RAM+ at thresholds around the paper's 1e-5 (the values are ours).",
        _grid("ram+", epsilon="0.0,1e-6,1e-5,1e-4"),
    ),
    "task-arithmetic-grid": Experiment(
        "Task Arithmetic, all scales",
        "Scales 0.1 to 1.0 (the paper's Table 11).",
        _grid("task-arithmetic", scale=_SCALES),
    ),
    "ties-grid": Experiment(
        "TIES, all scales",
        "Scales 0.1 to 1.0, keeping 0.1, 0.2 and 0.3 of the changes (the paper's Table 11).",
        _grid("ties", density="0.1,0.2,0.3", scale=_SCALES),
    ),
    "dare-grid": Experiment(
        "DARE + Task Arithmetic, all drop rates",
        "Drop rates 0.1 to 0.9 (the paper's Table 11).",
        _grid("dare-ta", drop_rate=_DROP_RATES),
    ),
    "dare-ties-grid": Experiment(
        "DARE + TIES, all drop rates",
        "Drop rates 0.1 to 0.9 (the paper's Table 11).",
        _grid("dare-ties", drop_rate=_DROP_RATES),
    ),
    "fisher-grid": Experiment(
        "Fisher, all scales",
        "Scales 0.1 to 1.0, estimated on 256 to 2048 examples (the paper's Table 11).",
        _grid("fisher", scale=_SCALES, examples="256,512,1024,2048"),
    ),
}


def experiment_recipes(name: str, recipe: Recipe) -> dict[str, Recipe]:
    """Return an experiment's recipes by label, for the recipe's base and agents.

    Raises: SettingsError for an unknown experiment, or too few agents for it.
    """
    if name not in EXPERIMENTS:
        raise SettingsError(
            f"The experiment is {name!r}; it must be one of {', '.join(EXPERIMENTS)}."
        )
    return EXPERIMENTS[name].build(recipe)


def norm_matched(
    merge: Recipe, agent: str, every: Recipe, change_norm: Callable[[Recipe], float]
) -> Candidate | None:
    """Return the control of a comparison: its best agent, scaled to the norm of the merge's change.

    control = base + s * tau_a,    s = |merge - base| / |tau_a|

    A merge is often further from the base than any agent; a gain that a longer step in one agent's
    direction also gives does not come from merging. None where the agent changed nothing, or the
    weight would exceed a recipe's limit.

    Args:
        merge: its distance from the base is matched.
        agent: the one with the best score, one of ``every``'s.
        change_norm: recipe -> |merge - base|.
    """
    plain = every.model_copy(update={"weights": {}, "densities": {}, "filters": ()})
    alone = with_method(with_agents(plain, (agent,)), "task-arithmetic", {"scale": 1.0})
    length = change_norm(alone)
    scale = change_norm(merge) / length if length else 0.0
    if not 0 < scale <= MAX_WEIGHT:
        return None
    scaled = alone.model_copy(update={"weights": {agent: scale}})
    return Candidate(f"norm-matched {agent}", {}, scaled)
