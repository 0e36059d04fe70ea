"""CPU kernels for what the sketch knows beyond counts: sums of |tau|, signs, cosines, steps.

One visit to every element that some agent changed. As in the chain histogram, agents leave an
element one by one as epsilon rises, so every sum is kept as differences over the intervals
between thresholds: a value added at interval v counts at every threshold below v.
Plain loops over elements; ``relations`` turns what they add up into statistics.
"""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.gather_kernels import pair_index
from ram_studio.algorithm.kernels.loops import as_bits as float_bits
from ram_studio.algorithm.kernels.loops import loop as numba_kernel
from ram_studio.algorithm.ladder import BIN_COUNT, BIN_SHIFT, LOWEST_BIN
from ram_studio.algorithm.meters.relations import EXPONENTS, HALF_STEPS, PAIR_ROWS, QUANTUM

_ROUNDER = 2.0**52 * QUANTUM


@numba_kernel(forceinline=True)
def _interval_of(change, edge_bits, interval_of_bin):
    """Return the interval of |tau|; 0 where tau is 0."""
    bits = np.int32(float_bits(change) & np.int32(0x7FFFFFFF))
    k = np.int32(np.int32(bits - edge_bits - np.int32(1)) >> np.int32(BIN_SHIFT))
    k = np.int32(min(max(k - np.int32(LOWEST_BIN), np.int32(0)), np.int32(BIN_COUNT - 1)))
    return np.int64(interval_of_bin[k]) if bits != 0 else 0


@numba_kernel(forceinline=True)
def _size(change):
    """Return |tau| as it is added up, see QUANTUM."""
    return (abs(np.float64(change)) + _ROUNDER) - _ROUNDER


@numba_kernel(forceinline=True)
def _sort_changes(changes, at, edge_bits, interval_of_bin, tau, order, interval):
    """Write tau of each agent, and the agents that changed an element, largest interval first.

    Returns how many there are. Agents of one interval stay in the order given.
    """
    active = 0
    for t in range(changes.shape[0]):
        change = changes[t, at]
        tau[t] = change
        if change == 0:
            continue
        v = _interval_of(change, edge_bits, interval_of_bin)
        place = active
        while place > 0 and interval[place - 1] < v:
            interval[place] = interval[place - 1]
            order[place] = order[place - 1]
            place -= 1
        interval[place] = v
        order[place] = t
        active += 1
    return active


@numba_kernel(forceinline=True)
def _magnitude_row(mask, agent, members, n, has_sets):
    return mask * n + agent if has_sets else 2 * agent + np.int64(members > 1)


@numba_kernel(forceinline=True)
def _add_magnitudes(tau, order, interval, active, n, has_sets, rows):
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
            row = _magnitude_row(mask, agent, last + 1, n, has_sets)
            size = _size(tau[agent])
            rows[row, upper] += size
            if lower > 0:
                rows[row, lower] -= size


@numba_kernel(forceinline=True)
def _add_signs(tau, order, interval, active, n, first, rows):
    """Add conflicts of sign, cancelled |tau| and pairs, for an element with several changes.

    first: row of the conflicts; then one row per agent (cancelled) and PAIR_ROWS per pair.
    """
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
            row = first + 1 + n + PAIR_ROWS * pair_index(a, b, n)
            rows[row, upper] += 1.0
            rows[row + 2, upper] += _size(newest) + _size(other)
            if (newest > 0.0) != (other > 0.0):
                if not is_mixed:  # from here on down the ladder it stays so
                    is_mixed = True
                    rows[first, upper] += 1.0
                rows[row + 1, upper] += 1.0
                rows[row + 3, upper] += 2.0 * min(_size(newest), _size(other))
        if not is_mixed or lower == upper:
            continue
        for member in range(last + 1):
            agent = order[member]
            change = np.float64(tau[agent])
            lost = _size(change)
            if total == 0.0:
                lost *= 0.5
            elif (change > 0.0) == (total > 0.0):
                continue
            row = first + 1 + agent
            rows[row, upper] += lost
            if lower > 0:
                rows[row, lower] -= lost


@numba_kernel(forceinline=True)
def _add_step(y, change, agent, upper, lower, places, steps, stepped, first, rows, touched):
    """Record the update of an element that one agent alone changed at thresholds lower .. upper.

    In halves of the agent's last place beyond y, on the side that tau points to: where
    y + (lambda - 1) tau stays in the binade of y for every lambda up to 2, their number says what
    rounding stores. Everything else is added up as |tau| and tau**2 by that binade.

    y, change: float32, the agent's element and its tau; places: float64 (2, EXPONENTS), float32's
    last place and the inverse of half the format's, by exponent field.
    """
    own = np.int64(float_bits(y))
    bits = own & 0x7FFFFFFF
    fraction = bits & 0x7FFFFF
    # Arithmetic instead of branches: the signs of updates cannot be predicted.
    inward = ((own ^ np.int64(float_bits(change))) >> 31 & 1) & np.int64(bits != 0)
    # Towards zero from a power of two the next numbers are those of the binade below.
    down = inward & np.int64(fraction == 0)
    exponent = (bits >> 23) - down
    partly = inward - down
    room = partly * fraction + (1 - partly) * (0x800000 - fraction)
    size = abs(np.float64(change))
    is_near_edge = size > np.float64(room) * places[0, exponent]
    halves = min(size * places[1, exponent], 1e9)
    count = np.int64(halves)
    if (not is_near_edge) & (count <= HALF_STEPS) & (np.float64(count) == halves):
        steps[agent, lower, exponent, count] += 1
        stepped[agent, lower, exponent] = 1
        return
    row = first + 2 * ((2 * agent + np.int64(is_near_edge)) * EXPONENTS + exponent)
    touched[row] = 1
    touched[row + 1] = 1
    rows[row, upper] += size
    rows[row + 1, upper] += size * size
    if lower > 0:
        rows[row, lower] -= size
        rows[row + 1, lower] -= size * size


@numba_kernel(forceinline=True)
def _add_pair_magnitudes(size_a, size_b, v, w, both_a, both_b, only_a, only_b):
    """Add |tau| of an element that two agents changed, in intervals v and w, to four rows."""
    both = min(v, w)
    both_a[both] += size_a
    both_b[both] += size_b
    # Above the lower of the two only the other is active; nothing is added where they are equal.
    rest_a = size_a if v > w else 0.0
    rest_b = size_b if w > v else 0.0
    only_a[v] += rest_a
    only_a[both] -= rest_a
    only_b[w] += rest_b
    only_b[both] -= rest_b


@numba_kernel(forceinline=True)
def _rows_of_pair(a, b, n, has_sets, rows):
    """Return the rows of |tau| of a pair: both changed (of a, of b), a alone, b alone."""
    mask = (1 << a) | (1 << b)
    return (
        rows[_magnitude_row(mask, a, 2, n, has_sets)],
        rows[_magnitude_row(mask, b, 2, n, has_sets)],
        rows[_magnitude_row(1 << a, a, 1, n, has_sets)],
        rows[_magnitude_row(1 << b, b, 1, n, has_sets)],
    )


@numba_kernel
def add_magnitudes(
    alone, paired, several, counts, edge_bits, interval_of_bin, has_sets, rows, touched
):
    """Add only the sums of |tau|, see ``add_relations``."""
    n = several.shape[1]
    tau = np.empty(n, dtype=np.float32)
    order = np.empty(n, dtype=np.int64)
    interval = np.empty(n, dtype=np.int64)
    _touch_magnitudes(counts, n, has_sets, touched)
    start = 0
    for t in range(n):
        row = _magnitude_row(1 << t, t, 1, n, has_sets)
        for at in range(start, start + counts[t]):
            change = alone[1, at]
            rows[row, _interval_of(change, edge_bits, interval_of_bin)] += _size(change)
        start += counts[t]
    start = 0
    which = n
    for a in range(n):
        for b in range(a + 1, n):
            both_a, both_b, only_a, only_b = _rows_of_pair(a, b, n, has_sets, rows)
            for at in range(start, start + counts[which]):
                v = _interval_of(paired[2, at], edge_bits, interval_of_bin)
                w = _interval_of(paired[3, at], edge_bits, interval_of_bin)
                size_a, size_b = _size(paired[2, at]), _size(paired[3, at])
                _add_pair_magnitudes(size_a, size_b, v, w, both_a, both_b, only_a, only_b)
            start += counts[which]
            which += 1
    for at in range(counts[which]):
        active = _sort_changes(several[1], at, edge_bits, interval_of_bin, tau, order, interval)
        _add_magnitudes(tau, order, interval, active, n, has_sets, rows)


@numba_kernel
def _touch_magnitudes(counts, n, has_sets, touched):
    """Mark the rows of |tau|: of the agents and pairs found, and all for elements of more."""
    if counts[-1] > 0:
        touched[: (n << n) if has_sets else 2 * n] = 1
        return
    which = n
    for a in range(n):
        touched[_magnitude_row(1 << a, a, 1, n, has_sets)] |= np.uint8(counts[a] > 0)
        for b in range(a + 1, n):
            if counts[which] > 0:
                for t in (a, b):
                    touched[_magnitude_row(1 << t, t, 1, n, has_sets)] = 1
                    touched[_magnitude_row((1 << a) | (1 << b), t, 2, n, has_sets)] = 1
            which += 1


@numba_kernel
def add_relations(
    alone,
    paired,
    several,
    counts,
    edge_bits,
    interval_of_bin,
    has_sets,
    rows,
    touched,
    dots,
    places,
    steps,
    stepped,
):
    """Add a group of elements to every statistic of ``relations``.

    alone, paired, several, counts: see ``gather_kernels``; edge_bits, interval_of_bin: of the grid
    (int32; uint8 by bin of |tau|); has_sets: whether |tau| is kept by set of agents.
    rows: float64 (rows, intervals), see ``relations.RowLayout``; touched: uint8 (rows,), set to 1
    where a row was added to.
    dots: float64 (agents, agents), the upper triangle of tau_a tau_b added up.
    places: float64 (agents, 2, EXPONENTS), see _add_step.
    steps: int32 (agents, intervals, EXPONENTS, HALF_STEPS + 1) counts by the interval below which
    the element is no longer the agent's alone; stepped: uint8, which of its rows were added to.
    Task vectors must be finite.
    """
    n = several.shape[1]
    tau = np.empty(n, dtype=np.float32)
    order = np.empty(n, dtype=np.int64)
    interval = np.empty(n, dtype=np.int64)
    signs = (n << n) if has_sets else 2 * n
    loose = signs + 1 + n + PAIR_ROWS * (n * (n - 1) // 2)
    _touch_magnitudes(counts, n, has_sets, touched)
    start = 0
    for t in range(n):
        row = _magnitude_row(1 << t, t, 1, n, has_sets)
        squares = 0.0
        own = places[t]
        mine = rows[row]
        for at in range(start, start + counts[t]):
            change = alone[1, at]
            if change == 0:  # 0 and -0
                continue
            v = _interval_of(change, edge_bits, interval_of_bin)
            size = abs(np.float64(change))
            mine[v] += _size(change)
            squares += size * size
            _add_step(alone[0, at], change, t, v, 0, own, steps, stepped, loose, rows, touched)
        dots[t, t] += squares
        start += counts[t]
    start = 0
    which = n
    for a in range(n):
        for b in range(a + 1, n):
            if counts[which] > 0:
                _add_pairs(
                    a,
                    b,
                    paired[:, start : start + counts[which]],
                    edge_bits,
                    interval_of_bin,
                    has_sets,
                    n,
                    signs,
                    loose,
                    rows,
                    touched,
                    dots,
                    places,
                    steps,
                    stepped,
                )
            start += counts[which]
            which += 1
    if counts[which] > 0:
        touched[signs:loose] = 1
        _add_dots(several[1, :, : counts[which]], dots)
    for at in range(counts[which]):
        active = _sort_changes(several[1], at, edge_bits, interval_of_bin, tau, order, interval)
        _add_magnitudes(tau, order, interval, active, n, has_sets, rows)
        if active > 1:
            _add_signs(tau, order, interval, active, n, signs, rows)
        lower = interval[1] if active > 1 else 0
        if active > 0 and lower < interval[0]:
            a = order[0]
            y = several[0, a, at]
            _add_step(
                y, tau[a], a, interval[0], lower, places[a], steps, stepped, loose, rows, touched
            )


@numba_kernel(fastmath={"reassoc", "contract"})
def _dot(x, y):
    """Return the dot product of two float32 arrays in float64, vectorised."""
    total = 0.0
    for i in range(x.shape[0]):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@numba_kernel
def _add_dots(changes, dots):
    """Add the dot products of the rows of ``changes``."""
    for a in range(changes.shape[0]):
        for b in range(a, changes.shape[0]):
            dots[a, b] += _dot(changes[a], changes[b])


@numba_kernel
def _add_pairs(
    a,
    b,
    paired,
    edge_bits,
    interval_of_bin,
    has_sets,
    n,
    signs,
    loose,
    rows,
    touched,
    dots,
    places,
    steps,
    stepped,
):
    """Add the elements that exactly agents a < b changed, without a branch on their signs."""
    pair = signs + 1 + n + PAIR_ROWS * pair_index(a, b, n)
    against_a, against_b = signs + 1 + a, signs + 1 + b
    for row in (signs, against_a, against_b, pair, pair + 1, pair + 2, pair + 3):
        touched[row] = 1
    squares_a, squares_b, products = 0.0, 0.0, 0.0
    both_a, both_b, only_a, only_b = _rows_of_pair(a, b, n, has_sets, rows)
    conflicts, lost_a, lost_b = rows[signs], rows[against_a], rows[against_b]
    together, opposed, sizes, cancelled = rows[pair], rows[pair + 1], rows[pair + 2], rows[pair + 3]
    for at in range(paired.shape[1]):
        tau_a, tau_b = paired[2, at], paired[3, at]
        v = _interval_of(tau_a, edge_bits, interval_of_bin)
        w = _interval_of(tau_b, edge_bits, interval_of_bin)
        size_a, size_b = _size(tau_a), _size(tau_b)
        _add_pair_magnitudes(size_a, size_b, v, w, both_a, both_b, only_a, only_b)
        wide_a, wide_b = np.float64(tau_a), np.float64(tau_b)
        squares_a += wide_a * wide_a
        squares_b += wide_b * wide_b
        products += wide_a * wide_b
        # Both are changes but for 0 and -0, which lie in interval 0 and count at no threshold.
        both = min(v, w)
        opposite = np.float64((tau_a > 0) != (tau_b > 0))
        conflicts[both] += opposite
        together[both] += 1.0
        opposed[both] += opposite
        sizes[both] += size_a + size_b
        cancelled[both] += opposite * 2.0 * min(size_a, size_b)
        # Against the sum points the smaller one, or half of each.
        sum_of_both = wide_a + wide_b
        share_a = 0.5 if sum_of_both == 0.0 else np.float64(abs(wide_a) < abs(wide_b))
        share_b = 0.5 if sum_of_both == 0.0 else np.float64(abs(wide_b) < abs(wide_a))
        lost_a[both] += opposite * share_a * size_a
        lost_b[both] += opposite * share_b * size_b
        if v != w:
            is_a = v > w
            owner = a if is_a else b
            y, change = (paired[0, at], tau_a) if is_a else (paired[1, at], tau_b)
            upper = max(v, w)
            _add_step(
                y, change, owner, upper, both, places[owner], steps, stepped, loose, rows, touched
            )
    dots[a, a] += squares_a
    dots[b, b] += squares_b
    dots[a, b] += products
