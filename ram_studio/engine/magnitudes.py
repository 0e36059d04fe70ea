"""Histograms of |tau| without a sketch: what trimming needs, in one streaming pass."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from ram_studio.algorithm import ladder
from ram_studio.checkpoints.compatibility import CompatibilityReport, MergeTensor
from ram_studio.engine.blocks import BLOCK_ELEMENTS, Block, BlockReader, Sources, blocks_of
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.finite import non_finite_error
from ram_studio.engine.tally import to_device
from ram_studio.engine.workers import run_blocks


def count_magnitudes(
    report: CompatibilityReport,
    counted: list[MergeTensor],
    *,
    per_tensor: bool,
    device: str = "cpu",
    threads: int = 1,
    block_elements: int = BLOCK_ELEMENTS,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> np.ndarray:
    """Return int64 (groups, agents, bins): the |tau| of each agent by bin of ``ladder``.

    One group per tensor, or one for the whole model. 32 KiB per group and agent are held.

    Raises: NonFiniteError, SourceChangedError, Stopped.
    """
    n_agents = len(report.agents)
    table = np.zeros((len(counted) if per_tensor else 1, n_agents, ladder.BIN_COUNT), np.int64)
    lock = threading.Lock()
    blocks = list(blocks_of(counted, block_elements))
    meter = Meter("count", sum(b.nbytes for b in blocks), len(counted))
    with Sources(report) as sources:

        def make_worker() -> Callable[[Block], None]:
            reader = BlockReader(sources, n_agents, block_elements)

            def work(block: Block) -> None:
                base, agents = reader.read(block)
                counts = _histogram(base, agents, device)
                if counts is None:
                    raise non_finite_error(report, sources, block)
                with lock:
                    table[block.tensor_index if per_tensor else 0] += counts

            return work

        run_blocks(
            blocks,
            make_worker,
            threads=threads,
            meter=meter,
            on_progress=on_progress,
            cancel=cancel,
        )
        sources.check_unchanged()
    if on_progress:
        on_progress(meter.read())
    return table


def _histogram(base: np.ndarray, agents: tuple[np.ndarray, ...], device: str) -> np.ndarray | None:
    """Return one block's counts (agents, bins), None when some tau is not finite."""
    if device == "cpu":
        from ram_studio.algorithm import sum_kernels

        counts = np.zeros((len(agents), ladder.BIN_COUNT), dtype=np.int64)
        edge = np.int64(ladder.EDGE_BITS)
        is_finite = [
            sum_kernels.count_magnitudes(base, agent, row, edge)
            for agent, row in zip(agents, counts, strict=True)
        ]
        return counts if all(is_finite) else None
    import torch

    from ram_studio.algorithm.torch_kernels import bins_of

    tau = torch.stack([to_device(a, device) for a in agents]) - to_device(base, device)
    if not bool(torch.isfinite(tau).all()):
        return None
    rows = bins_of(tau, ladder.EDGE_BITS)
    counts = [torch.bincount(r[r >= 0], minlength=ladder.BIN_COUNT) for r in rows]
    return torch.stack(counts).cpu().numpy()
