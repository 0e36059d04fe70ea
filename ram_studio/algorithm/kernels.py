"""Fused CPU kernels over blocks of elements.

Every kernel reads the stored elements of the base and of each agent once and never builds a
float32 copy of a tensor. The plain torch twins in ``torch_kernels`` are their tested oracle.
Their loops are in ``loop_kernels``, which says what each takes and gives; importing this module
does not import numba.
"""

from __future__ import annotations

import numpy as np

from ram_studio.algorithm.machine_code import Kernel
from ram_studio.algorithm.processor import LANES

TILE = 2048
"""Elements whose bins are held at a time: a few tens of kilobytes, so they stay in the L1 cache."""

INFINITY_BITS = 0x7F800000

merge_mean = Kernel("loop_kernels", "merge_mean")
merge_elected = Kernel("loop_kernels", "merge_elected")
count_active = Kernel("loop_kernels", "count_active")
stored_change = Kernel("loop_kernels", "stored_change")
is_unchanged = Kernel("loop_kernels", "is_unchanged")
is_finite = Kernel("loop_kernels", "is_finite")
fold_chain = Kernel("loop_kernels", "fold_chain")

_fill_chain = Kernel("loop_kernels", "fill_chain")
_fill_steps = Kernel("loop_kernels", "fill_steps")


_HEAD = 256


def is_copy(base: np.ndarray, agents: tuple[np.ndarray, ...]) -> bool:
    """Whether a block is ``is_unchanged``; mostly told from its first elements, without a kernel.

    May be False where only 0 and -0 differ.
    """
    head = base[:_HEAD].tobytes()
    if any(agent[:_HEAD].tobytes() != head for agent in agents):
        return False
    return is_unchanged(base, agents)


def fill_chain(
    base: np.ndarray, agents: tuple[np.ndarray, ...], chain: np.ndarray, edge_bits: np.int32
) -> bool:
    """Add a block to the chain histogram of ``overlap.patterns_from_chain``.

    base: stored elements (uint16 bfloat16 bits, or float32); agents: as many of each agent; chain:
    int32 of shape (2**agents, agents, BIN_COUNT), flattened, incremented in place (entries of the
    empty set are scratch); edge_bits: bit pattern of the float32 that is the upper edge of the bin
    before -LOWEST_BIN. Agents in one bin leave in the order given.
    Returns False when some task vector element is not finite.
    """
    n_agents = len(agents)
    bins = np.empty((n_agents, TILE), dtype=np.int32)
    slots = np.empty(n_agents * TILE + LANES, dtype=np.uint32)
    largest = np.zeros(LANES, dtype=np.int32)
    return _fill_chain(base, agents, chain, edge_bits, bins, slots, largest)


def fill_steps(
    base: np.ndarray,
    agents: tuple[np.ndarray, ...],
    steps: np.ndarray,
    magnitudes: np.ndarray,
    edge_bits: np.int32,
) -> bool:
    """Add a block to the step histogram of ``overlap.shared_from_steps``, for many agents.

    steps: int32 (agents, agents, BIN_COUNT); magnitudes: int32 (agents, BIN_COUNT); both
    incremented in place. Otherwise as ``fill_chain``, whose table grows with 2**agents.
    """
    order, bins = (np.empty(len(agents), dtype=np.int64) for _ in range(2))
    return _fill_steps(base, agents, steps, magnitudes, edge_bits, order, bins)
