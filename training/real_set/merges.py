"""The measured merges of the three agents: the RAM family and its rivals.

The values are those of the RAM paper's sweeps (r, alpha, epsilon, trim density, drop rate, scale)
and a few between. "sum" is task arithmetic at scale 1, "average" at 1/3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.methods import METHODS
from training.real_set.tasks import SKILLS


@dataclass(frozen=True)
class Merge:
    """One merge. settings: the method's. output: dtype and rounding where not the defaults."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method with its settings, such as `ties density=0.2 scale=1`."""
        values = {**self.settings, **self.output}
        return " ".join([self.method, *(f"{k}={_short(v)}" for k, v in values.items())])

    @property
    def dtype(self) -> str:
        """The dtype in which it is stored and answers."""
        return str(self.output.get("dtype", "bfloat16"))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def merges() -> list[Merge]:
    """Return all merges, the most important first; missing methods are left out."""
    return [merge for merge in _all() if merge.method in METHODS]


def _all() -> Iterator[Merge]:
    third = 1.0 / len(SKILLS)
    # The main ones: RAM and RAM+ as published, average, sum, and the rivals.
    yield Merge("ram+")
    yield Merge("task-arithmetic", {"scale": third})
    yield Merge("task-arithmetic", {"scale": 1.0})
    yield Merge("ram")
    yield Merge("ties", {"density": 0.2, "scale": 1.0})
    yield Merge("ties", {"density": 0.5, "scale": 0.8})
    yield Merge("dare-ta", {"drop_rate": 0.5, "scale": 1.0})
    yield Merge("dare-ties", {"drop_rate": 0.5, "density": 0.5, "scale": 1.0})
    # RAM+ in the other two ways to store it.
    yield Merge("ram+", output={"rounding": "stochastic"})
    yield Merge("ram+", output={"dtype": "float32"})
    # One point of each curve.
    yield Merge("ram+", {"epsilon": 0.0})
    yield Merge("task-arithmetic", {"scale": 0.5})
    yield Merge("ram+", {"r": 0.5})
    yield Merge("ties", {"density": 0.8, "scale": 1.0})
    # The rest of the curves, and other methods.
    for scale in (0.8, 0.6, 0.2, 1.2, 1.5):
        yield Merge("task-arithmetic", {"scale": scale})
    for density in (0.1, 0.4, 0.6, 1.0):
        yield Merge("ties", {"density": density, "scale": 1.0})
    yield from (Merge(name) for name in ("magmax", "sce", "iso-c", "tsv-m"))
    yield from _ram_family()
    for density in (0.5, 0.2, 0.8):
        for scale in (1.5, 2.0):
            yield Merge("ties", {"density": density, "scale": scale})
    for drop_rate in (0.3, 0.8):
        for scale in (1.0, third):
            yield Merge("dare-ta", {"drop_rate": drop_rate, "scale": scale})
        yield Merge("dare-ties", {"drop_rate": drop_rate, "density": 0.8, "scale": 1.0})
    # These take minutes per merge on a CPU.
    yield from (Merge(name) for name in ("resmerge", "wudi"))
    for scale in (0.5, 1.5):
        yield from (Merge(name, {"scale": scale}) for name in ("iso-c", "tsv-m"))


def _ram_family() -> Iterator[Merge]:
    # At the analysis's grid points, so that Tune can draw these merges on its curve.
    fine, coarse = (EPSILON_GRID[snap(near)] for near in (1e-6, 1e-4))
    yield Merge("ram+", {"r": 1.0})
    yield Merge("ram+", {"epsilon": coarse})
    yield Merge("ram", {"shared": "ties"})
    yield Merge("ram+", {"r": 0.2})
    yield Merge("ram+s", {"r": 0.5})
    yield Merge("ram+", {"r": 0.5}, {"rounding": "stochastic"})
    yield Merge("ram", output={"dtype": "float32"})
    yield Merge("ram", {"epsilon": 0.0})
    for r in (0.1, 0.5, 1.0):
        yield Merge("ram+m", {"r": r})
    yield Merge("ram+", {"shared": "ties"})
    yield Merge("ram+", {"scope": "layer"}, {"rounding": "stochastic"})
    yield Merge("ram+", {"epsilon": fine})
    for r in (0.1, 1.0):
        yield Merge("ram+s", {"r": r})
    yield Merge("ram+", {"r": 0.05})
    for r in (0.05, 0.5, 0.2, 1.0):
        yield Merge("ram+", {"r": r, "alpha": 1.0})
    for epsilon in (fine, coarse):
        yield Merge("ram", {"epsilon": epsilon})
    yield Merge("ram+", {"scope": "layer"})
    yield Merge("ram+", {"scope": "tensor"})
    yield Merge("ram+", {"scope": "tensor"}, {"rounding": "stochastic"})
    yield Merge("ram+m", {"r": 0.1}, {"rounding": "stochastic"})
