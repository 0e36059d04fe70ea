"""LoRA on a stack of experts (peft's `target_parameters`), applied as it is read.

peft stores the factors of all E experts in two matrices: lora_A (E * rank, in) has the rows expert
by expert; lora_B (out, E * rank) has its columns in one of two orders:

    rank-major    column k is of expert k % E, as peft, vLLM and others read it
    expert-major  column k is of expert k // rank, as Unsloth trained until September 2026

Both orders have the same shape, and the wrong one gives every expert another's columns. Unsloth
writes the order into adapter_config.json since then (`lora_B_layout`, see
https://github.com/unslothai/unsloth-zoo/pull/1232 and /1269); for other files the user chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ram_studio.checkpoints.read.describe import quoted, shown_shape
from ram_studio.checkpoints.read.tensors import MERGED_DTYPES, TensorCache, TensorInfo
from ram_studio.checkpoints.virtual.low_rank import LowRank, Read

Packing = Literal["ask", "rank-major", "expert-major"]
Packings = Packing | Mapping[str, Packing]
"""One for all agents, or by agent; for the others an error asks for it."""

PACKING_WORDS = (
    "set experts_packing: rank-major for one trained with peft, expert-major for one trained with "
    "Unsloth before September 2026"
)
"""Wording of the option in messages."""

_MARKER = "lora_B_layout"
_MARKED: dict[str, Packing] = {"rank_major": "rank-major", "grouped_by_expert": "expert-major"}


def packing_of(config: Mapping[str, Any], requested: Packing) -> Packing:
    """Return the order of an adapter's columns: from its config, else as requested."""
    return _MARKED.get(str(config.get(_MARKER)), requested)


def packing_for(requested: Packings, agent: str) -> Packing:
    """Return the requested packing for one agent."""
    return requested if isinstance(requested, str) else requested.get(agent, "ask")


def is_ambiguous(made: LowRank) -> bool:
    """Return whether the two orders differ for a stack."""
    return made.experts > 1 and made.rank > 1


def norms_text(stack: LowRank, other: LowRank, read: Read | None) -> str:
    """Return a text on a stack's update in either order: its norm, and unchanged experts.

    stack: rank-major; other: the same, expert-major; read: None where factors cannot be read.
    """
    if read is None:
        return ""
    texts, cache = [], TensorCache()
    for name, one in (("rank-major", stack), ("expert-major", other)):
        norms = []
        for expert in range(one.experts):
            left, right = one.factors(read, expert, cache)
            # |B A|^2 = tr(B'B AA'), without the matrix itself.
            norms.append(max(0.0, float(((left.T @ left) * (right @ right.T)).sum())))
        still = sum(norm == 0 for norm in norms)
        texts.append(
            f"{name} it has norm {one.scale * math.sqrt(sum(norms)):.4g} and leaves {still} of "
            f"{one.experts} experts unchanged"
        )
    return f" Update of {quoted(stack.base.name)}: {'; '.join(texts)}."


def make_stack(
    module: str,
    factors: tuple[TensorInfo, TensorInfo],
    below: Mapping[str, TensorInfo],
    targets: object,
) -> LowRank | str:
    """Return the module's stack that its factors fit, rank-major, scale 1, or why none does.

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
        return LowRank(base, b, a, 1.0, turned)
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
    """Return whether a stack of square matrices is transposed, by the layer's other matrix.

    None where unknown.
    """
    pair = {"gate_up_proj": stack, "down_proj": stack}
    for own, other in (("gate_up_proj", "down_proj"), ("down_proj", "gate_up_proj")):
        if own in stack.name:
            pair[other] = below.get(stack.name.replace(own, other), stack)
    gate, down = (pair[name].shape[-2:] for name in ("gate_up_proj", "down_proj"))
    plain = gate == (2 * down[1], down[0])
    turned = gate == (down[1], 2 * down[0])
    return turned if plain != turned else None
