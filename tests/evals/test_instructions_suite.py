"""Instructions that a program can check: at their edges, strict and loose; four accuracies."""

import pytest

from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites.instructions import (
    CHECKS,
    NEED_LANGUAGE,
    accuracies,
    check_instruction,
    judge,
    problem_of,
)

QUESTIONS = {q.id: q for q in GENERAL_SUITES["instructions"].make(SuiteSettings(len))}

# An instruction with its settings, an answer that follows it and one that does not.
INSTRUCTIONS = [
    ("keywords:frequency", {"keyword": "a b", "frequency": 2, "relation": "at least"},
     "A b a b", "a b"),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "seaside", "the Sea."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "less than"},
     "Zoo", "zzz"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"},
     "One.", "One. Two."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"},
     "1. Pi is 3.14.\n2. So", "Pi is 3.14. - !"),
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
    ("detectable_format:title", {}, "x <<>> <<a b>>", "<< >>"),
    ("detectable_format:title", {}, "<<a>>", "<<a\nb>>"),
    ("keywords:existence", {"keywords": ["moss", "it's"]}, "Mossy, it’s", "moss"),
    ("startend:end_checker", {"end_phrase": "End. "}, '"x end."\n', "End"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it. "}, "say it. No.", "No."),
    ("startend:quotation", {}, '"a"', '"a'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "A BIG house", "A big house"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]  # fmt: skip


def strict(text, name, **settings):
    return check_instruction(text, name, settings)[0]


@pytest.mark.parametrize(("name", "settings", "good", "bad"), INSTRUCTIONS)
def test_instructions_are_checked_by_their_authors_rules(name, settings, good, bad):
    assert strict(good, name, **settings)
    assert check_instruction(bad, name, settings) == (False, False)
    assert not strict(" \n", name, **settings)


def test_shipped_questions_have_known_instructions():
    specs = [own for question in QUESTIONS.values() for own in question.spec]
    for own in specs:
        assert problem_of(own["check"], own["settings"]) == ""
        # No library that may be missing is asked.
        assert own["check"] not in NEED_LANGUAGE
        assert check_instruction("", own["check"], own["settings"]) == (False, False)
    assert len({own["check"] for own in specs}) == len(CHECKS) - len(NEED_LANGUAGE)


@pytest.mark.parametrize(("text", "loosely"), [
    ("Sure, here it is:\nall small", True), ("all small\nSo, hope that helps!", True),
    ("Sure, so:\nall small\nBye, all!", True), ("a, b\nc, d\ne, f", False),
    # A line break at the end makes an empty last line, which is the one left out.
    ("all small\nBye, all!\n", False),
])  # fmt: skip
def test_loose_leaves_out_greetings_closing_lines_and_bold(text, loosely):
    assert check_instruction(text, "punctuation:no_comma", {}) == (False, loosely)
    start = ("combination:repeat_prompt", {"prompt_to_repeat": "Once"})
    assert check_instruction("**Once** there was", *start) == (False, True)


def test_the_verdict_is_strict_and_per_prompt():
    question = QUESTIONS["letters-06"]
    assert judge(question, "high " * 20).is_correct
    verdict = judge(question, "a cup, warm")
    assert not verdict.is_correct
    assert verdict.note == "not followed: punctuation:no_comma, length_constraints:number_words"
    assert verdict.facts == {"strict": [False, False], "loose": [False, False]}


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
