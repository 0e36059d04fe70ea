"""Quantized checkpoints: fp8 and mxfp4 are read as the bfloat16 they stand for, others refused.

What a code stands for depends on a scale stored beside it, so codes themselves are never compared.
Layouts: DeepSeek's and Qwen's fp8 (`NAME_scale_inv`, blocks of `weight_block_size`), fp8 by tensor
or by row (`NAME_scale`: fbgemm, compressed-tensors, modelopt), gpt-oss (`NAME_blocks`,
`NAME_scales`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ram_studio.algorithm.meters.storage import Finding
from ram_studio.checkpoints.read.checkpoint import QUANTIZATION, Checkpoint
from ram_studio.checkpoints.read.derived import Microscaled, Scaled, stored_tensors
from ram_studio.checkpoints.read.describe import (
    BASE_NAME,
    plural,
    printable,
    quoted,
    shown_list,
    shown_shape,
)
from ram_studio.checkpoints.read.header import TensorInfo
from ram_studio.errors import CompatibilityError

CODES = ("F8_E4M3", "F8_E5M2")
SCALES = ("F32", "BF16", "F16", "F8_E8M0")
DEFAULT_BLOCK = 128
_READ = ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4", QUANTIZATION)
_SUFFIXES = ("_scale_inv", "_scale")
_ACTIVATIONS = re.compile(r"[._](input|output|activation|[qkv])_scale(_ub)?$")
_OTHERS = (
    (re.compile(r"\.qweight$"), "GPTQ or AWQ"),
    (re.compile(r"\.SCB$"), "bitsandbytes, 8 bits"),
    (re.compile(r"\.(absmax|quant_map|nested_absmax)$|\.quant_state\."), "bitsandbytes, 4 bits"),
    (re.compile(r"\.weight_packed$"), "compressed-tensors, 4 bits"),
    (re.compile(r"\.weight_scale_2$"), "NVFP4"),
)
"""Tensors that only kinds of quantization have that are not read."""
_ADVICE = "Its codes are no weights to compare. Merge the checkpoint it was quantized from."


def decoded(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with fp8 and mxfp4 tensors as bfloat16; any other as it is.

    Scales become part of the tensors they belong to, and its config says no longer that it is
    quantized.

    Raises: CompatibilityError for other kinds of quantization, by name, and for codes whose scales
    are missing or do not fit.
    """
    at = checkpoint.at
    tensors = dict(checkpoint.tensors)
    for pattern, kind in _OTHERS:
        if sign := next((name for name in tensors if pattern.search(name)), None):
            _refuse(at, f"{_named(checkpoint.config) or kind}, by its tensor {quoted(sign)}")
    made = {}
    problems = []
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in CODES:
            found = _scaled(tensor, tensors, checkpoint.config)
        elif name.endswith("_blocks") and tensor.dtype == "U8":
            found = _microscaled(tensor, tensors)
        else:
            continue
        if isinstance(found, str):
            problems.append(found)
        elif found is not None:  # else its dtype is refused like any other that is not merged
            made[found.name] = found
    method = _named(checkpoint.config)
    if method is not None and (not (made or problems) or method.split(",")[0] not in _READ):
        _refuse(at, f"{method}, by its config.json")
    if problems:
        raise CompatibilityError(
            f"{at} is stored in 8 or 4 bits and cannot be read: {shown_list(problems)}. Convert it "
            "to bfloat16 first (load it with transformers and save_pretrained)."
        )
    if not made:
        return checkpoint
    parts = {part.name for new in made.values() for part in stored_tensors(new)}
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if name not in parts and not _ACTIVATIONS.search(name)
    }
    config = {key: value for key, value in checkpoint.config.items() if key != QUANTIZATION}
    return replace(checkpoint, tensors=kept | made, config=config)


def decoded_findings(base: Checkpoint, agents: Sequence[Checkpoint]) -> list[Finding]:
    """Return what to know of checkpoints whose numbers are stored as codes."""
    of_base = _kinds(base)
    found = []
    for checkpoint in (base, *agents):
        kinds = _kinds(checkpoint)
        if not kinds:
            continue
        count = sum(
            isinstance(t.derived, Scaled | Microscaled) for t in checkpoint.tensors.values()
        )
        text = (
            f"{checkpoint.who}{plural(count, 'tensor')} stored in {' and '.join(kinds)}, "
            "read as the bfloat16 they stand for."
        )
        if checkpoint.name != BASE_NAME:
            text += (
                " So are the base's; changes smaller than the steps of these codes are not in the "
                "files."
                if kinds == of_base
                else " The base's are stored otherwise: where the two differ, the codes' rounding "
                "differs too, not only what was trained."
            )
        elif any(_kinds(agent) != of_base for agent in agents):
            text += (
                " Agents are stored otherwise: where they differ from it, the codes' rounding "
                "differs too, not only what was trained. Give the bfloat16 model that the base was "
                "made from, if there is one."
            )
        names = () if checkpoint.name == BASE_NAME else (checkpoint.name,)
        found.append(Finding("dtype", text, names))
    return found


def _kinds(checkpoint: Checkpoint) -> list[str]:
    titles = {Scaled: "fp8", Microscaled: "mxfp4"}
    made = {type(tensor.derived) for tensor in checkpoint.tensors.values()}
    return [title for kind, title in titles.items() if kind in made]


def _named(config: Mapping[str, Any]) -> str | None:
    """Return how a config names its quantization, None where it names none."""
    settings = config.get(QUANTIZATION)
    if not settings:
        return None
    if not isinstance(settings, dict):
        return QUANTIZATION
    kind, bits = settings.get("quant_method") or QUANTIZATION, settings.get("bits")
    return printable(kind, 40) + (f", {printable(bits, 8)} bits" if bits else "")


def _refuse(at: str, what: str) -> None:
    raise CompatibilityError(f"{at} is quantized ({what}). {_ADVICE}")


def _scaled(
    codes: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> TensorInfo | str | None:
    """Return what fp8 codes stand for, or why that is not known; None without any scale."""
    scale = next((t for end in _SUFFIXES if (t := tensors.get(codes.name + end))), None)
    if scale is None:
        return None
    counts = _scale_shape(codes.shape, scale.shape) if scale.dtype in SCALES else None
    block = None if counts is None else _block(codes.shape, counts, config)
    if counts is None or block is None:
        return (
            f"{quoted(scale.name)} ({scale.dtype}) of shape {shown_shape(scale.shape)} does not "
            f"fit {quoted(codes.name)} of shape {shown_shape(codes.shape)}"
        )
    derived = Scaled(codes, scale, counts, block)
    return replace(codes, dtype="BF16", offset=0, nbytes=2 * codes.numel, derived=derived)


def _scale_shape(codes: tuple[int, ...], scale: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a scale's shape with as many dimensions as the codes have."""
    if all(n == 1 for n in scale):
        return (1,) * len(codes)
    if len(scale) == len(codes):
        return scale
    # One scale for each row, or for each matrix of a stack.
    is_leading = len(scale) < len(codes) and scale == codes[: len(scale)]
    return scale + (1,) * (len(codes) - len(scale)) if is_leading else None


def _block(
    codes: tuple[int, ...], counts: tuple[int, ...], config: Mapping[str, Any]
) -> tuple[int, ...] | None:
    settings = config.get(QUANTIZATION)
    given = settings.get("weight_block_size") if isinstance(settings, dict) else None
    sizes = given if isinstance(given, list) and len(given) == 2 else [DEFAULT_BLOCK] * 2
    if not all(type(size) is int and size > 0 for size in sizes):
        return None
    stacked = [1] * (len(codes) - 2)
    block = []
    for n, count, size in zip(codes, counts, [*stacked, *sizes][-len(codes) :], strict=True):
        fitting = {1: max(1, n), n: 1, -(-n // size): size}.get(count)
        if fitting is None:
            return None
        block.append(fitting)
    return tuple(block)


def _microscaled(blocks: TensorInfo, tensors: Mapping[str, TensorInfo]) -> TensorInfo | str:
    """Return what mxfp4 codes stand for, or why that is not known."""
    name = blocks.name.removesuffix("_blocks")
    scales = tensors.get(f"{name}_scales")
    fits = len(blocks.shape) == 4 and blocks.shape[-1] == 16
    if not fits or scales is None or (scales.dtype, scales.shape) != ("U8", blocks.shape[:-1]):
        return (
            f"{quoted(blocks.name)} of shape {shown_shape(blocks.shape)} has no "
            f"{quoted(name + '_scales')} that fits"
        )
    matrices, columns, groups, _ = blocks.shape
    shape = (matrices, groups * 32, columns)
    derived = Microscaled(blocks, scales)
    return TensorInfo(
        name, "BF16", shape, blocks.path, 0, 2 * matrices * groups * 32 * columns, derived
    )
