"""Paired comparisons against statsmodels, hand-computed values and simulated models."""

import random

import pytest
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import mcnemar

from ram_studio.errors import EvaluationError
from ram_studio.evals import Answer, EvalReport, Item, ModelResult, compare_all
from ram_studio.evals.report.statistics import holm, items_needed
from ram_studio.evals.report.tables import PairedCounts


def make_report(rows: dict[str, dict[str, str]]) -> EvalReport:
    domains = next(iter(rows.values()))
    items = {
        d: tuple(Item(d, f"{d} {i}", "") for i in range(len(bits))) for d, bits in domains.items()
    }
    models = {
        name: ModelResult(
            name, None, {d: tuple(Answer("", bit == "1") for bit in b) for d, b in bits.items()}, 1
        )
        for name, bits in rows.items()
    }
    return EvalReport("tool,math", 0, 10, items, models)


@pytest.mark.parametrize(("wins", "losses"), [(1, 0), (5, 1), (12, 3), (40, 38), (0, 9)])
def test_the_exact_mcnemar_p_is_that_of_statsmodels(wins, losses):
    expected = mcnemar([[7, wins], [losses, 3]], exact=True).pvalue
    assert PairedCounts(wins, losses, 10).p_value == pytest.approx(expected)


def test_holm_multiplies_the_smallest_p_by_their_number_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.9]) == pytest.approx((1.0, 1.0))
    assert holm([]) == ()


def test_needed_disagreements_reach_the_power_and_one_less_does_not():
    # 3 wins per loss: count the power of the exact test by hand, over every outcome.
    def power(m: int, share: float, alpha: float) -> float:
        from scipy.stats import binom

        return sum(
            binom.pmf(k, m, share) for k in range(m + 1) if binomtest(k, m, 0.5).pvalue <= alpha
        )

    needed = items_needed(PairedCounts(wins=6, losses=2, ties=0))
    assert power(needed, 0.75, 0.05) >= 0.8 > power(needed - 1, 0.75, 0.05)


def test_ties_raise_the_number_of_items_needed_in_proportion():
    few = items_needed(PairedCounts(9, 3, 0))
    assert items_needed(PairedCounts(9, 3, 108)) == few * 10


def test_even_the_clearest_lead_needs_six_disagreements():
    assert items_needed(PairedCounts(1, 0, 0)) == 6


def test_a_tie_has_no_number_and_a_tiny_lead_a_huge_one():
    assert items_needed(PairedCounts(4, 4, 10)) is None
    assert items_needed(PairedCounts(501, 499, 0)) > 1_000_000


def test_each_model_meets_base_specialist_and_the_other_merges():
    row = {"tool": "1100110011", "math": "0101010101"}
    report = make_report(dict.fromkeys(("base", "tooler", "one", "two"), row))
    table = compare_all(report, base="base", specialists={"tool": "tooler"})
    seen = {(c.domain, c.a, c.b, c.against) for c in table}
    assert seen == {
        *{(d, m, "base", "base") for d in row for m in ("tooler", "one", "two")},
        ("tool", "one", "tooler", "specialist"),
        ("tool", "two", "tooler", "specialist"),
        *{(d, "one", "two", "merge") for d in row},
    }
    assert all(c.outcome == "no difference shown" and c.p_adjusted == 1 for c in table)
    assert table[0].sentence().endswith("neither is ahead.")


def test_a_lead_that_holds_alone_is_not_claimed_among_many_looks():
    lead = {"tool": "1" * 6 + "0" * 4}
    report = make_report({"base": {"tool": "0" * 10}, "one": lead})
    (alone,) = compare_all(report, base="base")
    assert (alone.outcome, alone.p_adjusted) == ("better", pytest.approx(2 / 64))
    assert "one is better than base on tool (6 wins, 0 losses, 4 ties of 10" in alone.sentence()
    many = compare_all(
        make_report({"base": {"tool": "0" * 10}, **{f"m{i}": lead for i in range(4)}}), base="base"
    )
    assert len(many) == 4 + 6
    assert {c.outcome for c in many} == {"no difference shown"}
    assert f"about {many[0].items_needed} items to tell these apart" in many[0].sentence()


def test_models_of_equal_skill_are_seldom_told_apart():
    # Six equal merges, 15 + 6 comparisons: the familywise error is bounded by 5 %, so 3 or more
    # false tables in 5 happen with a probability of about 0.1 %; the seed is fixed.
    rng = random.Random(3)
    false_tables = 0
    for _ in range(5):
        rows = {f"m{i}": {"tool": "".join(rng.choice("01") for _ in range(60))} for i in range(7)}
        table = compare_all(make_report(rows), base="m0")
        false_tables += any(c.outcome != "no difference shown" for c in table)
    assert false_tables <= 2


def test_unknown_names_are_refused():
    report = make_report({"base": {"tool": "10"}})
    with pytest.raises(EvaluationError, match="'nobody'"):
        compare_all(report, base="nobody")
    with pytest.raises(EvaluationError, match="'math'"):
        compare_all(report, specialists={"math": "base"})
