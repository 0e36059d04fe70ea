"""Elements that agents changed, gathered as float32: alone, in pairs, and the rest."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.kernels.loops.compiling import loop
from ram_studio.algorithm.kernels.loops.elements import TILE, load


@loop(forceinline=True)
def pair_index(a, b, n):
    """Return the index of the pair a < b among (0, 1), (0, 2), ..., (1, 2), ..."""
    return a * (2 * n - a - 1) // 2 + b - a - 1


@loop
def _owner_of(mask, n):
    """Return the group of elements with these changes: of an agent, a pair, or the rest."""
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
    """Write which agents differ from the base, and the elements where any does; return how many."""
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
