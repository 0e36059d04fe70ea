"""Quantized checkpoints: fp8 and mxfp4 are dequantized to bfloat16, others are refused.

The value of a code depends on a scale stored beside it, so codes themselves are never compared.
Layouts: DeepSeek's and Qwen's fp8 (`NAME_scale_inv`, blocks of `weight_block_size`), fp8 by tensor
or by row (`NAME_scale`: fbgemm, compressed-tensors, modelopt), gpt-oss (`NAME_blocks`,
`NAME_scales`). Formats: OCP 8-bit floating point (E4M3 without infinities, E5M2) and OCP
Microscaling (E2M1 codes, E8M0 scales). A product is formed in float32 and rounded once to bfloat16,
to nearest even.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.meters.storage import Finding
from ram_studio.checkpoints.read.checkpoint import QUANTIZATION, Checkpoint
from ram_studio.checkpoints.read.describe import (
    BASE_NAME,
    plural,
    printable,
    quoted,
    shown_list,
    shown_shape,
)
from ram_studio.checkpoints.read.tensors import TensorInfo, TensorReader, VirtualTensor
from ram_studio.checkpoints.virtual.experts import from_matrices
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
"""Tensors of unsupported kinds of quantization."""
_ADVICE = "Its codes cannot be compared as weights. Merge the checkpoint it was quantized from."


_GROUP_ELEMENTS = 1 << 18


def _e4m3() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[code & 127 == 127] = np.nan
    return np.where(code < 128, value, -value).astype(np.float32)


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
_FP4 = np.concatenate([_E2M1, -_E2M1])
_FP8 = {
    "F8_E4M3": _e4m3(),
    # The upper half of a float16.
    "F8_E5M2": (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32),
}


@dataclass(frozen=True, slots=True)
class ScaledCodes(VirtualTensor):
    """8-bit floating-point codes times a scale for each block of them, rounded to bfloat16.

    Attributes:
        codes: F8_E4M3 or F8_E5M2, of the virtual tensor's shape.
        scale: reshaped to `scale_shape`, which has the dimensions of `codes`.
        scale_shape: number of blocks along each dimension.
        block: elements of a block along each dimension; the last block may be cut short.
    """

    codes: TensorInfo
    scale: TensorInfo
    scale_shape: tuple[int, ...]
    block: tuple[int, ...]

    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count) as bfloat16 bit patterns (uint16)."""
        shape = self.codes.shape or (1,)
        counts, block = self.scale_shape or (1,), self.block or (1,)
        columns = shape[-1]
        first, last = start // columns, -(-(start + count) // columns)
        values = _FP8[self.codes.dtype][reader.stored(self.codes, start, count)]
        scale = reader.cache.get(self.scale, lambda: self._scales(reader)).reshape(counts)
        rows = np.arange(first, last)
        if len(shape) > 1:
            places = np.unravel_index(rows, shape[:-1])
            of_rows = scale[tuple(at // size for at, size in zip(places, block, strict=False))]
        else:
            of_rows = scale[None]
        wide = np.repeat(of_rows, block[-1], axis=1)[:, :columns].reshape(-1)
        offset = start - first * columns
        with np.errstate(over="ignore", invalid="ignore"):  # reported as non-finite tensors
            return rounding.store(values * wide[offset : offset + count], "BF16")

    def _scales(self, reader: TensorReader) -> np.ndarray:
        raw = reader.stored(self.scale, 0, self.scale.nbytes)
        if self.scale.dtype == "F8_E8M0":
            return _power(raw)
        return rounding.decode(raw, self.scale.dtype)


@dataclass(frozen=True, slots=True)
class Microscaled(VirtualTensor):
    """MXFP4 (OCP Microscaling): 4-bit codes, two per byte, and a power of two for each 32 codes.

    Attributes:
        blocks: U8, (matrices, columns, groups, 16): the low half of a byte is the earlier element.
        scales: U8, (matrices, columns, groups): the exponent plus 127.

    The virtual tensor is (matrices, groups * 32, columns): transposed, as in transformers.
    """

    blocks: TensorInfo
    scales: TensorInfo

    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count) as bfloat16 bit patterns (uint16).

        A run of elements of the transposed matrix needs all of its rows, so a matrix is decoded
        once and cached.
        """
        _, columns, groups, _ = self.blocks.shape
        return from_matrices(
            start,
            count,
            columns * groups * 32,
            lambda number: reader.cache.get(
                self.blocks, lambda: self._matrix(reader, number), part=number
            ),
        )

    def _matrix(self, reader: TensorReader, number: int) -> np.ndarray:
        _, columns, groups, _ = self.blocks.shape
        count = columns * groups
        made = np.empty((columns, groups * 32), dtype=np.uint16)
        packed = reader.stored(self.blocks, number * count * 16, count * 16)
        packed = packed.reshape(columns, groups, 16)
        scale = _power(reader.stored(self.scales, number * count, count))
        scale = scale.reshape(columns, groups, 1)
        step = max(1, _GROUP_ELEMENTS // (groups * 32))
        for row in range(0, columns, step):  # in steps: float32 takes eight times the memory
            part = slice(row, row + step)
            halves = np.stack([packed[part] & 15, packed[part] >> 4], axis=-1)
            values = _FP4[halves.reshape(-1, groups, 32)] * scale[part]
            made[part] = rounding.store(values.reshape(-1), "BF16").reshape(-1, groups * 32)
        return np.ascontiguousarray(made.T).reshape(-1)


def _power(exponents: np.ndarray) -> np.ndarray:
    """Return E8M0 numbers: powers of two, and NaN for 255."""
    powers = np.ldexp(np.float64(1), exponents.astype(np.int32) - 127)
    return np.where(exponents == 255, np.nan, powers).astype(np.float32)


def decode_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with fp8 and mxfp4 tensors as bfloat16; any other unchanged.

    Scales become part of their tensors, and the quantization is removed from its config.

    Raises: CompatibilityError for other kinds of quantization, by name, and for codes whose scales
    are missing or do not fit.
    """
    at = checkpoint.at
    tensors = dict(checkpoint.tensors)
    signs = [(kind, name) for pattern, kind in _OTHERS for name in tensors if pattern.search(name)]
    signs += [
        ("8-bit integers", name)
        for name, tensor in tensors.items()
        if tensor.dtype == "I8" and _scale_of(name, tensors) is not None
    ]
    for kind, sign in signs[:1]:
        _refuse(
            at, f"{_quantization_name(checkpoint.config) or kind}, by its tensor {quoted(sign)}"
        )
    made = {}
    problems = []
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in CODES:
            found = _decode_fp8(tensor, tensors, checkpoint.config)
        elif name.endswith("_blocks") and tensor.dtype == "U8":
            found = _decode_mxfp4(tensor, tensors)
        else:
            continue
        if isinstance(found, str):
            problems.append(found)
        elif found is not None:  # else its dtype is refused like any other that is not merged
            made[found.name] = found
    method = _quantization_name(checkpoint.config)
    if method is not None and (not (made or problems) or method.split(",")[0] not in _READ):
        _refuse(at, f"{method}, by its config.json")
    if problems:
        raise CompatibilityError(
            f"{at} is stored in 8 or 4 bits and cannot be read: {shown_list(problems)}. Convert it "
            "to bfloat16 first (load it with transformers and save_pretrained)."
        )
    if not made:
        return checkpoint
    parts = {part.name for new in made.values() for part in new.stored_parts()}
    others = {
        name: tensor
        for name, tensor in tensors.items()
        if name not in parts and not _ACTIVATIONS.search(name)
    }
    config = {key: value for key, value in checkpoint.config.items() if key != QUANTIZATION}
    return replace(checkpoint, tensors=others | made, config=config)


def decoded_findings(base: Checkpoint, agents: Sequence[Checkpoint]) -> list[Finding]:
    """Return findings on quantized checkpoints."""
    of_base = _kinds(base)
    found = []
    for checkpoint in (base, *agents):
        kinds = _kinds(checkpoint)
        if not kinds:
            continue
        count = sum(
            isinstance(t.virtual, ScaledCodes | Microscaled) for t in checkpoint.tensors.values()
        )
        text = (
            f"{checkpoint.who}{plural(count, 'tensor')} stored in {' and '.join(kinds)}, "
            "dequantized to bfloat16."
        )
        if checkpoint.name != BASE_NAME:
            text += (
                " The base's are, too; the files do not hold changes below the quantization step."
                if kinds == of_base
                else " The base's are stored differently, so the two differ by quantization error, "
                "not only by training."
            )
        elif any(_kinds(agent) != of_base for agent in agents):
            text += (
                " Agents are stored differently, so they differ from it by quantization error, "
                "not only by training. Give the bfloat16 model that the base was "
                "made from, if available."
            )
        names = () if checkpoint.name == BASE_NAME else (checkpoint.name,)
        found.append(Finding("dtype", text, names))
    return found


def _kinds(checkpoint: Checkpoint) -> list[str]:
    titles = {ScaledCodes: "fp8", Microscaled: "mxfp4"}
    made = {type(tensor.virtual) for tensor in checkpoint.tensors.values()}
    return [title for kind, title in titles.items() if kind in made]


def _quantization_name(config: Mapping[str, Any]) -> str | None:
    """Return the name of a config's quantization, None without one."""
    settings = config.get(QUANTIZATION)
    if not settings:
        return None
    if not isinstance(settings, dict):
        return QUANTIZATION
    kind, bits = settings.get("quant_method") or QUANTIZATION, settings.get("bits")
    return printable(kind, 40) + (f", {printable(bits, 8)} bits" if bits else "")


def _refuse(at: str, what: str) -> None:
    raise CompatibilityError(f"{at} is quantized ({what}). {_ADVICE}")


def _decode_fp8(
    codes: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> TensorInfo | str | None:
    """Return the tensor of fp8 codes, or why they cannot be decoded; None without any scale."""
    scale = _scale_of(codes.name, tensors)
    if scale is None:
        return None
    counts = _scale_shape(codes.shape, scale.shape) if scale.dtype in SCALES else None
    block = None if counts is None else _block(codes.shape, counts, config)
    if counts is None or block is None:
        return (
            f"{quoted(scale.name)} ({scale.dtype}) of shape {shown_shape(scale.shape)} does not "
            f"fit {quoted(codes.name)} of shape {shown_shape(codes.shape)}"
        )
    made = ScaledCodes(codes, scale, counts, block)
    return codes.replaced_by(made, name=codes.name, shape=codes.shape, dtype="BF16")


def _scale_of(codes: str, tensors: Mapping[str, TensorInfo]) -> TensorInfo | None:
    return next((t for end in _SUFFIXES if (t := tensors.get(codes + end))), None)


def _scale_shape(codes: tuple[int, ...], scale: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a scale's shape with the codes' number of dimensions."""
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
    block = []
    # Sizes are of the last two dimensions; matrices of a stack have separate scales.
    for place, (n, count) in enumerate(zip(codes, counts, strict=True), start=2 - len(codes)):
        size = min(sizes[place], max(1, n)) if place >= 0 else 1
        fitting = {1: max(1, n), n: 1, -(-n // size): size}.get(count)
        if fitting is None:
            return None
        block.append(fitting)
    return tuple(block)


def _decode_mxfp4(blocks: TensorInfo, tensors: Mapping[str, TensorInfo]) -> TensorInfo | str:
    """Return the tensor of mxfp4 codes, or why they cannot be decoded."""
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
    made = Microscaled(blocks, scales)
    return blocks.replaced_by(made, name=name, shape=shape, dtype="BF16")
