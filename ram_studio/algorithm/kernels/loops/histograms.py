"""Histograms of |tau|."""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import INFINITE, TILE, load, size_of


@loop(forceinline=True)
def bin_of(size, grid):
    """Return the bin of a size that is not 0, see ``epsilon_grid``; grid: see ``cpu.Grid``."""
    above = np.uint32(np.uint32(max(size, grid.origin)) - np.uint32(grid.origin))
    # 16 is ``epsilon_grid.BIN_SHIFT``: a shift by a variable takes 50 % longer.
    return np.int32(min(np.uint32(above >> np.uint32(16)), grid.last))


@loop(forceinline=True)
def _bin_or_none(size, grid):
    return bin_of(size, grid) if size != np.int32(0) else np.int32(-1)


def _sizes_at(agents, i, x):
    """Return the sizes of all tau of element i, whose base is x, in a tuple (not allocated)."""


@overload(_sizes_at)
def _sizes_of(agents, i, x):
    if len(agents) == 1:
        return lambda agents, i, x: (size_of(load(agents[0][i]) - x),)
    return lambda agents, i, x: (size_of(load(agents[0][i]) - x), *_sizes_at(agents[1:], i, x))


@loop
def _find_slots(base, agents, start, length, spare, slots, grid):
    """Write the chain histogram's entry for each element and agent; slots: by agent.

    It is that of the agent's bin and of the set of agents still active, itself included. Elements
    that it did not change have scratch entries, different within a tile: increments do not wait.
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
        table[np.uint64(slots[i])] += np.int32(1)  # unsigned: no check for negative indices


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
                slots[i] = bin_of(size, grid) if size != np.int32(0) else unchanged
            _count_slots(slots[: x.shape[0]], table[t])
    return largest < INFINITE


@loop
def count_numbers(base, agent, edge, table):
    first = np.uint32(np.uint32(size_of(edge)) + np.uint32(1))
    for i in range(base.shape[0]):
        at = np.uint32(np.uint32(size_of(load(agent[i]) - load(base[i]))) - first)
        if at < np.uint32(table.shape[0]):
            table[np.uint64(at)] += 1


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
            k = bin_of(size, grid)
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
