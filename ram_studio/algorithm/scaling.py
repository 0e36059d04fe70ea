"""Overlap-unique ratio, scaling rules, and their definitions in other implementations.

Pure arithmetic on counts. Equations are those of arXiv 2601.13572.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ram_studio.algorithm.shapes import Float
from ram_studio.errors import SettingsError

DEFAULT_R = 0.1
DEFAULT_ALPHA = 2.0
DEFAULT_RULE = "ram+"


def overlap_unique_ratio(shared: int | float, unique: int | float) -> float:
    """Return rho_t = shared / unique, the overlap-unique ratio of one agent (Eq. 2).

    shared, unique: elements that agent t changed together with others (c >= 2), and alone
    (c = 1), both >= 0. The scope (whole model, layer, tensor) is the caller's choice.

    Edge cases: 0 when the agent changed nothing; infinity when it changed elements but none alone.
    """
    if unique == 0:
        return math.inf if shared else 0.0
    return shared / unique


def _clipped_factor(rho: float, r: float, alpha: float) -> float:
    return 1.0 + r * min(max(rho, 0.0), alpha)


def _soft_factor(rho: float, r: float, alpha: float) -> float:
    return 1.0 + r * (1.0 if math.isinf(rho) else rho / (1.0 + rho))


_RULES: Mapping[str, Callable[[float, float, float], float]] = {
    "ram": lambda rho, r, alpha: 1.0,
    "ram+": _clipped_factor,
    "ram+s": _soft_factor,
    "ram+m": _clipped_factor,
}
RULES = tuple(_RULES)


def has_lambda(method: str) -> bool:
    """Return whether a method scales unique elements by lambda: only RAM's family does.

    For others, provenance and JSON have the same ratio of stored to own change. It then includes
    trimming, dropping and averaging, so it is never shown as lambda.
    """
    return method in RULES


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"r": 0.1, "alpha": 2.0, "scope": "global"},
    "authors-script": {"r": 0.2, "alpha": 1.0, "scope": "global"},
    "mergekit": {"r": 0.1, "alpha": 0.2, "scope": "tensor"},
}
"""RAM+ settings that reproduce each implementation at its defaults.

The authors' script has lambda = 1 + (f - 1) min(1, rho) with f = 1.2 in its README, which is RAM+
with r = f - 1 and alpha = 1 (it divides by zero where unique = 0, and counts a tied head twice);
mergekit's ``ramplus_tl`` counts rho in each tensor and caps it at 0.2.
"""

MAGNITUDE_RULE = "ram+m"
"""The rule whose rho weighs every element by |tau|, see ``relations.group_ratios``."""


def check_scaling(rule: str, r: float, alpha: float) -> None:
    """Raise SettingsError unless the rule is known and r, alpha are finite and >= 0."""
    if rule not in _RULES:
        raise SettingsError(f"The scaling rule is {rule!r}; it must be one of {', '.join(RULES)}.")
    for name, value in (("r", r), ("alpha", alpha)):
        if not (math.isfinite(value) and value >= 0):
            raise SettingsError(f"{name} is {value}; it must be a finite number of at least 0.")


def scaling_factor(
    rho: float, rule: str = DEFAULT_RULE, r: float = DEFAULT_R, alpha: float = DEFAULT_ALPHA
) -> float:
    """Return lambda_t, the factor on the elements that only agent t changed.

    ``ram``: 1. ``ram+``: 1 + r * clip(rho, 0, alpha), Eq. 6. ``ram+s``: 1 + r * rho / (1 + rho),
    Eq. 8. Defaults r = 0.1 and alpha = 2 are the paper's. ``ram+m`` is ours: Eq. 6 with the
    magnitude-weighted ratio, because counting takes every change for equally large (the isotropic
    assumption, which the paper names as its second limitation).

    Args: rho: overlap-unique ratio, for ``ram+m`` the one by magnitude; >= 0 or infinity;
        rule: one of RULES; r, alpha: >= 0.
    Raises: SettingsError for an unknown rule or a negative or non-finite r or alpha.
    Edge cases: rho infinite gives 1 + r * alpha (ram+, ram+m) and 1 + r (ram+s).
    """
    check_scaling(rule, r, alpha)
    return _RULES[rule](rho, r, alpha)


def scaling_factors(
    ratios: Float[np.ndarray, ...], rule: str, r: float, alpha: float
) -> Float[np.ndarray, ...]:
    """Return ``scaling_factor`` of every rho, float64 of the same shape."""
    check_scaling(rule, r, alpha)
    factor = _RULES[rule]
    flat = [factor(rho, r, alpha) for rho in ratios.ravel().tolist()]
    return np.array(flat, dtype=np.float64).reshape(ratios.shape)
