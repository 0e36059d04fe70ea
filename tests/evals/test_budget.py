"""Answer budgets, draws, tools of servers, and answers that are stored as they end."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from loopback_endpoint import serve

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.engine import Decoding
from ram_studio.evals.answering.local import LocalEngine, _Budget
from ram_studio.evals.question import CLUSTER, SAMPLES, TIMED_OUT, Answer
from ram_studio.evals.report.eval_result import EvalResult, Outcomes
from ram_studio.evals.report.score import Average, DomainScore, as_json, sample_scores
from ram_studio.evals.run import evaluate
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings
from ram_studio.resources import asset_path

BASE = asset_path("independent", "base")


def test_stored_answers_are_reported_without_a_model_or_torch(tmp_path):
    path = tmp_path / "s"
    with AnswerStore(path) as store:
        first = evaluate({"m": BASE}, limit=2, store=store)
    program = (
        "import json, sys\n"
        "from ram_studio.evals.report.eval_result import EvalResult\n"
        "from ram_studio.evals.report.score import as_json\n"
        "from ram_studio.evals.run import evaluate\n"
        "from ram_studio.evals.store import AnswerStore\n"
        "from ram_studio.evals.report.skill_verdict import skill_verdicts\n"
        f"models = dict.fromkeys('mno', {str(BASE)!r})\n"
        f"report = evaluate(models, limit=2, store=AnswerStore({str(path)!r}))\n"
        "assert not {'torch', 'transformers', 'scipy'} & set(sys.modules), 'loaded'\n"
        # Tests between models take scipy's functions, and nothing that takes a second to import.
        "apart = {'code': 'n'}\n"
        "assert report.compare_all(base='m', specialists=apart)\n"
        "assert skill_verdicts(report, apart, 'm')\n"
        "assert not {'torch', 'pandas', 'scipy.stats', 'statsmodels'} & set(sys.modules), 'slow'\n"
        "print(json.dumps(as_json(EvalResult.of(report))['models']['m']['domains']))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
    assert json.loads(out) == as_json(EvalResult.of(first))["models"]["m"]["domains"]


def test_samples_are_each_questions_own_in_the_store():
    engine = LocalEngine(BASE, device="cpu")
    questions = ALL_SUITES["demo"].make(SuiteSettings(len, 2, 1))

    def said(asked, **how):
        engine.decoding = Decoding(**how)
        return {q.id: r.text for batch in engine.answer(asked) for q, r in batch}

    together = said(questions, temperature=1.0, seed=3)
    assert said(questions[3:4], temperature=1.0, seed=3).items() <= together.items()
    assert together != said(questions, temperature=1.0, seed=4)
    assert said(questions, temperature=1.0, top_p=1e-9) == said(questions)
    drawn = (Decoding(1.0), Decoding(1.0, 0.95), Decoding(1.0, 0.95, 1))
    ways = (Decoding(), Decoding(think_tokens=8), *drawn)
    keys = [json.dumps(dict(engine.identity)) for engine.decoding in ways]
    assert len(set(keys)) == len(keys)
    # What was stored before there were budgets is found again.
    assert not {"temperature", "think_tokens"} & set(json.loads(keys[0]))
    engine.close()


def test_thinking_has_a_budget_apart_from_the_answers():
    spelled = SimpleNamespace(decode=lambda row, **_: "".join(row))

    def length(text: str, prompt: str = "", think: int = 20, limit: int = 4) -> int:
        engine = SimpleNamespace(tokenizer=spelled, decoding=Decoding(think_tokens=think))
        budget = _Budget(engine, prompt, limit)
        return next((n for n in range(1, len(text) + 1) if budget.is_spent(list(text[:n]))), 0)

    thought = "<think>hm</think>"
    assert length(f"{thought}answer") == len(thought) + 4
    assert length("answer at once") == 4
    assert length("<think>" + "so " * 20) == 20
    assert length("so</think>answer", prompt="Hi<think>\n") == len("so</think>") + 4
    assert length(f"{thought}answer", think=0) == 4


def test_servers_that_refuse_functions_get_them_in_words():
    refusals = (
        (400, b'{"message": "tool choice requires --enable-auto-tool-choice"}'),
        (404, b'{"message": "No endpoints found that support tool use"}'),
    )
    for refusal in ("[]", *refusals):
        is_native = refusal == "[]"
        with serve(lambda body, said=refusal: said if "tools" in body else "[]") as server:
            found = evaluate({"m": EndpointEngine(server.url, parallel=1)}, "tool", limit=3)
            bodies = [body for _, _, body in server.requests]
        assert ("tools" in bodies[-1]) is is_native
        assert ("JSON schemas" in bodies[-1]["messages"][0]["content"]) is not is_native
        # It is refused once.
        assert len(bodies) == (3 if is_native else 4)
        assert found.models["m"].domains["tool"].n == 3


def test_several_samples_make_a_mean_and_pass_at_k():
    first = ALL_SUITES["math"].make(SuiteSettings(len, 3, 2026))[0]

    def answer(body):
        assert (body["temperature"], body["top_p"]) == (1.0, 0.95)
        assert body["max_tokens"] == 77 + 100
        return f"Answer: {first.gold if body['seed'] == 2027 else 'no'}"

    options = {"limit": 3, "samples": 2, "max_tokens": {"math": 77}}
    options |= {"temperature": 1.0, "top_p": 0.95, "think_tokens": 100}
    with serve(answer) as server:
        models = {"m": EndpointEngine(server.url)}
        report = evaluate(models, "math", **options)
        assert len(server.requests) == 6
    right = sum(q.gold == first.gold for q in report.items["math"])
    assert report.models["m"].domains["math"].correct == 0
    found = EvalResult.of(report).models["m"].domains["math"].samples
    assert (found.samples, found.questions) == (2, 3)
    assert found.pass_at == {"1": right / 6, "2": right / 3}


def test_pass_at_k_is_the_unbiased_estimate():
    answers = [
        Answer("", True, facts={SAMPLES: [i < right for i in range(4)]}) for right in (0, 1, 4)
    ]
    found = sample_scores(answers)
    assert found.mean == pytest.approx(5 / 12)
    assert found.pass_at == pytest.approx({"1": 5 / 12, "2": (0 + 0.5 + 1) / 3, "4": 2 / 3})
    assert sample_scores([Answer("", True)]) is None


def test_a_judge_without_time_counts_as_wrong_and_is_counted():
    late = Answer("x", False, facts={TIMED_OUT: True})
    assert DomainScore.of([late, Answer("", True)]) == DomainScore(2, 1)
    assert Outcomes.of([late, Answer("", True)]).timed_out == 1


def drawn(shares, samples):
    """Return answers of which so many of the samples are right."""
    rights = (round(share * samples) for share in shares)
    return [Answer("", True, facts={SAMPLES: [i < r for i in range(samples)]}) for r in rights]


def test_mean_over_samples_has_an_interval_where_all_are_right():
    low, high = sample_scores(drawn([1.0] * 60, 4)).ci95
    # 60 of 60 have 0.940 to 1 after Wilson.
    assert (0.93 < low < 0.96, high) == (True, 1.0)
    low, high = sample_scores(drawn([0.0] * 60, 4)).ci95
    assert (low, 0.04 < high < 0.07) == (0.0, True)


@pytest.mark.parametrize("right", [10, 9, 5, 0])
def test_alike_questions_of_a_document_count_once(right):
    alone = drawn([float(i < right) for i in range(10)], 4)
    facts = [{**answer.facts, CLUSTER: str(i)} for i, answer in enumerate(alone)]
    alike = [replace(answer, facts=own) for answer, own in zip(alone, facts, strict=True)] * 8
    assert sample_scores(alike).ci95 == pytest.approx(sample_scores(alone).ci95)
    if right in (0, 10):  # an error is estimated from clusters elsewhere
        other = DomainScore(200, 180)
        means = [Average.over([DomainScore.of(own), other]) for own in (alike, alone)]
        assert means[0].ci95 == pytest.approx(means[1].ci95)


@pytest.mark.parametrize("alike", [0.1, 0.7, 1.0])
@pytest.mark.parametrize("mean", [0.5, 0.95, 0.995])
def test_interval_of_the_mean_over_samples_covers_the_truth(mean, alike):
    # alike: correlation of the draws of one question. Before: 0.095 to 0.94 of 20 questions.
    rng = np.random.default_rng(1)
    strength = 1 / alike - 1
    shape = (1500, 20)
    chance = (
        rng.beta(mean * strength, (1 - mean) * strength, shape)
        if strength
        else rng.random(shape) < mean
    )
    shares = rng.binomial(4, chance) / 4
    ends = [sample_scores(drawn(row, 4)).ci95 for row in shares]
    assert np.mean([low <= mean <= high for low, high in ends]) >= 0.93


def test_lengths_and_budgets_are_read_for_all_suites_or_each():
    asked = EvalSettings(suites="math, tool,math", lengths="1k, 4000,128K")
    assert (asked.suites, asked.lengths) == (("math", "tool"), (1000, 4000, 128000))
    for name in ("limit", "max_tokens"):
        for given, meant in (
            (None, None),
            (["512"], 512),
            (["math=1024", "tool=64"], {"math": 1024, "tool": 64}),
        ):
            assert getattr(EvalSettings(suites="math,tool", **{name: given}), name) == meant
        for bad, told in (
            (["x"], "'x'"),
            (["math=-1"], "'math=-1'"),
            (["512", "math=4"], "'512 math=4'"),
            (0, "0"),
            ({"math": 0}, "0"),
        ):
            with pytest.raises(
                EvaluationError, match=f"{name} is {told}; choose 1 or more, or SUITE=N"
            ):
                EvalSettings(suites="math", **{name: bad})
    with pytest.raises(EvaluationError, match="lengths is 'many'; choose lengths in tokens"):
        EvalSettings(lengths="many")


def test_fields_beside_whole_settings_count():
    whole = EvalSettings(suites="math,tool", limit={"math": 9}, lengths="1k", seed=3)
    assert EvalSettings.of(whole) is whole
    found = EvalSettings.of(whole, samples=2, temperature=1.0)
    assert found == EvalSettings(**{**dict(whole), "samples": 2, "temperature": 1.0})
    with pytest.raises(EvaluationError, match="samples is 0"):
        EvalSettings.of(whole, samples=0)
