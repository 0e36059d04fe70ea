"""The client profile: the data with which a browser previews settings without the server."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from ram_studio.algorithm import scaling
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.grouping import depths_of
from ram_studio.algorithm.meters.cosine_bounds import cosine_bounds
from ram_studio.algorithm.meters.part_factors import REFERENCE, PartFactors
from ram_studio.algorithm.meters.relations import Relations
from ram_studio.algorithm.meters.retained import Energies
from ram_studio.algorithm.meters.rounding_meter import DTYPES, PRECISION, StepCounts
from ram_studio.algorithm.verdict import find_lost_agents

PROFILE_FORMAT = 2

_LAYER_COARSEST = 8.0
_LAYER_SMALLEST = 2e-3
"""In the curves of layers, more updates count as loose (see Curve.to_dict)."""


def client_profile(analysis: Analysis) -> dict[str, Any]:
    """Return the counts for live previews as plain JSON data (100 to 350 kB).

    Keys: format, agents, epsilon grid (K epsilons), default_index, total (elements), patterns (K
    lists of 2**N counts by agent bit mask, or None beyond six agents), overlap (K x N x N: elements
    agent t shares with exactly j others), layers, layer_total, layer_active (K x layers x N),
    layer_count (K x layers x (N + 1): elements by overlap count), modules, module_total,
    module_active, defaults, rules, dtypes, warnings; as_base_dtype_overlap (K x N x N or None);
    energy, cross (K x N x N), norm2 (N): see ``retained.Energies``, the first two as shares of
    norm2, in twelve digits; parts, sum, weighing, relations and rounding. Each of these is None
    where the analysis does not have it. lost: K sentences on agents whose update epsilon removes
    in effect, None without any.

    parts: own and shared (K x N x (1 + N)), the numbers a, b_1 ... b_N of an agent's factor
        a + sum of lambda_s b_s on its own and shared part, see ``part_factors``, in seven decimals;
        sum: own and shared (N), those of the plain sum, which a scale multiplies. None where an
        agent has no such part.
    weighing, relations, rounding: see ``_weighing``, ``_relations`` and ``_rounding``.
    """
    model = analysis.model
    layers, modules = analysis.grouped("layer"), analysis.grouped("module")
    rounded = None if analysis.rounded is None else analysis.grouped("model", analysis.rounded)
    return {
        "format": PROFILE_FORMAT,
        "agents": list(analysis.agents),
        "epsilon_grid": list(EPSILON_GRID),
        "default_index": DEFAULT_INDEX,
        "total": analysis.total,
        "patterns": None if model.patterns is None else model.patterns[0].tolist(),
        "overlap": model.shared[0].tolist(),
        "as_base_dtype_overlap": None if rounded is None else rounded.shared[0].tolist(),
        "layers": list(analysis.group_labels("layer")),
        "layer_total": layers.numel.tolist(),
        "layer_active": layers.active.swapaxes(0, 1).tolist(),
        "layer_count": layers.by_count.swapaxes(0, 1).tolist(),
        "modules": list(analysis.group_labels("module")),
        "module_total": modules.numel.tolist(),
        "module_active": modules.active.swapaxes(0, 1).tolist(),
        "defaults": {
            "r": scaling.DEFAULT_R,
            "alpha": scaling.DEFAULT_ALPHA,
            "rule": scaling.DEFAULT_RULE,
        },
        "rules": list(scaling.RULES),
        "dtypes": dict(analysis.dtypes),
        "warnings": list(analysis.warnings),
        **_energies(analysis.energies),
        **_part_factors(analysis.part_factors),
        "lost": [
            found and found.finding.text
            for found in (find_lost_agents(analysis, point) for point in range(len(EPSILON_GRID)))
        ],
        "weighing": _weighing(analysis),
        "relations": None if analysis.relations is None else _relations(analysis),
        "rounding": None if analysis.steps is None else _rounding(analysis.steps),
    }


def _energies(found: Energies | None) -> dict[str, Any]:
    names = ("energy", "cross", "norm2")
    if found is None:
        return dict.fromkeys(names)
    sums = (found.energy, found.cross_shares, found.norm2)
    return {name: _short(values, 12) for name, values in zip(names, sums, strict=True)}


def _part_factors(found: PartFactors | None) -> dict[str, Any]:
    if found is None:
        return {"parts": None, "sum": None}
    rows, sums = np.round(found.parts, 7).tolist(), np.round(found.sum, 7).tolist()
    kinds = list(enumerate(("own", "shared")))
    return {
        "parts": {
            kind: [[None if math.isnan(t[p][0]) else t[p] for t in point] for point in rows]
            for p, kind in kinds
        },
        "sum": {kind: [None if math.isnan(t[p]) else t[p] for t in sums] for p, kind in kinds},
    }


def _weighing(analysis: Analysis) -> dict[str, Any] | None:
    """Return the sums by layer that factors with weights take.

    depth: of each layer, see ``grouping.depths_of``. total (layers x N x 2 x N): sums of tau_t
    tau_s over the own and the shared part of t, over the part's sum of tau_t^2. rows: the same of
    RAM's merge, 16-bit integers in base64, K x layers x N rows of 1 + 2N contributions: of t alone
    to its own part; of each s to means of its own part (below the reference epsilon, whose index is
    reference) or alone to its shared part (from there on; the other is 0); of each s to means of
    its shared part. scale (N x 2): factors on the integers, of the own and the shared part.
    """
    sums, parts = analysis.weighing, analysis.part_factors
    if sums is None or parts is None:
        return None
    groups = analysis.groups("layer")
    sums = sums if analysis.is_compact else sums.grouped(groups)
    inverse = np.divide(1.0, parts.energy, out=np.zeros_like(parts.energy), where=parts.energy > 0)
    shares = np.swapaxes(sums.factors, 0, 1) * inverse[:, :, None, None]
    n = len(analysis.agents)
    (own_mean, own_alone), (mean, alone) = (np.moveaxis(shares[:, :, :, p], -2, 0) for p in (0, 1))
    is_below = np.arange(len(shares))[:, None, None, None] < REFERENCE
    rows = np.zeros((*shares.shape[:3], 1 + 2 * n))
    rows[..., 0] = np.diagonal(own_alone, axis1=2, axis2=3)
    rows[..., 1 : 1 + n] = np.where(is_below, own_mean, alone)
    rows[..., 1 + n :] = mean
    own = np.zeros_like(rows, dtype=np.bool_)
    own[..., 0] = True
    own[:REFERENCE, ..., 1 : 1 + n] = True
    scale = np.stack([np.abs(np.where(part, rows, 0)).max((0, 1, 3)) for part in (own, ~own)], -1)
    step = np.maximum(scale, 1e-300) / np.iinfo(np.int16).max
    whole = np.rint(rows / np.where(own, step[:, :1], step[:, 1:])).astype("<i2")
    depths = depths_of(analysis.names)
    return {
        "depth": [depths[group[0]] for group in groups],
        "reference": REFERENCE,
        "scale": step.tolist(),
        "rows": base64.b64encode(whole.tobytes()).decode(),
        "total": _short(sums.total * inverse[:, :, None]),
    }


def _relations(analysis: Analysis) -> dict[str, Any]:
    """Return magnitudes, signs and cosines of the agents.

    unique_magnitude, shared_magnitude (K x N sums of |tau|: rho_m = shared / unique,
    0 when both are 0, infinite when only unique is); shared (K elements), conflict (K of them
    whose signs differ, or None), cancelled (K x N |tau| against the sum, or None); pairs (the
    P pairs of agents); pair_both, pair_opposite (K x P elements), pair_magnitude,
    pair_cancelled (K x P sums); cosine (N x N), layer_cosine (layers x P), None where a task
    vector is zero; cosine_floor, cosine_ceiling (P, or None), see ``cosine_bounds``; layer:
    the same but for cosines, layers instead of K, at the default epsilon only. Sums are those
    of ``relations.Relations``, in six digits but for the first two.
    """
    model, layers = analysis.grouped_relations("model"), analysis.grouped_relations("layer")
    shared = analysis.model.by_count[0, :, 2:].sum(-1)
    layer_shared = analysis.grouped("layer").by_count[:, DEFAULT_INDEX, 2:].sum(-1)
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
        **_bounds(analysis),
        "layer": {
            "unique_magnitude": _short(layers.magnitude[:, DEFAULT_INDEX, :, 0]),
            "shared_magnitude": _short(layers.magnitude[:, DEFAULT_INDEX, :, 1]),
            "shared": layer_shared.tolist(),
            **_signs(layers, (slice(None), DEFAULT_INDEX)),
        },
    }


def _bounds(analysis: Analysis) -> dict[str, Any]:
    found = cosine_bounds(analysis)
    sides = (None, None) if found is None else (found.floors, found.ceilings)
    names = ("cosine_floor", "cosine_ceiling")
    return {n: None if s is None else _short(s, 3) for n, s in zip(names, sides, strict=True)}


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
    """Return what each output dtype stores of the rescaling, as curves.

    dtypes, precision; agents[t][d] = {points: K indices, curves}, the curve of agent t
    and output dtype d at each grid point; layers[l][t][d], a curve at the default epsilon.
    A curve is {cells: [[delta, share, noise]], loose, spread, noise}, or None where the agent
    changed nothing alone. With x = (lambda - 1) delta,

        stored(delta) = 1 + rint(x) / delta
        estimate      = sum of share stored(delta) + loose lambda       (rounding to nearest)
        width         = spread + sum of share / (2 delta) over ties     (lambda up to 2)
        error         = sqrt(sum of noise f (1 - f) + noise / 4), f = x - floor(x)  (stochastic)

    where within 1e-4 of half-way rint(x) is floor(x) + 1/2 and the cell a tie; see
    ``rounding_meter.estimate`` for lambda beyond 2 and ``rounding_meter`` for the reasons.
    """
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
    """Return the different curves of an agent, and the index of the curve at each grid point."""
    curves: list[dict[str, Any] | None] = []
    points = []
    for point in range(len(EPSILON_GRID)):
        curve = steps.curve(agent, point, dtype)
        found = None if curve is None else curve.to_dict()
        if not curves or curves[-1] != found:
            curves.append(found)
        points.append(len(curves) - 1)
    return {"points": points, "curves": curves}


def _layer_curve(steps: StepCounts, layer: int, agent: int, dtype: str) -> dict[str, Any] | None:
    curve = steps.layer_curve(layer, agent, dtype)
    return None if curve is None else curve.to_dict(_LAYER_COARSEST, _LAYER_SMALLEST)
