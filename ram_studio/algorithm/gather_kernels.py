"""The elements that agents changed, gathered as float32: alone, in pairs, and the rest.

What visits them afterwards (``relation_kernels``) need not know how they are stored.
"""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.kernels.loops import load as _decode
from ram_studio.algorithm.kernels.loops import loop as numba_kernel

_TILE = 1024
_TABLED = 8
"""Up to so many agents the owners of all overlap patterns are looked up."""


@numba_kernel(forceinline=True)
def pair_index(a, b, n):
    """Return the place of the pair a < b among (0, 1), (0, 2), ..., (1, 2), ..."""
    return a * (2 * n - a - 1) // 2 + b - a - 1


@numba_kernel
def _owner_of(mask, n_agents):
    """Return where the elements with these changes go: to an agent, a pair, or the rest."""
    changed, first, last = 0, 0, 0
    for t in range(n_agents):
        if (mask >> np.uint32(t)) & np.uint32(1):
            first = t if changed == 0 else first
            last = t
            changed += 1
    if changed == 1:
        return first
    if changed == 2:
        return n_agents + pair_index(first, last, n_agents)
    return n_agents + n_agents * (n_agents - 1) // 2


@numba_kernel
def gather_changed(base, agents, alone, paired, several, counts):
    """Gather as float32 the elements that one agent changed, that two did, and that more did.

    base: stored elements (n,); agents: tuple of such.
    alone: float32 (2, n), the agent's element and tau, for the first agent, then the second, ...;
    paired: float32 (4, n), both elements and both tau, pair by pair; several: float32
    (2, agents, n), every agent's element and tau; counts: int64 (agents + pairs + 1,), how many
    there are of each. All are overwritten.

    The only kernel here that is compiled for each number of agents and storage format.
    """
    n_agents = len(agents)
    n = base.shape[0]
    pattern = np.empty(n, dtype=np.uint32)
    found = np.empty(n + 1, dtype=np.int32)
    pattern[:] = 0
    for start in range(0, n, _TILE):
        length = min(_TILE, n - start)
        x = base[start : start + length]
        mine = pattern[start : start + length]
        for t in range(n_agents):
            y = agents[t][start : start + length]
            bit = np.uint32(1 << t)
            for i in range(length):
                mine[i] |= bit if x[i] != y[i] else np.uint32(0)
    n_found = 0
    for i in range(n):
        found[n_found] = i
        n_found += np.int64(pattern[i] != 0)
    counts[:] = 0
    owner = np.empty(n_found, dtype=np.int16)
    known = min(n_agents, _TABLED)
    table = np.empty(1 << known, dtype=np.int16)
    for mask in range(len(table)):
        table[mask] = _owner_of(np.uint32(mask), n_agents)
    for at in range(n_found):
        mask = pattern[found[at]]
        row = table[mask] if mask < len(table) else _owner_of(mask, n_agents)
        owner[at] = row
        counts[row] += 1
    places = np.zeros(len(counts), dtype=np.int64)
    for row in range(1, len(counts)):
        places[row] = places[row - 1] + counts[row - 1]
    by_owner = np.empty(n_found, dtype=np.int32)
    for at in range(n_found):
        by_owner[places[owner[at]]] = found[at]
        places[owner[at]] += 1
    start = 0
    for t in range(n_agents):
        y = agents[t]
        for at in range(start, start + counts[t]):
            i = by_owner[at]
            own = _decode(y[i])
            alone[0, at] = own
            alone[1, at] = own - _decode(base[i])
        start += counts[t]
    end = 0
    row = n_agents
    for a in range(n_agents):
        for b in range(a + 1, n_agents):
            y, z = agents[a], agents[b]
            for at in range(end, end + counts[row]):
                i = by_owner[start + at]
                x = _decode(base[i])
                own, other = _decode(y[i]), _decode(z[i])
                paired[0, at] = own
                paired[1, at] = other
                paired[2, at] = own - x
                paired[3, at] = other - x
            end += counts[row]
            row += 1
    start += end
    for t in range(n_agents):
        y = agents[t]
        for at in range(counts[row]):
            i = by_owner[start + at]
            own = _decode(y[i])
            several[0, t, at] = own
            several[1, t, at] = own - _decode(base[i])
