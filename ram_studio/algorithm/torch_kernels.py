"""The kernels once more in plain torch: the oracle of the fused ones, and formulas for any device.

Same values as ``kernels`` and ``rounding`` bit for bit, on any device. Blocks here are float32
tensors (every storage dtype converts to it exactly); agents are stacked. These are eager operations
with many passes over a block; ``triton_kernels`` does the same in one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from ram_studio.algorithm.ladder import BIN_COUNT, BIN_SHIFT, LOWEST_BIN

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_MASK32 = 0xFFFFFFFF


def bins_of(tau: Float32[Tensor, "agents n"], edge_bits: int) -> Int64[Tensor, "agents n"]:
    """Return the bin of each |tau|, -1 where tau is 0 (see ``ladder``)."""
    bits = tau.abs().view(torch.int32).long()
    bins = ((bits - edge_bits - 1) >> BIN_SHIFT) - LOWEST_BIN
    return torch.where(bits == 0, -1, bins.clamp(0, BIN_COUNT - 1))


def chain_histogram(
    base: Float32[Tensor, " n"], agents: Float32[Tensor, "agents n"], edge_bits: int
) -> Int64[Tensor, "sets agents bins"]:
    """Return one block's chain histogram, see ``overlap.patterns_from_chain``."""
    n_agents = agents.shape[0]
    bins = bins_of(agents - base, edge_bits)
    size = (1 << n_agents) * n_agents * BIN_COUNT
    total = torch.zeros(size, dtype=torch.int64, device=base.device)
    for agent in range(n_agents):
        own = bins[agent]
        still_active = torch.zeros_like(own)
        for other in range(n_agents):
            stays = bins[other] >= own if other >= agent else bins[other] > own
            still_active |= stays.long() << other
        slots = (still_active * n_agents + agent) * BIN_COUNT + own
        total += torch.bincount(slots[own >= 0], minlength=size)
    return total.view(1 << n_agents, n_agents, BIN_COUNT)


def step_histogram(
    base: Float32[Tensor, " n"], agents: Float32[Tensor, "agents n"], edge_bits: int
) -> tuple[Int64[Tensor, "agents others bins"], Int64[Tensor, "agents bins"]]:
    """Return one block's step histogram (``overlap.shared_from_steps``) and magnitudes."""
    n_agents = agents.shape[0]
    bins = bins_of(agents - base, edge_bits)
    steps = torch.zeros(n_agents * n_agents * BIN_COUNT, dtype=torch.int64, device=base.device)
    magnitudes = torch.stack([torch.bincount(row[row >= 0], minlength=BIN_COUNT) for row in bins])
    ordered, who = bins.sort(dim=0, descending=True, stable=True)
    for m in range(1, n_agents + 1):
        entered = ordered[m - 1] >= 0
        left = entered & (ordered[m] >= 0) if m < n_agents else None
        for rank in range(m):
            row = (who[rank] * n_agents + m - 1) * BIN_COUNT
            steps += torch.bincount((row + ordered[m - 1])[entered], minlength=len(steps))
            if left is not None:
                steps -= torch.bincount((row + ordered[m])[left], minlength=len(steps))
    return steps.view(n_agents, n_agents, BIN_COUNT), magnitudes


def merge_ram(
    base: Float32[Tensor, " n"],
    agents: Float32[Tensor, "agents n"],
    epsilon: float,
    factors: Sequence[float],
    elect_sign: bool = False,
) -> tuple[Float64[Tensor, " n"], Int64[Tensor, " n"]]:
    """Return the merged values (Eq. 7) and each element's overlap pattern.

    See ``kernels.merge_mean`` and ``kernels.merge_elected``; epsilon is a float32 value.
    """
    x = base.double()
    tau = agents.double() - x
    active = (agents - base).abs() > epsilon
    count = active.sum(0)
    total = torch.zeros_like(x)
    alone = x.clone()
    pattern = torch.zeros_like(count)
    for t, factor in enumerate(factors):
        total += torch.where(active[t], tau[t], 0.0)
        scaled = agents[t].double() if factor == 1.0 else x + factor * tau[t]
        alone = torch.where(active[t], scaled, alone)
        pattern |= active[t].long() << t
    voters = count
    if elect_sign:
        sign = total.sign()
        elected = torch.zeros_like(x)
        voters = torch.zeros_like(count)
        for t in range(len(factors)):
            agrees = active[t] & (tau[t].sign() == sign) & (sign != 0)
            elected += torch.where(agrees, tau[t], 0.0)
            voters += agrees
        total = elected
    merged = torch.where(voters > 0, x + total / voters.clamp(min=1), x)
    merged = torch.where(count == 1, alone, merged)
    return torch.where(count == 0, x, merged), pattern


def stored_change(
    base: Float32[Tensor, " n"],
    agent: Float32[Tensor, " n"],
    stored: Float32[Tensor, " n"],
    unique: Bool[Tensor, " n"],
) -> tuple[float, float]:
    """Return sum((stored - base) * tau) and sum(tau**2) over the unique elements."""
    x = base.double()
    tau = torch.where(unique, agent.double() - x, 0.0)
    return float(((stored.double() - x) * tau).sum()), float((tau * tau).sum())


def random_words(key: int, start: int, n: int, device: torch.device | str) -> Int64[Tensor, " n"]:
    """Return the 64-bit words of ``rounding.random_words`` as int64 (two's complement)."""

    def signed(value: int) -> int:
        value &= 0xFFFFFFFFFFFFFFFF
        return value - (1 << 64) if value >> 63 else value

    def shifted(z: Tensor, by: int) -> Tensor:
        return (z >> by) & ((1 << (64 - by)) - 1)  # torch's >> on int64 keeps the sign

    index = torch.arange(start, start + n, dtype=torch.int64, device=device)
    z = signed(key) + index * signed(0x9E3779B97F4A7C15)
    z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    return z ^ shifted(z, 31)


def uniform(key: int, start: int, n: int, device: torch.device | str) -> Float64[Tensor, " n"]:
    """Return numbers in [0, 1) with 53 random bits, one per element."""
    words = random_words(key, start, n, device)
    return ((words >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _nearest(values: Float64[Tensor, " n"], dtype: str) -> Tensor:
    """Return values rounded to nearest, ties to even; bfloat16 goes through float32.

    torch would round twice on the way to float16. A float32 that is rounded to odd in between (away
    from where both neighbours round alike) leaves one rounding.
    """
    near = values.float()
    if dtype != "F16":
        return near.to(TORCH_DTYPES[dtype])
    bits, wide = near.view(torch.int32), near.double()
    toward_zero = torch.where(wide.abs() > values.abs(), bits - 1, bits)
    odd = torch.where(wide == values, bits, toward_zero | 1)
    return odd.view(torch.float32).half()


def store(
    values: Float64[Tensor, " n"],
    dtype: str,
    changed: Bool[Tensor, " n"] | None = None,
    key: int | None = None,
    start: int = 0,
) -> Tensor:
    """Return ``values`` in the output dtype; stochastically where ``changed`` if a key is given.

    See ``rounding.store``.
    """
    nearest = _nearest(values, dtype)
    if key is None:
        return nearest
    changed = torch.ones_like(values, dtype=torch.bool) if changed is None else changed
    if dtype == "BF16":
        bits = values.float().view(torch.int32).long() & _MASK32
        noise = (random_words(key, start, len(values), values.device) >> 48) & 0xFFFF
        up = bits + noise
        up = torch.where((up & 0x7F800000) == 0x7F800000, bits, up) >> 16
        drawn = torch.where(up > 0x7FFF, up - 0x10000, up).to(torch.int16).view(torch.bfloat16)
    elif dtype == "F32":
        rounded = values.float()
        bits = rounded.view(torch.int32)
        below = torch.where(
            rounded.double().abs() > values.abs(), (bits - 1).view(torch.float32), rounded
        )
        above = (below.view(torch.int32) + 1).view(torch.float32)
        share = (values - below.double()) / (above.double() - below.double())
        u = uniform(key, start, len(values), values.device)
        drawn = torch.where(u < share, above, below)
        largest = torch.finfo(torch.float32).max
        exact = (values.abs() >= largest) | (values == rounded.double())
        drawn = torch.where(exact, rounded, drawn)
    else:
        size = values.abs()
        exponent = torch.frexp(size).exponent.long() - 1
        exponent = torch.where(size > 0, exponent, -14).clamp(min=-14)
        step = torch.ldexp(torch.ones_like(size), exponent - 10)
        count = (size / step).floor()
        u = uniform(key, start, len(values), values.device)
        count += (u < size / step - count).double()
        drawn = torch.where(size <= 65504.0, (count * step).clamp(max=65504.0), size)
        drawn = torch.copysign(drawn, values).to(torch.float16)
    return torch.where(changed, drawn, nearest)
