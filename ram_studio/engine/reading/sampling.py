"""How much agents changed, estimated from pages spread evenly over their elements.

It needs as many reads as a fingerprint, for any models, and detects an agent of another
base (nearly everything differs) before any pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.rounding_meter import PRECISION
from ram_studio.algorithm.meters.storage import DENSE, Finding, dense_finding, texts
from ram_studio.algorithm.verdict import lost_to_epsilon
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.fit.mismatches import OPTION_WORDS
from ram_studio.checkpoints.read.describe import shown_list
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CompatibilityError

PAGES = 256
MOST_TENSORS = 1024
PAGE_ELEMENTS = 4096
REMOTE_PAGES = 24
REMOTE_READERS = 8


class ChangeSample(NamedTuple):
    """Shares estimated from a sample of an agent's elements.

    changed: elements that differ from the base; above: by more than 1e-5; energy_above: share of
    the latter in the sum of squared changes, 1 where nothing changed.
    """

    changed: float
    above: float
    energy_above: float


def sample_changes(report: CompatibilityReport) -> dict[str, ChangeSample]:
    """Return by agent an estimate of the share of its elements that differs from the base.

    All elements count up to PAGES * PAGE_ELEMENTS. Base and agent are compared in the coarser of
    their dtypes, which ignores differences by rounding alone. Elements that are not finite count
    as changed. Files on the Hub are sampled in REMOTE_PAGES pages. Empty where files can be read
    neither here nor there.

    Raises: CheckpointError when a file cannot be read; HubError.
    """
    if not all(c.is_readable for c in report.checkpoints):
        return {}
    sums = np.zeros((5, len(report.agents)))
    pages = _pages(report.counted) if report.is_local else _few_pages(report.counted)
    with (
        Sources(*report.checkpoints, read_ahead=False) as sources,
        ThreadPoolExecutor(1 if report.is_local else REMOTE_READERS) as pool,
    ):
        for counted in pool.map(lambda page: _sum_page(sources, *page), pages):
            sums += counted
    elements, changed, above, energy, energy_above = sums
    shares = np.stack(
        [
            changed / np.maximum(elements, 1),
            above / np.maximum(elements, 1),
            np.divide(energy_above, energy, out=np.ones_like(energy), where=energy > 0),
        ]
    )
    return {
        a.name: ChangeSample(*own) for a, own in zip(report.agents, shares.T.tolist(), strict=True)
    }


def _sum_page(sources: Sources, tensor: MergeTensor, start: int, count: int) -> np.ndarray:
    """Return sums over a page: (5, agents).

    Counts of an agent's elements, of changed ones, of changes above 1e-5; sums of their squares.
    """
    found = np.zeros((5, len(tensor.agents)))
    base = sources.decoded(tensor.base, start, count)
    for t, agent in enumerate(tensor.agents):
        n = max(0, min(count, tensor.common_numel[t] - start))
        own = sources.decoded(agent, start, n)
        coarser = min(tensor.base.dtype, agent.dtype, key=PRECISION.__getitem__)
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.abs(_in_dtype(own, coarser) - _in_dtype(base[:n], coarser))
            is_above = ~(moved <= EPSILON_GRID[DEFAULT_INDEX])
            square = np.where(np.isfinite(moved), moved, 0).astype(np.float64) ** 2
            found[:, t] = (
                n,
                np.count_nonzero(moved),
                is_above.sum(),
                square.sum(),
                square[is_above].sum(),
            )
    return found


def other_bases(found: Mapping[str, ChangeSample]) -> tuple[Finding, ...]:
    """Return a warning for each agent that changed nearly all sampled elements."""
    dense = {name: own.above for name, own in found.items() if own.above > DENSE}
    return tuple(dense_finding(name, share, is_sampled=True) for name, share in dense.items())


def sample_findings(found: Mapping[str, ChangeSample], total: int) -> tuple[Finding, ...]:
    """Return a sample's warnings: other bases, and agents whose update epsilon 1e-5 removes.

    total: elements of all merged tensors.
    """
    moved = {name: own for name, own in found.items() if own.changed}
    lost = lost_to_epsilon(
        EPSILON_GRID[DEFAULT_INDEX],
        {name: own.energy_above for name, own in moved.items()},
        {name: own.changed * total for name, own in moved.items()},
        total,
        {},
        is_sampled=True,
    )
    return other_bases(found) + (() if lost is None else (lost.finding,))


def refuse_other_bases(found: Sequence[Finding]) -> None:
    """Raise CompatibilityError where there are such warnings."""
    if found:
        raise CompatibilityError(
            f"{shown_list(texts(found), separator=' ')} Give the base it was trained from; if "
            f"this is that base, {OPTION_WORDS['other base']} to merge anyway."
        )


def _pages(tensors: list[MergeTensor]) -> Iterator[tuple[MergeTensor, int, int]]:
    """Yield tensor, first element and number of elements of each page."""
    total = sum(t.numel for t in tensors)
    wanted = PAGES * PAGE_ELEMENTS
    if total > wanted and len(tensors) > MOST_TENSORS:
        # At random: each n-th matrix of a mixture may be the same one in every expert.
        drawn = sorted(random.Random(0).sample(range(len(tensors)), MOST_TENSORS))
        tensors = [tensors[i] for i in drawn]
        total = sum(t.numel for t in tensors)
    # Elements of each tensor in proportion to its size, in pages spread over it.
    for tensor in tensors:
        share = min(1.0, wanted / total) if total else 0.0
        pages = max(1, round(tensor.numel * share / PAGE_ELEMENTS))
        size = tensor.numel if share == 1.0 else min(tensor.numel, PAGE_ELEMENTS)
        for page in range(1 if size == tensor.numel else pages):
            start = 0 if pages == 1 else page * (tensor.numel - size) // (pages - 1)
            if size:
                yield tensor, start, size


def _few_pages(tensors: list[MergeTensor]) -> Iterator[tuple[MergeTensor, int, int]]:
    """Yield one page from the middle of some tensors, spread over the model."""
    large = [t for t in tensors if t.numel >= PAGE_ELEMENTS] or tensors
    step = max(1, len(large) // REMOTE_PAGES)
    for tensor in large[step // 2 :: step]:
        size = min(tensor.numel, PAGE_ELEMENTS)
        yield tensor, (tensor.numel - size) // 2, size


def _in_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    return rounding.decode(rounding.store(values, dtype), dtype)
