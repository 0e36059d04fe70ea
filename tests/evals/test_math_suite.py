"""Mathematics: the shipped answers, finding the number in an answer, and equal answers of MATH."""

import pytest

from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites.mathematics import find_number, judge
from ram_studio.evals.suites.published.math_answers import same
from ram_studio.evals.suites.suite import load_data

QUESTIONS = GENERAL_SUITES["math"].make(SuiteSettings(len))


def test_the_shipped_answers_are_what_their_working_gives():
    for row in load_data("math")[1]:
        assert set(row["working"]) <= set("0123456789+-*/() ")
        assert eval(row["working"]) == float(row["answer"]), row["id"]


def test_right_answers_pass_and_near_ones_do_not():
    for question in QUESTIONS:
        assert judge(question, f"We get it.\nAnswer: {question.gold}").is_correct
        assert not judge(question, f"Answer: {question.gold}1").is_correct
        assert not judge(question, f"Answer: -{question.gold}").is_correct


@pytest.mark.parametrize(("text", "number"), [
    ("Answer: 42", 42), ("Answer: $1,250.50", 1250.5), ("**Answer:** 7 apples", 7),
    ("**Answer: 7**", 7), ("so 3 + 4 = 7\n#### 7", 7), (r"\[ \boxed{12} \]", 12),
    (r"Answer: \boxed{12}", 12), ("The answer is 1,000.", 1000),
    ("First, the answer is 4. Then 4 + 5 = 9. So the answer is 9.", 9),
    (r"\boxed{4} pears and so \boxed{9} in all, from 7", 9),
    ("5 apples and 6 pears make 11.", 11), ("Answer: 3/4", 0.75), ("Answer: -8", -8),
    ("Answer: 5\n\nQuestion: another one. Answer: 9", 5), ("No number here", None),
    ("x2 and v1.", None), ("Answer: 1/0", None), ("9" * 5000, None), ("1,2,3", 3),
    ("Answer: 8 * 12 = 96 books.", 96), (r"Answer: 8 * 12 = \boxed{96} books in 3 boxes", 96),
    (r"Answer: $8 \times 12 = 96$", 96), ("Answer: x = 5", 5), ("Answer: 96 = the total", 96),
    ("#### 8 * 12 = 96", 96), ("The final answer is 8 * 12 = 96.", 96),
    ("Answer: 5. Then they buy 3 + 4 = 7 more.", 5), (r"Step: \boxed{8 * 12 = 96}", 96),
])  # fmt: skip
def test_the_number_of_an_answer_is_found(text, number):
    assert find_number(text) == number


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
