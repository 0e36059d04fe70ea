"""What a GPU does with a block that lies in its memory: count it, or merge and measure it.

Two implementations of the same two functions: ``triton_kernels`` in one kernel each, and the plain
torch operations below where triton is not installed. Neither waits for the device, so that copies
and blocks overlap; whoever reads the results waits.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ram_studio.algorithm import torch_kernels

TILE = 1024
"""Elements whose counts and sums are given as one row; tiles begin at multiples in the tensor."""

NOT_FINITE, OUT_OF_RANGE = 0, 1
"""Places in ``flags``: some task vector, some merged element is not finite."""

_CHAIN_BYTES = 16 << 20
_MOST_COPIES = 16


@runtime_checkable
class DeviceKernels(Protocol):
    """The two functions, see ``count_block`` and ``merge_block``."""

    count_block: Any
    merge_block: Any


def kernels_for(device: torch.device) -> DeviceKernels:
    """Return the fused kernels on CUDA where triton is installed, else the plain ones.

    Triton compiles for GPUs from compute capability 7.0 on.
    """
    is_known = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)
    if is_known and importlib.util.find_spec("triton") is not None:
        from ram_studio.algorithm import triton_kernels

        return triton_kernels
    return PLAIN


def chain_copies(sets: int, agents: int, bins: int) -> int:
    """Return how many copies of the histogram to keep, for programs to take in turns.

    Few bins are used, and each very often: counters that wait for each other are told apart, as far
    as all copies stay in a GPU's cache.
    """
    return max(1, min(_MOST_COPIES, _CHAIN_BYTES // (4 * sets * agents * bins)))


def tiles(start: int, n: int) -> int:
    """Return in how many tiles of a tensor the n elements from ``start`` on lie."""
    return (start % TILE + n + TILE - 1) // TILE


def count_block(base: Tensor, agents: Tensor, chain: Tensor, flags: Tensor, edge_bits: int) -> None:
    """Add a block to the chain histograms on its device.

    base: (n,), agents: (agents, n), rows contiguous, of one dtype: bfloat16, float16 or float32;
    chain: int32 (copies, sets, agents, bins), incremented; the sum of the copies is the histogram
    of ``overlap.patterns_from_chain``; flags: int32 (2,), NOT_FINITE is set to 1 when some task
    vector is not finite (the counts are then worthless).
    """
    x, y = base.float(), agents.float()
    raise_flag(flags, NOT_FINITE, y - x)
    chain[0] += torch_kernels.chain_histogram(x, y, edge_bits)


def merge_block(
    base: Tensor,
    agents: Tensor,
    merged: Tensor,
    flags: Tensor,
    *,
    epsilon: float,
    factors: Tensor,
    elect_sign: bool,
    key: int | None,
    start: int,
    measured: tuple[Tensor, Tensor] | None,
) -> None:
    """Merge a block by RAM's region rule into ``merged``, on its device.

    base, agents: as for ``count_block``; merged: (n,) of the output dtype; flags: int32 (2,), see
    NOT_FINITE and OUT_OF_RANGE; epsilon: a float32 value; factors: lambda, float64 (agents,), on
    the device; elect_sign: see ``kernels.merge_elected``; key: of stochastic rounding, None for
    nearest; start: of the block in its tensor; measured: see ``measure_block``, or None.
    """
    x, y = base.float(), agents.float()
    raise_flag(flags, NOT_FINITE, y - x)
    values, active = torch_kernels.merge_ram(x, y, epsilon, factors.tolist(), elect_sign)
    store_block(x, y, values, active, merged, flags, key=key, start=start, measured=measured)


def store_block(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    active: Tensor,
    merged: Tensor,
    flags: Tensor,
    *,
    key: int | None,
    start: int,
    measured: tuple[Tensor, Tensor] | None,
) -> None:
    """Round what a method's formula gave (see methods.BlockOutput) into ``merged``, and measure it.

    x, y: base and agents in float32; else as ``merge_block``.
    """
    dtype = _NAMES[merged.dtype]
    merged.copy_(torch_kernels.store(values, dtype, active != 0, key, start))
    raise_flag(flags, OUT_OF_RANGE, merged)
    if measured is not None:
        measure_block(x, y, merged.float(), active, start, *measured)


def measure_block(
    x: Tensor, y: Tensor, stored: Tensor, active: Tensor, start: int, counts: Tensor, sums: Tensor
) -> None:
    """Measure what was stored, tile by tile.

    counts: int32 (tiles, 2, agents), elements each agent changed, and changed alone; sums: float64
    (tiles, 2, agents), those of ``kernels.stored_change``; both overwritten.
    """
    rows, n = counts.shape[0], x.shape[0]
    lead = start % TILE

    def per_tile(values: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(values, (lead, rows * TILE - lead - n))
        return padded.view(rows, TILE).sum(1)

    wide = x.double()
    for t, agent in enumerate(y):
        alone = active == 1 << t
        tau = torch.where(alone, agent.double() - wide, 0.0)
        counts[:, 0, t] = per_tile((active >> t & 1).int())
        counts[:, 1, t] = per_tile(alone.int())
        sums[:, 0, t] = per_tile((stored.double() - wide) * tau)
        sums[:, 1, t] = per_tile(tau * tau)


def raise_flag(flags: Tensor, place: int, values: Tensor) -> None:
    """Set a flag to 1 where some value is not finite, without waiting."""
    flags[place] |= ~torch.isfinite(values).all()


_NAMES = {dtype: name for name, dtype in torch_kernels.TORCH_DTYPES.items()}


class _Plain:
    count_block = staticmethod(count_block)
    merge_block = staticmethod(merge_block)


PLAIN: DeviceKernels = _Plain()
