"""Intervals, averages and paired tests against scipy and hand-computed values."""

import json
import math

import pytest
from scipy.stats import binomtest

from ram_studio.errors import EvaluationError
from ram_studio.evals import Answer, DomainScore, EvalReport, Item, ModelResult, compare
from ram_studio.evals.report.score import Average
from ram_studio.evals.report.tables import PairedCounts

DOMAINS = ("code", "tool", "memory", "follow")


def make_report(rows: dict[str, dict[str, str]], seed: int = 0) -> EvalReport:
    n = len(next(iter(rows.values()))["code"])
    items = {d: tuple(Item(d, f"{d} {index}", "") for index in range(n)) for d in DOMAINS}
    models = {
        name: ModelResult(
            name,
            None,
            {d: tuple(Answer("", bit == "1") for bit in bits[d]) for d in DOMAINS},
            1.5,
        )
        for name, bits in rows.items()
    }
    return EvalReport("demo", seed, n, items, models)


ROW = {"code": "1100", "tool": "1000", "memory": "1111", "follow": "1110"}


def test_standard_error_and_wilson_interval_have_the_known_values():
    value = DomainScore(n=300, correct=74)
    assert value.score == pytest.approx(74 / 300)
    assert value.stderr == pytest.approx(math.sqrt(74 / 300 * 226 / 300 / 300))
    expected = binomtest(74, 300).proportion_ci(0.95, method="wilson")
    assert value.ci95 == pytest.approx((expected.low, expected.high), abs=1e-12)
    # Wilson score interval in closed form, z = 1.959964.
    p, n, z = 74 / 300, 300, 1.959963984540054
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert value.ci95 == pytest.approx((centre - half, centre + half), abs=1e-9)


@pytest.mark.parametrize(("correct", "low", "high"), [(0, 0.0, 0.0126), (300, 0.9874, 1.0)])
def test_intervals_at_the_ends_are_not_empty(correct, low, high):
    value = DomainScore(300, correct)
    assert value.stderr == 0
    assert value.ci95 == pytest.approx((low, high), abs=1e-4)


def test_no_items_give_nan_and_the_whole_interval():
    value = DomainScore(0, 0)
    assert math.isnan(value.score)
    assert math.isnan(value.stderr)
    assert value.ci95 == (0.0, 1.0)


def test_average_counts_skills_and_retention_stands_apart():
    result = make_report({"a": ROW}).models["a"]
    assert result.average == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    assert result.retention == 0.75


def test_the_json_form_is_stable():
    form = json.loads(json.dumps(make_report({"a": ROW}, seed=7).to_dict()))
    assert set(form) == {"suite", "seed", "n", "floors", "models"}
    assert (form["suite"], form["seed"], form["n"]) == ("demo", 7, 4)
    row = form["models"]["a"]
    assert set(row) == {
        *("path", "domains", "average", "average_ci95", "retention", "seconds", "outcomes")
    }
    assert set(row["domains"]) == set(DOMAINS)
    assert set(row["domains"]["code"]) == {"n", "correct", "score", "stderr", "ci95"}
    assert row["domains"]["code"]["correct"] == 2
    low, high = row["domains"]["code"]["ci95"]
    assert low < 0.5 < high


def test_paired_counts_and_mcnemar_p():
    report = make_report({"a": ROW, "b": {**ROW, "code": "0101", "memory": "0000"}})
    counts = compare(report, "a", "b")
    assert counts["code"] == PairedCounts(wins=1, losses=1, ties=2)
    assert counts["memory"] == PairedCounts(wins=4, losses=0, ties=0)
    assert counts["skills"] == PairedCounts(wins=5, losses=1, ties=6)
    # Exact two-sided: 2 * 0.5**4 for 4 to 0; 1 for a draw or no disagreement.
    assert counts["memory"].p_value == pytest.approx(0.125)
    assert counts["code"].p_value == 1.0
    assert counts["tool"].p_value == 1.0
    assert counts["memory"].is_within_noise
    assert not PairedCounts(wins=9, losses=0, ties=1).is_within_noise
    assert compare(report, "b", "a")["memory"] == PairedCounts(0, 4, 0)


def test_comparing_an_unknown_model_names_the_choices():
    with pytest.raises(EvaluationError, match=r"'c'.*a, b"):
        compare(make_report({"a": ROW, "b": ROW}), "a", "c")


def test_the_average_counts_every_skill_the_same_and_says_how_sure_it_is():
    even = Average((DomainScore(60, 30), DomainScore(60, 45)))
    assert (even.score, even.n, even.correct) == (0.625, 120, 75)
    # Of domains of one size it is the share of all questions, interval included.
    assert even.ci95 == pytest.approx(DomainScore(120, 75).ci95)
    odd = Average((DomainScore(1000, 500), DomainScore(10, 10), DomainScore(0, 0)))
    assert odd.score == 0.75
    low, high = odd.ci95
    # No surer than the smaller domain lets it be.
    assert high - low > 0.25
    assert Average().ci95 == (0.0, 1.0)
