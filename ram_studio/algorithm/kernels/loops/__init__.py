"""Every loop over elements, compiled by numba; ``cpu`` documents them.

A loop is compiled once for each number of agents (the length of the tuple of blocks) and kind of
storage. LLVM unrolls over agents and vectorizes over elements, as long as

- integers are explicitly cast to 32 bits (numba widens them to 64),
- nothing is loaded under a condition (below AVX-512 there are no masked loads of 16 bits),
- numbers per agent come in tuples (a store might change an array's).

Storage: bfloat16 as uint16 bit patterns, anything else as float32. A size is the bit pattern of
|tau| in float32, an int32: sizes are ordered like the numbers, with infinity and NaN the largest.
"""

from __future__ import annotations

from ram_studio.algorithm.kernels.loops.drawing import (
    draw,
    random_words,
    stochastic_bfloat16,
    stochastic_float16,
    stochastic_float32,
)
from ram_studio.algorithm.kernels.loops.gathering import gather_changed
from ram_studio.algorithm.kernels.loops.histograms import (
    count_numbers,
    count_sizes,
    fill_chain,
    fill_steps,
)
from ram_studio.algorithm.kernels.loops.measuring import find_voters, measure
from ram_studio.algorithm.kernels.loops.merging import (
    average_as_mergekit,
    merge_as_mergekit,
    merge_elected,
    merge_mean,
)
from ram_studio.algorithm.kernels.loops.patterns import (
    count_patterns,
    count_shared,
    find_patterns,
)
from ram_studio.algorithm.kernels.loops.relations import add_relations

__all__ = [
    "add_relations",
    "average_as_mergekit",
    "count_numbers",
    "count_patterns",
    "count_shared",
    "count_sizes",
    "draw",
    "fill_chain",
    "fill_steps",
    "find_patterns",
    "find_voters",
    "gather_changed",
    "measure",
    "merge_as_mergekit",
    "merge_elected",
    "merge_mean",
    "random_words",
    "stochastic_bfloat16",
    "stochastic_float16",
    "stochastic_float32",
]
