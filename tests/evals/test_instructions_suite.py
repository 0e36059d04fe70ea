"""Verifiable constraints, ours and IFEval's: at their edges, strict and loose; four accuracies."""

import pytest

from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites.constraints import CHECKS, holds, holds_loosely, words
from ram_studio.evals.suites.instructions import accuracies, judge
from ram_studio.evals.suites.published import ifeval_checks

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


# An instruction with its settings, an answer that follows it and one that does not.
INSTRUCTIONS = [
    ("keywords:frequency", {"keyword": "a b", "frequency": 2, "relation": "at least"},
     "A b a b", "a b"),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "seaside", "the Sea."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "less than"},
     "Zoo", "zzz"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"},
     "One.", "One. Two."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_words", {"num_words": 4, "relation": "at least"},
     "it's well-known", "it is so"),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}, "a\n\nSo, b", "so\n\nb"),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[name]", "name"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\nP. S. y", "x PS y"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "yes"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "*a*", "**"),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2},
     "SECTION 1\na\nSECTION 2\nb", "SECTION 1\na"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a}"),
    ("detectable_format:title", {}, "<<T>>\nx", "<T>"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it. "}, "say it. No.", "No."),
    ("startend:quotation", {}, '"a"', '"a'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "A BIG house", "A big house"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "good", "bad"), INSTRUCTIONS)
def test_instructions_are_checked_by_their_authors_rules(name, settings, good, bad):
    assert ifeval_checks.followed(good, name, settings)[0]
    assert ifeval_checks.followed(bad, name, settings) == (False, False)
    assert ifeval_checks.followed(" \n", name, settings)[0] is False
