"""How much agents changed, estimated from pages spread evenly over their elements.

It takes as many reads as a fingerprint does, whatever the models, and tells an agent of another
base (nearly everything differs) before any pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.rounding_meter import PRECISION
from ram_studio.algorithm.meters.storage import DENSE, Finding, dense_finding, texts
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.fit.mismatches import OPTION_WORDS
from ram_studio.checkpoints.read.describe import shown_list
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CompatibilityError

PAGES = 256
PAGE_ELEMENTS = 4096
REMOTE_PAGES = 24
REMOTE_READERS = 8


def sampled_densities(report: CompatibilityReport) -> dict[str, float]:
    """Return by agent about which share of its elements differs from the base by more than 1e-5.

    All elements count where there are no more than PAGES * PAGE_ELEMENTS. Base and agent are
    compared in the coarser of their dtypes: what rounding alone makes is left out. Elements that
    are not finite count as changed. Where files are read from the Hub, REMOTE_PAGES pages tell.
    Empty where they can be read neither here nor there.

    Raises: CheckpointError when a file cannot be read; HubError.
    """
    if not all(c.is_readable for c in report.checkpoints):
        return {}
    changed = np.zeros(len(report.agents), dtype=np.int64)
    seen = np.zeros(len(report.agents), dtype=np.int64)
    pages = _pages(report.counted) if report.is_local else _few_pages(report.counted)
    with (
        Sources(*report.checkpoints, read_ahead=False) as sources,
        ThreadPoolExecutor(1 if report.is_local else REMOTE_READERS) as pool,
    ):
        for counted in pool.map(lambda page: _changed(sources, *page), pages):
            changed += counted[0]
            seen += counted[1]
    shares = changed / np.maximum(seen, 1)
    return {a.name: float(share) for a, share in zip(report.agents, shares, strict=True)}


def _changed(sources: Sources, tensor: MergeTensor, start: int, count: int) -> np.ndarray:
    """Return elements of a page that each agent changed, and those it has: (2, agents)."""
    found = np.zeros((2, len(tensor.agents)), dtype=np.int64)
    base = sources.decoded(tensor.base, start, count)
    for t, agent in enumerate(tensor.agents):
        n = max(0, min(count, tensor.common_numel[t] - start))
        own = sources.decoded(agent, start, n)
        coarser = min(tensor.base.dtype, agent.dtype, key=PRECISION.__getitem__)
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.abs(_as(own, coarser) - _as(base[:n], coarser))
            found[:, t] = n - np.count_nonzero(moved <= EPSILON_GRID[DEFAULT_INDEX]), n
    return found


def other_bases(shares: Mapping[str, float]) -> tuple[Finding, ...]:
    """Return a warning for each agent that changed nearly all of the elements sampled."""
    dense = {name: share for name, share in shares.items() if share > DENSE}
    return tuple(dense_finding(name, share, is_sampled=True) for name, share in dense.items())


def refuse_other_bases(found: Sequence[Finding]) -> None:
    """Raise CompatibilityError where there are such warnings."""
    if found:
        raise CompatibilityError(
            f"{shown_list(texts(found), separator=' ')} Give the base it was trained from; where "
            f"this is the one, {OPTION_WORDS['other base']} to merge nevertheless."
        )


def _pages(tensors: list[MergeTensor]) -> Iterator[tuple[MergeTensor, int, int]]:
    """Yield tensor, first element and number of elements of each page."""
    total = sum(t.numel for t in tensors)
    wanted = PAGES * PAGE_ELEMENTS
    # As many elements of each tensor as its share asks for, in pages spread over it.
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


def _as(values: np.ndarray, dtype: str) -> np.ndarray:
    return rounding.decode(rounding.store(values, dtype), dtype)
