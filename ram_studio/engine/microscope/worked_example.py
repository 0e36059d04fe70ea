"""One element's merge, worked out: each method's formula with the numbers of that element in it.

Follows the methods' definitions in float64, in the order in which the kernels add, so that
``value`` is what the kernels round. Knows nothing of files; the engine supplies what a method was
prepared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class ElementInput:
    """One element of a merge.

    agents: names; base: its value; values: each agent's; row: of its tensor among Facts.tensors;
    survives: per agent, whether dropping (DARE) keeps the element; fisher: per agent, its Fisher
    information; epsilon: the threshold by which "changed" is said, for methods without their own.
    """

    agents: tuple[str, ...]
    base: float
    values: tuple[float, ...]
    row: int
    survives: tuple[bool, ...] | None = None
    fisher: tuple[float, ...] | None = None

    @property
    def taus(self) -> tuple[float, ...]:
        """Each agent's change, exactly."""
        return tuple(value - self.base for value in self.values)

    def exceeds(self, agent: int, threshold: np.float32) -> bool:
        """Say whether an agent's change is above a threshold, compared in float32 as in a pass."""
        tau = np.float32(self.values[agent]) - np.float32(self.base)
        return bool(abs(tau) > threshold)


class Worked(NamedTuple):
    """A formula with its numbers: the text, its float64 value before rounding, and a remark.

    is_base: the base stays, so the text is a number already.
    """

    expression: str
    value: float
    note: str = ""
    is_base: bool = False


def number(value: float, digits: int = 6) -> str:
    """Return a number in at most ``digits`` significant digits, with a real minus sign."""
    return f"{value:.{digits}g}".replace("-", "−")


def worked_example(method: str, prepared: Any, element: ElementInput) -> Worked:
    """Return one element's merge by a method, worked out.

    prepared: what the method's ``prepare`` returned. Raises: KeyError for a method that has no
    formula for single elements (WUDI in linear layers is the engine's to leave out).
    """
    return _FORMULAS[method](prepared, element)


def _sum_text(terms: Sequence[float]) -> str:
    first, *rest = terms
    text = number(first)
    for term in rest:
        text += f" − {number(-term)}" if term < 0 else f" + {number(term)}"
    return f"({text})" if rest else text if first >= 0 else f"({text})"


def _factor_text(factor: float) -> str:
    return "" if factor == 1.0 else f"{number(factor, 4)} × "


def _stays(element: ElementInput, note: str) -> Worked:
    return Worked(number(element.base), element.base, note, is_base=True)


def _ram(rule: Any, element: ElementInput) -> Worked:
    x, taus = element.base, element.taus
    active = [t for t in range(len(taus)) if element.exceeds(t, rule.epsilon)]
    if not active:
        return _stays(element, "no change above epsilon: the base stays")
    if len(active) == 1:
        t = active[0]
        factor = float(rule.factors[element.row, t])
        value = element.values[t] if factor == 1.0 else x + factor * taus[t]
        text = f"{number(x)} + {_factor_text(factor)}{_sum_text([taus[t]])}"
        return Worked(text, value, f"only {element.agents[t]} changed it")
    total = _total(taus[t] for t in active)
    voters, note = active, f"mean of {len(active)} changes"
    if rule.elect_sign:
        voters = [t for t in active if taus[t] * total > 0]
        note = f"mean of the {len(voters)} of {len(active)} changes that agree in sign"
        if not voters:
            return _stays(element, "the changes cancel: the base stays")
        total = _total(taus[t] for t in voters)
    text = f"{number(x)} + {_sum_text([taus[t] for t in voters])} ÷ {len(voters)}"
    return Worked(text, x + total / len(voters), note)


def _total(terms: Any) -> float:
    """Add from left to right, as the kernels do (``sum`` compensates since Python 3.12)."""
    total = 0.0
    for term in terms:
        total += term
    return total


def _lost(element: ElementInput, lost: Sequence[int], how: str) -> str:
    return f"{', '.join(element.agents[t] for t in lost)} {how}" if lost else ""


def _scaled_sum(element: ElementInput, factor: float) -> Worked:
    x, taus = element.base, element.taus
    moved = [t for t, tau in enumerate(taus) if tau != 0]
    kept = [t for t in moved if element.survives is None or element.survives[t]]
    note = _lost(element, [t for t in moved if t not in kept], "dropped by chance")
    total = _total(taus[t] for t in kept)
    if not moved:
        return _stays(element, "nobody changed it: the base stays")
    if total == 0:
        return _stays(element, note or "the changes cancel: the base stays")
    text = f"{number(x)} + {_factor_text(factor)}{_sum_text([taus[t] for t in kept])}"
    return Worked(text, x + factor * total, note)


def _task_arithmetic(rule: Any, element: ElementInput) -> Worked:
    return _scaled_sum(element, rule.scale)


def _elected_mean(element: ElementInput, thresholds: np.ndarray, factor: float) -> Worked:
    x, taus = element.base, element.taus
    moved = [t for t, tau in enumerate(taus) if tau != 0]
    if not moved:
        return _stays(element, "nobody changed it: the base stays")
    above = [t for t in moved if element.exceeds(t, thresholds[t])]
    kept = [t for t in above if element.survives is None or element.survives[t]]
    notes = [
        _lost(element, [t for t in moved if t not in above], "trimmed as too small"),
        _lost(element, [t for t in above if t not in kept], "dropped by chance"),
    ]
    total = _total(taus[t] for t in kept)
    voters = [t for t in kept if taus[t] * total > 0]
    if kept and not voters:
        notes.append("the changes cancel: the base stays")
    outvoted = [t for t in kept if t not in voters]
    notes.append(_lost(element, outvoted if voters else [], "outvoted in sign"))
    note = "; ".join(n for n in notes if n)
    if not voters:
        return _stays(element, note)
    text = f"{number(x)} + {_factor_text(factor)}{_sum_text([taus[t] for t in voters])}"
    if len(voters) > 1:
        text += f" ÷ {len(voters)}"
    return Worked(text, x + factor * (_total(taus[t] for t in voters) / len(voters)), note)


def _ties(rule: Any, element: ElementInput) -> Worked:
    return _elected_mean(element, rule.thresholds[element.row], rule.scale)


def _dare(rule: Any, element: ElementInput) -> Worked:
    if rule.thresholds is None:
        return _scaled_sum(element, rule.factor)
    return _elected_mean(element, rule.thresholds[element.row], rule.factor)


def _fisher(rule: Any, element: ElementInput) -> Worked:
    assert element.fisher is not None, "the engine reads what the method declared"
    x, taus = element.base, element.taus
    if not any(taus):
        return _stays(element, "nobody changed it: the base stays")
    weight = _total(element.fisher)
    if weight > 0:
        mean = _total(f * tau for f, tau in zip(element.fisher, taus, strict=True)) / weight
        terms = " + ".join(
            f"{number(f, 3)} × {_sum_text([tau])}"
            for f, tau in zip(element.fisher, taus, strict=True)
        )
        text, note = f"({terms}) ÷ {number(weight, 3)}", "weighted by Fisher information"
    else:
        mean = _total(taus) / len(taus)
        text, note = f"{_sum_text(taus)} ÷ {len(taus)}", "no Fisher information here: plain mean"
    return Worked(f"{number(x)} + {_factor_text(rule.scale)}{text}", x + rule.scale * mean, note)


def _wudi(rule: Any, element: ElementInput) -> Worked:
    if rule.other_factor == 0:
        return _stays(element, "left as in the base")
    return _scaled_sum(element, rule.other_factor)


def _region(probe: Any, element: ElementInput) -> Worked:
    x, tau = element.base, element.taus[probe.agent]
    name = element.agents[probe.agent]
    active = [t for t in range(len(element.values)) if element.exceeds(t, probe.epsilon)]
    if probe.agent not in active:
        return _stays(element, f"not changed by {name}: the base stays")
    part = "unique" if len(active) == 1 else "shared"
    if probe.part not in ("whole", part):
        return _stays(element, f"in the {part} region of {name}: the base stays")
    text = f"{number(x)} + {_factor_text(probe.scale)}{_sum_text([tau])}"
    value = element.values[probe.agent] if probe.scale == 1.0 else x + probe.scale * tau
    return Worked(text, value, f"in the {part} region of {name}")


_FORMULAS: dict[str, Callable[[Any, ElementInput], Worked]] = {
    "ram": _ram,
    "ram+": _ram,
    "ram+s": _ram,
    "ram+m": _ram,
    "task-arithmetic": _task_arithmetic,
    "ties": _ties,
    "dare-ta": _dare,
    "dare-ties": _dare,
    "fisher": _fisher,
    "wudi": _wudi,
    "region": _region,
}
