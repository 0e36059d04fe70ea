"""Mathematics: right and near answers, and finding the number in an answer."""

import pytest

from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites.mathematics import find_number, judge

QUESTIONS = GENERAL_SUITES["math"].make(SuiteSettings(len))


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
    (r"Answer: $1{,}000$", 1000), (r"\boxed{2{,}345{,}678}", 2345678), (r"\boxed{12,\!000}", 12000),
    (r"Answer: 12\,000 apples", 12000), (r"Answer: 3\,kg", 3), ("Answer: \N{MINUS SIGN}5", -5),
    ("Answer: 10\N{MINUS SIGN}7 = 3", 3),
    (r"\boxed{\frac{48}{2}} apples", 24), (r"So it is $-\dfrac{1}{2}$.", -0.5),
    (r"Answer: 2\frac{1}{2}", 2.5), (r"Answer: $2 \tfrac{1}{2}$", 2.5), (r"\frac{1}{0}", None),
    (r"3.5\frac{1}{2}", 2), ("1e3", 1),  # as math-verify and lm-eval read it
    ("Answer: 5. Then they buy 3 + 4 = 7 more.", 5), (r"Step: \boxed{8 * 12 = 96}", 96),
])  # fmt: skip
def test_the_number_of_an_answer_is_found(text, number):
    assert find_number(text) == number
