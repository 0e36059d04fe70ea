"""RAM, RAM+, RAM+s and RAM+m: Reinforced Agent Merging (arXiv 2601.13572).

With task vectors tau_t = theta_t - theta_base, masks |tau_t| > epsilon and overlap count c:

    merged = base                                    where c = 0
             base + lambda_t * tau_t                 where only agent t changed it (c = 1)
             base + mean of the active tau           where c >= 2              (Eq. 7)

An agent's weight w_t multiplies its tau_t in both lines; masks, c and rho ignore it.

    rho_t = shared_t / unique_t over the whole model                           (Eq. 2)
    lambda_t = 1                                     RAM
               1 + r * clip(rho_t, 0, alpha)         RAM+                      (Eq. 6)
               1 + r * rho_t / (1 + rho_t)           RAM+s                     (Eq. 8)
               1 + r * clip(rho_m,t, 0, alpha)       RAM+m                     (ours)

RAM+m weighs elements by how far they moved: rho_m,t is the sum of |tau_t| over shared elements
divided by that over unique ones. The paper counts every changed element alike and names that, the
isotropic assumption, as its second limitation; the weighting is our answer to it, not the paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from ram_studio.algorithm import scaling
from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON, float32_threshold
from ram_studio.algorithm.kernels.rules import Rule, means
from ram_studio.algorithm.methods.base import (
    Epsilon,
    Facts,
    Method,
    MethodSettings,
    Need,
    PreparedMethod,
)

Shared = Annotated[
    Literal["mean", "ties"],
    Field(
        description="Shared region: mean of the active task vectors, or of those that agree with "
        "the sign of their sum."
    ),
]
R = Annotated[
    float, Field(ge=0, le=100, allow_inf_nan=False, description="Strength of the rescaling.")
]
Alpha = Annotated[
    float, Field(ge=0, le=1e6, allow_inf_nan=False, description="Cap on rho in the clipped rule.")
]
ScopeOfRho = Annotated[
    Literal["global", "layer", "tensor"],
    Field(description="Scope in which rho is counted: whole model (paper), layer, or tensor."),
]


class RamSettings(MethodSettings):
    """Settings of plain RAM."""

    epsilon: Epsilon = DEFAULT_EPSILON
    shared: Shared = "mean"


class RamSoftSettings(RamSettings):
    """Settings of RAM+s."""

    r: R = scaling.DEFAULT_R
    scope: ScopeOfRho = "global"


class RamPlusSettings(RamSoftSettings):
    """Settings of RAM+."""

    alpha: Alpha = scaling.DEFAULT_ALPHA


def _needs(settings: RamSettings) -> frozenset[str]:
    # With r = 0 lambda is 1 for any rho, so the counting pass can be left out.
    return frozenset({Need.RATIOS}) if getattr(settings, "r", 0.0) else frozenset()


def _needs_magnitudes(settings: RamSettings) -> frozenset[str]:
    counts = _needs(settings)
    return counts | {Need.MAGNITUDE_RATIOS} if counts else counts


def _prepare(rule: str) -> Callable[[RamSettings, Facts], PreparedMethod]:
    def prepare(settings: RamSettings, facts: Facts) -> PreparedMethod:
        if facts.ratios is None:
            return PreparedMethod(settings, facts, facts.uniform_factors(1.0))
        alpha = getattr(settings, "alpha", scaling.DEFAULT_ALPHA)
        r = getattr(settings, "r", 0.0)
        return PreparedMethod(
            settings, facts, scaling.scaling_factors(facts.ratios, rule, r, alpha)
        )

    return prepare


def rule_of(prepared: PreparedMethod, tensor: int, name: str) -> Rule:
    """Return Eq. 7 with a tensor's lambda."""
    assert prepared.factors is not None, "made ready with them"
    factors, settings = tuple(prepared.factors[tensor].tolist()), prepared.settings
    epsilon = float(float32_threshold(settings.epsilon))
    weights = prepared.facts.weights_of(tensor)
    is_elected = settings.shared == "ties"
    return Rule(epsilon, factors, means(len(factors)), is_elected, weights=weights)


def _family(
    name: str,
    title: str,
    formula: str,
    source: str,
    settings: type[RamSettings],
    needs: Callable[[RamSettings], frozenset[str]] = _needs,
) -> Method:
    """Return a method of the family; formula: of unique elements."""
    return Method(
        name=name,
        title=title,
        formula=f"unique: {formula}; shared: mean of the active tau",
        source=f"arXiv 2601.13572, {source}",
        settings=settings,
        needs=needs,
        prepare=_prepare(name),
        rule=rule_of,
    )


RAM = _family("ram", "RAM", "tau_t", "Eq. 7 with lambda = 1", RamSettings)
RAM_PLUS = _family(
    "ram+", "RAM+", "(1 + r clip(rho_t, 0, alpha)) tau_t", "Eqs. 6 and 7", RamPlusSettings
)
RAM_PLUS_SOFT = _family(
    "ram+s", "RAM+s", "(1 + r rho_t / (1 + rho_t)) tau_t", "Eqs. 7 and 8", RamSoftSettings
)
RAM_PLUS_MAGNITUDE = _family(
    scaling.MAGNITUDE_RULE,
    "RAM+m",
    "(1 + r clip(rho_m,t, 0, alpha)) tau_t, rho_m by sums of |tau|",
    "Eqs. 6 and 7, with magnitudes for counts (ours)",
    RamPlusSettings,
    _needs_magnitudes,
)
