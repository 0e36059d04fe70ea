"""What a merge will write, need and lose, said before it runs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ram_studio.algorithm.meters.rounding_meter import estimate, rounding_advice
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.merge.work import SLOW, MergeForm, output_bytes, output_dtype
from ram_studio.app.numbers import DTYPE_NAMES
from ram_studio.app.session import Loaded

_START_SECONDS = 0.2
_USUAL_RATE = 300e6
"""Bytes a second where nothing was measured: two cores of a small machine."""

RESCALING = tuple(rule for rule in RULES if rule != "ram")
_TRAP = (
    "In {dtype}, rounding to nearest can lose part of the rescaling: RL changes are often a single "
    "step of that format, and λ × one step rounds back to one step. Stochastic rounding keeps it "
    "on average, float32 exactly. The result shows the λ that was really stored."
)


@dataclass(frozen=True)
class Plan:
    """A merge before it runs.

    needed, free: bytes of disk. seconds: None where reading and writing are not what takes them.
    remote: bytes read from the Hub, not stored.
    caution: what rounding may take, "" for nothing.
    """

    method: str
    dtype: str
    needed: int
    free: int
    seconds: float | None
    caution: str
    remote: int = 0


def plan_merge(loaded: Loaded, form: MergeForm, folder: Path) -> Plan:
    """Return what a merge into ``folder`` (which need not exist) will do and need."""
    dtype = output_dtype(loaded, form.dtype)
    needed = output_bytes(loaded, dtype)
    while not folder.exists():
        folder = folder.parent
    seconds = None if form.method in SLOW else _seconds(loaded, needed)
    caution = rounding_caution(loaded, form, dtype)
    free = shutil.disk_usage(folder).free
    return Plan(form.method, dtype, needed, free, seconds, caution, loaded.remote_bytes)


def _seconds(loaded: Loaded, written: float) -> float:
    """Return how long a merge should take: everything read once, as fast as the analysis was."""
    read = output_bytes(loaded, None) * (1 + len(loaded.agents))
    return _START_SECONDS + (read + written) / (loaded.read_rate or _USUAL_RATE)


def rounding_caution(loaded: Loaded, form: MergeForm, dtype: str) -> str:
    """Return a sentence where rounding to nearest takes much of the rescaling, "" elsewhere.

    With the sketch's statistics it names agents and factors; without, it says what can happen.
    """
    is_exposed = form.rounding == "nearest" and dtype != "float32" and form.r > 0
    if form.method not in RESCALING or not is_exposed:
        return ""
    sketch = loaded.sketch
    if sketch.steps is None or form.own.get("scope", "global") != "global":
        return _TRAP.format(dtype=dtype)
    agents = sketch.preview(form.point, form.method, form.r, form.alpha)["agents"]
    code = next(k for k, name in DTYPE_NAMES.items() if name == dtype)
    factors = {}
    for t, (name, numbers) in enumerate(agents.items()):
        curve = sketch.steps.curve(t, form.point, code)
        if curve is not None:
            factors[name] = (numbers["lambda"], estimate(curve, numbers["lambda"]).value)
    return rounding_advice(dtype, factors)
