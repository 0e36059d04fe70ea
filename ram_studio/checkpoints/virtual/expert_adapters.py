"""LoRA on a stack of experts (peft's `target_parameters`), applied as it is read.

peft stores the factors of all E experts in two matrices: lora_A (E * rank, in) has the rows of one
expert after those of another; lora_B (out, E * rank) has its columns in one of two orders:

    rank-major    column k is of expert k % E, as peft, vLLM and others read it
    expert-major  column k is of expert k // rank, as Unsloth trained until September 2026

Both orders have the same shape, and the wrong one gives every expert another's columns. Unsloth
writes the order into adapter_config.json since then (`lora_B_layout`, see
https://github.com/unslothai/unsloth-zoo/pull/1232 and /1269); of other files the user is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ram_studio.checkpoints.read.describe import quoted, shown_shape
from ram_studio.checkpoints.read.tensors import (
    MERGED_DTYPES,
    TensorCache,
    TensorInfo,
    TensorReader,
    VirtualTensor,
)

Packing = Literal["ask", "rank-major", "expert-major"]
Packings = Packing | Mapping[str, Packing]
"""One for all agents, or by agent; those left out are asked."""

PACKING_WORDS = (
    "set experts_packing: rank-major for one trained with peft, expert-major for one trained with "
    "Unsloth before September 2026"
)
"""How the message names the option."""

GROUP_ELEMENTS = 1 << 16
"""About so many elements are computed together."""

_MARKER = "lora_B_layout"
_MARKED: dict[object, Packing] = {"rank_major": "rank-major", "grouped_by_expert": "expert-major"}

Read = Callable[[TensorInfo, int, int], np.ndarray]
"""What returns elements [start, start + count) of a stored tensor as float32."""


@dataclass(frozen=True, slots=True)
class LowRankStack(VirtualTensor):
    """base + scale * B A for each expert, in float64 rounded once to float32.

    Attributes:
        base: (experts, rows, columns), or (rows, columns) for a parameter of no experts.
        left: lora_B, (out, experts * rank).
        right: lora_A, (experts * rank, in).
        scale: lora_alpha / rank, or / sqrt(rank) for rank-stabilised adapters.
        is_expert_major: in which order lora_B's columns are.
        is_turned: a matrix of the base is (in, out), not (out, in).
    """

    base: TensorInfo
    left: TensorInfo
    right: TensorInfo
    scale: float
    is_expert_major: bool
    is_turned: bool

    @property
    def experts(self) -> int:
        """How many matrices the base holds."""
        return self.base.shape[0] if len(self.base.shape) == 3 else 1

    @property
    def rank(self) -> int:
        return self.right.shape[0] // self.experts

    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count) as float32, computed in groups of whole rows."""
        rows, columns = self.base.shape[-2:]
        group = max(1, GROUP_ELEMENTS // columns)
        first, last = start // columns, -(-(start + count) // columns)
        origin = (first // rows * rows + first % rows // group * group) * columns
        parts = []
        for expert in range(first // rows, -(-last // rows)):
            left, right = self.factors(reader.decoded, expert, reader.cache)
            if self.is_turned:
                left, right = right.T, left.T
            begin = max(origin // columns - expert * rows, 0)
            for row in range(begin, min(last - expert * rows, rows), group):
                end = min(row + group, rows)
                at = (expert * rows + row) * columns
                base = reader.decoded(self.base, at, (end - row) * columns)
                update = (self.scale * (left[row:end] @ right)).reshape(-1)
                # An update of exactly nothing leaves the base as it is, also where it is -0.0.
                parts.append(np.where(update != 0, base + update, base).astype(np.float32))
        return np.concatenate(parts)[start - origin :][:count]

    def factors(self, read: Read, expert: int, cache: TensorCache) -> tuple[np.ndarray, np.ndarray]:
        """Return B (out, rank) and A (rank, in) of an expert in float64.

        cache: holds lora_B between calls, of which every expert has single columns.
        """
        rank, out, wide = self.rank, self.left.shape[0], self.right.shape[1]

        def whole() -> np.ndarray:
            return read(self.left, 0, self.left.numel).reshape(self.left.shape)

        stored = cache.get(self.left, whole)
        step = 1 if self.is_expert_major else self.experts
        begin = expert * rank if self.is_expert_major else expert
        left = np.ascontiguousarray(stored[:, begin : begin + rank * step : step], np.float64)
        right = read(self.right, expert * rank * wide, rank * wide).reshape(rank, wide)
        assert left.shape == (out, rank)
        return left, right.astype(np.float64)


def packing_of(config: Mapping[str, Any], asked: Packing) -> Packing:
    """Return in which order an adapter's columns are: what its config says, else what is asked."""
    return _MARKED.get(config.get(_MARKER), asked)


def packing_for(asked: Packings, agent: str) -> Packing:
    """Return what was asked for one agent."""
    return asked if isinstance(asked, str) else asked.get(agent, "ask")


def is_ambiguous(made: LowRankStack) -> bool:
    """Say whether the two orders differ for a stack."""
    return made.experts > 1 and made.rank > 1


def norms_text(stack: LowRankStack, other: LowRankStack, read: Read | None) -> str:
    """Return what the update of a stack is in either order: its norm, and untouched experts.

    stack: rank-major; other: the same, expert-major; read: None where nothing can be read yet.
    """
    if read is None:
        return ""
    told, cache = [], TensorCache()
    for name, one in (("rank-major", stack), ("expert-major", other)):
        norms = []
        for expert in range(one.experts):
            left, right = one.factors(read, expert, cache)
            # |B A|^2 = tr(B'B AA'), without the matrix itself.
            norms.append(max(0.0, float(((left.T @ left) * (right @ right.T)).sum())))
        still = sum(norm == 0 for norm in norms)
        told.append(
            f"{name} it has norm {one.scale * math.sqrt(sum(norms)):.4g} and leaves {still} of "
            f"{one.experts} experts as they are"
        )
    return f" Update of {quoted(stack.base.name)}: {'; '.join(told)}."


def make_stack(
    module: str,
    factors: tuple[TensorInfo, TensorInfo],
    below: Mapping[str, TensorInfo],
    targets: object,
) -> LowRankStack | str:
    """Return which tensor of a module its factors are of, rank-major and of scale 1, or why none.

    Args:
        module: without `.base_layer`, under which peft nests the factors of several parameters.
        factors: lora_A and lora_B.
        below: the base's tensors, by name.
        targets: `target_parameters` of the config.
    """
    a, b = factors
    prefix = f"{module}."
    names = [str(one) for one in targets] if isinstance(targets, list) else []
    own = [
        t
        for name, t in below.items()
        if name.startswith(prefix)
        and "." not in name.removeprefix(prefix).removesuffix(".weight")
        and (not names or any(f".{name}".endswith(f".{target}") for target in names))
    ]
    found = [(t, turned) for t in own for turned in (False, True) if _fits(t, a, b, turned)]
    if len(found) > 1 and len({t.name for t, _ in found}) == 1:
        found = [one for one in found if _is_turned(one[0], below) is one[1]]
    if len(found) == 1:
        [(base, turned)] = found
        return LowRankStack(base, b, a, 1.0, False, turned)
    shapes = f"lora_A {shown_shape(a.shape)} and lora_B {shown_shape(b.shape)}"
    if not found:
        return f"{quoted(module)} has {shapes}, which fit none of its tensors in the base"
    fitting = " or ".join(dict.fromkeys(quoted(t.name) for t, _ in found))
    return f"{quoted(module)} has {shapes}, which may be of {fitting}, either way round"


def _fits(base: TensorInfo, a: TensorInfo, b: TensorInfo, turned: bool) -> bool:
    if len(base.shape) not in (2, 3) or len(a.shape) != 2 or len(b.shape) != 2:
        return False
    experts = base.shape[0] if len(base.shape) == 3 else 1
    width = a.shape[0]
    is_whole = width == b.shape[1] and width > 0 and experts > 0 and width % experts == 0
    shape = (a.shape[1], b.shape[0]) if turned else (b.shape[0], a.shape[1])
    is_number = all(t.dtype in MERGED_DTYPES for t in (base, a, b))
    return is_whole and is_number and base.shape[-2:] == shape


def _is_turned(stack: TensorInfo, below: Mapping[str, TensorInfo]) -> bool | None:
    """Say by the other matrix of the layer which way round a stack of squares is; None: unknown."""
    pair = {"gate_up_proj": stack, "down_proj": stack}
    for own, other in (("gate_up_proj", "down_proj"), ("down_proj", "gate_up_proj")):
        if own in stack.name:
            pair[other] = below.get(stack.name.replace(own, other), stack)
    gate, down = (pair[name].shape[-2:] for name in ("gate_up_proj", "down_proj"))
    plain = gate == (2 * down[1], down[0])
    turned = gate == (down[1], 2 * down[0])
    return turned if plain != turned else None
