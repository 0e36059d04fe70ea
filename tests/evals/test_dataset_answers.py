"""What two published benchmarks hold right: equal answers of mathematics, instructions followed."""

import pytest

from ram_studio.evals.suites.published import ifeval_checks
from ram_studio.evals.suites.published.math_answers import same


@pytest.mark.parametrize(("said", "wanted"), [
    (r"\dfrac{1}{2}", "0.5"), (r"\frac12", "1/2"), ("1,000", "1000"), (r"10\text{ cm}", "10"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"), (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"90^\circ", "90"), (r"\text{Evelyn}", "evelyn"), ("x=5", "5"), ("x^2+2x+1", "(x+1)^2"),
    (r"(-\infty,3]", r"(-\infty, 3]"), ("3, 5", "5,3"), (r"\{1,2\}", "2,1"), (r"50\%", "50"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ \frac{4}{2} \end{pmatrix}"),
    ("C", r"\text{(C)}"), (r"\$18.90", "18.9"), (r"\sqrt[3]{8}", "2"), ("3+4i", "4i+3"),
    (r"2\frac{1}{3}", r"\frac73"), ("5!", "120"), (r"[2,5)\cup(5,8]", r"(5,8]\cup[2,5)"),
    ("12 square units", "12"),
    (r"$15\mbox{ cm}^2$", "15"), (r"\frac{3}{2}\pi", r"\frac{3\pi}{2}"), ("f(x)=x+1", "x+1"),
])  # fmt: skip
def test_equal_answers_of_mathematics_are_the_same(said, wanted):
    assert same(said, wanted)
    assert same(wanted, said)


@pytest.mark.parametrize(("said", "wanted"), [
    ("1/3", "0.333"), ("(3,5)", "(5,3)"), ("[3,5)", "(3,5)"), ("", "3"), ("5", "-5"), ("A", "B"),
    ("1000000000001", "1000000000000"), ("x+1", "x+2"), ("9^{9^{9^9}}", "3"), ("x=2", "y"),
    (r"\frac{1}{0}", "1"), ("52", "52_8"), ("(" * 399, "3"), ("{" * 390, "{" * 389 + "1"),
    ("__import__('os')", "1"), ("3,5", "3,5,7"), ("e", "2.718281"), ("171!", "5"),
])  # fmt: skip
def test_other_answers_are_not_and_none_takes_long(said, wanted):
    assert not same(said, wanted)
    assert not same(wanted, said)


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
