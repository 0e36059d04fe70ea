"""The client profile: the part of a sketch that a browser needs to preview settings by itself."""

from __future__ import annotations

from typing import Any

from ram_studio.algorithm import scaling
from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.algorithm.sketch import Sketch

PROFILE_FORMAT = 1


def client_profile(sketch: Sketch) -> dict[str, Any]:
    """Return the counts for live previews as plain JSON data (about 100 kB).

    Keys: format, agents, ladder (K epsilons), default_index, total (elements), patterns (K lists
    of 2**N counts by agent bit mask, or None beyond six agents), overlap (K x N x N: elements agent
    t shares with exactly j others), layers, layer_total, layer_active (K x layers x N), layer_count
    (K x layers x (N + 1): elements by overlap count), modules, module_total, module_active,
    dialects, defaults, rules, dtypes, warnings; as_base_dtype_overlap (K x N x N or None).
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
    }
