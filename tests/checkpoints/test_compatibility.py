"""Do base and agents fit? Every rule of matching, and the words of every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, make, small_tensors, write_checkpoint, write_json
from safetensors.torch import save_file

from ram_studio.checkpoints.fit.compatibility import check_compatibility
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.errors import CompatibilityError, SettingsError


@pytest.fixture
def base(tmp_path: Path) -> Checkpoint:
    return make(tmp_path, "base", small_tensors(0))


def refuse(base: Checkpoint, *agents: Checkpoint, **policies: str) -> CompatibilityError:
    with pytest.raises(CompatibilityError) as caught:
        check_compatibility(base, agents, **policies)
    assert "\n" not in str(caught.value)
    return caught.value


def test_agents_that_fit_are_matched_by_tensor_in_file_order(tmp_path, base):
    a = make(tmp_path, "a", small_tensors(1), shards=3)
    b = make(tmp_path, "b", small_tensors(2))
    report = check_compatibility(base, [b, a])
    assert [t.name for t in report.tensors] == list(base.tensors)
    assert report.agents == (b, a)
    assert report.warnings == ()
    for tensor in report.tensors:
        assert tensor.base == base.tensors[tensor.name]
        assert tensor.agents == (b.tensors[tensor.name], a.tensors[tensor.name])
        assert (tensor.kind, tensor.is_counted, tensor.tied_to) == ("merge", True, None)
        assert tensor.common_numel == (tensor.numel, tensor.numel)
    elements = sum(t.numel() for t in small_tensors().values())
    assert report.counted_elements == elements
    summary = report.to_dict()
    assert summary["elements"] == elements
    assert list(summary["agents"]) == ["b", "a"]
    assert summary["agents"]["a"]["shards"] == 3
    assert summary["base"]["dtypes"] == {"BF16": elements}
    assert summary["base"]["architecture"] == "Qwen2ForCausalLM"
    assert summary["is_local"] is True


def test_agents_have_names_of_their_own_and_policies_exist(tmp_path, base):
    assert "at least one agent" in str(refuse(base))
    folder = write_checkpoint(tmp_path / "x", small_tensors(1))
    agent = open_checkpoint(folder, name="x")
    assert '"x" is given to two agents' in str(refuse(base, agent, agent))
    assert "reserved for the base" in str(refuse(base, open_checkpoint(folder, name="base")))
    for policy in ("missing", "extra", "rows", "names", "experts_packing"):
        with pytest.raises(SettingsError, match=policy):
            check_compatibility(base, [agent], **{policy: "maybe"})


def test_shape_mismatches_are_all_listed_with_both_shapes(tmp_path, base):
    others = {
        name: torch.ones(*(n + 1 for n in tensor.shape), dtype=torch.bfloat16)
        for name, tensor in list(small_tensors().items())[:3]
    }
    error = refuse(base, make(tmp_path, "coder", {**small_tensors(), **others}))
    assert str(error).startswith("3 tensors do not fit: ")
    assert (
        'Agent "coder": tensor `lm_head.weight` (model.safetensors) has shape (11, 5), '
        "the base has (10, 4)" in str(error)
    )
    assert "rows: common" not in str(error)
    for name in others:
        assert any(f"`{name}`" in note for note in error.__notes__)


UP = "model.layers.{}.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        # Deeper: the shapes of what both have may even be the same.
        (
            {**small_tensors(), **{UP.format(i): torch.ones(8, 4) for i in range(1, 4)}},
            "4 layers against 1",
        ),
        (
            {n: torch.ones(*(d + 1 for d in t.shape)) for n, t in small_tensors().items()},
            "6 of 6 tensors have other shapes, `lm_head.weight` (11, 5) against (10, 4)",
        ),
        ({f"transformer.{n}": t for n, t in small_tensors().items()}, "no tensor has a name"),
    ],
)
def test_an_agent_of_another_base_is_told_in_a_word(tmp_path, base, theirs, said):
    error = refuse(base, make(tmp_path, "coder", theirs))
    assert str(error).startswith(f'Agent "coder": it has another base ({said}')
    assert str(error).endswith("Choose the base this agent was trained from.")
    assert len(error.__notes__) >= 3


def changed(seed: int, changes: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Return the small model with other tensors; None takes one away."""
    tensors = {**small_tensors(seed), **changes}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def with_rows(rows: int) -> dict[str, torch.Tensor]:
    return {"lm_head.weight": ones(rows, 4), "model.embed_tokens.weight": ones(rows, 4)}


NORM, STEPS = "model.norm.weight", torch.arange(3_000_000)
OTHER_STEPS = torch.cat([STEPS[:-1], torch.tensor([0])])
F64, F8 = (small_tensors()[NORM].to(d) for d in (torch.float64, torch.float8_e4m3fn))


@pytest.mark.parametrize(
    ("of_base", "of_agent", "policy", "words"),
    [
        ({}, {NORM: ones(2, 8)}, {}, ["(2, 8), the base has (4, 4)"]),
        ({}, with_rows(7), {}, ["has shape (7, 4), the base has (10, 4)", "rows: common"]),
        ({}, with_rows(12), {}, ["`lm_head.weight` (model.safetensors) has shape (12, 4)"]),
        ({}, with_rows(12) | {NORM: ones(5, 4)}, {"rows": "common"}, [f"`{NORM}`", "!lm_head"]),
        ({}, {NORM: None}, {}, [f"tensor `{NORM}` is missing from /", "missing: keep-base"]),
        (
            {},
            {"value_head.weight": ones(3)},
            {},
            ["`value_head.weight` (model.safetensors) is not in the base", "extra: ignore"],
        ),
        # Named like an attention mask, but of one dimension: a trained bias.
        ({}, {"blocks.0.attn.bias": ones(4)}, {}, ["`blocks.0.attn.bias`"]),
        (
            {"steps": STEPS},
            {"steps": OTHER_STEPS},
            {},
            ["tensor `steps` (model.safetensors) of dtype I64 has other values"],
        ),
        ({"steps": STEPS}, {"steps": STEPS.int()}, {}, ["has dtype I32, the base has I64"]),
        ({"steps": STEPS}, {"steps": STEPS.float()}, {}, ["has dtype F32, the base has I64"]),
        ({NORM: F64}, {}, {}, [f"Base: tensor `{NORM}`", "has dtype F64", "to float32 first"]),
        ({NORM: F8}, {}, {}, ["has dtype F8_E4M3", "to bfloat16 first"]),
        ({}, {NORM: F64}, {}, [f"tensor `{NORM}` (model.safetensors) has dtype F64"]),
        ({}, {NORM: F8}, {}, [f"tensor `{NORM}` (model.safetensors) has dtype F8_E4M3"]),
    ],
)
def test_what_does_not_fit_is_refused_with_what_helps(tmp_path, of_base, of_agent, policy, words):
    base = make(tmp_path, "base", changed(0, of_base))
    message = str(refuse(base, make(tmp_path, "coder", changed(1, of_agent)), **policy))
    whose = "Base: " if NORM in of_base else 'Agent "coder": '
    assert message.removeprefix("2 tensors do not fit: ").startswith(f"{whose}tensor `")
    for text in words:
        assert (text.removeprefix("!") in message) == (not text.startswith("!"))


BUFFERS = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
    "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
    "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
}
FIT = small_tensors()


@pytest.mark.parametrize(
    ("of_base", "of_agent", "policy", "warnings"),
    [
        ({}, with_rows(7), {"rows": "common"}, ["7 of 10"]),
        ({}, with_rows(12), {"rows": "common"}, ["12 of 10"]),
        ({}, {NORM: None}, {"missing": "keep-base"}, [f"stay as in the base: `{NORM}`"]),
        ({}, {"v.weight": ones(3)}, {"extra": "ignore"}, ["left out: `v.weight`"]),
        *(({}, {name: buffer}, {}, []) for name, buffer in BUFFERS.items()),
        *(({name: buffer}, {}, {}, []) for name, buffer in BUFFERS.items()),
        ({"steps": STEPS}, {"steps": STEPS}, {}, []),
        ({"empty": ones(0, 4), "scalar": ones()}, {"empty": ones(0, 4), "scalar": ones()}, {}, []),
        ({}, {n: t.float() for n, t in FIT.items()}, {}, ["6 of 6 tensors are stored in F32"]),
    ],
)
def test_what_fits_is_merged_as_asked_and_told(tmp_path, of_base, of_agent, policy, warnings):
    base = make(tmp_path, "base", changed(0, of_base))
    other = make(tmp_path, "other", changed(2, of_base))
    coder = make(tmp_path, "coder", changed(1, of_agent))
    report = check_compatibility(base, [other, coder], **policy)
    assert len(report.warnings) == len(warnings)
    for told, words in zip(report.warnings, warnings, strict=True):
        assert told.startswith('Agent "coder": ')
        assert words in told
    assert [t.name for t in report.tensors] == list(base.tensors)
    for tensor in report.tensors:
        assert (tensor.dtype, tensor.shape) == (tensor.base.dtype, tensor.base.shape)
        # Where the agent has none the base stands in; beyond its rows too.
        assert tensor.agents[1] == coder.tensors.get(tensor.name, tensor.base)
        assert tensor.common_numel == (tensor.numel, min(tensor.numel, tensor.agents[1].numel))
        is_copied = tensor.dtype in ("I64", "BOOL", "U8")
        assert tensor.kind == ("copy" if is_copied else "merge")
    copied = [t.name for t in report.tensors if t.kind == "copy"]
    assert report.to_dict()["copied_tensors"] == copied
    counted = sum(t.numel for t in report.tensors if t.kind == "merge")
    assert report.counted_elements == counted
    assert report.dtypes["coder"] == {
        dtype: sum(t.numel for t in coder.tensors.values() if t.dtype == dtype)
        for dtype in dict.fromkeys(t.dtype for t in coder.tensors.values())
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "awq"}, "is quantized (awq, by"),
        ({"quant_method": "gptq", "bits": 4}, "is quantized (gptq, 4 bits, by"),
        ({"load_in_8bit": True}, "is quantized (quantization_config, by"),
        ("int8", "is quantized (quantization_config, by"),
    ],
)
def test_a_quantized_checkpoint_is_refused_by_name(tmp_path, base, settings, said):
    config = QWEN_CONFIG | {"quantization_config": settings}
    agent = make(tmp_path, "a", small_tensors(1), config=config)
    assert said in str(refuse(base, agent))


def test_a_base_with_nothing_to_merge_is_refused(tmp_path):
    """It was merged and analyzed, and what shows an analysis of nothing failed."""
    numbers = {"i": torch.arange(3)}
    base, agent = (make(tmp_path, name, numbers) for name in ("base", "coder"))
    assert "no tensor of floating-point numbers" in str(refuse(base, agent))


def test_problems_of_all_agents_come_in_one_message(tmp_path, base):
    error = refuse(
        base,
        make(tmp_path, "a", changed(1, {NORM: None})),
        make(tmp_path, "b", changed(2, {"more": ones(1)})),
    )
    assert len(error.__notes__) == 2
    assert "missing: keep-base" in str(error)
    assert "extra: ignore" in str(error)


TEXT, VISION = "model.", {"model.visual.blocks.0.attn.qkv.weight": torch.ones(4, 4)}


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.language_model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
        ("thinker.model.", "thinker.lm_head.weight"),
        ("model.", "lm_head.weight"),  # as transformers saves Qwen2.5-VL
    ],
)
def test_a_text_models_names_are_found_shown_and_confirmed(tmp_path, prefix, head):
    """Its language model is merged, all other towers are the base's."""

    def named(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {prefix + n.removeprefix(TEXT) if TEXT in n else head: t for n, t in tensors.items()}

    before, after = (small_tensors(n) | {"lm_head.weight": torch.ones(6, 4) * n} for n in (0, 1))
    base = make(tmp_path, "base", named(before) | VISION)
    text = make(tmp_path, "a", after)
    told = str(refuse(base, text))
    assert f"all its {len(after)} tensors are in the base" in told
    assert "1 tensor of the base's other towers stay as they are" in told
    assert "set names: mapped" in told
    if prefix != "model.":
        assert f"`model.layers...`, the base `{prefix}...`" in told
    report = check_compatibility(base, [text], names="mapped")
    assert report.warnings == ()
    own, tower = {t.base.name: t.agents[0] for t in report.tensors}, next(iter(VISION))
    assert own[tower] is base.tensors[tower]
    for old, new in zip(after, named(after), strict=True):
        assert own[new] == text.tensors[old].renamed(new)
    # One that has a tensor by both names loses none of them.
    if head != "lm_head.weight":
        twice = make(tmp_path, "c", after | {head: torch.zeros(6, 4)})
        assert "names: mapped" not in str(refuse(base, twice, names="mapped"))
    # One whose tensors are not all in the base is told as before.
    other = make(tmp_path, "b", after | {"model.layers.0.mlp.other.weight": torch.ones(2)})
    assert "names: mapped" not in str(refuse(base, other, names="mapped"))


def test_an_adapter_of_a_text_model_goes_onto_more_towers(tmp_path):
    tensors = {n.replace(TEXT, "model.language_model."): t for n, t in small_tensors(0).items()}
    base = make(tmp_path, "base", tensors | VISION)
    matrix = next(n for n, t in tensors.items() if "layers" in n and t.ndim == 2)
    rows, columns = tensors[matrix].shape
    module = matrix.replace("model.language_model.", TEXT).removesuffix(".weight")
    factors = {"A": torch.ones(2, columns), "B": torch.ones(rows, 2)}
    stored = {f"base_model.model.{module}.lora_{x}.weight": t for x, t in factors.items()}
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(stored, folder / "adapter_model.safetensors")
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "lora_alpha": 2, "r": 2})
    agent = open_checkpoint(folder, name="a")
    assert "set names: mapped" in str(refuse(base, agent))
    report = check_compatibility(base, [agent], names="mapped")
    assert [t.name for t in report.tensors if t.agents[0] != t.base] == [matrix]
