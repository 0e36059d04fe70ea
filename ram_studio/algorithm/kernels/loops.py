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
from numba.np import linalg

TILE = 2048
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


def _import_without_blas():
    """Import numba's array functions without scipy's BLAS: a quarter of a second for nothing here.

    numba looks for it as it starts, only to choose how ``np.cov`` multiplies; functions that call
    BLAS look for it once more when they are compiled.
    """

    def absent():
        raise ImportError

    found = linalg.ensure_blas
    linalg.ensure_blas = absent
    try:
        from numba.np import arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = found


if hasattr(linalg, "ensure_blas"):
    _import_without_blas()


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


def is_wide(example):
    """Return whether the arithmetic asked for holds what a float32 cannot."""


@overload(is_wide)
def _is_wide(example):
    answer = example == types.float64
    return lambda example: answer


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
            is_changed = size > limit
            found |= np.uint32(1 << t) if is_changed else np.uint32(0)
            if is_wide(one) or kept is not None:  # else an infinite tau shows in the result
                largest = max(largest, size)
            if kept is not None:
                is_changed &= (np.uint32(kept[i]) & np.uint32(1 << t)) != 0
            y = like(value, one)
            count += one if is_changed else zero
            total += y - x if is_changed else zero
            weight = factors[t] if is_changed else weight
            own = y if is_changed else own
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
            is_changed = size > size_of(limits[t + 1])
            if kept is not None:
                is_changed &= (np.uint32(kept[i]) & np.uint32(1 << t)) != 0
            y = like(value, one)
            tau = y - x if is_changed else zero
            count += one if is_changed else zero
            up += tau if tau > zero else zero
            down += tau if tau < zero else zero
            n_up += one if tau > zero else zero
            weight = factors[t] if is_changed else weight
            own = y if is_changed else own
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
def find_voters(base, agents, kept, limits, voters):
    """Write whose tau is among those that agree with the elected sign, see ``merge_elected``."""
    zero = like(0, limits[1])
    for i in range(base.shape[0]):
        x = load(base[i])
        balance, up, down = zero, np.uint32(0), np.uint32(0)
        for t in range(len(agents)):
            tau = load(agents[t][i]) - x
            is_changed = size_of(tau) > size_of(np.float32(limits[0][t]))
            if kept is not None:
                is_changed &= (np.uint32(kept[i]) & np.uint32(1 << t)) != 0
            wide = like(load(agents[t][i]), zero) - like(x, zero)
            balance += wide if is_changed else zero
            up |= np.uint32(1 << t) if is_changed & (wide > zero) else np.uint32(0)
            down |= np.uint32(1 << t) if is_changed & (wide < zero) else np.uint32(0)
        voters[i] = up if balance > zero else (down if balance < zero else np.uint32(0))


@loop
def _find_error(base, agents, stored, part, masks, weights, rows):
    """Write base, change, every voter's weight, and what the change has beyond the votes."""
    pattern, voters, bits = masks
    factors, shares = weights
    wide, change, weight, error = rows
    zero, one = like(0, wide[0]), like(1, wide[0])
    for i in range(part.stop - part.start):
        at = np.uint64(part.start + i)  # unsigned: not tested for counting from the end
        x, mask, votes = like(load(base[at]), zero), np.uint32(pattern[at]), voters[at]
        total, count, own = zero, zero, zero
        for t in range(len(agents)):
            is_voter = (votes & bits[t]) != 0
            total += like(load(agents[t][at]), zero) - x if is_voter else zero
            count += one if is_voter else zero
            own = factors[t] if is_voter else own
        # The factor holds where an agent alone changed the element, not where it alone was elected.
        is_shared = (mask & np.uint32(mask - np.uint32(1))) != 0
        for c in range(1, len(agents) + 1):
            own = shares[c] if is_shared & (count == like(c, one)) else own
        step = like(load(stored[at]), zero) - x
        wide[i], change[i], weight[i], error[i] = x, step, own, step - own * total


@loop
def _measure_agent(agent, bit, part, masks, rows):
    """Return one agent's sums over a tile, see ``cpu.measure``."""
    pattern, voters = masks[0], masks[1]
    wide, change, weight, error = rows
    zero = like(0, wide[0])
    alone, alone2, missed, along, along2, off = zero, zero, zero, zero, zero, zero
    norm, rest, unrounded = zero, zero, zero
    for i in range(part.stop - part.start):
        at = np.uint64(part.start + i)
        mask = pattern[at]
        tau = like(load(agent[at]), zero) - wide[i]
        own = weight[i] * tau if (voters[at] & bit) != 0 else zero
        unique = tau if mask == bit else zero
        shared = tau if ((mask & bit) != 0) & (mask != bit) else zero
        alone = plus_product(alone, change[i], unique)
        alone2 = plus_product(alone2, unique, unique)
        missed = plus_product(missed, error[i], unique)
        along = plus_product(along, own, shared)
        along2 = plus_product(along2, shared, shared)
        off = plus_product(off, error[i], shared)
        norm = plus_product(norm, tau, tau)
        stored = change[i] - own
        asked = stored - error[i]
        rest = plus_product(rest, stored, stored)
        unrounded = plus_product(unrounded, asked, asked)
    return alone, alone2, missed, along, along2, off, norm, rest, unrounded


@loop
def measure(base, agents, stored, masks, cuts, weights, work, sums):
    """Add up a block, see ``cpu.measure``.

    masks: patterns, voters and the agents' bits; weights: factors and shares; work: (4, TILE), of
    their type. Bits come as arguments, of the patterns' type: a bit that LLVM can foresee is tested
    in 64 bits, a fourth of the elements at a time. Arrays go whole with a tile's place in them:
    slices count references.
    """
    rows = (work[0], work[1], work[2], work[3])  # base, change, weight and error
    for group in range(sums.shape[0]):
        for start in range(cuts[group], cuts[group + 1], TILE):
            part = slice(start, min(start + TILE, cuts[group + 1]))
            _find_error(base, agents, stored, part, masks, weights, rows)
            for t in range(len(agents)):
                found = _measure_agent(agents[t], masks[2][t], part, masks, rows)
                for k in range(len(found)):
                    sums[group, t, k] += np.float64(found[k])


# Histograms of |tau|


@loop(forceinline=True)
def _bin_of(size, grid):
    """Return the bin of a size that is not 0, see ``epsilon_grid``; grid: see ``cpu.Grid``."""
    above = np.uint32(np.uint32(max(size, grid.origin)) - np.uint32(grid.origin))
    # 16 is ``epsilon_grid.BIN_SHIFT``: shifting by what only the caller knows costs half as much
    # again.
    return np.int32(min(np.uint32(above >> np.uint32(16)), grid.last))


@loop(forceinline=True)
def _bin_or_none(size, grid):
    return _bin_of(size, grid) if size != np.int32(0) else np.int32(-1)


def _sizes_at(agents, i, x):
    """Return the sizes of all tau of element i, whose base is x, in a tuple: it needs no memory."""


@overload(_sizes_at)
def _sizes_of(agents, i, x):
    if len(agents) == 1:
        return lambda agents, i, x: (size_of(load(agents[0][i]) - x),)
    return lambda agents, i, x: (size_of(load(agents[0][i]) - x), *_sizes_at(agents[1:], i, x))


@loop
def _find_slots(base, agents, start, length, spare, slots, grid):
    """Write where in the chain histogram elements count when an agent leaves; slots: by agent.

    That is at its bin, with the set of those still active, itself included. Where it changed
    nothing, a scratch entry: those of a tile differ, so that they do not wait on each other.
    Returns the largest size.
    """
    n, largest = len(agents), np.int32(0)
    bins = np.int32(np.int32(grid.last) + np.int32(1))
    for i in range(length):
        at = np.uint64(start + i)
        sizes = _sizes_at(agents, at, load(base[at]))
        unchanged = spare[i]
        for t in range(n):
            largest = max(largest, sizes[t])
            own = _bin_or_none(sizes[t], grid)
            slot = np.int32(own + np.int32(np.int32((1 << t) * n + t) * bins))
            for other in range(n):
                k = _bin_or_none(sizes[other], grid)
                stays = k >= own if other > t else k > own
                slot += np.int32(np.int32((1 << other) * n) * bins) if stays else np.int32(0)
            slots[t, i] = slot if own >= np.int32(0) else unchanged
    return largest


@loop
def _count_slots(slots, table):
    for i in range(slots.shape[0]):
        table[np.uint64(slots[i])] += np.int32(1)  # unsigned: not tested for counting from the end


@loop
def fill_chain(base, agents, chain, grid):
    slots = np.empty((len(agents), TILE), dtype=np.uint32)
    spare = np.arange(TILE).astype(np.int32)
    largest = np.int32(0)
    for start in range(0, base.shape[0], TILE):
        length = min(TILE, base.shape[0] - start)
        found = _find_slots(base, agents, start, length, spare, slots, grid)
        largest = max(largest, found)
        for t in range(len(agents)):
            _count_slots(slots[t, :length], chain)
    return largest < INFINITE


@loop
def count_sizes(base, agents, table, grid):
    slots = np.empty(TILE, dtype=np.uint32)
    spare = np.arange(TILE).astype(np.int32) + np.int32(grid.last + np.uint32(1))
    largest = np.int32(0)
    for start in range(0, base.shape[0], TILE):
        part = slice(start, min(start + TILE, base.shape[0]))
        x = base[part]
        for t in range(len(agents)):
            y = agents[t][part]
            for i in range(x.shape[0]):
                size, unchanged = size_of(load(y[i]) - load(x[i])), spare[i]
                largest = max(largest, size)
                slots[i] = _bin_of(size, grid) if size != np.int32(0) else unchanged
            _count_slots(slots[: x.shape[0]], table[t])
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


# Elements that agents changed, gathered as float32: alone, in pairs, and the rest


@loop(forceinline=True)
def pair_index(a, b, n):
    """Return the place of the pair a < b among (0, 1), (0, 2), ..., (1, 2), ..."""
    return a * (2 * n - a - 1) // 2 + b - a - 1


@loop
def _owner_of(mask, n):
    """Return where the elements with these changes go: to an agent, a pair, or the rest."""
    changed, first, last = 0, 0, 0
    for t in range(n):
        if (mask >> np.uint32(t)) & np.uint32(1):
            first = t if changed == 0 else first
            last = t
            changed += 1
    if changed == 1:
        return first
    return n + (pair_index(first, last, n) if changed == 2 else n * (n - 1) // 2)


@loop
def _find_changed(base, agents, pattern, found):
    """Write who stores another element than the base, and where someone does; return how many."""
    n_found = 0
    for start in range(0, base.shape[0], TILE):
        part = slice(start, min(start + TILE, base.shape[0]))
        x, mine = base[part], pattern[part]
        mine[:] = 0
        for t in range(len(agents)):
            y, bit = agents[t][part], np.uint32(1 << t)
            for i in range(x.shape[0]):
                mine[i] |= bit if x[i] != y[i] else np.uint32(0)
        for i in range(x.shape[0]):
            found[n_found] = start + i
            n_found += np.int64(mine[i] != 0)
    return n_found


@loop
def gather_changed(base, agents, gathered):
    n = len(agents)
    counts = gathered.counts
    pattern = np.empty(base.shape[0], dtype=np.uint32)
    found = np.empty(base.shape[0] + 1, dtype=np.int32)
    n_found = _find_changed(base, agents, pattern, found)
    counts[:] = 0
    owner, by_owner = np.empty(n_found, dtype=np.int16), np.empty(n_found, dtype=np.int32)
    table = np.empty(1 << min(n, 8), dtype=np.int16)
    for mask in range(len(table)):
        table[mask] = _owner_of(np.uint32(mask), n)
    for at in range(n_found):
        mask = pattern[found[at]]
        row = table[mask] if mask < len(table) else _owner_of(mask, n)
        owner[at] = row
        counts[row] += 1
    places = np.cumsum(counts) - counts
    for at in range(n_found):
        by_owner[places[owner[at]]] = found[at]
        places[owner[at]] += 1
    start, first = 0, 0
    for t in range(n):
        for at in range(start, start + counts[t]):
            own = load(agents[t][by_owner[at]])
            gathered.alone[0, at] = own
            gathered.alone[1, at] = own - load(base[by_owner[at]])
        start += counts[t]
    first, row = start, n
    for a in range(n):
        for b in range(a + 1, n):
            for at in range(start, start + counts[row]):
                i = by_owner[at]
                x, own, other = load(base[i]), load(agents[a][i]), load(agents[b][i])
                gathered.paired[0, at - first] = own
                gathered.paired[1, at - first] = other
                gathered.paired[2, at - first] = own - x
                gathered.paired[3, at - first] = other - x
            start += counts[row]
            row += 1
    for t in range(n):
        for at in range(counts[row]):
            i = by_owner[start + at]
            own = load(agents[t][i])
            gathered.several[0, t, at] = own
            gathered.several[1, t, at] = own - load(base[i])


# What the analysis knows beyond counts, added up in ``relating.RelationSums`` (``to``). As in the
# chain histogram, agents leave an element one by one as epsilon rises, so every sum is kept as
# differences over the intervals between thresholds: what is added at interval v counts at every one
# below v.


@loop(forceinline=True)
def _interval_of(change, to):
    """Return the interval of |tau|; 0 where tau is 0."""
    size = size_of(change)
    return np.int64(to.interval_of_bin[_bin_of(size, to.grid)]) if size != 0 else 0


@loop(forceinline=True)
def _size(change, to):
    """Return |tau| as it is added up, rounded to ``relations.QUANTUM``."""
    return (abs(np.float64(change)) + to.rounder) - to.rounder


@loop(forceinline=True)
def _sort_changes(at, gathered, to, order, interval):
    """Write the agents that changed an element, largest interval first; return how many there are.

    Agents of one interval stay in the order given.
    """
    active = 0
    for t in range(order.shape[0]):
        change = gathered.several[1, t, at]
        if change == 0:
            continue
        v = _interval_of(change, to)
        place = active
        while place > 0 and interval[place - 1] < v:
            interval[place] = interval[place - 1]
            order[place] = order[place - 1]
            place -= 1
        interval[place] = v
        order[place] = t
        active += 1
    return active


@loop(forceinline=True)
def _magnitude_row(mask, agent, members, to):
    n = to.dots.shape[0]
    return mask * n + agent if to.has_sets else 2 * agent + np.int64(members > 1)


@loop(forceinline=True)
def _add_magnitudes(tau, order, interval, active, to):
    """Add |tau| of each member of every set of agents that is active at some threshold."""
    mask = 0
    for last in range(active):
        mask |= 1 << order[last]
        upper = interval[last]
        lower = interval[last + 1] if last + 1 < active else 0
        if lower == upper:
            continue
        for member in range(last + 1):
            agent = order[member]
            row = _magnitude_row(mask, agent, last + 1, to)
            size = _size(tau[agent], to)
            to.rows[row, upper] += size
            if lower > 0:
                to.rows[row, lower] -= size


@loop(forceinline=True)
def _add_signs(tau, order, interval, active, to):
    """Add conflicts of sign, cancelled |tau| and pairs, for an element with several changes."""
    rows, n = to.rows, to.dots.shape[0]
    total = np.float64(tau[order[0]])
    is_mixed = False
    for last in range(1, active):
        newest = np.float64(tau[order[last]])
        upper = interval[last]
        lower = interval[last + 1] if last + 1 < active else 0
        total += newest
        for member in range(last):
            other = np.float64(tau[order[member]])
            a = min(order[last], order[member])
            b = max(order[last], order[member])
            row = to.pairs + 4 * pair_index(a, b, n)
            rows[row, upper] += 1.0
            rows[row + 2, upper] += _size(newest, to) + _size(other, to)
            if (newest > 0.0) != (other > 0.0):
                if not is_mixed:  # from here on down the epsilon grid it stays so
                    is_mixed = True
                    rows[to.conflicts, upper] += 1.0
                rows[row + 1, upper] += 1.0
                rows[row + 3, upper] += 2.0 * min(_size(newest, to), _size(other, to))
        if not is_mixed or lower == upper:
            continue
        for member in range(last + 1):
            change = np.float64(tau[order[member]])
            lost = _size(change, to)
            if total == 0.0:
                lost *= 0.5
            elif (change > 0.0) == (total > 0.0):
                continue
            row = to.conflicts + 1 + order[member]
            rows[row, upper] += lost
            if lower > 0:
                rows[row, lower] -= lost


@loop(forceinline=True)
def _add_step(y, change, agent, upper, lower, to):
    """Record the update of an element that one agent alone changed at thresholds lower .. upper.

    In halves of the agent's last place beyond y, on the side that tau points to: where
    y + (lambda - 1) tau stays in the binade of y for every lambda up to 2, their number says what
    rounding stores. Everything else is added up as |tau| and tau**2 by that binade.

    y, change: float32, the agent's element and its tau.
    """
    own = np.int64(as_bits(y))
    bits = own & 0x7FFFFFFF
    fraction = bits & 0x7FFFFF
    # Arithmetic instead of branches: the signs of updates cannot be predicted.
    inward = ((own ^ np.int64(as_bits(change))) >> 31 & 1) & np.int64(bits != 0)
    # Towards zero from a power of two the next numbers are those of the binade below.
    down = inward & np.int64(fraction == 0)
    exponent = (bits >> 23) - down
    partly = inward - down
    room = partly * fraction + (1 - partly) * (0x800000 - fraction)
    size = abs(np.float64(change))
    is_near_edge = size > np.float64(room) * to.places[agent, 0, exponent]
    halves = min(size * to.places[agent, 1, exponent], 1e9)
    count = np.int64(halves)
    fits = count < to.steps.shape[3]
    if (not is_near_edge) & fits & (np.float64(count) == halves):
        to.steps[agent, lower, exponent, count] += 1
        to.stepped[agent, lower, exponent] = 1
        return
    kind = 2 * agent + np.int64(is_near_edge)
    row = to.loose + 2 * (kind * to.places.shape[2] + exponent)
    to.touched[row] = 1
    to.touched[row + 1] = 1
    to.rows[row, upper] += size
    to.rows[row + 1, upper] += size * size
    if lower > 0:
        to.rows[row, lower] -= size
        to.rows[row + 1, lower] -= size * size


@loop
def _touch_magnitudes(counts, to):
    """Mark the rows of |tau|: of the agents and pairs found, and all for elements of more."""
    n = to.dots.shape[0]
    if counts[-1] > 0:
        to.touched[: to.conflicts] = 1
        return
    which = n
    for a in range(n):
        to.touched[_magnitude_row(1 << a, a, 1, to)] |= np.uint8(counts[a] > 0)
        for b in range(a + 1, n):
            if counts[which] > 0:
                for t in (a, b):
                    to.touched[_magnitude_row(1 << t, t, 1, to)] = 1
                    to.touched[_magnitude_row((1 << a) | (1 << b), t, 2, to)] = 1
            which += 1


@loop(forceinline=True)
def _product_row(mask, a, b, to):
    return to.products + to.product_of[mask, a, b]


@loop(forceinline=True)
def _add_between(row, upper, lower, value, to):
    """Add a value at the thresholds lower .. upper."""
    to.rows[row, upper] += value
    if lower > 0:
        to.rows[row, lower] -= value


@loop(forceinline=True)
def _add_products(tau, order, interval, active, to):
    """Add tau_a tau_b of every set of agents that is active at some threshold.

    In float64, in which these products are exact. Without sets: each agent's square, its product
    with the others' sum, and the square of the whole sum.
    """
    n = to.dots.shape[0]
    mask, total = 0, 0.0
    for last in range(active):
        mask |= 1 << order[last]
        total += np.float64(tau[order[last]])
        upper = interval[last]
        lower = interval[last + 1] if last + 1 < active else 0
        if lower == upper:
            continue
        for member in range(last + 1):
            own = np.float64(tau[order[member]])
            if to.has_sets:
                for other in range(member, last + 1):
                    row = _product_row(mask, order[member], order[other], to)
                    value = own * np.float64(tau[order[other]])
                    _add_between(row, upper, lower, value, to)
                continue
            row = to.products + order[member] * n + last
            _add_between(row, upper, lower, own * own, to)
            _add_between(row + n * n, upper, lower, own * (total - own), to)
        if not to.has_sets:
            _add_between(to.products + 2 * n * n + last, upper, lower, total * total, to)


@loop
def _add_own_products(t, changes, to):
    """Add tau**2 of the elements that only agent t changed."""
    n = to.dots.shape[0]
    row = _product_row(1 << t, t, t, to) if to.has_sets else to.products + t * n
    together = row if to.has_sets else to.products + 2 * n * n
    to.touched[row] = 1
    to.touched[together] = 1
    for at in range(changes.shape[0]):
        tau = np.float64(changes[at])
        if tau == 0.0:
            continue
        v = _interval_of(changes[at], to)
        to.rows[row, v] += tau * tau
        if not to.has_sets:
            to.rows[together, v] += tau * tau


@loop
def _add_pair_products(a, b, pair, to):
    """Add the products of the elements that exactly agents a < b changed, without a branch."""
    n, mask = to.dots.shape[0], (1 << a) | (1 << b)
    if not to.has_sets:
        tau = np.empty(n, dtype=np.float32)
        order, interval = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.int64)
        to.touched[to.products : to.loose] = 1
        for at in range(pair.shape[1]):
            tau[a], tau[b] = pair[2, at], pair[3, at]
            v, w = _interval_of(tau[a], to), _interval_of(tau[b], to)
            order[0], order[1] = (a, b) if v >= w else (b, a)
            interval[0], interval[1] = max(v, w), min(v, w)
            _add_products(tau, order, interval, 2, to)
        return
    both_aa, both_bb = _product_row(mask, a, a, to), _product_row(mask, b, b, to)
    both_ab = _product_row(mask, a, b, to)
    only_a, only_b = _product_row(1 << a, a, a, to), _product_row(1 << b, b, b, to)
    for row in (both_aa, both_bb, both_ab, only_a, only_b):
        to.touched[row] = 1
    rows = to.rows
    for at in range(pair.shape[1]):
        v, w = _interval_of(pair[2, at], to), _interval_of(pair[3, at], to)
        tau_a, tau_b = np.float64(pair[2, at]), np.float64(pair[3, at])
        both = min(v, w)
        rows[both_aa, both] += tau_a * tau_a
        rows[both_bb, both] += tau_b * tau_b
        rows[both_ab, both] += tau_a * tau_b
        rest_a = tau_a * tau_a if v > w else 0.0
        rest_b = tau_b * tau_b if w > v else 0.0
        rows[only_a, v] += rest_a
        rows[only_a, both] -= rest_a
        rows[only_b, w] += rest_b
        rows[only_b, both] -= rest_b


@loop(fastmath={"reassoc", "contract"})
def _dot(x, y):
    """Return the dot product of two float32 arrays in float64, vectorised."""
    total = 0.0
    for i in range(x.shape[0]):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@loop
def _add_pair(a, b, pair, to):
    """Add the elements that exactly agents a < b changed, without a branch on their signs.

    pair: their part of ``relating.Gathered``.
    """
    rows, mask = to.rows, (1 << a) | (1 << b)
    own = to.pairs + 4 * pair_index(a, b, to.dots.shape[0])
    if to.is_full:
        for row in (to.conflicts, to.conflicts + 1 + a, to.conflicts + 1 + b):
            to.touched[row] = 1
        to.touched[own : own + 4] = 1
    both_a = rows[_magnitude_row(mask, a, 2, to)]
    both_b = rows[_magnitude_row(mask, b, 2, to)]
    only_a = rows[_magnitude_row(1 << a, a, 1, to)]
    only_b = rows[_magnitude_row(1 << b, b, 1, to)]
    for at in range(pair.shape[1]):
        tau_a, tau_b = pair[2, at], pair[3, at]
        v, w = _interval_of(tau_a, to), _interval_of(tau_b, to)
        size_a, size_b = _size(tau_a, to), _size(tau_b, to)
        both = min(v, w)
        both_a[both] += size_a
        both_b[both] += size_b
        # Above the lower of the two only the other is active; nothing is added where both are one.
        rest_a = size_a if v > w else 0.0
        rest_b = size_b if w > v else 0.0
        only_a[v] += rest_a
        only_a[both] -= rest_a
        only_b[w] += rest_b
        only_b[both] -= rest_b
        if not to.is_full:
            continue
        # Both are changes but for 0 and -0, which lie in interval 0 and count at no threshold.
        wide_a, wide_b = np.float64(tau_a), np.float64(tau_b)
        opposite = np.float64((tau_a > 0) != (tau_b > 0))
        rows[to.conflicts, both] += opposite
        rows[own, both] += 1.0
        rows[own + 1, both] += opposite
        rows[own + 2, both] += size_a + size_b
        rows[own + 3, both] += opposite * 2.0 * min(size_a, size_b)
        # Against the sum points the smaller one, or half of each.
        is_even = wide_a + wide_b == 0.0
        share_a = 0.5 if is_even else np.float64(abs(wide_a) < abs(wide_b))
        share_b = 0.5 if is_even else np.float64(abs(wide_b) < abs(wide_a))
        rows[to.conflicts + 1 + a, both] += opposite * share_a * size_a
        rows[to.conflicts + 1 + b, both] += opposite * share_b * size_b
        if v != w:
            owner, y, change = (a, pair[0, at], tau_a) if v > w else (b, pair[1, at], tau_b)
            _add_step(y, change, owner, max(v, w), both, to)
    if to.is_full:
        _add_pair_products(a, b, pair, to)
        to.dots[a, a] += _dot(pair[2], pair[2])
        to.dots[b, b] += _dot(pair[3], pair[3])
        to.dots[a, b] += _dot(pair[2], pair[3])


@loop
def add_relations(gathered, to):
    n = to.dots.shape[0]
    counts, several = gathered.counts, gathered.several
    order, interval = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    _touch_magnitudes(counts, to)
    start = 0
    for t in range(n):
        own = gathered.alone[:, start : start + counts[t]]
        mine = to.rows[_magnitude_row(1 << t, t, 1, to)]
        for at in range(own.shape[1]):
            change = own[1, at]
            if change == 0:  # 0 and -0
                continue
            v = _interval_of(change, to)
            mine[v] += _size(change, to)
            if to.is_full:
                _add_step(own[0, at], change, t, v, 0, to)
        if to.is_full:
            _add_own_products(t, own[1], to)
            to.dots[t, t] += _dot(own[1], own[1])
        start += counts[t]
    start = 0
    which = n
    for a in range(n):
        for b in range(a + 1, n):
            _add_pair(a, b, gathered.paired[:, start : start + counts[which]], to)
            start += counts[which]
            which += 1
    for at in range(counts[which]):
        tau = several[1, :, at]
        active = _sort_changes(at, gathered, to, order, interval)
        _add_magnitudes(tau, order, interval, active, to)
        if not to.is_full or active == 0:
            continue
        _add_products(tau, order, interval, active, to)
        if active > 1:
            _add_signs(tau, order, interval, active, to)
        lower = interval[1] if active > 1 else 0
        if lower < interval[0]:
            t = order[0]
            _add_step(several[0, t, at], tau[t], t, interval[0], lower, to)
    if to.is_full and counts[which] > 0:
        to.touched[to.conflicts : to.loose] = 1
        for a in range(n):
            for b in range(a, n):
                x, y = several[1, a, : counts[which]], several[1, b, : counts[which]]
                to.dots[a, b] += _dot(x, y)


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
            is_selected = (word(keys[t], index) >> np.uint64(11)) >= cut
            found |= np.uint32(1 << t) if is_selected else np.uint32(0)
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
