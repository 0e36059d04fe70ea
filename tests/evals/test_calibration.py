"""Calibration: what a record holds, where a model stands beside it, and what is not claimed."""

import random

import pytest
from chat_model import make_chat_model

from ram_studio.app.check import view
from ram_studio.errors import EvaluationError
from ram_studio.evals import Answer, AnswerStore, EvalReport, ModelResult, Question
from ram_studio.evals.calibration import measure as measuring
from ram_studio.evals.calibration.record import (
    SLOTS,
    calibrated,
    load_record,
    make_record,
    not_measured,
    save_record,
    shipped_records,
)
from ram_studio.evals.calibration.standing import rank_agreement, standings
from ram_studio.evals.report.floor import FACT
from ram_studio.evals.suites import ALL_SUITES

WHEN = {"began": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T01:00:00+00:00"}


def report(suite: str = "math", seed: int = 0, **right: int) -> EvalReport:
    """Return models on 60 questions, the named number of them right, in an order of their own."""
    prompts = [f"{suite} {seed} {i}" for i in range(60)]
    asked = [Question(f"q{i}", suite, "kind", p, "1", None, 8) for i, p in enumerate(prompts)]
    models = {}
    for name, count in right.items():
        marks = [i < count for i in range(60)]
        random.Random(name).shuffle(marks)
        facts = [{FACT: ["always '0'"] if i < 3 else []} for i in range(60)]
        answers = [Answer("", mark, facts=own) for mark, own in zip(marks, facts, strict=True)]
        rows = zip(asked, answers, strict=True)
        models[name] = ModelResult.of(name, None, rows, [suite], seconds=0.0)
    return EvalReport.of([suite], seed, {suite: asked}, models)


def record(suite: str = "math", **right: int) -> dict:
    return make_record({suite: report(suite, **right)}, **WHEN, weights="0f", note="made")


def test_a_record_keeps_every_question_and_is_read_back(tmp_path):
    made = record(little=9)
    own = made["suites"]["math"]["domains"]["math"]
    assert (own["n"], own["correct"], own["right"].count("1")) == (60, 9, 9)
    assert (own["floor"], own["nonsense"].count("1")) == (0.05, 3)
    assert made["suites"]["math"]["version"] == ALL_SUITES["math"].version
    path = save_record(made, tmp_path / "little.json")
    assert load_record(path) == made
    assert shipped_records(tmp_path) == (made,)
    for text, said in (
        ('{"format": 2}', "format 2, this version reads 1"),
        ("no", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(EvaluationError, match=said):
            load_record(path)


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (30, "mine on math: between little (10 %, 5 to 20 %, n = 60) and large (93 %, "),
        (8, "not told apart from nonsense (5 %, "),
        (59, "mine on math: above little (10 %, 5 to 20 %, n = 60); not told apart from large"),
    ],
)
def test_a_model_stands_between_beside_or_above_those_that_answered_the_same(right, said):
    known = [record(little=6), record(large=56)]
    (found,) = standings(report(mine=right), records=known)
    assert said in found.sentence()
    assert {one.name for one in found.beside} == {"little", "large", "nonsense"}
    assert found.to_dict()["sentence"] == found.sentence()


def test_the_reports_own_base_counts_and_nothing_is_said_without_the_same_questions():
    both = report(base=20, mine=55)
    mine = standings(both, base="base", records=[record(little=6)])[1]
    assert "above base (33 %" in mine.sentence()
    assert standings(report(mine=30), records=[]) == ()
    assert standings(report(seed=1, mine=30), records=[record(little=6)]) == ()
    other = record(little=6)
    other["suites"]["math"]["version"] += 1
    assert standings(report(mine=30), records=[other]) == ()


def test_rank_agreement_is_not_claimed_of_fewer_than_five_models():
    few = rank_agreement([record(little=6)], "math", "code")
    assert (few["tau"], few["models"]) == (None, [])
    assert "0 measured on both, at least 5 are needed" in few["sentence"]
    five = []
    for i in range(5):
        one = record(**{f"m{i}": 10 * i + 5})
        five.append(one | {"suites": one["suites"] | record("code", **{f"m{i}": 9 * i})["suites"]})
    assert rank_agreement(five, "math", "code")["tau"] == pytest.approx(1.0)
    assert "tau 1.00 over 5 models (p 0.017)" in rank_agreement(five, "math", "code")["sentence"]


def test_what_is_shipped_can_be_read_and_what_is_missing_is_named():
    known = shipped_records()
    assert {one["model"] for one in known} | set(not_measured(known)) == set(SLOTS)
    for one in known:
        for name, suite in one["suites"].items():
            for domain, own in suite["domains"].items():
                assert len(own["questions"]) == len(own["right"]) == own["n"], (name, domain)
                assert own["right"].count("1") == own["correct"]
    page = view.report_html(report(mine=30), ())
    for name in not_measured(known):
        assert name in page


def test_measuring_counts_what_was_asked_in_full_and_goes_on_from_the_store(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(measuring, "FIRST", 2)
    folder = make_chat_model(tmp_path / "model", context=1400)
    with AnswerStore(tmp_path / "s") as store:

        def answered() -> int:
            return sum(run.answered for run in store.runs())

        options = {"suites": ("math-made", "no such"), "should_stop": lambda: answered() >= 3}
        done, failed = measuring.measure(folder, "tiny", store, **options)
        assert {name: found.n for name, found in done.items()} == {"math-made": 2}
        assert list(failed) == ["no such"]
    # What the interrupted round had answered is not in the record.
    made = make_record(done, **WHEN, weights="0f", note="")
    assert len(calibrated([made], "math-made")["tiny"]) == 2
    arguments = [str(folder), "--name", "Tiny", "--suites", "math-made", "--minutes", "0"]
    places = ["--store", str(tmp_path / "s"), "--out", str(tmp_path / "tiny.json")]
    assert measuring.main([*arguments, *places]) == 0
    again = load_record(tmp_path / "tiny.json")
    assert again["suites"] == made["suites"]
