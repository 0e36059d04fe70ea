"""An analysis's statistics beyond counts, as JSON: signs, cosines and the rounding meter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ram_studio.algorithm.analysis import BASE, Analysis
from ram_studio.algorithm.meters.cosine_bounds import cosine_bounds
from ram_studio.algorithm.meters.rounding_meter import (
    DTYPES,
    estimate,
    rounding_advice,
    stochastic_error,
)

DTYPE_WORDS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def relation_preview(analysis: Analysis, point: int) -> dict[str, Any] | None:
    """Return magnitudes, conflicts, cancellation and cosines over the model at a grid point.

    Keys: shared (elements), conflict (of them, signs differ) and conflict_share; agents, by name:
    unique_magnitude, shared_magnitude, cancelled and cancelled_share (of its shared magnitude);
    pairs, as "a+b": both, opposite, opposite_share, magnitude, cancelled, cancelled_share, cosine,
    cosine_floor and cosine_ceiling, see ``cosine_bounds``.
    None where a number is not known (agents were left out) or not defined (0 / 0).
    None altogether when the analysis has no relations. See ``relations.Relations`` for each.
    """
    if analysis.relations is None:
        return None
    model = analysis.grouped_relations("model")
    shared = int(analysis.model.by_count[0, point, 2:].sum())
    conflict = None if model.conflicts is None else int(model.conflicts[0, point])
    agents = {}
    for t, name in enumerate(analysis.agents):
        unique_sum, shared_sum = map(float, model.magnitude[0, point, t])
        cancelled = None if model.cancelled is None else float(model.cancelled[0, point, t])
        agents[name] = {
            "unique_magnitude": unique_sum,
            "shared_magnitude": shared_sum,
            "cancelled": cancelled,
            "cancelled_share": _share(cancelled, shared_sum),
        }
    pairs, bounds = {}, cosine_bounds(analysis)
    for place, (a, b) in enumerate(model.pairs):
        both, opposite = map(int, model.pair_counts[0, point, place])
        magnitude, lost = map(float, model.pair_sums[0, point, place])
        cosine = float(model.cosines[0, a, b])
        sides = (None, None) if bounds is None else (bounds.floors, bounds.ceilings)
        floor, ceiling = (None if side is None else float(side[place]) for side in sides)
        pairs[f"{analysis.agents[a]}+{analysis.agents[b]}"] = {
            "both": both,
            "opposite": opposite,
            "opposite_share": _share(opposite, both),
            "magnitude": magnitude,
            "cancelled": lost,
            "cancelled_share": _share(lost, magnitude),
            **{
                key: None if value is None or math.isnan(value) else value
                for key, value in (
                    ("cosine", cosine),
                    ("cosine_floor", floor),
                    ("cosine_ceiling", ceiling),
                )
            },
        }
    return {
        "shared": shared,
        "conflict": conflict,
        "conflict_share": _share(conflict, shared),
        "agents": agents,
        "pairs": pairs,
    }


def _share(part: float | int | None, whole: float | int) -> float | None:
    return None if part is None or not whole else part / whole


def rounding_preview(
    analysis: Analysis, point: int, factors: Mapping[str, float | None]
) -> dict[str, Any] | None:
    """Return the effective lambda in each output dtype, by dtype in words and agent.

    factors: requested lambda by agent; an agent without one is left out. For each agent with unique
    elements: nearest (the estimate), low and high (bounds of the measured factor), stochastic
    (lambda) and stochastic_error (its standard error). None when the analysis lacks steps.
    """
    if analysis.steps is None:
        return None
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        by_agent = found[DTYPE_WORDS[dtype]] = {}
        for t, name in enumerate(analysis.agents):
            curve, factor = analysis.steps.curve(t, point, dtype), factors.get(name)
            if curve is None or factor is None:
                continue
            nearest = estimate(curve.short(), factor).value
            _, low, high = estimate(curve, factor)
            by_agent[name] = {
                "nearest": nearest,
                "low": min(low, nearest),
                "high": max(high, nearest),
                "stochastic": factor,
                "stochastic_error": stochastic_error(curve, factor),
            }
    return found


def rounding_warning(
    analysis: Analysis, previewed: Mapping[str, Any], dtype: str | None = None
) -> str:
    """Return the advice on rounding to nearest, "" for none.

    previewed: what ``rounding_preview`` returned. dtype: the output's, in words; the base's when
    None.
    """
    words = dtype or DTYPE_WORDS.get(analysis.dtypes.get(BASE, ""), "bfloat16")
    factors = {n: (a["stochastic"], a["nearest"]) for n, a in previewed[words].items()}
    return rounding_advice(words, factors)
