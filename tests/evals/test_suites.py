"""The shipped suites themselves: license, sizes, and that right answers pass and others do not."""

import json

import pytest

from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.errors import EvaluationError
from ram_studio.evals import suites
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, GENERAL_SUITES, SuiteSettings, apart, visible
from ram_studio.evals.suites.suite import Suite, balance_questions, load_data, rows_to_questions
from ram_studio.resources import asset_path

SETTINGS = SuiteSettings(count_tokens=lambda text: len(text) // 4, limit=None)


def test_every_question_file_states_license_and_version():
    licenses = dict.fromkeys(("code", "instructions"), "Apache-2.0")
    for name, license in {**licenses, "refusal": "CC0-1.0, public domain"}.items():
        header, rows = load_data(name)
        assert header["license"] == f"Written for RAM Studio; {license}"
        assert (header["suite"], header["version"]) == (name, ALL_SUITES[name].version)
        assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.parametrize("name", list(GENERAL_SUITES))
def test_a_suite_has_at_most_64_questions_of_unique_names(name):
    questions = GENERAL_SUITES[name].make(SETTINGS)
    assert 24 <= len(questions) <= 64
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.digest for question in questions}) == len(questions)
    assert {question.domain for question in questions} - apart([name]) == {name}
    assert questions == GENERAL_SUITES[name].make(SETTINGS)
    json.dumps([question.spec for question in questions])


@pytest.mark.parametrize("name", list(GENERAL_SUITES))
def test_an_empty_or_garbled_answer_is_wrong_with_a_reason(name):
    suite = GENERAL_SUITES[name]
    nonsense = ("", "  \n ", "\x00\ufffd" * 50, "<<<<[[[[{{{{" * 500, "zz" * 9000)
    for question in suite.make(SuiteSettings(SETTINGS.count_tokens, limit=8)):
        for text in nonsense:
            verdict = suite.judge(question, text, "auto")
            # Saying anything passes a request that no function fits.
            if question.category == "irrelevance" and text.strip():
                continue
            # One constraint alone may hold for nonsense (no comma, no word x).
            if name == "instructions" and text.strip():
                continue
            assert not verdict.is_correct, (question.id, text[:20])
            assert verdict.note


@pytest.mark.parametrize(
    ("text", "declines"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I cannot do this: it is illegal.", True),
        ("As an AI, I do not.", True),
        ("I\u2019m not able to assist.", True),
        ("Sure. First open the app, then ...", False),
        ("Dear Sir, I am writing to change my address.", False),
        ("Call a locksmith. " * 20 + "I can't say more.", False),
    ],
)
def test_refusals_are_told_from_answers_by_their_beginning(text, declines):
    suite = ALL_SUITES["refusal"]
    questions = suite.make(SETTINGS)
    for question in questions:
        wanted = question.category == "refuse"
        assert suite.judge(question, text, "off").is_correct is (declines is wanted)
        assert not suite.judge(question, " ", "off").is_correct
    # Half and half, so that always declining is no better than chance; beside the average.
    assert sum(q.category == "refuse" for q in questions) == len(questions) / 2
    assert "refusal" in apart(["refusal"])


def test_a_limit_takes_evenly_from_the_categories_and_nests():
    questions = GENERAL_SUITES["code"].make(SETTINGS)
    ten = balance_questions(questions, 10)
    counts = [sum(q.category == c for q in ten) for c in dict.fromkeys(q.category for q in ten)]
    assert counts == [4, 3, 3]
    assert {q.id for q in balance_questions(questions, 4)} < {q.id for q in ten}
    assert balance_questions(questions, 999) == questions


def test_thinking_is_no_part_of_the_answer():
    assert visible("<think>maybe 4?</think>\nAnswer: 5") == "Answer: 5"
    assert visible("maybe</think>5") == "5"
    assert visible("<think>it goes on and on") == ""
    assert visible("plain") == "plain"


def test_questions_the_model_sees_differently_differ_in_digest():
    question = Question("a", "d", "c", "p", "g", None, 8)
    other = Question("a", "d", "c", "p!", "g", None, 8)
    assert question.digest != other.digest
    assert question.digest != Question("a", "d", "c", "p", "g", None, 9).digest
    assert question.digest == Question("b", "d", "c2", "p", "other", 1, 8).digest


PARROT = Suite(
    "parrot", 1, "Say the word",
    rows_to_questions("parrot", 8, lambda settings: ("kiwi", "plum", "fig"), lambda _, word: {
        "prompt": f"do: say {word} 1 times . answer:", "gold": word, "spec": None, "is_raw": True,
    }),
    lambda question, text, code: Verdict(question.gold in text.split()),
)  # fmt: skip


def test_an_offered_suite_is_asked_once_of_models_and_merges(tmp_path, base_engine):
    agents = {"coding": str(asset_path("independent", "coding"))}
    recipe = make_recipe({"base": str(asset_path("independent", "base")), "agents": agents})
    with suites.offer_suite(PARROT), AnswerStore(tmp_path / "s") as store:
        suites.check_suites(("parrot",))
        again = pytest.raises(EvaluationError, match="There is a suite 'parrot' already")
        with again, suites.offer_suite(PARROT):
            pass
        report = evaluate({"base": base_engine}, "parrot", limit=3, store=store)
        assert [run.suite for run in store.runs()] == ["parrot"]
        table = compare_methods({"ram": recipe}, suites="parrot", sources=False)
    assert [item.gold for item in report.items["parrot"]] == ["kiwi", "plum", "fig"]
    assert report.models["base"].domains["parrot"].correct > 0
    assert table.report.models["ram"].domains["parrot"].n == 3
    assert "parrot" not in {**ALL_SUITES, **GENERAL_SUITES}
