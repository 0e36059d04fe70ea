"""Do base and agents fit? Every rule of matching, and the words of every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_zoo import QWEN_CONFIG, make, small_tensors, write_checkpoint

from ram_studio.checkpoints.fit.compatibility import check_compatibility
from ram_studio.checkpoints.hub.open import open_checkpoint
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


def test_agents_that_fit_are_matched_tensor_by_tensor_in_file_order(
    tmp_path: Path, base: Checkpoint
) -> None:
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


def test_no_agent_is_an_error(base: Checkpoint) -> None:
    assert "at least one agent" in str(refuse(base))


def test_names_are_given_once_and_base_is_taken(tmp_path: Path, base: Checkpoint) -> None:
    folder = write_checkpoint(tmp_path / "x", small_tensors(1))
    agent = open_checkpoint(folder, name="x")
    assert '"x" is given to two agents' in str(refuse(base, agent, agent))
    assert "kept for the base" in str(refuse(base, open_checkpoint(folder, name="base")))


@pytest.mark.parametrize("policy", ["missing", "extra", "rows"])
def test_a_policy_that_does_not_exist_is_refused(
    tmp_path: Path, base: Checkpoint, policy: str
) -> None:
    agent = make(tmp_path, "a", small_tensors(1))
    with pytest.raises(SettingsError, match=policy):
        check_compatibility(base, [agent], **{policy: "maybe"})


def test_shape_mismatches_are_all_listed_with_both_shapes(tmp_path: Path, base: Checkpoint) -> None:
    changed = {
        name: torch.ones(*(n + 1 for n in tensor.shape), dtype=torch.bfloat16)
        for name, tensor in small_tensors().items()
    }
    error = refuse(base, make(tmp_path, "coder", changed))
    assert str(error).startswith("6 tensors do not fit: ")
    assert (
        'Agent "coder": tensor `lm_head.weight` (model.safetensors) has shape (11, 5), '
        "the base has (10, 4)" in str(error)
    )
    assert "and 3 more" in str(error)
    assert "rows: common" not in str(error)
    assert len(error.__notes__) == 6
    for name in changed:
        assert any(f"`{name}`" in note for note in error.__notes__)


def test_shapes_with_the_same_number_of_elements_still_differ(
    tmp_path: Path, base: Checkpoint
) -> None:
    tensors = small_tensors(1)
    tensors["model.norm.weight"] = torch.ones(2, 8, dtype=torch.bfloat16)
    assert "(2, 8), the base has (4, 4)" in str(refuse(base, make(tmp_path, "a", tensors)))


def _with_rows(rows: int, seed: int = 1) -> dict[str, torch.Tensor]:
    tensors = small_tensors(seed)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = torch.ones(rows, 4, dtype=torch.bfloat16)
    return tensors


@pytest.mark.parametrize("rows", [7, 12])
def test_padded_vocabularies_are_refused_with_the_option_that_helps(
    tmp_path: Path, base: Checkpoint, rows: int
) -> None:
    message = str(refuse(base, make(tmp_path, "coder", _with_rows(rows))))
    assert f"`lm_head.weight` (model.safetensors) has shape ({rows}, 4)" in message
    assert "the base has (10, 4)" in message
    assert "rows: common" in message


@pytest.mark.parametrize(("rows", "common"), [(7, 28), (12, 40)])
def test_rows_common_merges_the_rows_both_have(
    tmp_path: Path, base: Checkpoint, rows: int, common: int
) -> None:
    other = make(tmp_path, "other", small_tensors(2))
    agent = make(tmp_path, "coder", _with_rows(rows))
    report = check_compatibility(base, [other, agent], rows="common")
    by_name = {t.name: t for t in report.tensors}
    assert by_name["lm_head.weight"].common_numel == (40, common)
    assert by_name["lm_head.weight"].shape == (10, 4)
    assert by_name["model.norm.weight"].common_numel == (16, 16)
    assert any('Agent "coder"' in w and f"{rows} of 10" in w for w in report.warnings)


def test_rows_common_covers_vocabularies_only(tmp_path: Path, base: Checkpoint) -> None:
    tensors = _with_rows(12)
    tensors["model.norm.weight"] = torch.ones(5, 4, dtype=torch.bfloat16)
    message = str(refuse(base, make(tmp_path, "a", tensors), rows="common"))
    assert "`model.norm.weight`" in message
    assert "lm_head" not in message


def test_a_missing_tensor_is_an_error_or_kept_from_the_base(
    tmp_path: Path, base: Checkpoint
) -> None:
    tensors = small_tensors(1)
    del tensors["model.norm.weight"]
    agent = make(tmp_path, "coder", tensors)
    message = str(refuse(base, agent))
    assert message.startswith('Agent "coder": tensor `model.norm.weight` is missing from ')
    assert str(agent.folder) in message
    assert "missing: keep-base" in message
    report = check_compatibility(base, [agent], missing="keep-base")
    norm = next(t for t in report.tensors if t.name == "model.norm.weight")
    assert norm.agents == (norm.base,)
    assert any("`model.norm.weight`" in w and '"coder"' in w for w in report.warnings)


def test_an_extra_tensor_is_an_error_or_left_out(tmp_path: Path, base: Checkpoint) -> None:
    agent = make(tmp_path, "coder", small_tensors(1) | {"value_head.weight": torch.ones(3)})
    message = str(refuse(base, agent))
    assert "`value_head.weight` (model.safetensors) is not in the base" in message
    assert "extra: ignore" in message
    report = check_compatibility(base, [agent], extra="ignore")
    assert "value_head.weight" not in {t.name for t in report.tensors}
    assert any("`value_head.weight`" in w and "left out" in w for w in report.warnings)


BUFFERS = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
    "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
    "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
}


@pytest.mark.parametrize("name", list(BUFFERS))
def test_known_buffers_may_be_extra_or_missing(tmp_path: Path, base: Checkpoint, name: str) -> None:
    with_buffer = small_tensors(1) | {name: BUFFERS[name]}
    assert check_compatibility(base, [make(tmp_path, "a", with_buffer)]).warnings == ()
    other_base = open_checkpoint(write_checkpoint(tmp_path / "b2", with_buffer), name="base")
    report = check_compatibility(other_base, [make(tmp_path, "b", small_tensors(2))])
    buffer = next(t for t in report.tensors if t.name == name)
    assert buffer.agents == (buffer.base,)


def test_a_trained_bias_named_like_a_mask_is_no_buffer(tmp_path: Path, base: Checkpoint) -> None:
    agent = make(tmp_path, "a", small_tensors(1) | {"blocks.0.attn.bias": torch.ones(4)})
    assert "`blocks.0.attn.bias`" in str(refuse(base, agent))


def test_integer_and_boolean_tensors_are_copied_when_equal(tmp_path: Path) -> None:
    extra = {"steps": torch.arange(5), "mask": torch.tensor([True, False])}
    base = make(tmp_path, "base", small_tensors(0) | extra)
    report = check_compatibility(base, [make(tmp_path, "a", small_tensors(1) | extra)])
    kinds = {t.name: t.kind for t in report.tensors}
    assert kinds["steps"] == kinds["mask"] == "copy"
    assert kinds["model.norm.weight"] == "merge"
    assert report.counted_elements == sum(t.numel() for t in small_tensors().values())
    assert report.to_dict()["copied_tensors"] == ["steps", "mask"]


def test_an_agent_with_other_integers_is_an_error(tmp_path: Path) -> None:
    base = make(tmp_path, "base", small_tensors(0) | {"steps": torch.arange(3_000_000)})
    changed = torch.arange(3_000_000)
    changed[-1] += 1
    agent = make(tmp_path, "coder", small_tensors(1) | {"steps": changed})
    message = str(refuse(base, agent))
    assert 'Agent "coder": tensor `steps` (model.safetensors) of dtype I64 has other' in message
    as_int32 = make(tmp_path, "b", small_tensors(1) | {"steps": changed.int()})
    assert "has dtype I32, the base has I64" in str(refuse(base, as_int32))
    as_float = make(tmp_path, "c", small_tensors(1) | {"steps": changed.float()})
    assert "has dtype F32, the base has I64" in str(refuse(base, as_float))


@pytest.mark.parametrize(
    ("dtype", "shown"), [(torch.float64, "F64"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_floats_that_are_not_merged_are_named(
    tmp_path: Path, dtype: torch.dtype, shown: str
) -> None:
    odd = small_tensors(0)
    odd["model.norm.weight"] = odd["model.norm.weight"].to(dtype)
    plain = make(tmp_path, "plain", small_tensors(1))
    message = str(refuse(make(tmp_path, "base", odd), plain))
    assert f"Base: tensor `model.norm.weight` (model.safetensors) has dtype {shown}" in message
    assert "to bfloat16 first" in message
    base = open_checkpoint(write_checkpoint(tmp_path / "b2", small_tensors()), name="base")
    message = str(refuse(base, make(tmp_path, "coder", odd)))
    assert f'Agent "coder": tensor `model.norm.weight` (model.safetensors) has dtype {shown}' in (
        message
    )


def test_agents_may_have_another_float_dtype_and_it_is_reported(
    tmp_path: Path, base: Checkpoint
) -> None:
    agent = make(tmp_path, "coder", small_tensors(1, torch.float32))
    report = check_compatibility(base, [agent])
    assert report.dtypes["coder"] == {"F32": 148}
    assert all(t.dtype == "BF16" for t in report.tensors)
    assert any("6 of 6 tensors are stored in F32" in w for w in report.warnings)


def test_a_quantized_checkpoint_is_refused(tmp_path: Path, base: Checkpoint) -> None:
    config = QWEN_CONFIG | {"quantization_config": {"quant_method": "awq"}}
    agent = make(tmp_path, "coder", small_tensors(1), config=config)
    assert 'Agent "coder"' in str(refuse(base, agent))
    assert "is quantized" in str(refuse(base, agent))


def test_problems_of_all_agents_come_in_one_message(tmp_path: Path, base: Checkpoint) -> None:
    lacking = small_tensors(1)
    del lacking["model.norm.weight"]
    error = refuse(
        base,
        make(tmp_path, "a", lacking),
        make(tmp_path, "b", small_tensors(2) | {"more": torch.ones(1)}),
    )
    assert len(error.__notes__) == 2
    assert "missing: keep-base" in str(error)
    assert "extra: ignore" in str(error)


def test_empty_and_scalar_tensors_are_merged_like_others(tmp_path: Path) -> None:
    odd = {"empty": torch.zeros(0, 4), "scalar": torch.tensor(1.5)}
    base = make(tmp_path, "base", small_tensors(0) | odd)
    report = check_compatibility(base, [make(tmp_path, "a", small_tensors(1) | odd)])
    shapes = {t.name: (t.shape, t.numel, t.common_numel) for t in report.tensors}
    assert shapes["empty"] == ((0, 4), 0, (0,))
    assert shapes["scalar"] == ((), 1, (1,))
