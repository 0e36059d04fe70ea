"""Own and shared factors of the rows of a skill table that no formula gives.

Each such setting is merged once in memory, in float32; no model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from ram_studio.algorithm.meters.part_factors import measured_factors, part_sums
from ram_studio.algorithm.scaling import RULES
from ram_studio.engine.in_memory import ResidentMerge


def has_formula(row: Mapping[str, Any]) -> bool:
    """Return whether a row's factors follow from the analysis: RAM on the grid, and every scale."""
    is_ram = row["method"] in RULES and row["k"] is not None
    return row["kind"] != "merge" or is_ram or row["method"] == "task-arithmetic"


def with_factors(
    table: Mapping[str, Any], base: Path, agents: Mapping[str, Path]
) -> dict[str, Any]:
    """Return a skill table with measured `factors` in each row that no formula gives, else None."""
    resident = ResidentMerge(base, agents, device="cpu", threads=1)
    names = [tensor.name for tensor in resident.report.counted]

    def flat(tensors: Mapping[str, Any]) -> np.ndarray:
        return np.concatenate([tensors[name].float().reshape(-1).numpy() for name in names])

    start = flat(load_file(base / "model.safetensors"))
    tau = np.stack([flat(load_file(folder / "model.safetensors")) for folder in agents.values()])
    tau -= start

    def factors(row: Mapping[str, Any]) -> dict[str, list[Any]] | None:
        if has_formula(row):
            return None
        merged = resident.merge(row["method"], row["settings"], dtype="float32").tensors
        found = measured_factors(part_sums(tau, flat(merged) - start))
        return {part: [_short(value) for value in values] for part, values in found.items()}

    return {**table, "rows": [{**row, "factors": factors(row)} for row in table["rows"]]}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
