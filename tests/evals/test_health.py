"""Health: against values computed by hand, and on weights that are broken on purpose."""

import json
import math

import pytest
from chat_model import make_chat_model

from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites.health import Health, measure_health, text_log_probabilities
from ram_studio.evals.suites.suite import repeated_share
from ram_studio.resources import asset_path

BASE, CODING = asset_path("independent", "base"), asset_path("independent", "coding")


def test_perplexity_divergence_and_bits_have_their_definitions(base_engine, coding_engine):
    import torch
    import torch.nn.functional as F

    reference, ids, bad = text_log_probabilities(base_engine)
    health = measure_health(coding_engine, reference)
    assert bad == health.nonfinite_logits == 0
    with torch.inference_mode():
        output = coding_engine.model(torch.tensor([ids]), labels=torch.tensor([ids]))
    assert health.perplexity == pytest.approx(math.exp(output.loss), rel=1e-4)
    logits = output.logits[0, :-1]
    expected = F.kl_div(logits.log_softmax(-1), reference, log_target=True, reduction="batchmean")
    assert health.kl_to_base == pytest.approx(float(expected), rel=1e-3)
    assert health.text_tokens == len(ids) - 1 == 255
    # Bits are spread over the text's bytes.
    nbytes = len(coding_engine.tokenizer.decode(ids[1:]).encode())
    total = math.log2(health.perplexity) * health.text_tokens
    assert health.bits_per_byte == pytest.approx(total / nbytes, rel=1e-4)
    assert measure_health(base_engine).kl_to_base is None


def test_broken_weights_are_told(tmp_path):
    folder = make_chat_model(tmp_path / "m")
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = next(key for key in tensors if key.endswith("norm.weight"))
    tensors[name] = tensors[name] * float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    report = evaluate({"base": BASE, "m": folder}, "health", base="base", device="cpu")
    health = report.models["m"].health
    assert health["nonfinite_logits"] > 0
    assert health["perplexity"] is None
    assert "the weights are broken" in health["warnings"][0]
    assert report.models["base"].health["warnings"] == []
    json.dumps(as_json(EvalResult.of(report)), allow_nan=False)
    broken_base = evaluate({"base": BASE, "m": folder}, "health", base="m", device="cpu")
    assert broken_base.models["base"].health["kl_to_base"] is None


def test_health_is_stored_per_base_and_not_measured_again(store, monkeypatch):
    options = {"base": "base", "device": "cpu", "store": store}
    first = evaluate({"base": BASE}, "health", **options)
    both = evaluate({"coding": CODING, "base": BASE}, "health", **options)
    assert both.models["base"].health == first.models["base"].health
    assert both.models["coding"].health["kl_to_base"] > 0
    monkeypatch.setattr(
        "ram_studio.evals.answering.local.load_model", lambda *_: pytest.fail("loaded")
    )
    again = evaluate({"coding": CODING, "base": BASE}, "health", **options)
    assert again.models["coding"].health == both.models["coding"].health


def test_repeated_grams_are_counted_within_an_answer():
    assert repeated_share([[1, 2, 3, 4, 5]]) == 0
    assert repeated_share([[7] * 8]) == pytest.approx(4 / 5)
    assert repeated_share([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0
    assert repeated_share([[1], []]) == 0


def test_warnings_name_what_is_plainly_wrong():
    sound = Health(10, 0, 5.0, 1.0, 0.1, 1.0, 0.1, 9.0)
    assert sound.warnings() == ()
    bad = Health(10, 0, 5.0, 1.0, 3.5, 0.0, 0.9, 9.0)
    repeated, left = bad.warnings()
    assert repeated == "90% of the 4-grams in its answers are repeated"
    assert left.startswith("its predictions have left the base's")
