"""The client profile: the part of a sketch that a browser needs to preview settings by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ram_studio.algorithm import scaling
from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.algorithm.meters.kept import Energies
from ram_studio.algorithm.meters.relations import Relations
from ram_studio.algorithm.meters.rounding_meter import DTYPES, PRECISION, StepCounts
from ram_studio.algorithm.sketch import Sketch

PROFILE_FORMAT = 2

_LAYER_COARSEST = 8.0
_LAYER_SMALLEST = 2e-3
"""In the curves of layers, more updates count as loose (see Curve.to_dict)."""


def client_profile(sketch: Sketch) -> dict[str, Any]:
    """Return the counts for live previews as plain JSON data (100 to 350 kB).

    Keys: format, agents, ladder (K epsilons), default_index, total (elements), patterns (K lists
    of 2**N counts by agent bit mask, or None beyond six agents), overlap (K x N x N: elements agent
    t shares with exactly j others), layers, layer_total, layer_active (K x layers x N), layer_count
    (K x layers x (N + 1): elements by overlap count), modules, module_total, module_active,
    defaults, rules, dtypes, warnings; as_base_dtype_overlap (K x N x N or None);
    energy, cross (K x N x N), meet (K x (N + 1)), norm2, others_all (N): sums for kept and all
    else, see ``kept.Energies``, the first two as shares of norm2, in twelve digits; relations and
    rounding. Each of these is None where the sketch does not have it.

    relations: unique_magnitude, shared_magnitude (K x N sums of |tau|: rho_m = shared / unique,
        0 when both are 0, infinite when only unique is); shared (K elements), conflict (K of them
        whose signs differ, or None), cancelled (K x N |tau| against the sum, or None); pairs (the
        P pairs of agents); pair_both, pair_opposite (K x P elements), pair_magnitude,
        pair_cancelled (K x P sums); cosine (N x N), layer_cosine (layers x P), None where a task
        vector is zero; layer: the same but for cosines, layers instead of K, at the default epsilon
        only. Sums are those of ``relations.Relations``, in six digits but for the first two.
    rounding: dtypes, precision; agents[t][d] = {points: K indices, curves}, the curve of agent t
        and output dtype d at each ladder point; layers[l][t][d], a curve at the default epsilon.
        A curve is {cells: [[delta, share, noise]], loose, spread, noise}, or None where the agent
        changed nothing alone. With x = (lambda - 1) delta,

            kept(delta) = 1 + rint(x) / delta
            estimate    = sum of share kept(delta) + loose lambda           (rounding to nearest)
            width       = spread + sum of share / (2 delta) over ties       (lambda up to 2)
            error       = sqrt(sum of noise f (1 - f) + noise / 4), f = x - floor(x)  (stochastic)

        where within 1e-4 of half-way rint(x) is floor(x) + 1/2 and the cell a tie; see
        ``rounding_meter.estimate`` for lambda beyond 2 and ``rounding_meter`` for the reasons.
    """
    model = sketch.model
    layers, modules = sketch.grouped("layer"), sketch.grouped("module")
    rounded = None if sketch.rounded is None else sketch.grouped("model", sketch.rounded)
    return {
        "format": PROFILE_FORMAT,
        "agents": list(sketch.agents),
        "ladder": list(LADDER),
        "default_index": DEFAULT_INDEX,
        "total": sketch.total,
        "patterns": None if model.patterns is None else model.patterns[0].tolist(),
        "overlap": model.shared[0].tolist(),
        "as_base_dtype_overlap": None if rounded is None else rounded.shared[0].tolist(),
        "layers": list(sketch.group_labels("layer")),
        "layer_total": layers.numel.tolist(),
        "layer_active": layers.active.swapaxes(0, 1).tolist(),
        "layer_count": layers.by_count.swapaxes(0, 1).tolist(),
        "modules": list(sketch.group_labels("module")),
        "module_total": modules.numel.tolist(),
        "module_active": modules.active.swapaxes(0, 1).tolist(),
        "defaults": {
            "r": scaling.DEFAULT_R,
            "alpha": scaling.DEFAULT_ALPHA,
            "rule": scaling.DEFAULT_RULE,
        },
        "rules": list(scaling.RULES),
        "dtypes": dict(sketch.dtypes),
        "warnings": list(sketch.warnings),
        **_energies(sketch.energies),
        "relations": None if sketch.relations is None else _relations(sketch),
        "rounding": None if sketch.steps is None else _rounding(sketch.steps),
    }


def _energies(found: Energies | None) -> dict[str, Any]:
    names = ("energy", "cross", "meet", "norm2", "others_all")
    if found is None:
        return dict.fromkeys(names)
    sums = (found.energy, found.cross_shares, found.meet, found.norm2, found.others_all)
    # The browser's kept is to agree with Sketch.preview to 1e-9, and all else takes differences.
    return {name: _short(values, 12) for name, values in zip(names, sums, strict=True)}


def _relations(sketch: Sketch) -> dict[str, Any]:
    model, layers = sketch.grouped_relations("model"), sketch.grouped_relations("layer")
    shared = sketch.model.by_count[0, :, 2:].sum(-1)
    layer_shared = sketch.grouped("layer").by_count[:, DEFAULT_INDEX, 2:].sum(-1)
    pairs = model.pairs
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    return {
        "unique_magnitude": model.magnitude[0, :, :, 0].tolist(),
        "shared_magnitude": model.magnitude[0, :, :, 1].tolist(),
        "shared": shared.tolist(),
        **_signs(model, 0),
        "pairs": [list(pair) for pair in pairs],
        "cosine": _short(model.cosines[0]),
        "layer_cosine": _short(layers.cosines[:, first, second]),
        "layer": {
            "unique_magnitude": _short(layers.magnitude[:, DEFAULT_INDEX, :, 0]),
            "shared_magnitude": _short(layers.magnitude[:, DEFAULT_INDEX, :, 1]),
            "shared": layer_shared.tolist(),
            **_signs(layers, (slice(None), DEFAULT_INDEX)),
        },
    }


def _signs(found: Relations, where: Any) -> dict[str, Any]:
    conflicts, cancelled = found.conflicts, found.cancelled
    return {
        "conflict": None if conflicts is None else conflicts[where].tolist(),
        "cancelled": None if cancelled is None else _short(cancelled[where]),
        "pair_both": found.pair_counts[where][..., 0].tolist(),
        "pair_opposite": found.pair_counts[where][..., 1].tolist(),
        "pair_magnitude": _short(found.pair_sums[where][..., 0]),
        "pair_cancelled": _short(found.pair_sums[where][..., 1]),
    }


def _short(values: np.ndarray | np.floating, digits: int = 6) -> Any:
    """Return an array as nested lists of numbers in six digits, None for NaN."""
    if isinstance(values, np.ndarray) and values.ndim:
        return [_short(row, digits) for row in values]
    number = float(values)
    if math.isnan(number):
        return None
    return float(f"{number:.{digits}g}") or 0


def _rounding(steps: StepCounts) -> dict[str, Any]:
    agents = range(steps.n_agents)
    return {
        "dtypes": list(DTYPES),
        "precision": [PRECISION[d] for d in DTYPES],
        "agents": [[_every_point(steps, t, d) for d in DTYPES] for t in agents],
        "layers": [
            [[_layer_curve(steps, layer, t, d) for d in DTYPES] for t in agents]
            for layer in range(len(steps.layers))
        ],
    }


def _every_point(steps: StepCounts, agent: int, dtype: str) -> dict[str, Any]:
    """Return the different curves of an agent, and which of them holds at each ladder point."""
    curves: list[dict[str, Any] | None] = []
    points = []
    for point in range(len(LADDER)):
        curve = steps.curve(agent, point, dtype)
        found = None if curve is None else curve.to_dict()
        if not curves or curves[-1] != found:
            curves.append(found)
        points.append(len(curves) - 1)
    return {"points": points, "curves": curves}


def _layer_curve(steps: StepCounts, layer: int, agent: int, dtype: str) -> dict[str, Any] | None:
    curve = steps.layer_curve(layer, agent, dtype)
    return None if curve is None else curve.to_dict(_LAYER_COARSEST, _LAYER_SMALLEST)
