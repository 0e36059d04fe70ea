"""What a merge will write, need and lose, said before it runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ram_studio.algorithm.meters.rounding_meter import estimate, rounding_advice
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.merge.work import SLOW, MergeForm, output_bytes, output_dtype
from ram_studio.app.numbers import DTYPE_NAMES
from ram_studio.app.session import Loaded, Merged

_START_SECONDS = 0.2

RESCALING = tuple(rule for rule in RULES if rule != "ram")
_TRAP = (
    "In {dtype}, rounding to nearest can lose part of the rescaling: RL changes are often a single "
    "step of that format, and λ × one step rounds back to one step. Stochastic rounding keeps it "
    "on average, float32 exactly. The result shows the λ that was really stored."
)


@dataclass(frozen=True)
class Plan:
    """A merge before it runs.

    needed, free: bytes of disk. seconds: None where none like it was measured here.
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


def plan_merge(loaded: Loaded, form: MergeForm, folder: Path, made: Iterable[Merged] = ()) -> Plan:
    """Return what a merge into ``folder`` (which need not exist) will do and need.

    made: merges of the same models, which tell how long another one takes.
    """
    dtype = output_dtype(loaded, form.dtype)
    needed = output_bytes(loaded, dtype)
    while not folder.exists():
        folder = folder.parent
    seconds = _seconds(loaded, form.method, needed, made)
    caution = rounding_caution(loaded, form, dtype)
    free = shutil.disk_usage(folder).free
    return Plan(form.method, dtype, needed, free, seconds, caution, loaded.remote_bytes)


def _seconds(loaded: Loaded, method: str, written: int, made: Iterable[Merged]) -> float | None:
    """Return how long a merge should take: as the last one alike, or read as the analysis was.

    None where neither was measured here; a slow method's time is not that of reading.
    """
    for merged in reversed(list(made)):
        if merged.method == method and merged.result["bytes_written"] > 0:
            seconds: float = merged.result["seconds"]
            return seconds * max(1.0, written / merged.result["bytes_written"])
    if method in SLOW or loaded.read_rate is None:
        return None
    read = output_bytes(loaded, None) * (1 + len(loaded.agents))
    return _START_SECONDS + (read + written) / loaded.read_rate


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
