"""Search for elements to inspect: the next shared or unique element, the strongest conflict.

Streams one tensor block by block in bounded memory and stops as early as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON, float32_threshold
from ram_studio.algorithm.kernels.cpu import as_float32
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.read.describe import quoted
from ram_studio.engine.reading.blocks import Block, blocks_of
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import SettingsError

SHARED = "shared"
CONFLICT = "conflict"
UNIQUE = "unique:"
"""Followed by an agent's name."""

SEARCH_ELEMENTS = 1 << 16


class Hit(NamedTuple):
    """An element: its flat index, and the cancelled |tau| (0 unless a conflict)."""

    index: int  # type: ignore[assignment]
    cancelled: float = 0.0


def check_target(target: str, agents: tuple[str, ...]) -> None:
    """Raise SettingsError unless these agents can have such a target."""
    if target in (SHARED, CONFLICT):
        if len(agents) < 2:
            raise SettingsError(
                f"A {'shared element' if target == SHARED else 'conflict'} takes two agents; "
                "this set has only one."
            )
        return
    if not target.startswith(UNIQUE) or target.removeprefix(UNIQUE) not in agents:
        known = ", ".join((SHARED, CONFLICT, *(f"{UNIQUE}{name}" for name in agents)))
        raise SettingsError(f"The target is {quoted(target)}; it must be one of {known}.")


def find_element(
    report: CompatibilityReport,
    tensor: MergeTensor,
    target: str,
    *,
    epsilon: float = DEFAULT_EPSILON,
    start: int = 0,
    limit: int | None = None,
) -> Hit | None:
    """Return the first element from ``start`` on that matches the target, or None.

    target: "shared" (two or more agents changed it by more than epsilon), "unique:NAME" (only that
    agent did), or "conflict": the shared element of the whole tensor where most is cancelled,
    sum |tau| - |sum tau| over the agents that changed it; ``start`` is then ignored.
    limit: search about this many elements at most (whole blocks).

    Raises: SettingsError for an unknown target.
    """
    names = tuple(agent.name for agent in report.agents)
    check_target(target, names)
    threshold = float32_threshold(epsilon)
    best = Hit(-1)
    with Sources(*report.checkpoints) as sources:
        reader = BlockReader(sources, SEARCH_ELEMENTS)
        seen = 0
        for block in _blocks(tensor, 0 if target == CONFLICT else start):
            if limit is not None and seen >= limit:
                break
            seen += block.n
            stored_base, stored_agents = reader.read(block)
            base = as_float32(stored_base)
            taus = np.stack([as_float32(agent) - base for agent in stored_agents])
            changed = np.abs(taus) > threshold
            count = changed.sum(0)
            if target == CONFLICT:
                found = _strongest(block, taus, changed, count)
                best = found if found.cancelled > best.cancelled else best
                continue
            if target == SHARED:
                hits = count >= 2
            else:
                hits = (count == 1) & changed[names.index(target.removeprefix(UNIQUE))]
            if hits.any():
                return Hit(block.start + int(np.argmax(hits)))
        sources.check_unchanged()
    return best if best.index >= 0 else None


def _strongest(block: Block, taus: np.ndarray, changed: np.ndarray, count: np.ndarray) -> Hit:
    shared_taus = np.where(changed & (count >= 2), taus, np.float32(0)).astype(np.float64)
    cancelled = np.abs(shared_taus).sum(0) - np.abs(shared_taus.sum(0))
    place = int(np.argmax(cancelled))
    strength = float(cancelled[place])
    # Same signs cancel nothing; float64 sums of float32 numbers leave at most a trace.
    if strength <= 1e-12 * float(np.abs(shared_taus[:, place]).sum()):
        return Hit(-1)
    return Hit(block.start + place, strength)


def _blocks(tensor: MergeTensor, start: int) -> Iterator[Block]:
    for block in blocks_of([tensor], SEARCH_ELEMENTS):
        skipped = max(0, start - block.start)
        if skipped < block.n:
            yield replace(block, start=block.start + skipped, n=block.n - skipped)
