"""LoRA adapters as agents: what peft merges is what is read, and what is not read is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from ram_studio.checkpoints.fit.cautions import cautions
from ram_studio.checkpoints.fit.compatibility import check_compatibility
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import CompatibilityError

# peft asks transformers by a name that goes with its next major version.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers.:UserWarning"),
]

CONFIG = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    tie_word_embeddings=False,
)
LINEAR = ["q_proj", "down_proj"]


def model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(CONFIG)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "base"
    model().save_pretrained(folder)
    return folder


def train(folder: Path, **options: object) -> dict[str, torch.Tensor]:
    """Save an adapter with random factors; return what peft makes of it and the base."""
    from peft import LoraConfig, get_peft_model

    made = get_peft_model(model(), LoraConfig(**{"r": 4, "target_modules": LINEAR, **options}))
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.save_pretrained(folder)
    return made.merge_and_unload().state_dict()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """An adapter, and what peft makes of it and the base."""
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    return folder, train(folder)


def read_all(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    report = check_compatibility(
        open_checkpoint(base, name="base"), [open_checkpoint(adapter, name="a")]
    )
    found = {}
    with Sources(*report.checkpoints) as sources:
        for tensor in report.tensors:
            [own] = tensor.agents
            # In two pieces, to be the same wherever a block begins.
            middle = own.numel // 3
            parts = [
                sources.decoded(own, *span) for span in ((0, middle), (middle, own.numel - middle))
            ]
            found[tensor.name] = torch.cat([torch.from_numpy(p) for p in parts]).view(own.shape)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_alpha": 3, "use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 5}},
        {"use_dora": True},
        {"bias": "all", "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
    ],
    ids=str,
)
def test_an_adapter_is_what_peft_merges(base, tmp_path, options):
    expected = train(tmp_path / "adapter", **options)
    found = read_all(base, tmp_path / "adapter")
    stored = load_file(base / "model.safetensors")
    assert any(not torch.equal(found[name], stored[name]) for name in stored)
    for name in stored:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_an_adapter_goes_through_a_merge_like_a_checkpoint(base, trained, tmp_path):
    adapter, expected = trained
    sources = {"base": str(base), "agents": {"a": str(adapter)}}
    recipe = make_recipe({**sources, "method": "task-arithmetic", "settings": {"scale": 1.0}})
    merge(recipe, tmp_path / "out")
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    assert verify(tmp_path / "out", with_sources=True, full=True).source_files == 2


def test_an_applied_adapter_is_a_whole_model(base, trained):
    report = load(base, {"a": trained[0]})
    again = check_compatibility(report.base, report.agents)
    assert again.tensors == report.tensors
    assert again.findings == report.findings


def test_its_rank_is_told_and_that_rounding_makes_its_sparsity(trained, tmp_path):
    model().bfloat16().save_pretrained(tmp_path / "base")
    report = load(tmp_path / "base", {"a": trained[0]})
    [said] = [f.text for f in report.findings if f.kind == "adapter"]
    assert "LoRA adapter of rank 4 on 4 of 21 tensors" in said
    assert "where they equal the base in BF16, rounding makes that sparsity, not training" in said
    assert not [f for f in report.findings if f.kind == "dtype"]
    assert analyze_report(report).rounded is not None  # densities are shown both ways


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "adapter of type IA3"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: pissa_niter_4"),
        ({"lora_bias": True}, "with lora_bias"),
        ({"alpha_pattern": {"(a+)+b": 2}}, "alpha_pattern that is not read"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(base, trained, tmp_path, change, said):
    path = shutil.copytree(trained[0], tmp_path / "adapter") / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CompatibilityError, match=said) as caught:
        load(base, {"a": tmp_path / "adapter"})
    assert "merge_and_unload" in str(caught.value)


def test_an_adapter_of_another_base_and_one_as_the_base_are_refused(base, trained, tmp_path):
    stored = load_file(base / "model.safetensors")
    narrow = {n: t[:, :8].contiguous() if t.ndim == 2 else t for n, t in stored.items()}
    save_file(narrow, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CompatibilityError, match=r"not an adapter of this base.*lora_A \(4, 16\)"):
        load(tmp_path, {"a": trained[0]})
    with pytest.raises(CompatibilityError, match=r"Base: .* is a LoRA adapter"):
        load(trained[0], {"a": base})


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({f"{Q}.lora_A.weight": (0, 16), f"{Q}.lora_B.weight": (16, 0)}, r"lora_A \(0, 16\)"),
        ({f"{Q}.lora_magnitude_vector.weight": (16,)}, "stored as F32 and F32 and I64"),
        ({f"{'a' * 400}.lora_{x}.weight": (4, 4) for x in "AB"}, "too long a name"),
    ],
)
def test_factors_that_cannot_be_are_refused(base, trained, tmp_path, tensors, said):
    """A rank of nothing, whole numbers for lengths, a name that patterns would take hours over."""
    folder = shutil.copytree(trained[0], tmp_path / "adapter")
    stored = load_file(folder / "adapter_model.safetensors")
    made = {n: torch.ones(shape, dtype=torch.float32) for n, shape in tensors.items()}
    made = {n: t.long() if "magnitude" in n else t for n, t in made.items()}
    save_file(stored | made, folder / "adapter_model.safetensors", {"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    config["alpha_pattern"] = {"a*a*a*b": 2}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = load_file(base / "model.safetensors")
    long = {f"{'a' * 400}.weight": torch.ones(4, 4)}
    save_file(weights | long, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CompatibilityError, match=said):
        load(tmp_path, {"a": folder})


def test_a_tied_head_that_the_base_does_not_store_is_not_counted(base, trained):
    """Such adapters were told to be on 14 of 13 tensors."""
    report = load(base, {"a": trained[0]})
    agent = report.agents[0]
    made = next(t for t in agent.tensors.values() if t.virtual is not None)
    more = replace(agent, tensors={**agent.tensors, "not.in.the.base": made})
    said, again = (
        [finding.text for finding in cautions(report.base, [one]) if "adapter" in finding.text]
        for one in (agent, more)
    )
    assert said == again
