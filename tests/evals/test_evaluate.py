"""Evaluating the shipped example models: progress, stop, batching, errors."""

import json
import shutil
from pathlib import Path

import pytest

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals import DOMAINS, compare, evaluate, evaluate_loaded, make_items
from ram_studio.evals.answering.decode import decode, generate, load_model, resolve_device

EXAMPLE = Path(__file__).parents[2] / "assets" / "example"
BASE, CODING = EXAMPLE / "base", EXAMPLE / "coding"


@pytest.fixture(scope="module")
def loaded():
    return load_model(BASE, "cpu")


@pytest.fixture(scope="module")
def report():
    return evaluate({"base": BASE, "coding": CODING}, limit=40, device="cpu")


def test_a_report_holds_every_item_answer_and_verdict(report):
    assert list(report.models) == ["base", "coding"]
    for domain in DOMAINS:
        assert len(report.items[domain]) == 40
        for result in report.models.values():
            assert len(result.answers[domain]) == 40
    assert json.loads(json.dumps(report.to_dict()))["models"]["base"]["path"] == str(BASE)


def test_the_coding_agent_beats_the_base_beyond_noise_on_code_only(report):
    counts = compare(report, "coding", "base")
    assert counts["code"].wins > counts["code"].losses
    assert not counts["code"].is_within_noise
    assert counts["follow"].is_within_noise


def test_batch_size_does_not_change_answers(loaded):
    prompts = [item.prompt for domain in DOMAINS for item in make_items(domain, 6, 4)]
    together = generate(*loaded, prompts, batch_size=64)
    assert generate(*loaded, prompts, batch_size=1) == together
    assert generate(*loaded, prompts, batch_size=5) == together


def test_own_decoding_equals_transformers_greedy_decoding(loaded):
    import torch

    model, tokenizer = loaded
    prompts = [item.prompt for item in make_items("tool", 8, 4)]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=48,
            do_sample=False,
        )
    new = output[:, inputs["input_ids"].shape[1] :]
    assert generate(model, tokenizer, prompts) == tokenizer.batch_decode(
        new, skip_special_tokens=True
    )


def test_no_new_tokens_give_an_empty_row_per_sample(loaded):
    rows = decode(
        loaded[0], [[5], [6, 7]], pad_id=1, end_ids=frozenset(), max_new_tokens=0, samples=3
    )
    assert rows == [[]] * 6


def test_without_an_end_token_every_row_runs_to_the_limit(loaded):
    rows = decode(loaded[0], [[5], [6, 7]], pad_id=1, end_ids=frozenset(), max_new_tokens=4)
    assert [len(row) for row in rows] == [4, 4]


def test_decoding_a_small_model_leaves_the_thread_count_as_it_was(loaded):
    import torch

    before = torch.get_num_threads()
    generate(*loaded, ["do: swap amy fig . answer:"])
    assert torch.get_num_threads() == before


def test_sampling_is_seeded_and_groups_rows_by_prompt(loaded):
    import torch

    model, tokenizer = loaded
    prompts = [tokenizer.encode(item.prompt) for item in make_items("code", 3, 4)]

    def sample(seed: int) -> list[list[int]]:
        return decode(
            model,
            prompts,
            pad_id=1,
            end_ids=frozenset({0}),
            max_new_tokens=12,
            samples=4,
            temperature=1.0,
            generator=torch.Generator().manual_seed(seed),
        )

    assert len(sample(0)) == 12
    assert sample(0) == sample(0)
    assert sample(0) != sample(1)


def test_progress_starts_at_zero_and_ends_complete_in_every_domain(loaded):
    seen = []
    evaluate_loaded(
        "m", *loaded, limit=6, batch_size=4, on_progress=lambda *event: seen.append(event)
    )
    assert seen == [("m", domain, done, 6) for domain in DOMAINS for done in (0, 4, 6)]


def test_stop_ends_the_run_at_once(loaded):
    polls = []

    def should_stop() -> bool:
        polls.append(1)
        return len(polls) > 3

    with pytest.raises(Stopped):
        evaluate_loaded("m", *loaded, limit=20, should_stop=should_stop)
    assert len(polls) == 4


def test_a_loaded_model_scores_as_its_folder(loaded, report):
    row = evaluate_loaded("again", *loaded, limit=40)
    assert row.models["again"].domains == report.models["base"].domains
    assert list(report.joined(row).models) == ["base", "coding", "again"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "humaneval"}, "'humaneval'.*demo"),
        ({"limit": 0}, "limit is 0"),
        ({"batch_size": 0}, "batch size is 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate({"base": BASE}, **options)


def test_no_model_is_refused():
    with pytest.raises(EvaluationError, match="No model"):
        evaluate({})


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(EvaluationError, match=r"config\.json"):
        evaluate({"gone": tmp_path / "gone"}, limit=1)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
        (("model.safetensors",), "no \\*.safetensors"),
    ],
)
def test_incomplete_folders_are_refused(tmp_path, removed, message):
    folder = tmp_path / "m"
    shutil.copytree(BASE, folder, ignore=shutil.ignore_patterns(*removed))
    with pytest.raises(EvaluationError, match=message):
        evaluate({"m": folder}, limit=1)


def test_truncated_weights_are_refused(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(BASE, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50_000])
    with pytest.raises(EvaluationError, match="does not load"):
        evaluate({"m": folder}, limit=1)


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(EvaluationError, match="cuda:0"):
        resolve_device("cuda:0")
