"""Decoding with the shipped example models, and what an evaluation of a folder or engine tells."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.decode import Sampling, decode
from ram_studio.evals.answering.load import ending_ids, load_model, resolve_device
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites.demo.tasks import DOMAINS, make_items

BASE = Path(__file__).parents[2] / "assets" / "independent" / "base"


@pytest.fixture(scope="module")
def loaded(base_engine):
    return base_engine.model, base_engine.tokenizer


@pytest.fixture(scope="module")
def report(base_engine, coding_engine):
    return evaluate({"base": base_engine, "coding": coding_engine}, limit=24)


def test_a_report_is_a_tidy_table_of_every_answer(report):
    assert {d: len(items) for d, items in report.items.items()} == dict.fromkeys(DOMAINS, 24)
    for result in report.models.values():
        assert {d: len(own) for d, own in result.answers.items()} == dict.fromkeys(DOMAINS, 24)
    assert EvalResult.of(report).models["base"].path == str(BASE)
    frame = report.to_frame().set_index(["model", "domain"])
    assert list(frame.index) == [(m, d) for m in ("base", "coding") for d in DOMAINS]
    score = report.models["coding"].domains["code"]
    row = frame.loc["coding", "code"]
    assert (row["n"], row["correct"], row["score"]) == (24, score.correct, score.score)
    assert (row["low95"], row["high95"]) == score.ci95


def test_the_coding_agent_beats_the_base_on_code_only(report):
    counts = report.compare("coding", "base")
    assert counts["code"].wins > counts["code"].losses
    assert counts["code"].p_value < 0.05 <= counts["follow"].p_value


def test_an_open_engine_stays_open_and_scores_as_its_folder(report, base_engine):
    assert base_engine._loaded is not None
    again = evaluate({"again": BASE}, limit=24, device="cpu")
    assert again.models["again"].domains == report.models["base"].domains


def test_own_decoding_equals_transformers_greedy_decoding(loaded):
    model, tokenizer = loaded
    prompts = [item.prompt for domain in DOMAINS for item in make_items(domain, 3, 4)]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    asked = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        output = model.generate(**asked, max_new_tokens=48, do_sample=False)
    new = output[:, inputs["input_ids"].shape[1] :]
    expected = tokenizer.batch_decode(new, skip_special_tokens=True)
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    how = {"pad_id": tokenizer.pad_token_id, "end_ids": ending_ids(model, tokenizer)}
    rows = decode(model, ids, max_new_tokens=48, **how)
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == expected


def test_a_shared_beginning_is_read_once_and_changes_nothing(loaded, monkeypatch):
    """Prompts that share 30 tokens, one of them a beginning of another."""
    dice = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 200, (45,), generator=dice).tolist()
    prompts = [ids[:30] + tail for tail in ([9], [7, 8, 11, 12], ids[30:], ids[30:34])]
    how = {"pad_id": 1, "end_ids": frozenset(), "max_new_tokens": 6}
    alone = [decode(loaded[0], [prompt], **how)[0] for prompt in prompts]
    read, forward = [], loaded[0].forward
    monkeypatch.setattr(
        loaded[0],
        "forward",
        lambda **values: read.append(values["input_ids"].numel()) or forward(**values),
    )
    assert decode(loaded[0], prompts, **how) == alone
    assert read[:2] == [30, 4 * 15]
    # Where the shortest is a beginning of all, its last token stays for a row of its own.
    read.clear()
    assert decode(loaded[0], [prompts[0], [*prompts[0], 4]], **how)[0] == alone[0]
    assert read[:2] == [30, 2 * 2]


def test_rows_run_to_the_limit_and_the_thread_count_stays(loaded):
    before = torch.get_num_threads()
    how = {"pad_id": 1, "end_ids": frozenset()}
    rows = decode(loaded[0], [[5], [6, 7]], max_new_tokens=0, sampling=Sampling(3), **how)
    assert rows == [[]] * 6
    rows = decode(loaded[0], [[5], [6, 7]], max_new_tokens=4, **how)
    assert [len(row) for row in rows] == [4, 4]
    assert torch.get_num_threads() == before


def test_sampling_is_seeded_and_groups_rows_by_prompt(loaded):
    model, tokenizer = loaded
    prompts = [tokenizer.encode(item.prompt) for item in make_items("code", 3, 4)]
    how = {"pad_id": 1, "end_ids": frozenset({0}), "max_new_tokens": 12}

    def sample(seed: int) -> list[list[int]]:
        sampling = Sampling(4, generator=torch.Generator().manual_seed(seed))
        return decode(model, prompts, sampling=sampling, **how)

    assert len(sample(0)) == 12
    assert sample(0) == sample(0)
    assert sample(0) != sample(1)


def test_progress_runs_from_zero_to_complete_in_every_domain(base_engine):
    seen = []
    evaluate({"m": base_engine}, limit=6, on_progress=lambda *event: seen.append(event))
    assert seen[:4] == [("m", domain, 0, 6) for domain in DOMAINS]
    for domain in DOMAINS:
        dones = [done for _, d, done, _ in seen if d == domain]
        assert dones == sorted(dones)
        assert dones[-1] == 6


def test_stop_ends_the_run_at_once(base_engine):
    polls = iter([False] * 3 + [True])
    with pytest.raises(Stopped, match="they are lost, as no store was given"):
        evaluate({"m": base_engine}, limit=20, should_stop=lambda: next(polls))
    assert next(polls, "no more") == "no more"


def test_incomplete_folders_are_refused(tmp_path):
    folder = shutil.copytree(BASE, tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50_000])
    for gone, message in (
        ((), "does not load"),
        (("model.safetensors",), r"no \*.safetensors"),
        (("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
    ):
        for name in gone:
            (folder / name).unlink()
        with pytest.raises(EvaluationError, match=message):
            evaluate({"m": folder}, limit=1)


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(EvaluationError, match="cuda:0"):
        resolve_device("cuda:0")


def test_threads_that_are_first_together_all_find_the_library():
    program = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "from ram_studio.evals.answering.load import transformers\n"
        "def first(_): return transformers().HfArgumentParser\n"
        "assert len(list(Pool(4).map(first, range(4)))) == 4\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_models_that_are_loaded_at_once_all_have_their_weights():
    folders = [BASE.parent / name for name in ("base", "coding", "tool", "memory")] * 2
    with ThreadPoolExecutor(4) as pool:
        models = [model for model, _ in pool.map(lambda folder: load_model(folder, "cpu"), folders)]
    assert not any(weight.is_meta for model in models for weight in model.parameters())
