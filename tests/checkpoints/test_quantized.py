"""fp8 and mxfp4 are the numbers they stand for, by plain loops over the published formats."""

from __future__ import annotations

import itertools
import json
import math
import struct
from pathlib import Path

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, write_checkpoint
from safetensors.torch import load_file

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import CompatibilityError, NonFiniteError

FP8 = {"quant_method": "fp8", "weight_block_size": [2, 3]}
NORM = torch.ones(3, dtype=torch.bfloat16)


def bfloat16(value: float) -> int:
    """Return the bits of a number rounded to float32 and then to bfloat16, to nearest even."""
    if math.isnan(value):
        return 0x7FC0
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low = bits & 0xFFFF
    up = low > 0x8000 or (low == 0x8000 and bits >> 16 & 1)
    return (bits >> 16) + up


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


def e5m2(code: int) -> float:
    exponent, mantissa = code >> 2 & 31, code & 3
    assert exponent < 31
    size = mantissa / 4 * 2.0**-14 if exponent == 0 else (1 + mantissa / 4) * 2.0 ** (exponent - 15)
    return -size if code & 128 else size


def e2m1(code: int) -> float:
    size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code & 7]
    return -size if code & 8 else size


def codes_of(*shape: int, limit: int = 127) -> torch.Tensor:
    """Return codes in disorder, without those that are no numbers, of both signs."""
    count = math.prod(shape)
    flat = [37 * i % limit + 128 * (i % 3 == 0) for i in range(count)]
    return torch.tensor(flat, dtype=torch.uint8).reshape(shape)


def scales_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (0.003 + 0.0007 * torch.arange(math.prod(shape))).to(dtype).reshape(shape)


def opened(folder: Path, tensors: dict[str, torch.Tensor], settings: object) -> CompatibilityReport:
    config = QWEN_CONFIG | {"quantization_config": settings}
    made = write_checkpoint(folder, tensors | {"model.norm.weight": NORM}, config=config)
    return load(made, {"a": made})


def read_bits(report: CompatibilityReport, name: str) -> list[int]:
    """Return a tensor's elements as bit patterns, read in three pieces that begin anywhere."""
    [tensor] = [t.base for t in report.tensors if t.name == name]
    assert tensor.dtype == "BF16"
    found: list[int] = []
    cuts = [0, tensor.numel // 3, tensor.numel // 3 + 1, tensor.numel]
    with Sources(*report.checkpoints) as sources:
        for start, stop in itertools.pairwise(cuts):
            piece = bytearray(2 * (stop - start))
            sources.read_into(tensor, 2 * start, memoryview(piece))
            found += struct.unpack(f"<{stop - start}H", piece)
    return found


UP = "model.layers.0.mlp.up_proj.weight"
BLOCKS = "_scale_inv", scales_of(3, 3), lambda place: (place[0] // 2, place[1] // 3), FP8
STACK = scales_of(2, 3, 3), lambda place: (place[0], place[1] // 2, place[2] // 3)
COLUMN = scales_of(5, 1, dtype=torch.bfloat16), lambda place: (place[0], 0)
PACKED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
WIDE = scales_of(2, 1), lambda place: (place[0] // 128, 0)
CASES = {
    "blocks": ((5, 7), "e4m3", *BLOCKS),
    "e5m2": ((5, 7), "e5m2", *BLOCKS),
    "tensor": ((5, 7), "e4m3", "_scale", scales_of(), lambda _: (), {"quant_method": "modelopt"}),
    "column": ((5, 7), "e4m3", "_scale", *COLUMN, PACKED),
    "rows": ((5, 7), "e4m3", "_scale", scales_of(5), lambda place: (place[0],), None),
    "stack": ((2, 5, 7), "e4m3", "_scale_inv", *STACK, FP8),
    "one number": ((), "e4m3", "_scale", scales_of(1), lambda _: (0,), {"quant_method": "fp8"}),
    "huge blocks": (
        *((5, 7), "e4m3", "_scale_inv", scales_of(3, 1), lambda place: (place[0] // 2, 0)),
        {"quant_method": "fp8", "weight_block_size": [2, 10**12]},
    ),
    "blocks of 128": ((130, 3), "e4m3", "_scale_inv", *WIDE, {"quant_method": "fp8"}),
}


@pytest.mark.parametrize("case", CASES)
def test_fp8_is_its_code_times_its_scale_in_bfloat16(tmp_path, case):
    shape, kind, suffix, scale, where, settings = CASES[case]
    kinds = {"e4m3": (torch.float8_e4m3fn, e4m3), "e5m2": (torch.float8_e5m2, e5m2)}
    dtype, value_of = kinds[kind]
    codes = codes_of(*shape, limit=123 if kind == "e5m2" else 127)
    tensors = {
        UP: codes.view(dtype),
        UP + suffix: scale,
        "model.layers.0.mlp.up_proj.input_scale": torch.ones(()),
    }
    report = opened(tmp_path / "m", tensors, settings)
    assert {t.name for t in report.tensors} == {UP, "model.norm.weight"}
    expected = []
    for place in itertools.product(*map(range, shape)):
        number = scale[where(place)].float().item() if scale.dim() else scale.item()
        expected.append(bfloat16(value_of(int(codes[place])) * number))
    assert read_bits(report, UP) == expected


def test_mxfp4_is_what_transformers_holds_of_gpt_oss(tmp_path):
    experts, columns, groups = 2, 5, 3
    name = "model.layers.0.mlp.experts.gate_up_proj"
    packed = codes_of(experts, columns, groups, 16, limit=128)
    exponents = (torch.arange(30, dtype=torch.uint8) + 110).reshape(experts, columns, groups)
    tensors = {f"{name}_blocks": packed, f"{name}_scales": exponents}
    report = opened(tmp_path / "m", tensors, {"quant_method": "mxfp4"})
    assert {t.name: t.shape for t in report.tensors}[name] == (2, 96, 5)
    expected = []
    for expert, row, column in itertools.product(range(2), range(96), range(5)):
        group, place = divmod(row, 32)
        byte = int(packed[expert, column, group, place // 2])
        code = byte >> 4 if place % 2 else byte & 15
        power = int(exponents[expert, column, group]) - 127
        expected.append(bfloat16(e2m1(code) * 2.0**power))
    assert read_bits(report, name) == expected


def test_codes_are_never_compared(tmp_path):
    """Other codes and other scales, the same numbers: nothing was changed."""
    numbers = torch.tensor([[1.0, 2, 3, 4, -0.5, 6]])

    def stored(factor: float) -> dict[str, torch.Tensor]:
        codes = (numbers * factor).to(torch.float8_e4m3fn)
        return {UP: codes, f"{UP}_scale": torch.tensor(1 / factor), "n": NORM}

    config = QWEN_CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    base = write_checkpoint(tmp_path / "base", stored(1), config=config)
    same = write_checkpoint(tmp_path / "same", stored(4), config=config)
    plain = write_checkpoint(tmp_path / "plain", {UP: numbers.bfloat16(), "n": NORM})
    report = load(base, {"same": same, "plain": plain})
    preview = analyze_report(report).preview()
    assert [agent["active"] for agent in preview["agents"].values()] == [0, 0]
    said = "\n".join(report.warnings)
    assert "Base: 1 tensor stored in fp8, dequantized to bfloat16." in said
    assert "Give the bfloat16 model that the base was made from" in said
    assert 'Agent "same": 1 tensor stored in fp8' in said
    assert "the files do not hold changes below the quantization step" in said


def test_a_merge_of_fp8_agents_is_a_bfloat16_checkpoint(tmp_path):
    config = QWEN_CONFIG | {"quantization_config": FP8}

    def stored(codes: torch.Tensor) -> dict[str, torch.Tensor]:
        scale = torch.full((3, 3), 0.25)
        return {UP: codes.view(torch.float8_e4m3fn), f"{UP}_scale_inv": scale}

    codes = codes_of(5, 7) % 64 + 16
    moved = codes.clone()
    moved[1, 2:5] += 8  # the next power of two
    base = write_checkpoint(tmp_path / "base", stored(codes), config=config)
    agent = write_checkpoint(tmp_path / "agent", stored(moved), config=config)
    recipe = make_recipe({"base": str(base), "agents": {"a": str(agent)}, "method": "ram"})
    merge(recipe, tmp_path / "out")
    [(name, found)] = load_file(tmp_path / "out" / "model.safetensors").items()
    expected = [[e4m3(int(code)) * 0.25 for code in row] for row in moved]
    assert (name, found.tolist()) == (UP, expected)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in written
    assert written["torch_dtype"] == "bfloat16"
    assert verify(tmp_path / "out", with_sources=True, full=True).source_files == 2


def test_a_code_that_is_no_number_is_found_where_it_is(tmp_path):
    codes = codes_of(5, 7)
    codes[3, 4] = 127
    tensors = {"w": codes.view(torch.float8_e4m3fn), "w_scale": torch.ones(())}
    report = opened(tmp_path / "m", tensors, None)
    with pytest.raises(NonFiniteError, match=r"`w` has 1 NaN or Inf element, .*index \(3, 4\)"):
        analyze_report(report)


WEIGHT = torch.zeros(4, 4, dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"m.qweight": torch.zeros(2, 2, dtype=torch.int32)}, "quantized (GPTQ or AWQ, by"),
        ({"m.weight.SCB": torch.ones(2)}, "quantized (bitsandbytes, 8 bits, by"),
        ({"m.weight.absmax": torch.ones(2)}, "quantized (bitsandbytes, 4 bits, by"),
        ({"m.weight_packed": torch.zeros(2)}, "quantized (compressed-tensors, 4 bits, by"),
        ({"m.weight": WEIGHT, "m.weight_scale_2": torch.ones(1)}, "quantized (NVFP4, by"),
        (
            # Beside fp8, where the output's config would no longer say what the integers mean.
            {"f": WEIGHT, "f_scale": torch.ones(()), "m": WEIGHT.char(), "m_scale": torch.ones(4)},
            "quantized (8-bit integers, by its tensor `m`)",
        ),
        ({"m.weight": WEIGHT}, "`m.weight` (model.safetensors) has dtype F8_E4M3, expected"),
        ({"m.weight": WEIGHT, "m.weight_scale": torch.ones(3)}, "(F32) of shape (3,) does not fit"),
        (
            {"m_blocks": torch.zeros(1, 2, 2, 16, dtype=torch.uint8)},
            "`m_blocks` of shape (1, 2, 2, 16) has no `m_scales` that fits",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_codes_are_refused_by_name(tmp_path, tensors, said):
    with pytest.raises(CompatibilityError) as caught:
        opened(tmp_path / "m", tensors, None)
    assert said in str(caught.value)
