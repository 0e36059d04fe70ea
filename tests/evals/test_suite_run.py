"""Suites on model folders: templates, contexts, batches, stopping, resuming, reusing."""

import gc
import json
from pathlib import Path

import pytest
from chat_model import TEMPLATE, TOOL_TEMPLATE, change_json, make_chat_model

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Question
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import visible
from ram_studio.resources import asset_path

BASE, CODING = asset_path("independent", "base"), asset_path("independent", "coding")


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("chat") / "model", template=TOOL_TEMPLATE)


def question(prompt="Say hi.", max_new_tokens=8, **more) -> Question:
    return Question("q", "d", "c", prompt, "hi", None, max_new_tokens, **more)


def verdicts(report, model: str) -> dict:
    return {
        d: [(a.text, a.is_correct, a.note) for a in answers]
        for d, answers in report.models[model].answers.items()
    }


def test_every_suite_completes_on_an_untrained_model(chat_model):
    suites = ("tool", "memory", "code", "math", "instructions")
    options = {"limit": 2, "lengths": (1000,), "max_tokens": 9, "device": "cpu", "base": "model"}
    report = evaluate({"model": chat_model}, (*suites, "health"), **options)
    assert {d: len(q) for d, q in report.items.items()} == dict.fromkeys(suites, 2)
    for domain, answers in report.models["model"].answers.items():
        assert all(answer.is_correct or answer.note for answer in answers), domain
        assert not any("too long" in answer.note for answer in answers)
    health = report.models["model"].health
    assert health["nonfinite_logits"] == 0
    assert health["kl_to_base"] == pytest.approx(0, abs=1e-6)
    assert health["perplexity"] > 1
    json.dumps(as_json(EvalResult.of(report)), allow_nan=False)


def test_a_suite_beyond_the_context_is_refused_without_a_zero(store):
    said = r"Suite math cannot be asked of model .base.: .* context is \d"
    with pytest.raises(EvaluationError, match=said):
        evaluate({"base": BASE}, "math,tool", device="cpu", store=store)
    assert store.runs() == []


def test_each_suite_has_its_limit_and_tokens_are_told(chat_model):
    heard, limits = [], {"math": 2, "instructions": 1}
    how = {"limit": limits, "max_tokens": 4, "device": "cpu"}
    report = evaluate({"model": chat_model}, "math,instructions", **how)
    assert {d: len(q) for d, q in report.items.items()} == limits
    with AnswerStore(":memory:") as store:
        evaluate({"base": BASE}, "demo", limit=2, device="cpu", store=store, on_tokens=heard.append)
        (run,) = store.runs()
        told = sum(len(step) for step in heard)
        assert told == sum(row.answer.tokens for row in store.answers(run.id)) > 0


def test_prompts_go_through_the_models_own_template(chat_model, tmp_path):
    engine = LocalEngine(chat_model, device="cpu")
    assert engine.prompt_of(question()) == "<|user|> Say hi. <|assistant|>"
    assert engine.prompt_of(question(is_raw=True)) == "Say hi."
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    native = engine.prompt_of(question(tools=(tool,)))
    assert native.startswith('TOOLS [{"type": "function"')
    assert "You can call" not in native
    plain = LocalEngine(chat_model, device="cpu", chat="none")
    assert plain.prompt_of(question()) == "Say hi.\n\nAnswer:\n"
    assert plain.identity != engine.identity
    folder = make_chat_model(tmp_path / "m", template=TEMPLATE)
    text = LocalEngine(folder, device="cpu").prompt_of(question(tools=(tool,)))
    assert '{"name": "f", "parameters": {}}' in text
    assert "If none of the functions fits" in text
    # A wrong one is an error that names it.
    for template, message in (
        ("{{ raise_exception('only systems here') }}", "template .* fails: only systems here"),
        ("Hello, I am a bot.", "drops the user's message"),
    ):
        (folder / "chat_template.jinja").write_text(template)
        with pytest.raises(EvaluationError, match=message):
            evaluate({"m": folder}, "math", limit=1, device="cpu")


def test_a_prompt_beyond_the_context_is_a_verdict(tmp_path):
    folder = make_chat_model(tmp_path / "m", context=1500)
    how = {"lengths": (1000, 3000), "limit": 8, "max_tokens": 4, "device": "cpu"}
    report = evaluate({"m": folder}, "memory", **how)
    answers = report.models["m"].answers["memory"]
    for item, answer in zip(report.items["memory"], answers, strict=True):
        assert answer.note.startswith("too long: ") == item.category.endswith("3000")
    assert "the model's context is 1500" in answers[-1].note


def test_an_endless_generation_is_cut_off_and_an_empty_one_told(tmp_path):
    # Without any end token the model never stops; with every token an end it says nothing.
    folder = make_chat_model(tmp_path / "endless")
    for name in ("config.json", "generation_config.json"):
        change_json(folder / name, eos_token_id=None)
    change_json(folder / "tokenizer_config.json", eos_token=None)
    engine = LocalEngine(folder, device="cpu")
    ((_, reply),) = next(engine.answer([question(max_new_tokens=5)]))
    assert (reply.finish, reply.note, reply.tokens) == ("length", "cut off after 5 tokens", 5)
    silent = make_chat_model(tmp_path / "silent")
    change_json(silent / "generation_config.json", eos_token_id=list(range(512)))
    engine = LocalEngine(silent, device="cpu")
    replies = [r for batch in engine.answer([question(prompt="<|x|>")]) for _, r in batch]
    assert replies[0].tokens == 1
    report = evaluate({"m": silent}, "tool", limit=5, difficulty=1, device="cpu")
    for answer in report.models["m"].answers["tool"]:
        if not answer.text.strip():
            assert not answer.is_correct
            assert "empty answer" in answer.note


def test_thinking_that_a_template_begins_is_no_answer(tmp_path):
    """Where it was cut off it was judged as the answer: its mark stood in the prompt."""
    folder = make_chat_model(tmp_path / "m", template=TEMPLATE + "<think>\n")
    for name in ("config.json", "generation_config.json"):
        change_json(folder / name, eos_token_id=None)
    change_json(folder / "tokenizer_config.json", eos_token=None)
    ((_, cut),) = next(LocalEngine(folder, device="cpu").answer([question(max_new_tokens=5)]))
    assert (cut.finish, visible(cut.text)) == ("length", "")
    assert len(cut.text) > len("<think>")


def test_batches_respect_rows_tokens_and_answer_limits(chat_model):
    engine = LocalEngine(chat_model, device="cpu", batch_size=3, batch_tokens=200)
    rows = [
        (question(max_new_tokens=m), "", [1] * n) for m, n in [(10, 90), *[(10, 10)] * 7, (20, 10)]
    ]
    batches = list(engine._batches(rows))
    lengths = [[len(ids) for _, _, ids in batch] for batch in batches]
    assert lengths == [[10] * 3, [10] * 3, [10, 90], [10]]
    for batch in batches:
        assert len({q.max_new_tokens for q, _, _ in batch}) == 1
        width = max(len(ids) + q.max_new_tokens for q, _, ids in batch)
        assert len(batch) <= 3
        assert len(batch) == 1 or len(batch) * width <= 200


def test_a_run_stopped_and_resumed_equals_an_uninterrupted_one(tmp_path):
    engine = LocalEngine(CODING, device="cpu", batch_size=10)
    whole = evaluate({"coding": engine}, "demo", limit=12)
    path = tmp_path / "s"
    told: dict[str, int] = {}

    def tell(model: str, domain: str, done: int, total: int) -> None:
        told[domain] = done
        # Another process sees what is told: a kill at this moment would lose nothing of it.
        with AnswerStore(path) as other:
            assert other.runs()[0].answered >= sum(told.values())

    with AnswerStore(path) as store:
        options = {"limit": 12, "store": store}
        # In the middle of a batch of 10, and later.
        for least in (1, 30):
            options["should_stop"] = lambda least=least: store.runs()[0].answered >= least
            with pytest.raises(Stopped, match=r"\d of 48 answers .* stored; run the same again"):
                evaluate({"coding": engine}, "demo", on_progress=tell, **options)
            kept = store.runs()[0].answered
            assert least <= kept < least + 9
        seen, options["should_stop"] = [], None
        options["on_progress"] = lambda *event: seen.append(event)
        resumed = evaluate({"coding": engine}, "demo", **options)
    assert verdicts(resumed, "coding") == verdicts(whole, "coding")
    assert resumed.items == whole.items
    # It starts from the answers that were there.
    assert sum(done for _, _, done, _ in seen[:4]) == kept


def test_nothing_finished_is_asked_or_loaded_again(store, monkeypatch):
    models, options = {"base": BASE}, {"limit": 6, "device": "cpu", "store": store}
    first = evaluate(models, "demo", **options)
    monkeypatch.setattr(
        "ram_studio.evals.answering.local.load_model",
        lambda *_: pytest.fail("the model was loaded"),
    )
    again = evaluate({"other name": BASE}, "demo", **options)
    assert verdicts(again, "other name") == verdicts(first, "base")
    fewer = evaluate(models, "demo", **{**options, "limit": 3})
    assert verdicts(fewer, "base")["code"] == verdicts(first, "base")["code"][:3]


def test_a_small_model_is_let_go_without_stopping_every_thread(base_engine):
    begun = []

    def note(phase, info):
        begun.extend([info["generation"]] if phase == "start" else [])

    engine = LocalEngine(base_engine.path)
    list(engine.answer([question()]))
    gc.disable()
    gc.callbacks.append(note)
    try:
        engine.close()
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert 2 not in begun


def test_other_weights_templates_and_seeds_are_asked_anew(tmp_path, base_engine, store):
    folder = make_chat_model(tmp_path / "m")
    engine = LocalEngine(folder, device="cpu")
    before = engine.identity["fingerprint"]
    assert LocalEngine(folder, device="cpu").identity["fingerprint"] == before
    (folder / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert LocalEngine(folder, device="cpu").identity["fingerprint"] != before
    other = make_chat_model(tmp_path / "n", agent="coding")
    assert LocalEngine(other, device="cpu").identity["fingerprint"] != before
    seen = []
    options = {"limit": 2, "store": store, "on_progress": lambda *event: seen.append(event)}
    # What is forgotten is asked again.
    ways = ((1, False, 0, 8), (2, False, 0, 16), (1, False, 2, 16), (1, True, 0, 8))
    for seed, is_rerun, found, kept in ways:
        seen.clear()
        evaluate({"base": base_engine}, "demo", seed=seed, rerun=is_rerun, **options)
        assert seen[0] == ("base", "code", found, 2)
        assert store.runs()[0].answered == kept


@pytest.mark.parametrize(
    ("models", "suites", "options", "message"),
    [
        ({}, "math", {}, "No model"),
        ({"b": BASE}, "trivia", {}, "'trivia'.*Choose from: demo, tool"),
        ({"b": BASE}, " , ", {}, "No suite"),
        ({"b": BASE}, 3, {}, "suites is 3; choose names, with commas"),
        ({"b": BASE}, "math", {"tasks": None}, "tasks is None; choose names, with commas"),
        ({"b": BASE}, "demo,math", {}, "on its own"),
        ({"b": BASE}, "math", {"limit": 0}, "limit is 0"),
        ({"b": BASE}, "math", {"limit": {"math": 0}}, "limit is 0"),
        ({"b": BASE}, "math", {"limit": {"maths": 5}}, "limit is given for suite 'maths', which"),
        ({"b": BASE}, "math", {"batch_size": 0}, "batch_size is 0; choose at least 1"),
        ({"b": BASE}, "math", {"base": "x"}, "'x' is not one of the models: b"),
        ({"b": BASE}, "code", {"code": "off"}, "switched off"),
        ({"b": BASE}, "memory", {"lengths": (50,)}, "too short"),
        ({"b": "/no/such"}, "math", {}, "is not a folder"),
        ({"b": BASE}, "math", {"chat": "template"}, "has no chat template"),
        ({"b": BASE}, "math", {"samples": 2}, "temperature above 0"),
        ({"b": BASE}, "math", {"samples": 0}, "samples is 0; choose 1 to 64"),
        ({"b": BASE}, "math", {"max_tokens": 0}, "max_tokens is 0; choose 1"),
        ({"b": BASE}, "math", {"max_tokens": {"code": 5}}, "'code', which is not asked"),
        ({"b": BASE}, "math", {"temperature": -1.0}, r"temperature is -1.0; choose 0 to 2"),
        ({"b": BASE}, "math", {"top_p": 0}, "top_p is 0; choose more than 0 and at most 1"),
        ({"b": BASE}, "math", {"think_tokens": -1}, "think_tokens is -1; choose at least 0"),
        ({"b": BASE}, "math", {"mode": "memagent"}, "suites has long texts.*memory, ruler-"),
        (
            {"b": BASE},
            "memory",
            {"mode": "memagent", "chunk_tokens": 0},
            "chunk_tokens is 0",
        ),
        ({"b": BASE}, "memory", {"memory_tokens": 0}, "memory_tokens is 0; choose at least 1"),
        ({"b": BASE}, "math", {"top": 1}, "no evaluation setting 'top', did you mean 'top_p'"),
        ({"b": EndpointEngine("http://127.0.0.1:9/v1", "m")}, "health", {}, "needs its logits"),
    ],
)
def test_bad_settings_are_refused(models, suites, options, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate(models, suites, **options)
