"""Merging blocks: the CPU path for methods with a fused kernel, and the torch path for all."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ram_studio.algorithm import kernels, measured_kernels, rounding, sum_kernels
from ram_studio.algorithm.methods import BlockInput, Facts, KernelInput, Method
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.blocks import GROUP_ELEMENTS, Block
from ram_studio.engine.devices import devices_of
from ram_studio.engine.tally import to_device
from ram_studio.errors import SettingsError

MAX_AGENTS = 32


@dataclass(frozen=True)
class Plan:
    """A merge made ready: the method, and what every block needs to know.

    prepared: what the method's ``prepare`` returned for ``facts``; dtypes: output dtype of each
    merged tensor by name; rows: index of each merged tensor among Facts.tensors, by name.
    """

    method: Method
    prepared: Any
    facts: Facts
    dtypes: dict[str, str]
    rows: dict[str, int]
    rounding: rounding.Rounding
    device: str = "cpu"

    @property
    def n_agents(self) -> int:
        """Number of agents."""
        return len(self.facts.agents)

    def key(self, tensor: MergeTensor) -> np.uint64:
        """Return the tensor's key for stochastic rounding; a tied head shares its embedding's."""
        name = tensor.tied_to or tensor.name
        return rounding.stream_key(self.facts.seed, "rounding", name)


@dataclass
class MergeTally:
    """What the merge pass counts: per agent changed and unique elements, and what was stored.

    Sums of stored change are kept per group of elements and added exactly, so that the result does
    not depend on threads or blocks.
    """

    n_agents: int
    changed: np.ndarray = field(init=False)
    unique: np.ndarray = field(init=False)
    sums: list[tuple[int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = np.zeros(self.n_agents, dtype=np.int64)
        self.unique = np.zeros(self.n_agents, dtype=np.int64)
        self._lock = threading.Lock()

    def add(
        self, changed: np.ndarray, unique: np.ndarray, sums: list[tuple[int, float, float]]
    ) -> None:
        """Add one block's counts and its groups' (agent, numerator, denominator)."""
        with self._lock:
            self.changed += changed
            self.unique += unique
            self.sums += sums

    def effective_factor(self, agent: int) -> float | None:
        """Return sum((stored - base) tau) / sum(tau**2) over the agent's unique region.

        None when it has no unique element.
        """
        own = [(n, d) for t, n, d in self.sums if t == agent]
        denominator = math.fsum(d for _, d in own)
        return math.fsum(n for n, _ in own) / denominator if denominator else None


class BlockMerger(Protocol):
    """Merges blocks, one thread's worth."""

    def merge(
        self,
        block: Block,
        base: np.ndarray,
        agents: tuple[np.ndarray, ...],
        fisher: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Return the stored elements of the merged block; None when some tau is not finite.

        fisher: float32 (agents, n) for methods that need it.
        """


def pattern_dtype(n_agents: int) -> np.dtype:
    """Return the smallest unsigned integer with a bit per agent.

    Raises: SettingsError for more than MAX_AGENTS agents.
    """
    if n_agents > MAX_AGENTS:
        raise SettingsError(
            f"{n_agents} agents were given; at most {MAX_AGENTS} can be merged at once. Merge in "
            "groups."
        )
    return np.dtype(np.uint8 if n_agents <= 8 else np.uint16 if n_agents <= 16 else np.uint32)


def is_fused(plan: Plan) -> bool:
    """Whether a fused CPU kernel computes this method."""
    return plan.device == "cpu" and hasattr(plan.prepared, "kernel")


class FusedMerger:
    """Methods with a fused kernel on the CPU, rounding included."""

    def __init__(self, plan: Plan, tally: MergeTally, block_elements: int) -> None:
        self._plan = plan
        self._tally = tally
        self._active = np.empty(block_elements, dtype=pattern_dtype(plan.n_agents))
        self._outputs: dict[np.dtype, np.ndarray] = {}
        self._size = block_elements

    def _output(self, dtype: np.dtype, n: int) -> np.ndarray:
        if dtype not in self._outputs:
            self._outputs[dtype] = np.empty(self._size, dtype=dtype)
        return self._outputs[dtype][:n]

    def merge(
        self,
        block: Block,
        base: np.ndarray,
        agents: tuple[np.ndarray, ...],
        fisher: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Merge a block, see BlockMerger."""
        plan, tensor = self._plan, block.tensor
        dtype = plan.dtypes[tensor.name]
        active = self._active[: block.n]
        where = KernelInput(plan.rows[tensor.name], tensor.tied_to or tensor.name, block.start)
        kernel, arguments = plan.prepared.kernel(where)
        # bfloat16 and float32 are rounded inside the kernel, unless drawn at random.
        is_direct = plan.rounding == "nearest" and dtype != "F16"
        target = rounding.STORAGE[dtype] if is_direct else np.dtype(np.float64)
        merged = self._output(target, block.n)
        if (
            is_direct
            and kernel is kernels.merge_mean
            and measured_kernels.can_measure(base, dtype, *arguments)
        ):
            return self._merge_measured(block, base, agents, merged, arguments)
        if is_direct and kernel is sum_kernels.merge_sum:
            factor, keys, *_ = arguments
            same = (np.float32(0), (factor,) * len(agents))
            if not keys and measured_kernels.can_measure(base, dtype, *same, is_sum=True):
                return self._merge_measured(block, base, agents, merged, same, is_sum=True)
        if not kernel(base, agents, merged, active, *arguments):
            return None
        stored = merged
        if not is_direct:
            key = plan.key(tensor)
            stored = rounding.store(merged, dtype, plan.rounding, active, key, block.start)
        _refuse_overflow(stored, dtype, block)
        if tensor.is_counted:
            self._count(block.start, base, agents, stored, active, dtype)
        return stored

    def _merge_measured(
        self,
        block: Block,
        base: np.ndarray,
        agents: tuple[np.ndarray, ...],
        merged: np.ndarray,
        arguments: tuple,
        *,
        is_sum: bool = False,
    ) -> np.ndarray | None:
        if kernels.is_copy(base, agents):
            return base if kernels.is_finite(base) else None
        cuts = [0, *(part.stop for part in _groups(block.start, block.n))]
        measured = measured_kernels.merge_measured(
            base,
            agents,
            merged,
            *arguments,
            cuts,
            is_measuring=block.tensor.is_counted,
            is_sum=is_sum,
        )
        if not measured.is_finite:
            return None
        if not measured.is_in_range:
            raise overflow_error("BF16", block)
        if block.tensor.is_counted:
            self._tally.add(
                measured.changed,
                measured.unique,
                [
                    (t, *sums)
                    for t in np.flatnonzero(measured.unique).tolist()
                    for sums in measured.sums[:, :, t].tolist()
                ],
            )
        return merged

    def _count(
        self,
        start: int,
        base: np.ndarray,
        agents: tuple[np.ndarray, ...],
        stored: np.ndarray,
        active: np.ndarray,
        dtype: str,
    ) -> None:
        counts = [kernels.count_active(active, t) for t in range(len(agents))]
        comparable = stored
        if (base.dtype == np.uint16) != (dtype == "BF16"):
            base, agents = _as_float32(base), tuple(_as_float32(a) for a in agents)
            comparable = rounding.decode(stored, dtype)
        elif dtype == "F16":
            comparable = stored.astype(np.float32)
        sums = []
        for t, (_, unique) in enumerate(counts):
            for part in _groups(start, len(active)) if unique else ():
                sums.append(
                    (
                        t,
                        *kernels.stored_change(
                            base[part], agents[t][part], comparable[part], active[part], t
                        ),
                    )
                )
        changed, unique = (np.array(column, dtype=np.int64) for column in zip(*counts, strict=True))
        self._tally.add(changed, unique, sums)


def _groups(start: int, n: int) -> Iterator[slice]:
    """Return a block's groups: parts cut where the tensor's elements are a multiple of the group.

    start: of the block in its tensor. Where an agent's rows end a block begins inside a group.
    """
    cuts = (0, *range(-start % GROUP_ELEMENTS or GROUP_ELEMENTS, n, GROUP_ELEMENTS), n)
    return itertools.starmap(slice, itertools.pairwise(cuts))


def _as_float32(stored: np.ndarray) -> np.ndarray:
    return rounding.decode(stored, "BF16") if stored.dtype == np.uint16 else stored


def _refuse_overflow(stored: np.ndarray, dtype: str, block: Block) -> None:
    """Raise SettingsError when a merged element became infinite in the output dtype."""
    is_finite = bool(np.isfinite(stored).all()) if dtype == "F16" else kernels.is_finite(stored)
    if not is_finite:
        raise overflow_error(dtype, block)


def overflow_error(dtype: str, block: Block) -> SettingsError:
    return SettingsError(
        f"Tensor `{block.tensor.name}`: a merged element lies beyond the range of the output "
        f"dtype ({dtype}). Choose float32 or bfloat16 for the output, or a smaller scale."
    )


class TorchMerger:
    """Any method through its torch formula, on the CPU or a CUDA device, one block after another.

    For methods without a fused kernel on the CPU, and on devices for those that take whole tensors
    or read more than the checkpoints; see ``device_merging`` for all others.
    """

    def __init__(
        self, plan: Plan, tally: MergeTally, check: Callable[[], None] = lambda: None
    ) -> None:
        """Args: check: raises when the merge shall stop, see ``BlockInput``."""
        self._plan = plan
        self._tally = tally
        self._check = check
        self._device = devices_of(plan.device)[0]

    def merge(
        self,
        block: Block,
        base: np.ndarray,
        agents: tuple[np.ndarray, ...],
        fisher: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Merge a block, see BlockMerger."""
        import torch

        from ram_studio.algorithm import torch_kernels

        plan, tensor = self._plan, block.tensor
        dtype = plan.dtypes[tensor.name]
        x = to_device(base, self._device)
        y = torch.stack([to_device(a, self._device) for a in agents])
        if not bool(torch.isfinite(y - x).all()):
            return None
        row = plan.rows[tensor.name]
        name = tensor.tied_to or tensor.name
        weights = None if fisher is None else torch.from_numpy(fisher).to(self._device)
        values, active = plan.method.merge(
            BlockInput(x, y, row, name, block.start, tensor.shape, weights, self._check),
            plan.prepared,
        )
        key = int(plan.key(tensor)) if plan.rounding == "stochastic" else None
        stored = torch_kernels.store(values, dtype, active != 0, key, block.start)
        if tensor.is_counted:
            self._count(block.start, x, y, stored.float(), active)
        bits = stored.view(torch.int16) if dtype == "BF16" else stored
        out = bits.cpu().numpy()
        out = out.view(np.uint16) if dtype == "BF16" else out
        _refuse_overflow(out, dtype, block)
        return out

    def _count(self, start: int, x: Any, y: Any, stored: Any, active: Any) -> None:
        from ram_studio.algorithm import torch_kernels

        changed, unique, sums = [], [], []
        for t in range(self._plan.n_agents):
            mine = active == 1 << t
            changed.append(int((active >> t & 1).sum()))
            unique.append(int(mine.sum()))
            for part in _groups(start, len(active)) if unique[-1] else ():
                sums.append(
                    (t, *torch_kernels.stored_change(x[part], y[t][part], stored[part], mine[part]))
                )
        self._tally.add(np.array(changed), np.array(unique), sums)
