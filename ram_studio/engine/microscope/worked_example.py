"""One element's merge as a worked example: each method's formula with the element's numbers.

Follows ``kernels.rules`` (and the methods that are not weighted sums) number by number, in the
order and the arithmetic of the loops, so that ``value`` is what they round. Reads no files; the
engine supplies the prepared method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ram_studio.algorithm.epsilon_grid import float32_threshold
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels.rules import Arithmetic, Rule
from ram_studio.algorithm.methods import PreparedMethod
from ram_studio.algorithm.methods.region import place_of
from ram_studio.algorithm.methods.task_arithmetic import sum_rule
from ram_studio.algorithm.methods.whole.matrices import other_factor


@dataclass(frozen=True)
class ElementInput:
    """One element of a merge.

    agents: names; base: its value; values: each agent's; survives: per agent, whether the element
    survives dropping (DARE); fisher: per agent, its Fisher information; arithmetic: of the merge.
    """

    agents: tuple[str, ...]
    base: float
    values: tuple[float, ...]
    survives: tuple[bool, ...] | None = None
    fisher: tuple[float, ...] | None = None
    arithmetic: Arithmetic = "float64"

    @property
    def taus(self) -> tuple[Any, ...]:
        """Each agent's change, in the merge's arithmetic."""
        kind = np.dtype(self.arithmetic).type
        return tuple(kind(value) - kind(self.base) for value in self.values)

    def exceeds(self, agent: int, threshold: float) -> bool:
        """Return whether an agent's change exceeds a threshold, in float32 as in a pass."""
        tau = np.float32(self.values[agent]) - np.float32(self.base)
        return bool(abs(tau) > np.float32(threshold))


class WorkedExample(NamedTuple):
    """A formula with its numbers: the text, its float64 value before rounding, and a remark.

    is_base: the base stays, so the text is just a number.
    """

    expression: str
    value: float
    note: str = ""
    is_base: bool = False


def number(value: float, digits: int = 6) -> str:
    """Return a number in at most ``digits`` significant digits, with a typographic minus sign."""
    return f"{value:.{digits}g}".replace("-", "−")


def worked_example(
    method: str, prepared: Rule | PreparedMethod, element: ElementInput
) -> WorkedExample:
    """Return one element's merge by a method, worked out.

    prepared: the tensor's Rule, or for a method without one what its ``prepare`` returned. Raises:
    KeyError for a method that has neither a rule nor a formula for single elements.
    """
    if isinstance(prepared, Rule):
        found = _by_rule(prepared, element)
        return (
            found._replace(value=_as_mergekit(prepared, element))
            if prepared.is_as_mergekit
            else found
        )
    return _FORMULAS[method](prepared.settings, element)


def _sum_text(terms: Sequence[float]) -> str:
    first, *rest = terms
    text = number(first)
    for term in rest:
        text += f" − {number(-term)}" if term < 0 else f" + {number(term)}"
    return f"({text})" if rest else text if first >= 0 else f"({text})"


def _factor_text(factor: float) -> str:
    return "" if factor == 1.0 else f"{number(factor, 4)} × "


def _base_stays(element: ElementInput, note: str) -> WorkedExample:
    return WorkedExample(number(element.base), element.base, note, is_base=True)


def _total(terms: Sequence[Any]) -> Any:
    """Add from left to right, as the loops do (``sum`` compensates since Python 3.12)."""
    return reduce(lambda total, term: total + term, terms)


def _lost_text(element: ElementInput, lost: Sequence[int], how: str) -> str:
    return f"{', '.join(element.agents[t] for t in lost)} {how}" if lost else ""


def _by_rule(rule: Rule, element: ElementInput) -> WorkedExample:
    kind, taus = np.dtype(element.arithmetic).type, element.taus
    changed = [t for t in range(len(taus)) if element.exceeds(t, rule.epsilon)]
    limits = rule.thresholds or (rule.epsilon,) * len(taus)
    large = [t for t in range(len(taus)) if element.exceeds(t, limits[t])]
    if not changed and not large:
        above = "no change above epsilon" if rule.epsilon else "no agent changed it"
        return _base_stays(element, f"{above}: the base stays")
    included = [t for t in large if element.survives is None or element.survives[t]]
    notes = [
        _lost_text(element, [t for t in changed if t not in large], "trimmed as too small"),
        _lost_text(element, [t for t in large if t not in included], "dropped at random"),
    ]
    if math.inf in limits:
        notes = ["a filter keeps it as it is"]
    weights = rule.weights or (1.0,) * len(taus)
    own = [
        tau if rule.weights is None else kind(w) * tau for w, tau in zip(weights, taus, strict=True)
    ]
    voters = included
    if rule.elect_sign and included:
        balance = _total([own[t] for t in included])
        voters = [t for t in included if own[t] * balance > 0]
    total = _total([kind(0), *(own[t] for t in voters)])
    count, divisor = len(voters), kind(1)
    if rule.divisors is not None:
        divisor = _total([kind(0), *(kind(rule.divisors[t]) for t in voters)]) or kind(1)
    weight = kind(rule.factors[included[0]] if len(included) == 1 else rule.shares[count])
    if weight * total == 0:
        notes.append("the changes cancel: the base stays" if included else "")
        return _base_stays(element, _join_notes(notes) or "the base stays")
    is_mean = count > 1 and rule.shares[count] != rule.shares[1]
    if len(changed) == 1:
        notes.append(f"only {element.agents[changed[0]]} changed it")
    elif count < len(included):
        notes.append(f"mean of the {count} of {len(included)} changes that agree in sign")
    elif count > 1:
        notes.append(f"{'mean' if is_mean else 'sum'} of {count} changes")
    factor = rule.shares[1] if is_mean else float(weight)
    terms = " + ".join(f"{_factor_text(weights[t])}{_sum_text([taus[t]])}" for t in voters)
    if all(weights[t] == 1 for t in voters):
        terms = _sum_text([taus[t] for t in voters])
    elif count > 1:
        terms = f"({terms})"
    text = f"{number(element.base)} + {_factor_text(factor)}{terms}"
    text += f" ÷ {number(float(divisor), 4)}" if divisor != 1 else f" ÷ {count}" if is_mean else ""
    value = kind(element.base) + weight * (total / divisor)
    if len(included) == 1 and weight == 1 and kind(weights[included[0]]) == divisor:
        value = element.values[included[0]]
    return WorkedExample(text, float(value), _join_notes(notes))


def _as_mergekit(rule: Rule, element: ElementInput) -> float:
    """Return the stored element where every operation rounds to float32, from the loop itself."""
    alive = element.survives or (True,) * len(element.values)
    pairs = zip(element.values, alive, strict=True)
    base, *agents = (
        np.array([value], dtype=np.float32)
        for value in (element.base, *(own if is_alive else element.base for own, is_alive in pairs))
    )
    merged, pattern = np.empty_like(base), np.empty(1, dtype=cpu.pattern_dtype(len(agents)))
    cpu.merge(rule._replace(drawing=None), base, tuple(agents), merged, pattern)
    return float(merged[0])


def _join_notes(notes: Sequence[str]) -> str:
    return "; ".join(note for note in notes if note)


def _fisher(settings: Any, element: ElementInput) -> WorkedExample:
    assert element.fisher is not None, "the engine reads what the method declared"
    x, taus = element.base, element.taus
    if not any(taus):
        return _base_stays(element, "no agent changed it: the base stays")
    weight = float(_total(element.fisher))
    if weight > 0:
        mean = _total([f * tau for f, tau in zip(element.fisher, taus, strict=True)]) / weight
        terms = " + ".join(
            f"{number(f, 3)} × {_sum_text([tau])}"
            for f, tau in zip(element.fisher, taus, strict=True)
        )
        text, note = f"({terms}) ÷ {number(weight, 3)}", "weighted by Fisher information"
    else:
        mean = _total(taus) / len(taus)
        text, note = f"{_sum_text(taus)} ÷ {len(taus)}", "no Fisher information here: plain mean"
    scale = settings.scale
    return WorkedExample(f"{number(x)} + {_factor_text(scale)}{text}", x + scale * mean, note)


def _matrix(settings: Any, element: ElementInput) -> WorkedExample:
    factor = other_factor(settings, len(element.values))
    if factor == 0:
        return _base_stays(element, "left as in the base")
    return _by_rule(sum_rule(len(element.values), factor), element)


def _region(settings: Any, element: ElementInput) -> WorkedExample:
    agent, scale = place_of(settings, element.agents), settings.scale
    x, tau, name = element.base, element.taus[agent], element.agents[agent]
    epsilon = float32_threshold(settings.epsilon)
    active = [t for t in range(len(element.values)) if element.exceeds(t, float(epsilon))]
    if agent not in active:
        return _base_stays(element, f"not changed by {name}: the base stays")
    part = "unique" if len(active) == 1 else "shared"
    if settings.part not in ("whole", part):
        return _base_stays(element, f"in the {part} region of {name}: the base stays")
    text = f"{number(x)} + {_factor_text(scale)}{_sum_text([tau])}"
    value = element.values[agent] if scale == 1.0 else x + scale * tau
    return WorkedExample(text, value, f"in the {part} region of {name}")


def _largest(settings: Any, element: ElementInput) -> WorkedExample:
    taus = element.taus
    if not any(taus):
        return _base_stays(element, "no agent changed it: the base stays")
    best = max(range(len(taus)), key=lambda t: abs(taus[t]))  # the first of equal ones
    x, scale = element.base, settings.scale
    text = f"{number(x)} + {_factor_text(scale)}{_sum_text([taus[best]])}"
    return WorkedExample(text, x + scale * taus[best], f"{element.agents[best]} moved it furthest")


_FORMULAS: dict[str, Callable[[Any, ElementInput], WorkedExample]] = {
    "fisher": _fisher,
    **dict.fromkeys(("wudi", "tsv-m", "iso-c", "resmerge", "project"), _matrix),
    "region": _region,
    "magmax": _largest,
}
"""Worked examples of the methods that are not weighted sums of an element's changes."""
