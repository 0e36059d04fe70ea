"""Rows of a comparison that depend on chance: merges that draw, and sampled answers."""

import json
from itertools import starmap

import pytest

from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.evals.experiment.plan import ComparePlan
from ram_studio.evals.experiment.presets import with_method
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.question import CLUSTER, SAMPLES, Answer
from ram_studio.evals.report.score import DomainScore, as_json
from ram_studio.evals.settings import EvalSettings
from ram_studio.resources import asset_path

EXAMPLE = asset_path("independent")
AGENTS = {name: str(EXAMPLE / name) for name in ("coding", "tool")}
DARE = make_recipe(
    {
        "base": str(EXAMPLE / "base"),
        "agents": AGENTS,
        "method": "dare-ta",
        "settings": {"drop_rate": 0.9},
        "seed": 5,
    }
)
ASKED = {"limit": 4, "sources": False}


def test_a_row_that_draws_is_the_mean_of_three():
    table = compare_methods({"ram": with_method(DARE, "ram", {}), "dare": DARE}, **ASKED)
    rows = {f"seed {seed}": DARE.model_copy(update={"seed": seed}) for seed in (5, 6, 7)}
    alone = compare_methods(rows, draws=1, **ASKED)
    scores = [alone.row(label).average.score for label in rows]
    assert len(set(scores)) > 1
    assert [row.label for row in table.rows] == ["ram", "dare"]
    row = table.row("dare")
    assert row.average.score == pytest.approx(sum(scores) / 3)
    assert row.merge_draws.scores == pytest.approx(dict(zip("567", scores, strict=True)))
    assert row.merge_draws.spread == pytest.approx(max(scores) - min(scores))
    assert row.n == 3 * table.row("ram").n
    assert table.row("ram").merge_draws is None
    # The test of two rows takes the first draw, and all three are told.
    texts = [
        [answer.text for answer in found.report.models[label].every]
        for found, label in ((table, "dare"), (alone, "seed 5"))
    ]
    assert texts[0] == texts[1]
    assert any("dare is the mean of 3 draws of its merge" in line for line in table.statements)
    assert table.answers == table.total_answers == 4 * sum(map(len, table.report.items.values()))
    told = json.loads(json.dumps(as_json(table), allow_nan=False))
    assert told["rows"][1]["merge_draws"]["spread"] == row.merge_draws.spread


def test_sampled_answers_are_the_mean_of_three():
    how = {"suites": "demo", "temperature": 1.0, "limit": 4, "sources": False}
    table = compare_methods({"ram+": with_method(DARE, "ram+", {})}, **how)
    row = table.row("ram+")
    means = [row.samples[domain].mean for domain in table.skills]
    assert row.average.score == pytest.approx(sum(means) / len(means))
    assert list(row.answer_draws.scores) == ["2026", "2027", "2028"]
    assert sum(row.answer_draws.scores.values()) / 3 == pytest.approx(row.average.score)
    assert row.merge_draws is None


@pytest.mark.parametrize(
    ("method", "rounding", "settings", "count"),
    [
        ("dare-ties", "nearest", {}, 3),
        ("dare-ta", "nearest", {"drop_rate": 0.0}, 1),
        ("ram+", "nearest", {}, 1),
        ("ram+", "stochastic", {}, 3),
    ],
)
def test_only_merges_that_draw_are_drawn_again(method, rounding, settings, count):
    recipe = with_method(DARE, method, settings).model_copy(update={"rounding": rounding})
    plan = ComparePlan.of({"row": recipe}, EvalSettings(), sources=False)
    seeds = [one.recipe.seed for one in plan.candidates()]
    assert seeds == [5, 6, 7][:count]


def test_draws_of_one_question_make_no_interval_narrower():
    def answer(*marks, **facts):
        return Answer("", marks[0], facts={SAMPLES: list(marks), **facts})

    alike = [[answer(mark)] * 3 for mark in (True, False, True, True)]
    single = DomainScore.of([answer(True), answer(False), answer(True), answer(True)])
    assert DomainScore.over_draws(alike).score == single.score
    assert DomainScore.over_draws(alike).effective_n <= 4
    # A shared document holds across draws, and samples count each.
    shared = starmap(answer, [(True, False)] * 4)
    found = DomainScore.over_draws([[one] for one in shared])
    assert (found.n, found.score) == (8, 0.5)
    documents = [
        [answer(mark, **{CLUSTER: place // 2})] * 2
        for place, mark in enumerate((True, True, False, False))
    ]
    assert DomainScore.over_draws(documents).effective_n == pytest.approx(2)
