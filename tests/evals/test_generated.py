"""Generated suites: right answers pass, seeds differ; asking until it is decided."""

import re

import pytest
from loopback_endpoint import serve
from right_answers import right

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings

FAMILIES = ("math", "tool", "code-generated")


def made(name: str, limit: int, seed: int = 1, difficulty: int = 2):
    return ALL_SUITES[name].make(SuiteSettings(len, limit, seed, difficulty=difficulty))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_questions_wanted_and_others_by_seed(name):
    many = made(name, 120)
    assert len({q.prompt for q in many}) == len({q.id for q in many}) == 120
    assert made(name, 30) == many[:30]
    # Nearly none of them come again with another seed.
    assert len({q.prompt for q in many} & {q.prompt for q in made(name, 120, seed=2)}) < 6
    easy, hard = ([len(q.prompt) for q in made(name, 20, 1, d)] for d in (1, 5))
    assert sum(easy) < sum(hard)
    with pytest.raises(EvaluationError, match="difficulty is 6"):
        made(name, 1, 1, 6)


@pytest.mark.parametrize("name", FAMILIES)
def test_right_answers_pass_and_those_to_other_questions_do_not(name):
    judge = ALL_SUITES[name].judge
    for difficulty in (1, 3, 5):
        asked = made(name, 3 if name == "code-generated" else 20, 5, difficulty)
        said = [right(q) for q in asked]
        assert all(judge(q, text, "auto").is_correct for q, text in zip(asked, said, strict=True))
        others = zip(asked, [*said[1:], said[0]], strict=True)
        assert sum(judge(q, text, "auto").is_correct for q, text in others) <= len(asked) / 10


def test_every_fifth_request_fits_no_function_on_offer():
    for difficulty in (1, 5):
        for number, question in enumerate(made("tool", 40, 3, difficulty), start=1):
            is_served = number % 5 > 0
            assert (question.domain, question.must_end) == (
                ("tool", False) if is_served else ("irrelevance", True)
            )
            offered = {tool["function"]["name"] for tool in question.tools}
            assert {call["name"] for call in question.spec} <= offered
            assert len(question.spec) == difficulty * is_served


def test_a_steps_number_is_what_the_words_say():
    # The words themselves, worked out once more.
    for question in made("math", 60, 3, 4):
        text = question.prompt.partition("How many")[0]
        have = int(re.search(r"has (\d+)", text)[1])
        for sentence in text.split(". ")[1:]:
            numbers = [int(n) for n in re.findall(r"\d+", sentence)]
            if "lost" in sentence:
                have -= numbers[0]
            elif "evenly" in sentence:
                have //= numbers[0]
            elif "machine" in sentence:
                have *= 2 if "twice" in sentence else 3
            elif "friends" in sentence:
                have += numbers[0] * numbers[1]
            elif "finds" in sentence:
                have += numbers[0]
        assert str(have) == question.gold


def test_asking_ends_with_narrow_intervals_or_the_budget(tmp_path, caplog):
    caplog.set_level("INFO", logger="ram_studio")
    truth = {q.prompt: q.gold for q in made("math", 400, 2026)}

    def half(body):
        asked = body["messages"][0]["content"]
        return f"Answer: {truth[asked]}" if len(asked) % 2 else "Answer: none"

    with serve(lambda body: "Answer: none") as wrong, serve(half) as torn:
        sources = {"wrong": EndpointEngine(wrong.url, "one")}
        with AnswerStore(tmp_path / "s") as store:
            report = evaluate(sources, "math", ci_width=15, limit=200, store=store)
        decided = report.until
        assert decided.is_decided
        # Nothing is asked twice, and a score near 0 is decided sooner than one near a half.
        assert len(wrong.requests) == decided.questions == report.n == 50
        sources["torn"] = EndpointEngine(torn.url, "one")
        asked = {"torn": sources["torn"]}
        open_ = evaluate(asked, "math", ci_width=5, limit=100).until
        assert (open_.is_decided, open_.questions, open_.looks) == (False, 100, 2)
        assert len(torn.requests) == 100
    # Questions of the look before are nothing that was stored already.
    assert not [one for one in caplog.records if one.name == "ram_studio.evals.run"]
    assert decided.level == pytest.approx(1 - 0.05 / 3)
    assert "all 3 possible looks together keep 95 %; 1 were made" in decided.sentence
    wide, narrow = (DomainScore(50, 25).interval_at(level) for level in (decided.level, 0.95))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize(("suite", "options", "message"), [
    ("memory", {"ci_width": 10}, "Only generated suites"),
    ("math", {"ci_width": 0}, "ci_width is 0; choose more than 0 and less than 100"),
    ("math", {"ci_width": 10, "limit": 10}, "at most 10 questions"),
    ("math", {"ci_width": 10, "limit": {"math": 60}}, "one limit holds"),
    ("math", {"difficulty": 0}, "difficulty is 0; choose 1 to 5"),
])  # fmt: skip
def test_what_cannot_be_asked_for_ever_is_refused(suite, options, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate({"m": EndpointEngine("http://127.0.0.1:9", "m")}, suite, **options)
