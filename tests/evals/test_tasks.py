"""Prompts are reproducible and held out; verifiers are strict and survive any text."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.errors import EvaluationError
from ram_studio.evals.suites.demo import code, tool
from ram_studio.evals.suites.demo import tasks as demo
from ram_studio.evals.suites.demo.item import Item, without_full_stop
from ram_studio.evals.suites.demo.tasks import (
    DOMAINS,
    SKILL_DOMAINS,
    draw_item,
    make_items,
    score,
    split_of,
)
from ram_studio.evals.suites.suite import SuiteSettings

N = 120


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_gold_answer_scores_and_another_items_gold_rarely(domain):
    items = make_items(domain, N, 1)
    assert all(score(item, item.gold) and score(item, f" {item.gold}\n") for item in items)
    shifted = [score(item, other.gold) for item, other in pairwise(items)]
    # A memory answer is one of 16 words, so an untrained model may be right by chance.
    assert sum(shifted) <= (N // 6 if domain == "memory" else 1)


@pytest.mark.parametrize("domain", DOMAINS)
def test_questions_depend_on_domain_seed_and_split_alone(domain):
    items = make_items(domain, N, 5)
    assert make_items(domain, N, 5) == items
    assert make_items(domain, 10, 5) == items[:10]
    assert make_items(domain, N, 6) != items
    assert make_items(domain, 0, 5) == []
    for split in ("test", "validation"):
        prompts = {item.prompt for item in make_items(domain, N, 3, split)}
        assert len(prompts) == N
        assert {split_of(prompt) for prompt in prompts} == {split}
        rng = random.Random(0)
        assert not prompts & {draw_item(domain, rng, "train").prompt for _ in range(500)}


@pytest.mark.parametrize("domain", SKILL_DOMAINS)
def test_three_of_four_skill_items_are_hard(domain):
    # 400 draws at 0.75: a share outside 0.65-0.85 has probability below 1e-5.
    share = sum(item.is_hard for item in make_items(domain, 400, 9)) / 400
    assert 0.65 < share < 0.85


@pytest.mark.parametrize(("ending", "is_right", "is_styled"), [
    ("", True, False), (" .", True, True), (" .\n", True, True),
    (" . .", False, False), (" . and", False, False), (".", False, False),
])  # fmt: skip
def test_a_right_answer_with_a_full_stop_passes(ending, is_right, is_styled):
    for question in demo.make(SuiteSettings(len, limit=20)):
        if question.domain != "memory":
            answer = question.gold + ending
            assert demo.judge(question, answer).is_correct is is_right
            assert without_full_stop(answer) == (question.gold if is_styled else None)
            assert not demo.judge(question, " .").is_correct


def test_the_suite_asks_the_items_of_a_split_as_they_stand():
    for split in ("test", "validation"):
        asked = demo.make(SuiteSettings(len, limit=5, seed=2026), split)
        items = [item for domain in DOMAINS for item in make_items(domain, 5, 2026, split)]
        assert [(q.prompt, q.gold, q.is_raw) for q in asked] == [
            (item.prompt, item.gold, True) for item in items
        ]


def test_bad_requests_say_what_to_choose():
    with pytest.raises(EvaluationError, match=r"'poetry'.*code, tool, memory, follow"):
        make_items("poetry", 1, 0)
    with pytest.raises(EvaluationError, match="-1 items"):
        make_items("code", -1, 0)
    with pytest.raises(EvaluationError, match=r"50000 were asked.*limit to \d+"):
        make_items("tool", 50_000, 0)


CODE = Item("code", "", "(x+9)*5", True, (("plus", 9), ("times", 5)))
SCHEMA, CALLS = (("clock", "loc"), ("shop", "thing")), (("shop", "nut"), ("clock", "delhi"))
TOOL = Item("tool", "", "shop(thing=nut); clock(loc=delhi)", True, (SCHEMA, CALLS))
TWICE = Item("tool", "", "", True, (SCHEMA[:1], (("clock", "oslo"),) * 2))
MEMORY = Item("memory", "", "kiwi", False, ((("amy", "fig"), ("bob", "kiwi")), "bob"))
# Equal expressions; calls in any order; a short answer with the value.
RIGHT = [
    *((CODE, t) for t in ("(x+9)*5", "5*(x+9)", "5*x+45", "x*5+45", "-(-x-9)*5", "(9+x)*5")),
    *((TOOL, t) for t in (TOOL.gold, "clock( loc = delhi );shop(thing=nut)")),
    (TWICE, "clock(loc=oslo); clock(loc=oslo)"),
    *((MEMORY, t) for t in ("kiwi", " kiwi .", "bob kiwi", "kiwi kiwi")),
]
WRONG = {
    "code": (
        "x+9*5", "", "x", "(x+9)*5 # yes", "f(x)", "(x+9)*5 or 1", "x**2", "(x+9)*05", "5x+45",
        "0x5", "(x+9)*5.0", "(x+9)*5\x00", "__import__('os').system('true')",
        "(" * 5000 + "x" + ")" * 5000, "(" * 99 + "x" + ")" * 99, "-" * 180 + "x", "9" * 5000,
        "x*9999999", "x" * 150,
    ),
    "tool": (
        "shop(thing=nut)", "shop(thing=nut); shop(thing=nut); clock(loc=delhi)",
        "shop(item=nut); clock(loc=delhi)", "shop(thing=nut); clock(loc=oslo)",
        "shop(nut); clock(delhi)", "shop(thing='nut'); clock(loc=delhi)",
        "shop(thing=nut, loc=delhi); clock(loc=delhi)", "shop(**nut); clock(loc=delhi)",
        "shop(thing=nut, thing=nut); clock(loc=delhi)", "shop(thing=nut); clock(loc=delhi);",
        "shop(" * 30 + ")" * 30, ";" * 150,
    ),
    # Other values, several of them, or talking long.
    "memory": ("", "fig", "kiwi fig", "fig kiwi", "amy fig . bob kiwi .", "kiwifruit",
               "a b c kiwi"),
}  # fmt: skip


@pytest.mark.parametrize(("item", "text"), RIGHT)
def test_right_answers_score_in_every_form(item, text):
    assert score(item, text)


@pytest.mark.parametrize(("item", "text"), [
    *((item, text) for item in (CODE, TOOL, MEMORY) for text in WRONG[item.domain]),
    (TWICE, "clock(loc=oslo)"),
])  # fmt: skip
def test_wrong_malformed_or_hostile_answers_do_not_score(item, text):
    assert not score(item, text)


def test_flat_expression_is_wrong_exactly_when_brackets_matter():
    for item in make_items("code", 300, 4):
        assert score(item, code.flat(item.spec)) is not item.is_hard


def test_saying_the_last_value_never_passes_on_hard_items():
    for item in make_items("memory", 200, 8):
        facts, asked = item.spec
        assert dict(facts)[asked] == item.gold
        if item.is_hard:
            assert not score(item, facts[-1][1])


def test_retention_shares_no_prompt_with_a_skill():
    follow = {item.prompt for item in make_items("follow", 300, 1)}
    assert all(prompt.startswith("do: ") for prompt in follow)
    for domain in SKILL_DOMAINS:
        assert not any(item.prompt.startswith("do: ") for item in make_items(domain, 300, 1))


HOSTILE = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="x0123456789+-*() ", max_size=220),
    st.text(alphabet="abshopclk_(),;= \t\n\x00", max_size=220),
    st.builds(lambda text, times: text * times, st.text(max_size=4), st.integers(0, 20_000)),
    st.builds(lambda depth: "(" * depth + "x" + ")" * depth, st.integers(0, 3000)),
)


@given(domain=st.sampled_from(DOMAINS), index=st.integers(0, 19), text=HOSTILE)
def test_verifiers_never_raise_and_return_a_bool(domain, index, text):
    assert score(_ITEMS[domain][index], text) in (True, False)


_ITEMS = {domain: make_items(domain, 20, 2) for domain in DOMAINS}


@given(text=st.text(alphabet="x0123456789+-*() ", max_size=60))
def test_an_accepted_expression_really_has_the_right_values(text):
    if score(CODE, text):
        # The text passed a filter that allows nothing but digits, x, + - * and brackets.
        assert all(eval(text, {"x": x}) == (x + 9) * 5 for x in range(-5, 30))


def test_parsing_calls_gives_sorted_arguments_or_nothing():
    assert tool.parse_calls("a(y=q, x=p)") == [("a", (("x", "p"), ("y", "q")))]
    assert tool.parse_calls("a") is None
    assert tool.parse_calls("a(b=c") is None
