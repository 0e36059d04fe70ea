"""Differences between two models: which modules, layers and experts, by how much, to the bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ram_studio.algorithm import naming
from ram_studio.algorithm.exact_sums import ExactSum, rounded
from ram_studio.algorithm.grouping import expert_label, labels_of
from ram_studio.algorithm.kernels.cpu import as_float32
from ram_studio.checkpoints.fit.compatibility import (
    MergeTensor,
    NamesPolicy,
    check_compatibility,
)
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.describe import BASE_NAME, plural
from ram_studio.checkpoints.virtual.expert_adapters import Packings
from ram_studio.engine.events import CancelToken
from ram_studio.engine.passes.driver import RunKeywords, RunOptions, run_pass
from ram_studio.engine.passes.plan import Backend
from ram_studio.engine.reading.blocks import Block, blocks_of

OTHER_NAME, ADAPTER_NAME = "model", "adapter"
_SUMS = ("changed", "not_finite", "tau2", "base2", "adapter2", "carried")


@dataclass(frozen=True)
class Change:
    """How much some elements of one model differ from those of another.

    Attributes:
        name: of the tensor, module, layer or expert.
        elements, changed: numbers of elements, and of those with other bits.
        norm: of the difference (Frobenius); relative: the same divided by the first model's norm,
            None where that is zero or something is not finite.
        largest: the largest difference of an element.
        not_finite: elements of the second model that are NaN or infinite.
        carried: share of the adapter's update that is in the second model, 1 for all of it; None
            without an adapter, or where it changes nothing.
    """

    name: str
    elements: int
    changed: int
    norm: float
    relative: float | None
    largest: float
    not_finite: int = 0
    carried: float | None = None

    @property
    def share(self) -> float:
        """Share of its elements that changed."""
        return self.changed / self.elements if self.elements else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; numbers that are not finite are None."""
        known = {k: v if _is_finite(v) else None for k, v in vars(self).items()}
        return known | {"share": self.share}


@dataclass(frozen=True)
class Diff:
    """Differences between two models.

    Attributes:
        base, model: their sources.
        tensors: a change for each tensor of floating-point numbers, and for each expert of a stack,
            named ``TENSOR[NUMBER]``.
        missing: tensors that only the first model has; extra: only the second.
        notes: other remarks, for example on quantized storage or layouts.
    """

    base: str
    model: str
    tensors: tuple[Change, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    notes: tuple[str, ...]
    _sums: np.ndarray = field(repr=False, compare=False)
    _largest: np.ndarray = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Diff({self.verdict})"

    @cached_property
    def total(self) -> Change:
        """All of the model as one change."""
        return self._change("model", range(len(self.tensors)))

    @property
    def is_equal(self) -> bool:
        """Whether every tensor of the first model is in the second, to the bit."""
        return not self.total.changed and not self.missing

    @property
    def verdict(self) -> str:
        """The result, in one or two sentences."""
        total = self.total
        count = plural(len(self.tensors), "tensor")
        lost = f" It lacks {plural(len(self.missing), 'base tensor')}." if self.missing else ""
        if not total.changed:
            return f"No weight differs from the base: all {count} are bit-identical.{lost}"
        same = sum(not one.changed for one in self.tensors)
        text = (
            f"{total.changed:,} of {total.elements:,} elements differ ({total.share:.3%}); "
            f"{same} of {count} are bit-identical."
        )
        if total.carried is not None:
            text += f" {total.carried:.1%} of the adapter's update is in the model."
        if total.not_finite:
            text += f" {plural(total.not_finite, 'element')} of the model: NaN or infinite."
        return text + lost

    def by(self, group: str) -> tuple[Change, ...]:
        """Return the changes of groups: "module", "layer", "expert", "tower" or "tensor".

        Raises: SettingsError for another grouping.
        """
        names = [one.name for one in self.tensors]
        labels = labels_of(names, group)
        rows: dict[str, list[int]] = {label: [] for label in labels}
        for row, name in enumerate(names):
            for label in _label(name, group):
                rows.setdefault(label, []).append(row)
        return tuple(self._change(label, own) for label, own in rows.items() if own)

    def to_dict(self, by: str = "module") -> dict[str, Any]:
        """Return it for JSON, with the changes of groups."""
        return {
            "base": self.base,
            "model": self.model,
            "is_equal": self.is_equal,
            "verdict": self.verdict,
            "total": self.total.to_dict(),
            "by": by,
            "changes": [one.to_dict() for one in self.by(by)],
            "missing": list(self.missing),
            "extra": list(self.extra),
            "notes": list(self.notes),
        }

    def _change(self, name: str, rows: Sequence[int]) -> Change:
        elements = sum(self.tensors[row].elements for row in rows)
        return _change(name, elements, self._sums[list(rows)].sum(0), self._largest[list(rows)])


def diff(
    base: str | Path,
    model: str | Path,
    *,
    adapter: str | Path | None = None,
    names: NamesPolicy = "exact",
    experts_packing: Packings = "ask",
    **run: Unpack[RunKeywords],
) -> Diff:
    """Compare a model, a merge, an adapter or a delta with its base.

    One streaming pass; memory does not grow with the models.

    Args:
        base, model: folders, URLs or Hub ids.
        adapter: an adapter or an agent of the base, to measure which share of it the model has.
        names, experts_packing: how to read them, see ``check_compatibility``; by agent they are
            "model" and "adapter".
        run: threads, block_elements, on_progress, cancel, see RunKeywords.

    Raises: CheckpointError, CompatibilityError (other shapes), HubError, Stopped.
    """
    cancel = run.get("cancel") or CancelToken()
    sources = {BASE_NAME: base, OTHER_NAME: model}
    sources |= {} if adapter is None else {ADAPTER_NAME: adapter}
    opened = [open_checkpoint(s, name=name, cancel=cancel) for name, s in sources.items()]
    below, other = opened[0], opened[1]
    fit = check_compatibility(
        below,
        opened[1:],
        missing="keep-base",
        extra="ignore",
        rows="common",
        names=names,
        experts_packing=experts_packing,
    )
    is_part = other.adapter is not None or other.delta is not None
    missing = () if is_part else tuple(t.name for t in fit.tensors if t.agents[0] is t.base)
    extra = () if is_part else tuple(sorted(fit.agents[0].tensors.keys() - fit.base.tensors.keys()))
    work = Differing([t for t in fit.counted if t.name not in set(missing)])
    run["device"] = "cpu"
    run_pass(fit, work, RunOptions.of(**run))
    sums, largest = work.sums()
    named = zip(work.names, work.elements, sums, largest[:, None], strict=True)
    return Diff(
        str(base),
        str(model),
        tuple(_change(*one) for one in named),
        missing,
        extra,
        tuple(note.text for note in fit.findings if note.kind in ("dtype", "tied-head")),
        sums,
        largest,
    )


class Differing:
    """The work of the pass: differences of each tensor, of each expert in a stack."""

    stage = "diff"

    def __init__(self, tensors: Sequence[MergeTensor]) -> None:
        self.tensors = tensors
        self.names: list[str] = []
        self.elements: list[int] = []
        self._first: list[int] = []
        for tensor in tensors:
            self._first.append(len(self.names))
            parts = tensor.shape[0] if _is_stack(tensor) else 1
            ends = [f"[{n}]" for n in range(parts)] if _is_stack(tensor) else [""]
            self.names += [tensor.name + end for end in ends]
            self.elements += [tensor.numel // max(1, parts)] * parts
        self._sums = ExactSum((len(self.names), len(_SUMS)))
        self._largest = np.zeros(len(self.names))
        self._lock = threading.Lock()

    def blocks(self, block_elements: int) -> Iterator[Block]:
        """Yield the blocks in order; no block crosses from one expert into the next."""
        return blocks_of(self.tensors, block_elements, every=_expert_elements)

    def worker(self, backend: Backend) -> _Worker:
        """Return one thread's share."""
        return _Worker(self)

    def add(self, block: Block, sums: Sequence[float], largest: float) -> None:
        """Add the sums of a block."""
        row = self._first[block.tensor_index]
        if (size := _expert_elements(block.tensor)) > 0:
            row += block.start // size
        with self._lock:
            self._sums.add(np.array(sums), row)
            self._largest[row] = max(self._largest[row], largest)

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of each row, see `_SUMS`, and its largest difference."""
        return rounded(self._sums.packed()), self._largest


class _Worker:
    """One thread's share of the pass."""

    def __init__(self, work: Differing) -> None:
        self._work = work

    def block(self, block: Block, base: np.ndarray, agents: Sequence[np.ndarray]) -> bool:
        """Compare a block; values that are not finite are counted, not refused."""
        bits = np.uint16 if base.dtype == np.uint16 else np.uint32
        other = np.flatnonzero(base.view(bits) != agents[0].view(bits))
        x = as_float32(base)
        tau = _tau(as_float32(agents[0])[other], x[other])
        finite = np.isfinite(tau)
        tau[~finite] = 0
        bad = 0 if finite.all() else int((~np.isfinite(as_float32(agents[0])[other])).sum())
        sums = [float(len(other)), float(bad), _dot(tau, tau), _dot(x, x), 0.0, 0.0]
        if len(agents) > 1:
            own = _tau(as_float32(agents[1]), x)
            own[~np.isfinite(own)] = 0
            sums[4:] = [_dot(own, own), _dot(own[other], tau)]
        sums = [value if math.isfinite(value) else 0.0 for value in sums]
        self._work.add(block, sums, float(np.abs(tau).max(initial=0)))
        return True

    def close(self) -> None:
        """Do nothing: every block was added."""


def _tau(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        found: np.ndarray = after - before
    return found


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(a.astype(np.float64), b.astype(np.float64)))


def _change(name: str, elements: int, sums: np.ndarray, largest: np.ndarray) -> Change:
    changed, not_finite, tau2, base2, adapter2, carried = (float(value) for value in sums)
    return Change(
        name,
        elements,
        int(changed),
        math.sqrt(tau2),
        math.sqrt(tau2 / base2) if base2 else None,
        float(largest.max(initial=0)),
        int(not_finite),
        carried / adapter2 if adapter2 else None,
    )


def _is_stack(tensor: MergeTensor) -> bool:
    """Return whether a tensor holds all experts of a layer, one after another."""
    return naming.expert_of(tensor.name) == naming.STACK and len(tensor.shape) > 1


def _expert_elements(tensor: MergeTensor) -> int:
    return tensor.numel // max(1, tensor.shape[0]) if _is_stack(tensor) else 0


def _label(name: str, group: str) -> Sequence[str]:
    """Return the group label of a tensor in a grouping, none or one."""
    tensor, bracket, number = name.rstrip("]").partition("[")
    if group == "expert" and bracket:
        return [expert_label(naming.layer_of(tensor), number)]
    return labels_of([name if group == "tensor" else tensor], group)


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
