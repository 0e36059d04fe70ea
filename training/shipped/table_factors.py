"""Own and shared factors of the rows of a skill table without a formula.

Each such setting is merged once in memory, in float32; no model is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON, float32_threshold
from ram_studio.algorithm.meters.part_factors import measured_factors, part_sums
from ram_studio.algorithm.scaling import RULES
from ram_studio.engine.in_memory import ResidentMerge

_CHUNK = 1 << 22
"""Elements per block: all of a large model's would take much memory."""


def has_formula(row: Mapping[str, Any]) -> bool:
    """Return whether a row's factors follow from the analysis: RAM on the grid, and every scale."""
    is_ram = row["method"] in RULES and row["k"] is not None
    return row["kind"] != "merge" or is_ram or row["method"] == "task-arithmetic"


class FactorMeter:
    """A base and its agents in memory, to make and measure merges.

    base, agents: folders with one safetensors file each.
    """

    def __init__(self, base: Path, agents: Mapping[str, Path]) -> None:
        self._resident = ResidentMerge(base, agents, device="cpu", threads=1)
        self._base = load_file(base / "model.safetensors")
        self._agents = [load_file(folder / "model.safetensors") for folder in agents.values()]

    def factors(self, method: str, settings: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return {"own", "shared"} of a merge, by agent."""
        merged = self._resident.merge(method, settings, dtype="float32").tensors
        sums = sum(part_sums(*parts) for parts in self._changed(merged))
        found = measured_factors(np.zeros((len(self._agents), 2, 2)) + sums)
        return {part: [_short(value) for value in values] for part, values in found.items()}

    def _changed(self, merged: Mapping[str, Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the agents' changes and the merge's, of elements that an agent changed."""
        for tensor in self._resident.report.counted:
            every = (self._base, *self._agents, merged)
            flat = [tensors[tensor.name].reshape(-1) for tensors in every]
            for first in range(0, len(flat[0]), _CHUNK):
                parts = [own[first : first + _CHUNK].float().numpy() for own in flat]
                change = np.stack(parts[1:]) - parts[0]
                is_active = np.abs(change[:-1]) > float32_threshold(DEFAULT_EPSILON)
                change = change[:, is_active.any(0)]
                yield change[:-1], change[-1]


def with_factors(
    table: Mapping[str, Any], base: Path, agents: Mapping[str, Path]
) -> dict[str, Any]:
    """Return a skill table with measured `factors` in each row without a formula, else None."""
    meter = FactorMeter(base, agents)
    rows = [
        {
            **row,
            "factors": None if has_formula(row) else meter.factors(row["method"], row["settings"]),
        }
        for row in table["rows"]
    ]
    return {**table, "rows": rows}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
