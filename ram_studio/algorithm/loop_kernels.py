"""The loops of ``kernels``, as numba compiles them.

A loop is compiled once per number of agents (the length of the tuple of blocks) and storage
format, so that LLVM unrolls the loop over agents and vectorises the loop over elements. Loops
allocate nothing: what they need to work in is handed to them. The public ones are what
``machine_code`` compiles, the others are parts of them.

Storage: bfloat16 as uint16 bit patterns, everything else as float32. Thresholds compare float32
task vectors; merging is float64 arithmetic (a quarter slower than float32 where memory allows it,
and it leaves one rounding in the result: the output's).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from ram_studio.algorithm.kernels import INFINITY_BITS, TILE
from ram_studio.algorithm.ladder import BIN_COUNT, BIN_SHIFT, LOWEST_BIN
from ram_studio.algorithm.lane_kernels import leaving_slots
from ram_studio.algorithm.numba_kernels import loop_part
from ram_studio.algorithm.processor import HAS_FAST_LANES, LANES


@intrinsic
def float_bits(typing_context, value):
    """Reinterpret a float32 as uint32."""
    signature = types.uint32(types.float32)
    return signature, lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic
def bits_float(typing_context, value):
    """Reinterpret a uint32 as float32."""
    signature = types.float32(types.uint32)
    return signature, lambda context, builder, sig, args: builder.bitcast(args[0], ir.FloatType())


@loop_part(fastmath={"reassoc"})
def _add_in_any_order(total, value):
    """Add so that a sum may be vectorised; only this addition may be reordered."""
    return total + value


@loop_part
def round_to_bfloat16(value):
    """Round a finite float32 to the nearest bfloat16, ties to even; overflow gives infinity."""
    bits = float_bits(value)
    lowest = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + lowest) >> np.uint32(16))


def _decode(stored):
    """Return the float32 that a stored element stands for."""


@overload(_decode, inline="never")
def _decode_by_type(stored):
    if stored == types.uint16:
        return lambda stored: bits_float(np.uint32(np.uint32(stored) << np.uint32(16)))
    return lambda stored: np.float32(stored)


def _encode(value, stored):
    """Return a float64 as an element of the array ``stored``: bfloat16 bits, float32, float64."""


@overload(_encode, inline="never")
def _encode_by_type(value, stored):
    if stored.dtype == types.uint16:
        return lambda value, stored: round_to_bfloat16(np.float32(value))
    return lambda value, stored: value


def _stored_value(value):
    """Return the float64 that an output element stands for."""


@overload(_stored_value, inline="never")
def _stored_value_by_type(value):
    if value == types.uint16:
        return lambda value: np.float64(_decode(value))
    return lambda value: np.float64(value)


@loop_part
def _bins_of(base, agent, bins, edge_bits):
    """Write the bin of each |tau| (-1 where tau is 0); return 0, or NaN if some tau is not finite.

    A sum of tau * 0 finds NaN and Inf without a branch or an integer reduction, either of which
    would keep the loop from being vectorised.
    """
    poison = np.float32(0)
    for i in range(bins.shape[0]):
        tau = _decode(agent[i]) - _decode(base[i])
        poison = _add_in_any_order(poison, tau * np.float32(0))
        bits = np.int32(float_bits(tau) & np.uint32(0x7FFFFFFF))
        k = np.int32(np.int32(bits - edge_bits - np.int32(1)) >> np.int32(BIN_SHIFT))
        k = np.int32(max(np.int32(k - np.int32(LOWEST_BIN)), np.int32(0)))
        k = np.int32(min(k, np.int32(BIN_COUNT - 1)))
        bins[i] = k if bits != 0 else np.int32(-1)
    return poison


@loop_part
def _find_leaving(agent, agents, bins, slots, length):
    """Write the chain histogram's index of each element of a tile for the leaving ``agent``."""
    n_agents = len(agents)  # a constant to the compiler, unlike a number passed in
    own = bins[agent]
    for i in range(length):
        still_active = np.int32(0)
        for other in range(n_agents):
            k = bins[other][i]
            stays = (k > own[i]) | ((k == own[i]) & (other >= agent))
            still_active |= np.int32(np.int32(stays) << np.int32(other))
        slot = np.int32((still_active * n_agents + agent) * BIN_COUNT + own[i])
        # Unchanged elements hit scratch slots, spread so that they do not wait on each other.
        slots[i] = np.uint32(slot if own[i] >= 0 else np.int32(i & 1023))


@loop_part
def _count_slots(slots, length, chain):
    """Add 1 to the histogram at each index."""
    # Unsigned indices are not tested for counting from the end.
    whole = np.uint64(length) // np.uint64(4) * np.uint64(4)
    for i in range(np.uint64(0), whole, np.uint64(4)):
        chain[np.uint64(slots[i])] += np.int32(1)
        chain[np.uint64(slots[i + np.uint64(1)])] += np.int32(1)
        chain[np.uint64(slots[i + np.uint64(2)])] += np.int32(1)
        chain[np.uint64(slots[i + np.uint64(3)])] += np.int32(1)
    for i in range(whole, np.uint64(length)):
        chain[np.uint64(slots[i])] += np.int32(1)


@loop_part
def _fill_chain_by_lanes(base, agents, chain, edge_bits, length, slots, largest):
    """Do ``fill_chain`` for the first ``length`` elements, a multiple of LANES."""
    for tile in range(0, length, TILE):
        end = 0
        for start in range(tile, min(tile + TILE, length), LANES):
            end = leaving_slots(base, agents, start, edge_bits, slots, end, largest)
        _count_slots(slots, end, chain)
    is_finite = True
    for lane in range(LANES):
        is_finite &= largest[lane] < np.int32(INFINITY_BITS)
    return is_finite


def fill_chain(base, agents, chain, edge_bits, bins, slots, largest):
    """Add a block to the chain histogram of ``overlap.patterns_from_chain``.

    base: stored elements; agents: tuple of as many stored elements per agent; chain: int32 of
    shape (2**n_agents, n_agents, BIN_COUNT), flattened, incremented in place (entries of the
    empty set are scratch); edge_bits: int32, the bit pattern of the float32 that is the upper edge
    of the bin before -LOWEST_BIN. Agents in one bin leave in the order given.
    To work in: bins, int32 (n_agents, TILE); slots, uint32 (n_agents * TILE + LANES); largest,
    int32 (LANES), zeros.
    Returns False when some task vector element is not finite.
    """
    n_agents = len(agents)
    n = base.shape[0]
    is_finite = True
    first = 0
    if HAS_FAST_LANES:
        first = n // LANES * LANES
        is_finite = _fill_chain_by_lanes(base, agents, chain, edge_bits, first, slots, largest)
        if first == n:
            return is_finite
    poison = np.float32(0)
    for start in range(first, n, TILE):
        stop = min(start + TILE, n)
        length = stop - start
        for agent in range(n_agents):
            poison += _bins_of(
                base[start:stop], agents[agent][start:stop], bins[agent][:length], edge_bits
            )
        for agent in range(n_agents):
            _find_leaving(agent, agents, bins, slots, length)
            _count_slots(slots, length, chain)
    return is_finite and poison == 0


def fill_steps(base, agents, steps, magnitudes, edge_bits, order, bins):
    """Add a block to the step histogram of ``overlap.shared_from_steps``, for many agents.

    steps: int32 (n_agents, n_agents, BIN_COUNT); magnitudes: int32 (n_agents, BIN_COUNT); both
    incremented in place; order, bins: int64 (n_agents,) to work in. Otherwise as ``fill_chain``,
    whose table grows with 2**n_agents.
    """
    n_agents = len(agents)
    poison = np.float32(0)
    for i in range(base.shape[0]):
        x = _decode(base[i])
        active = 0
        for agent in range(n_agents):
            tau = _decode(agents[agent][i]) - x
            poison += tau * np.float32(0)
            bits = np.int64(float_bits(tau) & np.uint32(0x7FFFFFFF))
            if bits == 0:
                continue
            k = ((bits - edge_bits - 1) >> BIN_SHIFT) - LOWEST_BIN
            k = min(max(k, 0), BIN_COUNT - 1)
            magnitudes[agent, k] += 1
            place = active
            while place > 0 and bins[place - 1] < k:
                bins[place] = bins[place - 1]
                order[place] = order[place - 1]
                place -= 1
            bins[place] = k
            order[place] = agent
            active += 1
        # With epsilon between the m-th and the next smaller |tau|, the m largest are active and
        # each of them shares the element with m - 1 others.
        for m in range(1, active + 1):
            for rank in range(m):
                steps[order[rank], m - 1, bins[m - 1]] += 1
                if m < active:
                    steps[order[rank], m - 1, bins[m]] -= 1
    return poison == 0


def merge_mean(base, agents, merged, active, epsilon, factors):
    """Merge a block (Eq. 7): lambda_t * tau_t where only t changed it, else the mean.

    base, agents: as for ``fill_chain``; merged: uint16 (bfloat16 bits) or float32, rounded
    to nearest, or float64 still to be rounded; active: unsigned integers receiving the overlap
    pattern of each element (bit t is agent t); epsilon: float32 threshold; factors: tuple of
    lambda per agent, float64.
    Returns False when some task vector element is not finite.

    An element that only agent t changed takes the agent's own value when lambda_t = 1 (base + tau
    could round away from it), an unchanged one the base's.
    """
    poison = np.float32(0)
    for i in range(base.shape[0]):
        x32 = _decode(base[i])
        x = np.float64(x32)
        pattern = np.int32(0)
        count = np.int32(0)
        total = 0.0
        alone = x
        for t in range(len(agents)):
            y32 = _decode(agents[t][i])
            tau32 = y32 - x32
            poison = _add_in_any_order(poison, tau32 * np.float32(0))
            is_active = abs(tau32) > epsilon
            y = np.float64(y32)
            tau = y - x
            pattern |= np.int32(np.int32(is_active) << np.int32(t))
            count += np.int32(is_active)
            total += tau if is_active else 0.0
            scaled = y if factors[t] == 1.0 else x + factors[t] * tau
            alone = scaled if is_active else alone
        value = x + total / np.float64(max(count, np.int32(1)))
        value = alone if count == 1 else value
        value = x if count == 0 else value
        merged[i] = _encode(value, merged)
        active[i] = pattern
    return poison == 0


def merge_elected(base, agents, merged, active, epsilon, factors):
    """Merge a block like ``merge_mean``, electing a sign in the shared region.

    Where several agents changed an element, only the task vectors that agree with the sign of
    their sum are averaged (the authors' "arm-ties"); if the sum is 0, the base stays.
    """
    poison = np.float32(0)
    for i in range(base.shape[0]):
        x32 = _decode(base[i])
        x = np.float64(x32)
        pattern = np.int32(0)
        count = np.int32(0)
        total = 0.0
        alone = x
        for t in range(len(agents)):
            y32 = _decode(agents[t][i])
            tau32 = y32 - x32
            poison = _add_in_any_order(poison, tau32 * np.float32(0))
            is_active = abs(tau32) > epsilon
            y = np.float64(y32)
            tau = y - x
            pattern |= np.int32(np.int32(is_active) << np.int32(t))
            count += np.int32(is_active)
            total += tau if is_active else 0.0
            scaled = y if factors[t] == 1.0 else x + factors[t] * tau
            alone = scaled if is_active else alone
        elected = 0.0
        voters = np.int32(0)
        for t in range(len(agents)):
            y32 = _decode(agents[t][i])
            tau = np.float64(y32) - x
            same_sign = ((tau > 0.0) & (total > 0.0)) | ((tau < 0.0) & (total < 0.0))
            agrees = (abs(y32 - x32) > epsilon) & same_sign
            elected += tau if agrees else 0.0
            voters += np.int32(agrees)
        value = x + elected / np.float64(max(voters, np.int32(1)))
        value = alone if count == 1 else value
        value = x if (count == 0) | (voters == 0) else value
        merged[i] = _encode(value, merged)
        active[i] = pattern
    return poison == 0


def count_active(active, agent):
    """Return how many elements of a block agent ``agent`` changed, and how many of them alone."""
    changed = 0
    unique = 0
    mine = active.dtype.type(1 << agent)
    for i in range(active.shape[0]):
        changed += np.int64((active[i] & mine) != 0)
        unique += np.int64(active[i] == mine)
    return changed, unique


def stored_change(base, agent, stored, active, index):
    """Return a block's sums (stored - base) * tau and tau**2 over agent ``index``'s unique region.

    Their ratio over all blocks is the effective scaling factor: what the output's dtype kept of
    lambda. stored: bfloat16 bits, float32 or float64 values. Sums are float64.
    """
    mine = active.dtype.type(1 << index)
    numerator = 0.0
    denominator = 0.0
    for i in range(active.shape[0]):
        x = np.float64(_decode(base[i]))
        tau = np.float64(_decode(agent[i])) - x
        tau = tau if active[i] == mine else 0.0
        change = _stored_value(stored[i]) - x
        numerator = _add_in_any_order(numerator, change * tau)
        denominator = _add_in_any_order(denominator, tau * tau)
    return numerator, denominator


def is_unchanged(base, agents):
    """Whether every agent's stored elements of a block are the base's, bit for bit or 0 and -0."""
    n = base.shape[0]
    for start in range(0, n, TILE):
        length = min(start + TILE, n) - start
        for t in range(len(agents)):
            x, y = base[start : start + length], agents[t][start : start + length]
            different = 0
            for i in range(length):
                different += np.int64(x[i] != y[i])
            if different > 0:
                return False
    return True


def is_finite(stored):
    """Whether every stored element of a block is finite."""
    poison = np.float32(0)
    for i in range(stored.shape[0]):
        poison = _add_in_any_order(poison, _decode(stored[i]) * np.float32(0))
    return poison == 0


def fold_chain(chain, interval_of_bin, folded, magnitudes):
    """Add a chain histogram to int64 tables at the ladder's resolution, and clear it.

    chain: int32, flat (sets, agents, bins); interval_of_bin: ladder interval of each bin;
    folded: int64 (sets, agents, intervals); magnitudes: int64 (agents, bins).
    """
    agents, bins = magnitudes.shape
    for row in range(agents, chain.shape[0] // bins):
        counts = chain[row * bins : (row + 1) * bins]
        touched = np.int32(0)
        for k in range(bins):
            touched |= counts[k]
        if touched == 0:
            continue
        mask = row // agents
        agent = row % agents
        for k in range(bins):
            folded[mask, agent, interval_of_bin[k]] += counts[k]
            magnitudes[agent, k] += counts[k]
            counts[k] = 0
    chain[: agents * bins] = 0
