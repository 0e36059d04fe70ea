"""Groupings of tensors by layer, kind of module, tower or expert; and the depth of each tensor.

Experts that are stored as one stack are also counted one by one (``StackCounts``), so that they
are groups like experts that are stored separately.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ram_studio.algorithm import naming
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.errors import SettingsError


def expert_label(layer: str, expert: str) -> str:
    """Return the label of an expert, or of a router: layer/number, layer/router."""
    return f"{layer}/{expert}"


def _label_of_expert(name: str) -> str | None:
    expert = naming.expert_of(name)
    return None if expert is None else expert_label(naming.layer_of(name), expert)


_LABEL_OF: dict[str, Callable[[str], str | None]] = {
    "model": lambda name: "model",
    "layer": naming.layer_of,
    "module": naming.module_of,
    "tensor": lambda name: name,
    "tower": naming.tower_of,
    "expert": _label_of_expert,
    "place": lambda name: f"{naming.layer_of(name)} {naming.module_of(name)}",
}
"""Label of a tensor's group in each grouping; None where it is in none."""


@dataclass(frozen=True)
class StackCounts:
    """Counts of the single experts in stacks.

    labels: as ``expert_label`` gives them, each once; counts: a group for each.
    """

    labels: tuple[str, ...]
    counts: OverlapCounts

    def keep_agents(self, keep: Sequence[int]) -> StackCounts:
        """Return the counts as if only these agents were merged, see ``OverlapCounts``."""
        return StackCounts(self.labels, self.counts.keep_agents(keep))


def labels_of(names: Sequence[str], by: str) -> tuple[str, ...]:
    """Return the group labels of a grouping of these tensors, in model order.

    Raises: SettingsError for a grouping that does not exist.
    """
    if by not in _LABEL_OF:
        raise SettingsError(f"The grouping is {by!r}; it must be one of {', '.join(_LABEL_OF)}.")
    if by == "model":
        return ("model",)
    found = dict.fromkeys(label for name in names if (label := _LABEL_OF[by](name)) is not None)
    if by == "layer":
        return tuple(naming.sort_layers(set(found)))
    if by == "tower":  # language first, in any file order
        return tuple(sorted(found, key=lambda tower: tower != naming.LANGUAGE))
    return tuple(found)


def index_of(names: Sequence[str], by: str) -> np.ndarray:
    """Return, for each tensor, the index of its group among ``labels_of``; -1 where it is in none.

    Returns: int64 (tensors,).
    """
    position = {label: i for i, label in enumerate(labels_of(names, by))}
    labels = map(_LABEL_OF[by], names)
    return np.array([-1 if g is None else position[g] for g in labels], dtype=np.int64)


def at_depth(value: float | Sequence[Any], depth: float) -> float:
    """Return a weight at a depth, 0 for the first layer and 1 for the last (mergekit's formula)."""
    if not isinstance(value, Sequence):
        return float(value)
    scaled = depth * (len(value) - 1)
    below = int(scaled)
    above = min(len(value) - 1, below + 1)
    share = scaled - below
    return (1 - share) * value[below] + share * value[above]


def depths_of(names: Sequence[str]) -> list[float]:
    """Return the depth of each tensor of a whole model, see ``at_depth``.

    Tensors outside the layers are at 0, also the final norm and the head, as in mergekit.
    """
    labels = [naming.layer_of(name) for name in names]
    last = max((int(label) for label in labels if label.isdigit()), default=0)
    return [(int(label) / last if last else 1.0) if label.isdigit() else 0.0 for label in labels]


def experts_of(
    names: Sequence[str], counts: OverlapCounts, stacks: StackCounts | None
) -> StackCounts:
    """Return routers and experts with their counts; stacked experts singly where counted."""
    index = index_of(names, "expert")
    apart = () if stacks is None else (f"/{naming.STACK}",)
    left = {i: g for i, g in enumerate(labels_of(names, "expert")) if not g.endswith(apart)}
    own = counts.grouped([np.flatnonzero(index == i).tolist() for i in left])
    named = StackCounts(tuple(left.values()), own)
    return named if stacks is None else _join_stacks(named, stacks)


def add_stacks(found: Sequence[StackCounts]) -> StackCounts | None:
    """Return the combined counts of parts of a model; None without any."""
    if not found:
        return None
    every = functools.reduce(_join_stacks, found)
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(every.labels):  # an expert's matrices may be in several parts
        rows.setdefault(label, []).append(row)
    return stack_counts(rows, every.counts)


def stack_counts(rows: Mapping[str, Sequence[int]], counts: OverlapCounts) -> StackCounts:
    """Return experts with the summed counts of their rows, ordered by layer and number."""
    layers = naming.sort_layers({label.split("/")[0] for label in rows})
    place = {layer: i for i, layer in enumerate(layers)}

    def order(label: str) -> tuple[int, int]:
        layer, expert = label.split("/")
        return place[layer], int(expert)

    labels = tuple(sorted(rows, key=order))
    return StackCounts(labels, counts.grouped([rows[label] for label in labels]))


def _join_stacks(one: StackCounts, other: StackCounts) -> StackCounts:
    a, b = one.counts, other.counts
    patterns = None
    if a.patterns is not None and b.patterns is not None:
        patterns = np.concatenate([a.patterns, b.patterns])
    counts = OverlapCounts(
        np.concatenate([a.numel, b.numel]), patterns, np.concatenate([a.shared, b.shared])
    )
    return StackCounts(one.labels + other.labels, counts)
