"""Every loop over elements, as numba compiles it; ``cpu`` says what each is for.

All stand in this one file, longer than others, because numba keeps compiled loops until the file
they are written in changes: code or constants taken from elsewhere would outlive their edits.

A loop is compiled once for each number of agents (the length of the tuple of blocks) and kind of
storage. LLVM unrolls over agents and vectorises over elements, as long as

- integers are kept to 32 bits by hand (numba widens them to 64),
- nothing is loaded under a condition (below AVX-512 there are no masked loads of 16 bits),
- numbers per agent come in tuples (a store might change an array's).

Storage: bfloat16 as uint16 bit patterns, anything else as float32. A size is the bit pattern of
|tau| in float32, an int32: sizes are ordered like the numbers, and NaN and infinity lie above all.
"""

from __future__ import annotations

import logging

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

TILE = 1024
"""Elements worked on in one go where several loops follow each other, so that they stay in L1."""

INFINITE = np.int32(0x7F800000)
"""Size of infinity."""

OVERFLOWING = np.int32(0x7F7F8000)
"""Size from which on a float32 becomes infinite in bfloat16."""

_told: list[str] = []


def loop(function=None, **options):
    """Compile a function where it is first called, and keep the code for the next start."""
    if function is None:
        return lambda function: loop(function, **options)
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError as error:  # no folder to write to: neither the package's nor the user's
        if not _told:
            _told.append(str(error))
            logging.getLogger(__name__).warning(
                "Compiled loops cannot be kept (%s): each start compiles them anew, in seconds. "
                "Set NUMBA_CACHE_DIR to a folder that can be written.",
                error,
            )
        return njit(**options)(function)


@intrinsic
def as_bits(typing_context, value):
    """Reinterpret a float32 as int32."""
    return types.int32(types.float32), lambda c, b, s, a: b.bitcast(a[0], ir.IntType(32))


@intrinsic
def as_float(typing_context, bits):
    """Reinterpret a uint32 as float32."""
    return types.float32(types.uint32), lambda c, b, s, a: b.bitcast(a[0], ir.FloatType())


def load(stored):
    """Return the float32 that a stored element stands for."""


@overload(load)
def _load(stored):
    if stored == types.uint16:
        return lambda stored: as_float(np.uint32(np.uint32(stored) << np.uint32(16)))
    return lambda stored: np.float32(stored)


def like(value, example):
    """Return a number in the type of another, float32 or float64: the arithmetic asked for."""


@overload(like)
def _like(value, example):
    if example == types.float32:
        return lambda value, example: np.float32(value)
    return lambda value, example: np.float64(value)


@loop
def nearest_bfloat16(value):
    """Round a finite float32 to the nearest bfloat16, ties to even; overflow gives infinity."""
    bits = np.uint32(as_bits(value))
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


def rounded(value, array):
    """Return a number as an element of an array: bfloat16 bits, float32 or float64."""


@overload(rounded)
def _rounded(value, array):
    if array.dtype == types.uint16:
        return lambda value, array: nearest_bfloat16(np.float32(value))
    return lambda value, array: like(value, array[0])


@loop
def size_of(tau):
    return np.int32(as_bits(np.float32(tau)) & np.int32(0x7FFFFFFF))


@loop(fastmath={"reassoc", "contract"})
def plus_product(total, a, b):
    """Return total + a b, in any order: for sums that measure, never for what is stored."""
    return total + a * b


# Who changed what


@loop
def find_patterns(base, agents, pattern, epsilon):
    largest, limit = np.int32(0), size_of(epsilon)
    for i in range(base.shape[0]):
        x = load(base[i])
        found = np.uint32(0)
        for t in range(len(agents)):
            size = size_of(load(agents[t][i]) - x)
            largest = max(largest, size)
            found |= np.uint32(1 << t) if size > limit else np.uint32(0)
        pattern[i] = found
    return largest < INFINITE


@loop
def _pack_four(pattern, codes):
    """Write the patterns of four elements, of up to three agents, as one code of 12 bits."""
    words = pattern.view(np.uint32)
    for i in range(words.shape[0]):
        code = np.uint32(0)
        for k in range(4):
            one = np.uint32(words[i] >> np.uint32(8 * k)) & np.uint32(7)
            code |= np.uint32(one << np.uint32(3 * k))
        codes[i] = np.uint16(code)
    return words.shape[0]


@loop
def _pack_two(pattern, codes):
    """Write the patterns of two elements, of up to six agents, as one code of 12 bits."""
    words = pattern.view(np.uint16)
    for i in range(words.shape[0]):
        word = np.uint32(words[i])
        codes[i] = np.uint16(
            (word & np.uint32(63)) | np.uint32(word >> np.uint32(8)) << np.uint32(6)
        )
    return words.shape[0]


@loop
def count_patterns(pattern, counts):
    is_short = counts.shape[0] <= 8
    together, bits = (4, 3) if is_short else (2, 6)
    codes = np.empty(TILE, dtype=np.uint16)
    # In turns, so that an increment need not wait for the one before: most elements have one code.
    tables = np.zeros((4, 4096), dtype=np.int32)
    whole = pattern.shape[0] // (4 * together) * (4 * together)
    for start in range(0, whole, together * TILE):
        part = pattern[start : min(start + together * TILE, whole)]
        length = _pack_four(part, codes) if is_short else _pack_two(part, codes)
        for i in range(0, length, 4):
            for k in range(4):
                tables[np.uint64(k), np.uint64(codes[np.uint64(i + k)])] += np.int32(1)
    for i in range(whole, pattern.shape[0]):
        counts[pattern[i]] += 1
    for code in range(4096):
        found = tables[0, code] + tables[1, code] + tables[2, code] + tables[3, code]
        if found:
            for k in range(together):
                counts[(code >> (bits * k)) & ((1 << bits) - 1)] += found


@loop
def count_shared(pattern, shared):
    for i in range(pattern.shape[0]):
        left = np.uint32(pattern[i])
        others = -1
        while left:
            left &= np.uint32(left - np.uint32(1))
            others += 1
        for t in range(shared.shape[0] if others >= 0 else 0):
            shared[t, others] += np.int64(np.uint32(pattern[i] >> np.uint32(t)) & np.uint32(1))


# Merging


def _limit(array):
    """Return the smallest size that an element of an array cannot hold."""


@overload(_limit)
def _limit_of(array):
    limit = OVERFLOWING if array.dtype == types.uint16 else INFINITE
    return lambda array: limit


@loop
def merge_mean(base, agents, merged, pattern, kept, epsilon, factors, shares):
    zero, one = like(0, factors[0]), like(1, factors[0])
    largest, limit = np.int32(0), size_of(epsilon)
    for i in range(base.shape[0]):
        near = load(base[i])
        x = like(near, one)
        found = np.uint32(0)
        count, total, weight, own = zero, zero, zero, x
        for t in range(len(agents)):
            value = load(agents[t][i])
            size = size_of(value - near)
            is_kept = size > limit
            found |= np.uint32(1 << t) if is_kept else np.uint32(0)
            if kept is not None:
                largest = max(largest, size)
                is_kept &= (np.uint32(kept[i]) & np.uint32(1 << t)) != 0
            y = like(value, one)
            count += one if is_kept else zero
            total += y - x if is_kept else zero
            weight = factors[t] if is_kept else weight
            own = y if is_kept else own
        # With factor 1 exactly the agent's element: base + tau could round away from it.
        is_own = (count == one) & (weight == one)
        for c in range(2, len(agents) + 1):
            weight = shares[c] if count == like(c, one) else weight
        step = weight * total
        result = own if is_own else x + step
        result = result if step != zero else x  # also where it is -0
        largest = max(largest, size_of(result))
        merged[i] = rounded(result, merged)
        pattern[i] = found
    return largest < _limit(merged)


@loop
def merge_elected(base, agents, merged, pattern, kept, limits, factors, shares):
    """limits: epsilon, then the thresholds of the agents."""
    zero, one = like(0, factors[0]), like(1, factors[0])
    largest, limit = np.int32(0), size_of(limits[0])
    for i in range(base.shape[0]):
        near = load(base[i])
        x = like(near, one)
        found = np.uint32(0)
        count, weight, own = zero, zero, x
        up, down, n_up = zero, zero, zero
        for t in range(len(agents)):
            value = load(agents[t][i])
            size = size_of(value - near)
            largest = max(largest, size)
            found |= np.uint32(1 << t) if size > limit else np.uint32(0)
            is_kept = size > size_of(limits[t + 1])
            if kept is not None:
                is_kept &= (np.uint32(kept[i]) & np.uint32(1 << t)) != 0
            y = like(value, one)
            tau = y - x if is_kept else zero
            count += one if is_kept else zero
            up += tau if tau > zero else zero
            down += tau if tau < zero else zero
            n_up += one if tau > zero else zero
            weight = factors[t] if is_kept else weight
            own = y if is_kept else own
        total = up + down
        elected = up if total > zero else (down if total < zero else zero)
        voters = n_up if total > zero else count - n_up
        share = zero
        for c in range(1, len(agents) + 1):
            share = shares[c] if voters == like(c, one) else share
        is_own = (count == one) & (weight == one)
        weight = weight if count == one else share
        step = weight * elected
        result = own if is_own else x + step
        result = result if step != zero else x
        largest = max(largest, size_of(result))
        merged[i] = rounded(result, merged)
        pattern[i] = found
    return largest < _limit(merged)


# What was stored


@loop
def _change_of(wide, change, agent, pattern, bit):
    """Return the sums of change * tau and tau**2 over the elements with this pattern."""
    zero = like(0, wide[0])
    top, bottom = zero, zero
    for i in range(agent.shape[0]):
        tau = like(load(agent[i]), zero) - wide[i]
        tau = tau if pattern[i] == bit else zero
        top = plus_product(top, change[i], tau)
        bottom = plus_product(bottom, tau, tau)
    return top, bottom


@loop
def measure(base, agents, stored, pattern, cuts, work, sums):
    """work: (2, TILE), of the arithmetic's type."""
    wide, change = work[0], work[1]
    for group in range(sums.shape[0]):
        for start in range(cuts[group], cuts[group + 1], TILE):
            part = slice(start, min(start + TILE, cuts[group + 1]))
            x, z = base[part], stored[part]
            for i in range(x.shape[0]):
                wide[i] = like(load(x[i]), wide[0])
                change[i] = like(load(z[i]), wide[0]) - wide[i]
            for t in range(len(agents)):
                bit = pattern.dtype.type(1 << t)
                top, bottom = _change_of(wide, change, agents[t][part], pattern[part], bit)
                sums[group, t, 0] += np.float64(top)
                sums[group, t, 1] += np.float64(bottom)


# Histograms of |tau|


@loop
def _bin_of(size, grid):
    """Return the bin of a size that is not 0, see ``ladder``; grid: see ``cpu.Grid``."""
    k = np.int32(np.int32(size - grid.edge_bits - np.int32(1)) >> grid.shift) - grid.lowest
    return np.int32(min(max(np.int32(k), np.int32(0)), np.int32(grid.bins - np.int32(1))))


@loop
def _bins_of(base, agent, bins, grid):
    """Write the bin of each |tau|, -1 where tau is 0; return the largest size."""
    largest = np.int32(0)
    for i in range(base.shape[0]):
        size = size_of(load(agent[i]) - load(base[i]))
        largest = max(largest, size)
        bins[i] = _bin_of(size, grid) if size != np.int32(0) else np.int32(-1)
    return largest


@loop
def _find_leaving(agent, agents, bins, slots, grid):
    """Write where in the chain histogram each element counts at which ``agent`` leaves."""
    n_agents = len(agents)  # a constant to the compiler, unlike a number passed in
    own = bins[agent]
    for i in range(slots.shape[0]):
        still_active = np.int32(0)
        for other in range(n_agents):
            k = bins[other, i]
            stays = (k > own[i]) | ((k == own[i]) & (other >= agent))
            still_active |= np.int32(1 << other) if stays else np.int32(0)
        slot = np.int32(np.int32(still_active * n_agents + agent) * grid.bins + own[i])
        # Unchanged elements hit scratch slots, spread so that they do not wait on each other.
        slots[i] = np.uint32(slot if own[i] >= 0 else np.int32(i & 1023))


@loop
def _pack(agents, bins, length, found):
    """Move the bins of elements that some agent changed to the front; return how many there are."""
    for i in range(length):
        highest = bins[0, i]
        for t in range(1, len(agents)):
            highest = max(highest, bins[t, i])
        found[i] = highest
    end = 0
    for i in range(length):
        is_changed = found[i] >= 0
        found[end] = i
        end += np.int64(is_changed)
    for t in range(len(agents)):
        for i in range(end):
            bins[t, i] = bins[t, found[i]]
    return end


@loop
def _count_slots(slots, table):
    for i in range(slots.shape[0]):
        table[np.uint64(slots[i])] += np.int32(1)  # unsigned: not tested for counting from the end


@loop
def fill_chain(base, agents, chain, grid):
    n_agents = len(agents)
    bins = np.empty((n_agents, TILE), dtype=np.int32)
    slots = np.empty(TILE, dtype=np.uint32)
    found = np.empty(TILE, dtype=np.int32)
    largest = np.int32(0)
    for start in range(0, base.shape[0], TILE):
        part = slice(start, min(start + TILE, base.shape[0]))
        x = base[part]
        for t in range(n_agents):
            largest = max(largest, _bins_of(x, agents[t][part], bins[t], grid))
        length = _pack(agents, bins, x.shape[0], found)
        for t in range(n_agents):
            _find_leaving(t, agents, bins, slots[:length], grid)
            _count_slots(slots[:length], chain)
    return largest < INFINITE


@loop
def count_sizes(base, agents, table, grid):
    bins = np.empty(TILE, dtype=np.int32)
    slots = np.empty(TILE, dtype=np.uint32)
    largest = np.int32(0)
    for start in range(0, base.shape[0], TILE):
        part = slice(start, min(start + TILE, base.shape[0]))
        x = base[part]
        length = x.shape[0]
        for t in range(len(agents)):
            largest = max(largest, _bins_of(x, agents[t][part], bins, grid))
            for i in range(length):
                spare = np.int32(grid.bins + np.int32(i & 1023))
                slots[i] = np.uint32(bins[i] if bins[i] >= 0 else spare)
            _count_slots(slots[:length], table[t])
    return largest < INFINITE


@loop
def fill_steps(base, agents, steps, grid):
    n_agents = len(agents)
    order, bins = np.empty(n_agents, dtype=np.int64), np.empty(n_agents, dtype=np.int32)
    largest = np.int32(0)
    for i in range(base.shape[0]):
        x = load(base[i])
        active = 0
        for agent in range(n_agents):
            size = size_of(load(agents[agent][i]) - x)
            largest = max(largest, size)
            if size == 0:
                continue
            k = _bin_of(size, grid)
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
    return largest < INFINITE


# Random words, and rounding by them


@loop
def word(key, index):
    """Return 64 random bits for element ``index``: the finaliser of SplitMix64 over key + index."""
    z = key + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@loop
def random_words(key, start, out):
    for i in range(out.shape[0]):
        out[i] = word(key, start + np.uint64(i))


@loop
def draw(keys, cut, start, kept):
    for i in range(kept.shape[0]):
        index = start + np.uint64(i)
        found = np.uint32(0)
        for t in range(len(keys)):
            is_kept = (word(keys[t], index) >> np.uint64(11)) >= cut
            found |= np.uint32(1 << t) if is_kept else np.uint32(0)
        kept[i] = found


@loop
def stochastic_bfloat16(values, changed, key, start, out):
    for i in range(values.shape[0]):
        nearest = np.float32(values[i])
        bits = np.uint32(as_bits(nearest))
        up = np.uint32(bits + np.uint32(word(key, start + np.uint64(i)) >> np.uint64(48)))
        # Never across to infinity: what would overflow stays at the largest finite number.
        up = up if (up & np.uint32(0x7F800000)) != np.uint32(0x7F800000) else bits
        drawn = np.uint16(up >> np.uint32(16))
        out[i] = drawn if changed[i] else nearest_bfloat16(nearest)


@loop
def stochastic_float32(values, changed, key, start, out):
    largest = np.float64(3.4028234663852886e38)
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        nearest = np.float32(value)
        bits = np.uint32(as_bits(nearest))
        is_above = abs(np.float64(nearest)) > abs(value)
        below = as_float(np.uint32(bits - np.uint32(1))) if is_above else nearest
        above = as_float(np.uint32(np.uint32(as_bits(below)) + np.uint32(1)))
        step = np.float64(above) - np.float64(below)
        share = (value - np.float64(below)) / step
        chance = np.float64(word(key, start + np.uint64(i)) >> np.uint64(11)) * 2.0**-53
        drawn = above if chance < share else below
        keep = (not changed[i]) or abs(value) >= largest or value == np.float64(nearest)
        out[i] = nearest if keep else drawn


@loop
def stochastic_float16(values, changed, key, start, out):
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        size = abs(value)
        exponent = max(np.int64(np.floor(np.log2(size))) if size > 0.0 else -14, -14)
        step = 2.0 ** np.float64(exponent - 10)
        count = np.floor(size / step)
        chance = np.float64(word(key, start + np.uint64(i)) >> np.uint64(11)) * 2.0**-53
        if chance < size / step - count:
            count += 1.0
        drawn = min(count * step, 65504.0) if size <= 65504.0 else size
        out[i] = np.copysign(drawn, value) if changed[i] else value
