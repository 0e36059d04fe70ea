"""Statistics of an analysis beyond counts, added up in ``relating.RelationSums`` (``to``).

As in the chain histogram, agents leave an element one by one as epsilon rises, so every sum is
stored as differences over the intervals between thresholds: a value added at interval v counts at
every interval below v.
"""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import as_bits, size_of
from ram_studio.algorithm.kernels.loops.gathering import pair_index
from ram_studio.algorithm.kernels.loops.histograms import bin_of


@loop(forceinline=True)
def _interval_of(change, to):
    """Return the interval of |tau|; 0 where tau is 0."""
    size = size_of(change)
    return np.int64(to.interval_of_bin[bin_of(size, to.grid)]) if size != 0 else 0


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
def _add_between(rows, row, upper, lower, value):
    """Add a value to a row at the thresholds lower .. upper.

    Takes the array alone: passing all of ``to`` for each value takes longer than the addition.
    """
    rows[row, upper] += value
    if lower > 0:
        rows[row, lower] -= value


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
            _add_between(to.rows, row, upper, lower, _size(tau[agent], to))


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
                if not is_mixed:  # and stays mixed at lower epsilons
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
            _add_between(to.rows, row, upper, lower, lost)


@loop(forceinline=True)
def _add_step(y, change, agent, upper, lower, to):
    """Record the update of an element that one agent alone changed at thresholds lower .. upper.

    In halves of the agent's last place beyond y, in tau's direction: where y + (lambda - 1) tau
    stays in the binade of y for every lambda up to 2, this number determines what rounding stores.
    Everything else is added up as |tau| and tau**2 by that binade.

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
    _add_between(to.rows, row, upper, lower, size)
    _add_between(to.rows, row + 1, upper, lower, size * size)


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
                    _add_between(to.rows, row, upper, lower, value)
                continue
            row = to.products + order[member] * n + last
            _add_between(to.rows, row, upper, lower, own * own)
            _add_between(to.rows, row + n * n, upper, lower, own * (total - own))
        if not to.has_sets:
            _add_between(to.rows, to.products + 2 * n * n + last, upper, lower, total * total)


@loop(forceinline=True)
def _factor_row(agent, part, to):
    """Return the first row of an agent's own (part 0) or shared part (1), see ``RowLayout``."""
    return to.factors + (2 * agent + part) * (3 * to.dots.shape[0] + 1)


@loop(forceinline=True)
def _add_factors(tau, order, interval, active, to):
    """Add tau_t times each agent's contribution to RAM's merge to the parts of an element.

    Own and shared parts are those of agents above the reference epsilon, first in ``order``.
    """
    rows, n = to.rows, to.dots.shape[0]
    members = 0
    while members < active and interval[members] >= to.reference:
        members += 1
    for member in range(members):
        own = np.float64(tau[order[member]])
        row = _factor_row(order[member], np.int64(members > 1), to)
        for last in range(active):
            rows[row + 2 * n + order[last], 1] += own * np.float64(tau[order[last]])
            upper = interval[last]
            lower = interval[last + 1] if last + 1 < active else 0
            if lower == upper:
                continue
            first = row if last > 0 else row + n
            for other in range(last + 1):
                value = own * (np.float64(tau[order[other]]) / (last + 1))
                _add_between(to.rows, first + order[other], upper, lower, value)
        rows[row + 3 * n, 1] += own * own


@loop
def _add_own_products(t, changes, to):
    """Add tau**2 of the elements that only agent t changed."""
    n = to.dots.shape[0]
    row = _product_row(1 << t, t, t, to) if to.has_sets else to.products + t * n
    together = row if to.has_sets else to.products + 2 * n * n
    own_part = _factor_row(t, 0, to)
    to.touched[own_part : own_part + 3 * n + 1] = 1
    to.touched[row] = 1
    to.touched[together] = 1
    total = 0.0
    for at in range(changes.shape[0]):
        tau = np.float64(changes[at])
        if tau == 0.0:
            continue
        v = _interval_of(changes[at], to)
        to.rows[row, v] += tau * tau
        if not to.has_sets:
            to.rows[together, v] += tau * tau
        of_part = tau * tau if v >= to.reference else 0.0
        to.rows[own_part + n + t, v] += of_part
        total += of_part
    to.rows[own_part + 2 * n + t, 1] += total
    to.rows[own_part + 3 * n, 1] += total


@loop
def _add_pair_products(a, b, pair, to):
    """Add the products of the elements that exactly agents a < b changed, without a branch."""
    n, mask = to.dots.shape[0], (1 << a) | (1 << b)
    if not to.has_sets:
        tau = np.empty(n, dtype=np.float32)
        order, interval = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.int64)
        to.touched[to.products : to.factors] = 1
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


@loop
def _add_pair_factors(a, b, pair, to):
    """Add to the parts of agents a < b the elements that exactly these changed."""
    rows, n = to.rows, to.dots.shape[0]
    for t in (a, b):
        to.touched[_factor_row(t, 0, to) : _factor_row(t, 1, to) + 3 * n + 1] = 1
    for at in range(pair.shape[1]):
        v, w = _interval_of(pair[2, at], to), _interval_of(pair[3, at], to)
        if max(v, w) < to.reference:
            continue
        tau_a, tau_b, both = np.float64(pair[2, at]), np.float64(pair[3, at]), min(v, w)
        part = np.int64(both >= to.reference)
        # Above the lower of the two only the other is active.
        upper, alone, moved = (v, a, tau_a) if v > w else (w, b, tau_b)
        for t, own, of in ((a, tau_a, v), (b, tau_b, w)):
            if of < to.reference:
                continue
            row = _factor_row(t, part, to)
            rows[row + a, both] += own * (tau_a * 0.5)
            rows[row + b, both] += own * (tau_b * 0.5)
            rows[row + n + alone, upper] += own * moved
            rows[row + n + alone, both] -= own * moved
            rows[row + 2 * n + a, 1] += own * tau_a
            rows[row + 2 * n + b, 1] += own * tau_b
            rows[row + 3 * n, 1] += own * own


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

    pair: their part of ``relating.ChangedElements``.
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
        # Both are changes except 0 and -0, which are in interval 0 and count at no threshold.
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
        _add_pair_factors(a, b, pair, to)
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
        _add_factors(tau, order, interval, active, to)
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
