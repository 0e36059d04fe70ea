"""Sums that measure how each agent's tau was stored, see ``cpu.measure``."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import TILE, cast_like, load, plus_product, size_of


@loop
def find_voters(base, agents, survivors, limits, voters, voting):
    """Write which agents' tau agree with the elected sign, see ``merge_elected``."""
    zero = cast_like(0, limits[1])
    for i in range(base.shape[0]):
        x = load(base[i])
        balance, up, down = zero, np.uint32(0), np.uint32(0)
        for t in range(len(agents)):
            tau = load(agents[t][i]) - x
            is_changed = size_of(tau) > size_of(np.float32(limits[0][t]))
            if survivors is not None:
                is_changed &= (np.uint32(survivors[i]) & np.uint32(1 << t)) != 0
            wide = cast_like(load(agents[t][i]), zero) - cast_like(x, zero)
            if voting is not None:
                wide *= voting[0][t]
            balance += wide if is_changed else zero
            up |= np.uint32(1 << t) if is_changed & (wide > zero) else np.uint32(0)
            down |= np.uint32(1 << t) if is_changed & (wide < zero) else np.uint32(0)
        voters[i] = up if balance > zero else (down if balance < zero else np.uint32(0))


@loop
def _find_error(base, agents, stored, part, masks, scales, voting, rows):
    """Write base, change, the weight of each voter's tau, and the change minus all own parts."""
    pattern, voters, bits = masks
    factors, shares = scales
    wide, change, weight, error = rows
    zero, one = cast_like(0, wide[0]), cast_like(1, wide[0])
    for i in range(part.stop - part.start):
        at = np.uint64(part.start + i)  # unsigned: no check for negative indices
        x, mask, votes = cast_like(load(base[at]), zero), np.uint32(pattern[at]), voters[at]
        total, count, own, divisor = zero, zero, zero, zero
        for t in range(len(agents)):
            is_voter = (votes & bits[t]) != 0
            tau = cast_like(load(agents[t][at]), zero) - x if is_voter else zero
            if voting is None:
                total += tau
            else:
                total += voting[0][t] * tau
                divisor += voting[1][t] if is_voter else zero
            count += one if is_voter else zero
            own = factors[t] if is_voter else own
        # The factor is for elements that one agent changed, not for those with one elected agent.
        is_shared = (mask & np.uint32(mask - np.uint32(1))) != 0
        for c in range(1, len(agents) + 1):
            own = shares[c] if is_shared & (count == cast_like(c, one)) else own
        if voting is not None:
            divisor += voting[2]
            own /= divisor if divisor != zero else one
        step = cast_like(load(stored[at]), zero) - x
        wide[i], change[i], weight[i], error[i] = x, step, own, step - own * total


@loop
def _measure_agent(agent, bit, part, masks, scale, rows):
    """Return one agent's sums over a tile, see ``cpu.measure``."""
    pattern, voters = masks[0], masks[1]
    wide, change, weight, error = rows
    zero = cast_like(0, wide[0])
    alone, alone2, missed, along, along2, off = zero, zero, zero, zero, zero, zero
    norm, rest, unrounded = zero, zero, zero
    for i in range(part.stop - part.start):
        at = np.uint64(part.start + i)
        mask = pattern[at]
        tau = cast_like(load(agent[at]), zero) - wide[i]
        own = weight[i] * tau if (voters[at] & bit) != 0 else zero
        if scale is not None:
            own *= scale
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
        exact = stored - error[i]
        rest = plus_product(rest, stored, stored)
        unrounded = plus_product(unrounded, exact, exact)
    return alone, alone2, missed, along, along2, off, norm, rest, unrounded


@loop
def measure(base, agents, stored, masks, scales, voting, work, sums):
    """Add up a block, see ``cpu.measure``.

    masks: patterns, voters, the agents' bits, and the bounds of groups; scales, voting: see
    ``merge_elected``; work: (4, TILE), of their type. Bits are arguments, of the patterns' type:
    LLVM tests constant bits in 64 bits, a fourth of the elements at a time. Arrays are passed whole
    with a tile's range: slices count references.
    """
    cuts = masks[3]
    who = (masks[0], masks[1], masks[2])  # references to each array are counted for every tile
    rows = (work[0], work[1], work[2], work[3])  # base, change, weight and error
    for group in range(sums.shape[0]):
        for start in range(cuts[group], cuts[group + 1], TILE):
            part = slice(start, min(start + TILE, cuts[group + 1]))
            _find_error(base, agents, stored, part, who, scales, voting, rows)
            for t in range(len(agents)):
                scale = None if voting is None else voting[0][t]
                found = _measure_agent(agents[t], who[2][t], part, who, scale, rows)
                for k in range(len(found)):
                    sums[group, t, k] += np.float64(found[k])
