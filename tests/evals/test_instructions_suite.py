"""Verifiable constraints: each check at its edges, strict and loose, and the four accuracies."""

import pytest

from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites.constraints import CHECKS, holds, holds_loosely, words
from ram_studio.evals.suites.instructions import accuracies, judge

QUESTIONS = {q.id: q for q in GENERAL_SUITES["instructions"].make(SuiteSettings(len))}

CASES = [
    ("word_count", {"least": 2, "most": 3}, ["one two", "one, two - three!"], ["one", "a b c d"]),
    ("word_count", {"most": 2}, ["it's fine", "well-known fact"], ["1 2 3"]),
    ("sentence_count", {"least": 2, "most": 2},
     ["One. Two!", "Pi is 3.14. So?", '"One." (Two.)', "One. Two", "1. One.\n2. Two."],
     ["One.", "No", "1. One."]),
    ("paragraph_count", {"exactly": 2}, ["a\n\nb", "a\nb\n \n\nc\n"], ["a", "a\nb", "a\n\nb\n\nc"]),
    ("line_count", {"exactly": 2}, ["a\nb", "a\n\nb\n"], ["a b", "a\nb\nc"]),
    ("bullet_count", {"exactly": 2}, ["- a\n- b", "x:\n* a\n  * b"],
     ["- a", "-a\n-b", "1. a\n2. b", "• a\n• b"]),
    ("numbered_count", {"exactly": 2}, ["1. a\n2. b", "1) a\n2) b"], ["1. a", "- a\n- b"]),
    ("includes", {"phrases": ["moss", "red fox"]}, ["Moss! A red fox.", "mossy red foxes"],
     ["moss", "red moss, fox"]),
    ("excludes", {"phrases": ["big"]}, ["bigger"], ["Big.", "a big one", "big-boned"]),
    ("occurs", {"phrase": "ab", "least": 1, "most": 2}, ["ab c", "AB, abc"], ["b", "ab ab ab"]),
    ("letter_occurs", {"letter": "z", "least": 2}, ["zoo Zebra"], ["zoo"]),
    ("letter_occurs", {"letter": "x", "most": 0}, ["abc"], ["X"]),
    ("starts_with", {"phrase": "Once"}, ["Once upon", " once"], ["one", "So. Once"]),
    ("ends_with", {"phrase": "End."}, ["x End.", "End.\n", '"x end."'], ["End", "End. x"]),
    ("lowercase", {}, ["abc, 1"], ["Abc", "123"]),
    ("uppercase", {}, ["ABC, 1"], ["ABc", "123"]),
    ("without", {"marks": "!,"}, ["a b."], ["a,b", "a!"]),
    ("quoted", {}, ['"a b"', "“a”"], ['a "b"', '"', '""']),
    ("titled", {}, ["<<a b>>\ntext"], ["<a>", "<<>>", "<< >>", "<<a\nb>>"]),
    ("highlighted", {"least": 2}, ["*a* and **b c**", "***a*** *b*"], ["*a*", "* a\n* b", "** **"]),
    ("placeholders", {"least": 2}, ["[a] [b]", "[a] [a]"], ["[a]", "[] []"]),
    ("one_of", {"options": ["yes", "no"]}, ["Yes.", " no "], ["yes, it is", "y"]),
    ("json_object", {"keys": ["a"]}, ['{"a": 1}', '```json\n{"a": 1}\n```'],
     ["{}", '["a"]', "{'a': 1}"]),
    ("parts", {"separator": "***", "exactly": 2}, ["a***b"], ["a", "a***", "a***b***c", "a *** a"]),
]  # fmt: skip


@pytest.mark.parametrize(("check", "settings", "right", "wrong"), CASES)
def test_a_constraint_holds_for_the_right_answers_only(check, settings, right, wrong):
    constraint = {"check": check, **settings}
    for text in right:
        assert holds(text, constraint), text
    for text in wrong:
        assert not holds(text, constraint), text
    assert not holds(" \n", constraint)


def test_every_check_is_tested_and_used_with_settings_that_fit_it():
    assert {case[0] for case in CASES} == set(CHECKS)
    constraints = [constraint for question in QUESTIONS.values() for constraint in question.spec]
    assert {constraint["check"] for constraint in constraints} == set(CHECKS)
    for constraint in constraints:
        assert not holds("", constraint)
        holds("Once upon a time.", constraint)  # a wrong keyword would raise


def test_loose_leaves_out_greetings_closing_lines_and_bold_type():
    lower = {"check": "lowercase"}
    assert not holds("Sure! Here it is:\nall small", lower)
    assert holds_loosely("Sure! Here it is:\nall small", lower)
    assert holds_loosely("all small\nHope that helps!", lower)
    assert holds_loosely("Sure:\nall small\nBye!", lower)
    assert holds_loosely("**Once** there was", {"check": "starts_with", "phrase": "Once"})
    assert not holds_loosely("Not Small\nNor This\nOr That", lower)
    assert not holds_loosely("", lower)
    # A line break at the end makes an empty last line, which is the one left out.
    assert not holds_loosely("all small\nBye!\n", lower)


def test_the_verdict_is_strict_and_per_prompt():
    question = QUESTIONS["letters-04"]
    assert judge(question, "a cup of coffee").is_correct
    verdict = judge(question, "a cup, warm")
    assert not verdict.is_correct
    assert verdict.note == "not kept: without marks ,"
    assert verdict.facts == {"strict": [True, False], "loose": [True, False]}


def test_the_four_accuracies():
    facts = [
        {"strict": [True, True], "loose": [True, True]},
        {"strict": [True, False], "loose": [True, True]},
        {"strict": [False], "loose": [False]},
    ]
    expected = {"prompt_strict": 1 / 3, "instruction_strict": 3 / 5,
                "prompt_loose": 2 / 3, "instruction_loose": 4 / 5}  # fmt: skip
    assert accuracies(facts) == pytest.approx(expected)
    assert accuracies([]) == {}


def test_words_are_runs_of_letters_and_digits():
    assert words("It's 3 well-known café!") == ["it's", "3", "well-known", "café"]
