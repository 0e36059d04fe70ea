"""Compiles what merges and analyses of bfloat16 checkpoints run, ahead of the first of them."""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.kernels import cpu, relating
from ram_studio.algorithm.kernels.rules import Rule, means

ELEMENTS = 64


def warm() -> None:
    """Compile the loops for two to four agents, and cache them for the next start."""
    for n in (2, 3, 4):
        base, pattern = np.zeros(ELEMENTS, np.uint16), np.zeros(ELEMENTS, cpu.pattern_dtype(n))
        agents, merged = (base,) * n, np.empty_like(base)
        cpu.find_patterns(base, agents, pattern, np.float32(0))
        cpu.count_patterns(pattern, n)
        for elect_sign in (False, True):
            rule = Rule(0.0, (1.0,) * n, means(n), elect_sign)
            cpu.merge(rule, base, agents, merged, pattern, arithmetic="float32")
            masks = pattern, pattern
            cpu.measure(rule, base, agents, merged, masks, [0, ELEMENTS], arithmetic="float32")
        cpu.fill_chain(
            base, agents, np.zeros((1 << n) * n * epsilon_grid.BIN_COUNT, dtype=np.int32)
        )
        gathered = relating.ChangedElements.room_for(n, ELEMENTS)
        relating.gather_changed(base, agents, gathered)
        one_interval = np.zeros(epsilon_grid.BIN_COUNT, dtype=np.int64)
        sums = relating.RelationSums.zeros(n, epsilon_grid.EDGE_BITS, one_interval)
        relating.add_relations(gathered, sums)
