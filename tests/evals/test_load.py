"""Models of which a part is missing, or whose config describes another one, are not asked."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    Qwen2ForCausalLM,
)

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering import load
from ram_studio.evals.answering.load import load_config, load_model
from ram_studio.evals.run import evaluate
from ram_studio.resources import asset_path

CODING = asset_path("shared-style", "coding")


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(CODING, tmp_path / "model"))


def drop(model: Path, part: str) -> None:
    file = model / "model.safetensors"
    weights = load_file(file)
    own = {name: value for name, value in weights.items() if part not in name}
    assert len(own) < len(weights)
    save_file(own, file, {"format": "pt"})


def describe(model: Path, **values: object) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_model_without_a_tensor_is_not_asked(model):
    drop(model, "layers.3.mlp")
    told = r"lacks model\.layers\.3\.mlp\.down_proj\.weight, .*mlp\.up"
    with pytest.raises(EvaluationError, match=told):
        evaluate({"cut": model, "coding": CODING}, limit=2)


def test_a_model_without_a_layer_is_not_asked(model):
    drop(model, "layers.3.")
    with pytest.raises(EvaluationError, match="describes 4 layers, and the weights have 3"):
        load_model(model, "cpu")


def test_a_model_of_a_great_many_tiny_layers_is_not_built(model, monkeypatch):
    monkeypatch.setattr(load, "MOST_LAYERS", 3)
    monkeypatch.setattr(Qwen2ForCausalLM, "__init__", lambda *args: pytest.fail("it was built"))
    with pytest.raises(EvaluationError, match=r"describes 4 layers\. Models of up to 3 layers"):
        load_model(model, "cpu")


INNER = {"model_type": "gemma3_text", "num_hidden_layers": 20_000, "hidden_size": 8}
MIDDLE = {"model_type": "gemma3", "text_config": INNER, "vision_config": {}}
TEXT = {"num_hidden_layers": 4, "hidden_size": 8}


@pytest.mark.parametrize(
    ("model_type", "tower"),
    [
        # Only the towers right below were looked at, and only num_hidden_layers, which few have.
        ("fuyu", {"text_config": MIDDLE}),
        ("florence2", {"text_config": TEXT, "vision_config": {"depths": [1, 1, 20_000, 1]}}),
        ("bart", {"text_config": TEXT, "decoder_layers": 20_000}),
    ],
)
def test_a_great_many_layers_of_a_tower_are_not_built(model, monkeypatch, model_type, tower):
    config = {"model_type": model_type, "num_hidden_layers": 4, **tower}
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(EvaluationError, match=r"describes 20,000 layers\. Models of up to"):
        load_model(model, "cpu")


@pytest.mark.parametrize("read", [lambda folder: load_model(folder, "cpu"), load_config])
@pytest.mark.parametrize("name", ["num_hidden_layers", "num_labels"])
@pytest.mark.parametrize("is_inner", [False, True])
def test_no_config_has_its_layers_or_labels_listed(model, read, name, is_inner):
    """A thousand million of them filled the memory before anything was looked at."""
    many = {name: 100_001, "layer_types": None}
    describe(model, **({"text_config": many} if is_inner else many))
    with pytest.raises(EvaluationError, match=f"has {name} 100,001; the limit is 100,000"):
        read(model)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"num_hidden_layers": 2000, "layer_types": None},
            "describes 2000 layers, .* have 4",
        ),
        ({"intermediate_size": 10**7}, r"describes a model of [\d,]{13,} weights, and its files"),
    ],
)
def test_a_config_of_a_larger_model_takes_no_memory(model, values, told):
    describe(model, **values)
    with pytest.raises(EvaluationError, match=told):
        load_model(model, "cpu")


def test_masks_of_a_great_many_positions_take_no_memory(model):
    """They are no weights: three megabytes of those went with forty gigabytes of mask."""
    sizes = {"n_embd": 8, "n_head": 1, "n_layer": 1, "n_inner": 8, "vocab_size": 512}
    config = GPTBigCodeConfig(**sizes, n_positions=20_000, bos_token_id=0, eos_token_id=0)
    with torch.device("meta"):
        described = GPTBigCodeForCausalLM(config).state_dict()
    weights = {
        name: torch.zeros(w.shape) for name, w in described.items() if name != "lm_head.weight"
    }
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    (model / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(EvaluationError, match=r"describes a model of 26\d,\d{3},\d{3} weights"):
        load_model(model, "cpu")


def test_quantized_numbers_hold_no_more_weights_than_bits(model):
    """A config that says so was never held against the files."""
    file = model / "model.safetensors"
    counts = {name: weight.numel() for name, weight in load_file(file).items()}
    packed = {name: torch.zeros(n // 8 + 1, dtype=torch.int32) for name, n in counts.items()}
    save_file(packed, file, {"format": "pt"})
    describe(model, quantization_config={"quant_method": "gptq", "bits": 4})
    load._check_size(model, load_config(model), [file])
    describe(model, intermediate_size=300_000)
    with pytest.raises(EvaluationError, match=r"describes a model of \d{3},\d{3},\d{3} weights"):
        load_model(model, "cpu")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", r"config\.json is not valid JSON .*; download it again"),
        (" " * 16_000_001, r"config\.json is larger than 16\.00 MB"),
        ('{"model_type": "no-such"}', r"type `no-such`.* \.\.\. Check that"),
    ],
)
def test_a_config_that_is_not_read_is_told_in_a_line(model, config, told):
    (model / "config.json").write_text(config)
    with pytest.raises(EvaluationError, match=told):
        evaluate({"one": model}, "math", limit=1)


def test_a_tied_head_is_not_missing(model):
    weights = load_file(model / "model.safetensors")
    is_tied = json.loads((model / "config.json").read_text())["tie_word_embeddings"]
    assert is_tied == ("lm_head.weight" not in weights)
    assert load_model(model, "cpu")[0].lm_head.weight.numel()
