"""The chance level, and that nothing is concluded from scores at or below it."""

import random
from itertools import product

import pytest
from loopback_endpoint import serve
from test_skill_verdicts import report

from ram_studio._version import __version__
from ram_studio.app.check import verdicts, view
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.asking import SuiteRun
from ram_studio.evals.question import Reply
from ram_studio.evals.report.chance_level import BASELINES, TrivialBaselines, chance_level
from ram_studio.evals.report.damage import damages
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.history import score_of, stored_report
from ram_studio.evals.report.score import as_json
from ram_studio.evals.report.skill_verdict import skill_verdicts
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings

SUITES = ("demo", "tool", "math", "instructions")
WORDS = "and so we saw that it is one of them which goes on"


@pytest.mark.parametrize("said", ["the the the the the the the the", "[]", "yes"])
def test_constant_answers_never_beat_the_chance_level(said):
    with serve(lambda body: said) as server:
        found = evaluate({"one": EndpointEngine(server.url)}, "tool,math,instructions", limit=8)
    row = found.models["one"]
    for domain, score in row.domains.items():
        assert score.score <= found.chance_levels[domain]
    assert all(found.chance_levels[domain] < 0.6 for domain in found.skills)
    told = as_json(EvalResult.of(found))
    assert told["chance_levels"] == found.chance_levels
    domains = told["models"]["one"]["domains"]
    assert {d: own["chance_level"] for d, own in domains.items()} == found.chance_levels


def chance_levels(asked):
    baselines = TrivialBaselines(asked)
    facts: dict = {}
    for name, own in asked.items():
        for q in own:
            facts.setdefault(q.domain, []).append({BASELINES: baselines.right(name, q)})
    return {domain: chance_level(own) for domain, own in facts.items()}


@pytest.mark.parametrize("name", [n for n, s in ALL_SUITES.items() if not s.absent(None)])
def test_empty_answers_never_beat_the_chance_level(name):
    limit = 3 if ALL_SUITES[name].runs_code else 24
    settings = SuiteSettings(lambda text: len(text) // 4, limit, 1, (1000,))
    asked = ALL_SUITES[name].make(settings)
    found, drawn = chance_levels({name: asked}), random.Random(9)
    said = [[text] * len(asked) for text in ("no", "1", "None", "I do not know.", "{}")]
    said.append([" ".join(drawn.choices(WORDS.split(), k=12)) for _ in asked])
    for texts in said[: 2 if ALL_SUITES[name].runs_code else None]:
        marks: dict = {}
        for question, text in zip(asked, texts, strict=True):
            right = ALL_SUITES[name].judge(question, text, "auto").is_correct
            marks.setdefault(question.domain, []).append(right)
        for domain, own in marks.items():
            assert sum(own) / len(own) <= found[domain], (domain, texts[0])
    # Code is judged by its tests, which random words almost never pass.
    assert not ALL_SUITES[name].runs_code or max(found.values()) <= 1 / 3


def test_every_suite_has_a_reproducible_chance_level():
    asked = {n: ALL_SUITES[n].make(SuiteSettings(len, limit=20, seed=1)) for n in SUITES}
    found = chance_levels(asked)
    assert found == chance_levels(asked)
    # Whoever never calls a function is right where none fits: that says nothing about calls.
    assert found["irrelevance"] == 1.0
    assert found["tool"] < 0.1
    # What many questions want is what a constant can always say.
    questions = asked["math"]
    usual = max(sum(q.gold == other.gold for q in questions) for other in questions)
    assert found["math"] >= usual / len(questions)


def test_talking_without_end_is_no_refusal_of_a_tool_call():
    suite = ALL_SUITES["tool"]
    question = next(q for q in suite.make(SuiteSettings(len)) if q.category == "irrelevance")
    run = SuiteRun("m", None, None, suite)
    talk = "I am sorry, none of these functions can do that for you today."
    for text, finish in product((talk, "the " * 40), ("end", "length")):
        found = run._verdict(question, Reply(text, "", finish, "cut off"))
        assert found.is_correct == ((text, finish) == (talk, "end"))


def test_at_chance_level_nothing_is_concluded():
    low = "10000" * 40
    found = report(base="0" * 200, coder=low, ram=low)
    (before,) = skill_verdicts(found, {"code": "coder"}, "base")
    assert before.verdict == "survived"
    found = type(found)(**{**vars(found), "chance_levels": {"code": 0.2}})
    (after,) = skill_verdicts(found, {"code": "coder"}, "base")
    assert (after.verdict, after.reason) == ("inconclusive", "chance_level")
    assert "coder is not above the 20 % that trivial answers get" in after.sentence()
    bad = report(base=low, talker="0" * 200)
    for known, outcome, losses in (({}, "worse", 1), ({"code": 0.2}, "inconclusive", 0)):
        two = type(bad)(**{**vars(bad), "chance_levels": known})
        (pair,) = two.compare_all(base="base")
        assert (pair.outcome, pair.p_adjusted < 0.001) == (outcome, True)
        assert ("neither is above the chance level of 20 %" in pair.sentence()) == (not losses)
        assert len(damages(two, "base", ["talker"])) == losses
    apart = report(base="00xx", talker="xx00")
    apart = type(apart)(**{**vars(apart), "chance_levels": {"code": 0.2}})
    (pair,) = apart.compare_all(base="base")
    assert (pair.n, pair.chance_level) == (0, None), "no question tells anything of both"
    page = view.report_html(verdicts.judge_merges(found, ["coder"]), ["coder"])
    assert "exactly as good" not in page
    assert "neither above the chance level (20.0 %)" in page


def test_the_page_judges_by_the_margin_that_was_chosen():
    found = report(base="0" * 100, coder="1" * 80 + "0" * 20, ram="1" * 72 + "0" * 28)
    usual, wide = (
        view.report_html(verdicts.judge_merges(found, ["coder"], *margin), ["coder"])
        for margin in ((), (0.3,))
    )
    assert "less than 5 points" in usual
    assert "less than 30 points" in wide
    for margin, verdict in ((0.05, "inconclusive"), (0.3, "survived")):
        drawn = verdicts.verdict_cards(verdicts.judge_merges(found, ["coder"], margin), ["coder"])
        (card,) = drawn["groups"]["ram"]
        assert card["verdict"] == verdict
        is_short = "100 questions can show a margin of" in card["said"]
        assert is_short == (verdict == "inconclusive")
        assert drawn["note"] == "1 verdict was made (Holm, 5 %)."
    assert view.has_verdicts(found, ["coder"])
    assert not view.has_verdicts(found, ["coder", "ram"])


def test_stored_reports_have_the_chance_level_and_average(store):
    with serve(lambda body: "yes") as server:
        engine = EndpointEngine(server.url)
        found = evaluate({"one": engine}, "tool,math", limit=15, store=store)
        again = stored_report(store, store.runs())
        # Reproducibility details are alike: questions, settings, repetition.
        mine, theirs = (EvalResult.of(report).reproducibility for report in (found, again))
        assert (mine.prompts, mine.questions) == (theirs.prompts, theirs.questions)
        asked = theirs.models["one"]
        assert (asked.template, asked.settings["tools"]) == ("own", "native")
        assert (theirs.seed, theirs.software) == (mine.seed, mine.software)
        assert theirs.software == {"ram-studio": __version__}
        said = EvalResult.of(again).lines
        assert "every question answered to its end" in said[1]
        assert all(
            f"{domain} " in said[0].partition("chance level: ")[2] for domain in found.chance_levels
        )
        assert "begun 20" in said[1]
        assert (again.chance_levels, again.skills) == (found.chance_levels, ("math", "tool"))
        assert set(found.chance_levels) == {"tool", "irrelevance", "math"}
        assert again.models["one"].average.score == found.models["one"].average.score
        # Irrelevance is passed by saying yes, and stands beside the average.
        assert found.models["one"].domains["irrelevance"].score == 1.0
        assert found.models["one"].average.score == 0.0
        (tool,) = (run for run in store.runs() if run.suite == "tool")
        assert score_of(tool).score == 0.0
