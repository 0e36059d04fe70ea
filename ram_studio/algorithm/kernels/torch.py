"""The loops as torch operations: their reference in tests, and the code for other devices.

Formulas and order of operations are those of ``loops``, so that the bits are the same on every
device. Blocks are float32 tensors (every storage dtype converts to it exactly); agents are stacked.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from ram_studio.algorithm.epsilon_grid import BIN_COUNT, BIN_SHIFT, LOWEST_BIN
from ram_studio.algorithm.kernels.rules import (
    Arithmetic,
    BlockOutput,
    Drawing,
    MergekitSum,
    Rule,
)
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_MASK32 = 0xFFFFFFFF

CHUNK = 1 << 23
"""Elements measured at a time: temporaries of a whole embedding would be many times its size."""


def find_patterns(
    base: Float32[Tensor, " n"], agents: Float32[Tensor, "agents n"], epsilon: float
) -> Int64[Tensor, " n"]:
    """Return which agents changed each element by more than epsilon (float32): bit t is agent t."""
    pattern = torch.zeros(base.shape, dtype=torch.int64, device=base.device)
    for t, agent in enumerate(agents):
        pattern |= ((agent - base).abs() > epsilon).long() << t
    return pattern


def count_patterns(pattern: Int64[Tensor, " n"], n_agents: int) -> Int64[Tensor, ...]:
    """Return how many elements have each pattern, see ``cpu.count_patterns``."""
    if n_agents <= MAX_PATTERN_AGENTS:
        return torch.bincount(pattern, minlength=1 << n_agents)
    bits = torch.stack([pattern >> t & 1 for t in range(n_agents)])
    overlap = bits.sum(0)
    rows = [((overlap == c + 1) * bits).sum(1) for c in range(n_agents)]
    return torch.stack(rows, dim=1)


def merge(
    rule: Rule,
    base: Float32[Tensor, " n"],
    agents: Float32[Tensor, "agents n"],
    *,
    arithmetic: Arithmetic = "float64",
    start: int = 0,
) -> BlockOutput:
    """Merge a block by a rule, in the arithmetic's dtype; start: of the block in its tensor."""
    wide = getattr(torch, arithmetic)
    x, sizes = base.to(wide), (agents - base).abs()
    included = sizes > rule.epsilon
    if rule.thresholds is not None:
        limits = torch.tensor(rule.thresholds, dtype=torch.float32, device=base.device)
        included = sizes > limits[:, None]
    if rule.drawing is not None:
        included &= draw(rule.drawing, start, base.shape[0], base.device)

    def numbers(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=wide, device=base.device)

    factors, shares = numbers(rule.factors), numbers(rule.shares)
    weights = None if rule.weights is None else numbers(rule.weights)

    def weighted_tau(t: int) -> Tensor:
        tau = torch.where(included[t], agents[t].to(wide) - x, 0.0)
        return tau if weights is None else tau * weights[t]

    own, weight, alone = x.clone(), torch.zeros_like(x), torch.ones_like(x)
    up, down, total = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for t, agent in enumerate(agents):
        tau = weighted_tau(t)
        total = total + tau
        up, down = up + tau.clamp(min=0), down + tau.clamp(max=0)
        weight = torch.where(included[t], factors[t], weight)
        own = torch.where(included[t], agent.to(wide), own)
        if weights is not None:
            alone = torch.where(included[t], weights[t], alone)
    count, votes = included.sum(0), included
    voters = count
    if rule.elect_sign:
        balance = up + down
        total = torch.where(balance > 0, up, torch.where(balance < 0, down, 0.0))
        signs = torch.stack([weighted_tau(t).sign() for t in range(len(agents))])
        votes = (signs == balance.sign()) & (signs != 0)
        voters = votes.sum(0)
    divisor = None
    if rule.divisors is not None:
        parts = numbers(rule.divisors)
        divisor = torch.zeros_like(x)
        for t in range(len(agents)):
            divisor = divisor + torch.where(votes[t], parts[t], 0.0)
        divisor = torch.where(divisor == 0, 1.0, divisor)
        total, alone = total / divisor, alone / divisor
    is_alone = count == 1
    weight = torch.where(is_alone, weight, shares[voters])
    step = weight * total
    merged = torch.where(is_alone & (weight == 1) & (alone == 1), own, x + step)
    pattern = find_patterns(base, agents, rule.epsilon)
    scale = weight if divisor is None else weight / divisor

    def own_part(t: int) -> Tensor:
        return torch.where(votes[t], scale * weighted_tau(t), 0.0)

    values = torch.where(step == 0, x, merged)
    if rule.as_mergekit is not None and rule.is_as_mergekit:
        values = _as_mergekit(rule.as_mergekit, base, agents, included)
    return BlockOutput(values, pattern, own_part)


def _as_mergekit(
    rule: MergekitSum,
    base: Float32[Tensor, " n"],
    agents: Float32[Tensor, "agents n"],
    included: Bool[Tensor, "agents n"],
) -> Float32[Tensor, " n"]:
    """Return float32 output in mergekit's order of operations; included: which tau are summed."""

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float32, device=base.device)

    weights = [number(weight) for weight in rule.weights]
    if rule.base_weight is not None:
        total = base * number(rule.base_weight)
        for agent, weight in zip(agents, weights, strict=True):
            total = _fma(agent, weight, total)
        return total / number(rule.divisor)
    taus = [torch.where(included[t], agent - base, 0.0) for t, agent in enumerate(agents)]
    taus = [tau * weight for tau, weight in zip(taus, weights, strict=True)]
    total = torch.zeros_like(base)
    for tau in taus:
        total = total + tau
    divisor = number(rule.divisor)
    if rule.parts is not None:
        sign, divisor, elected = total.sign(), torch.zeros_like(base), torch.zeros_like(base)
        for tau, part in zip(taus, rule.parts, strict=True):
            is_voter = (tau.sign() == sign) & (sign != 0)
            elected = elected + torch.where(is_voter, tau, 0.0)
            divisor = divisor + torch.where(is_voter, number(part), 0.0)
        total, divisor = elected, torch.where(divisor == 0, 1.0, divisor)
    step = total / divisor * number(rule.factor)
    return torch.where(step == 0, base, base + step)


def _fma(a: Float32[Tensor, " n"], b: Tensor, c: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    """Return a b + c rounded once, on any device: the product is exact in float64."""
    product, wide = a.double() * b.double(), c.double()
    return _add_round_to_odd(product, wide).float()


def _add_round_to_odd(a: Float64[Tensor, " n"], b: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Return a + b, its last bit set where inexact: a second rounding is then correct."""
    total = a + b
    back = total - a
    rest = (a - (total - back)) + (b - back)  # the addition's rounding error
    bits = total.view(torch.int64)
    is_beyond = (rest != 0) & ((rest > 0) != (total > 0))
    return torch.where(rest == 0, bits, (bits - is_beyond.long()) | 1).view(torch.float64)


def measure(
    base: Float32[Tensor, " n"],
    agents: Float32[Tensor, "agents n"],
    stored: Float32[Tensor, " n"],
    merged: BlockOutput,
    groups: Iterable[slice],
) -> Float64[Tensor, "groups agents 9"]:
    """Return how each agent's tau was stored, see ``cpu.measure``; does not synchronize.

    merged: its ``own`` may be None (no own parts). Then error is the merged values' rounding
    error, [3] is of (change - error) tau, [7] of change**2, [8] of (change - error)**2.
    """
    if len(base) > CHUNK:
        groups, found = list(groups), []
        for at in range(0, len(base), CHUNK):
            chunk = slice(at, at + CHUNK)
            within = [slice(max(0, g.start - at), max(0, g.stop - at)) for g in groups]
            part = merged.part(chunk)
            found.append(measure(base[chunk], agents[:, chunk], stored[chunk], part, within))
        return torch.stack(found).sum(0)
    x = base.double()
    change = stored.double() - x
    none = torch.zeros_like(x)
    own, pattern = merged.own, merged.active

    def parts(t: int) -> Tensor:
        return none if own is None else own(t).double()

    error = change if own else change - (merged.values.double() - x)
    for t in range(len(agents) if own else 0):
        error = error - parts(t)
    exact = change - error
    rows = []
    for t, agent in enumerate(agents):
        tau, bit = agent.double() - x, 1 << t
        part = parts(t)
        along = part if own else exact
        unique = torch.where(pattern == bit, tau, 0.0)
        shared = torch.where((pattern & bit != 0) & (pattern != bit), tau, 0.0)
        alone = (change * unique, unique**2, error * unique)
        rest = (tau.square(), (change - part).square(), (exact - part).square())
        rows.append(torch.stack((*alone, along * shared, shared**2, error * shared, *rest)))
    return torch.stack([torch.stack([row[:, where].sum(1) for row in rows]) for where in groups])


def bins_of(tau: Float32[Tensor, "agents n"], edge_bits: int) -> Int64[Tensor, "agents n"]:
    """Return the bin of each |tau|, -1 where tau is 0 (see ``epsilon_grid``)."""
    bits = tau.abs().view(torch.int32).long()
    bins = ((bits - edge_bits - 1) >> BIN_SHIFT) - LOWEST_BIN
    return torch.where(bits == 0, -1, bins.clamp(0, BIN_COUNT - 1))


def count_sizes(
    base: Float32[Tensor, " n"], agents: Float32[Tensor, "agents n"], edge_bits: int
) -> Int64[Tensor, "agents bins"]:
    """Return each agent's changes by bin of |tau|."""
    bins = bins_of(agents - base, edge_bits)
    return torch.stack([torch.bincount(row[row >= 0], minlength=BIN_COUNT) for row in bins])


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
) -> Int64[Tensor, "agents others bins"]:
    """Return one block's step histogram, see ``overlap.shared_from_steps``."""
    n_agents = agents.shape[0]
    bins = bins_of(agents - base, edge_bits)
    steps = torch.zeros(n_agents * n_agents * BIN_COUNT, dtype=torch.int64, device=base.device)
    ordered, who = bins.sort(dim=0, descending=True, stable=True)
    for m in range(1, n_agents + 1):
        entered = ordered[m - 1] >= 0
        left = entered & (ordered[m] >= 0) if m < n_agents else None
        for rank in range(m):
            row = (who[rank] * n_agents + m - 1) * BIN_COUNT
            steps += torch.bincount((row + ordered[m - 1])[entered], minlength=len(steps))
            if left is not None:
                steps -= torch.bincount((row + ordered[m])[left], minlength=len(steps))
    return steps.view(n_agents, n_agents, BIN_COUNT)


def draw(
    drawing: Drawing, start: int, n: int, device: torch.device | str
) -> Bool[Tensor, "agents n"]:
    """Return which elements of each task vector are not dropped."""
    words = torch.stack([random_words(int(key), start, n, device) for key in drawing.keys])
    cuts = torch.tensor(drawing.cuts, device=device)[:, None]
    return ((words >> 11) & ((1 << 53) - 1)) >= cuts


def random_words(key: int, start: int, n: int, device: torch.device | str) -> Int64[Tensor, " n"]:
    """Return the 64-bit words of ``cpu.random_words`` as int64 (two's complement)."""

    def as_signed(value: int) -> int:
        value &= 0xFFFFFFFFFFFFFFFF
        return value - (1 << 64) if value >> 63 else value

    def shift_right(z: Tensor, by: int) -> Tensor:
        return (z >> by) & ((1 << (64 - by)) - 1)  # torch's >> on int64 keeps the sign

    index = torch.arange(start, start + n, dtype=torch.int64, device=device)
    z = as_signed(key) + index * as_signed(0x9E3779B97F4A7C15)
    z = (z ^ shift_right(z, 30)) * as_signed(0xBF58476D1CE4E5B9)
    z = (z ^ shift_right(z, 27)) * as_signed(0x94D049BB133111EB)
    return z ^ shift_right(z, 31)


def uniform(key: int, start: int, n: int, device: torch.device | str) -> Float64[Tensor, " n"]:
    """Return numbers in [0, 1) with 53 random bits, one per element."""
    words = random_words(key, start, n, device)
    return ((words >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _nearest(values: Float[Tensor, " n"], dtype: str) -> Tensor:
    """Return values rounded to nearest, ties to even; bfloat16 goes through float32.

    torch would round twice on the way to float16. A float32 that is rounded to odd in between (away
    from where both neighbors round alike) leaves one rounding.
    """
    near = values.float()
    if dtype != "F16":
        return near.to(TORCH_DTYPES[dtype])
    bits, wide = near.view(torch.int32), near.double()
    toward_zero = torch.where(wide.abs() > values.abs(), bits - 1, bits)
    odd_bits = torch.where(wide == values, bits, toward_zero | 1)
    return odd_bits.view(torch.float32).half()


def store(
    values: Float[Tensor, " n"],
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
