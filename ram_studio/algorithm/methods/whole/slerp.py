"""Spherical interpolation: between base and agent (slerp), and of task vectors (WARP).

`slerp`, as in mergekit, tensor by tensor, for one agent; t is multiplied by the agent's weight:

    cos o  = <base, theta> / (|base| |theta|)
    merged = sin((1 - t) o) / sin(o) * base + sin(t o) / sin(o) * theta
             (1 - t) base + t theta          where cos o is above 0.9995 or below -0.9995

RL moves a model so little that the last line applies nearly everywhere.

`warp` (arXiv 2406.16768) interpolates on the sphere between task vectors, and scales the result:

    m_1 = tau_1,   m_k = slerp from m_{k-1} to tau_k at w_k / (w_1 + ... + w_k)
    merged = base + scale * m_N

For two agents of equal weight m_2 is (tau_1 + tau_2) / (2 cos(o / 2)), of the same norm as both,
while the mean is shorter. The paper has two agents; with more, their order makes a difference.
Below 1 ``scale`` is the paper's interpolation towards the start (eta).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ram_studio.algorithm.methods.base import Facts, MethodSettings, PreparedMethod
from ram_studio.algorithm.methods.task_arithmetic import Scale
from ram_studio.algorithm.methods.whole.formulas import tensor_method
from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

PARALLEL = 0.9995
"""Above this cosine interpolation is linear, as in mergekit."""


class SlerpSettings(MethodSettings):
    """Settings of slerp."""

    t: Annotated[
        float,
        Field(ge=0, le=1, allow_inf_nan=False, description="How far from base (0) to agent (1)."),
    ] = 0.5


class WarpSettings(MethodSettings):
    """Settings of WARP's spherical mean."""

    scale: Scale = Field(default=1.0, description="Factor on the spherical mean of tau.")


def spherical_shares(one: Tensor, other: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors on two vectors, at t between them."""
    import torch

    norms = one.norm() * other.norm()
    cosine = (one @ other / norms).clamp(-1, 1) if norms > 0 else torch.ones_like(norms)
    if cosine.abs() > PARALLEL:
        return 1 - t, t
    angle = torch.arccos(cosine)
    return torch.sin((1 - t) * angle) / torch.sin(angle), torch.sin(t * angle) / torch.sin(angle)


def interpolate(base: Tensor, taus: Tensor, settings: SlerpSettings, weights: Tensor) -> Tensor:
    """Return the change from the base to the point between it and the agent."""
    other = base + taus[0]
    own, theirs = spherical_shares(base, other, settings.t * weights[0])
    return (own + theirs - 1) * base + theirs * taus[0]


def spherical_mean(base: Tensor, taus: Tensor, settings: WarpSettings, weights: Tensor) -> Tensor:
    """Return the scaled spherical mean of task vectors, of those that are not 0."""
    import torch

    mean, total = torch.zeros_like(base), torch.zeros_like(weights[0])
    for tau, weight in zip(taus, weights, strict=True):
        if not weight or not tau.any():
            continue
        total = total + weight
        own, theirs = spherical_shares(mean, tau, weight / total)
        mean = own * mean + theirs * tau
    return settings.scale * mean


def _prepare(settings: Any, facts: Facts) -> PreparedMethod:
    if len(facts.agents) != 1:
        raise SettingsError(
            f"slerp takes the base and one agent, not {len(facts.agents)}: choose "
            "one, or use warp for several."
        )
    return PreparedMethod(settings, facts)


SLERP = tensor_method(
    interpolate,
    name="slerp",
    title="Slerp",
    formula="the point at t on the arc from base to agent, tensor by tensor",
    source="Shoemake 1985, as in mergekit",
    settings=SlerpSettings,
    prepare=_prepare,
)
WARP = tensor_method(
    spherical_mean,
    name="warp",
    title="WARP",
    formula="scale * the spherical mean of the tau, tensor by tensor",
    source="arXiv 2406.16768",
    settings=WarpSettings,
)
