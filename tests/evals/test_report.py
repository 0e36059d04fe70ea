"""Intervals, averages and paired comparisons against scipy, statsmodels and values by hand."""

import itertools
import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import scipy
from intervals import document_coverage
from marked_report import marked_report

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import CLUSTER, PARAPHRASES, SAMPLES, Answer
from ram_studio.evals.report import comparison
from ram_studio.evals.report.comparison import PairedCounts, holm, interval_size, paired_counts
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.score import (
    Average,
    DomainScore,
    as_json,
    effective_size,
    paraphrase_scores,
    sample_rows,
    sample_scores,
)
from ram_studio.evals.report.skill_verdict import skill_verdicts

ROW = {"code": "1100", "tool": "1000", "memory": "1111", "follow": "1110"}


def test_standard_error_and_wilson_interval_are_the_known_ones():
    value = DomainScore(n=300, correct=74)
    assert value.score == pytest.approx(74 / 300)
    assert value.stderr == pytest.approx(math.sqrt(74 / 300 * 226 / 300 / 300))
    expected = scipy.stats.binomtest(74, 300).proportion_ci(0.95, method="wilson")
    assert value.ci95 == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_intervals_at_the_ends_are_not_empty():
    for correct, ends in ((0, (0.0, 0.0126)), (300, (0.9874, 1.0))):
        assert DomainScore(300, correct).stderr == 0
        assert DomainScore(300, correct).ci95 == pytest.approx(ends, abs=1e-4)
    for value in (DomainScore(0, 0), Average.over(())):
        assert all(map(math.isnan, (value.score, value.stderr)))
        assert value.ci95 == (0.0, 1.0)


def test_the_json_form_is_stable():
    form = json.loads(json.dumps(as_json(EvalResult.of(marked_report({"a": ROW}, seed=7)))))
    assert set(form) == {
        *("suite", "seed", "n", "skills", "chance_levels", "models", "comparisons", "verdicts"),
        *("margin", "reproducibility", "until", "damage", "not_checked"),
    }
    assert form["not_checked"] == ["forgetting", "refusal", "tool-loop", "instructions"]
    assert (form["suite"], form["seed"], form["n"]) == (",".join(ROW), 7, 4)
    row = form["models"]["a"]
    assert set(row) == {"path", "domains", "average", "retention", "seconds", "health"}
    # Skills make the average, and retention stands apart.
    assert row["average"]["score"] == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    assert row["retention"] == 0.75
    assert set(row["domains"]) == set(ROW)
    code = row["domains"]["code"]
    assert set(code) == {
        *("n", "correct", "effective_n", "score", "stderr", "ci95", "chance_level"),
        *("outcomes", "categories", "samples", "summary", "paraphrases"),
    }
    assert code["correct"] == 2
    assert code["ci95"][0] < 0.5 < code["ci95"][1]


def test_what_every_model_shares_is_said_once():
    """A comparison of twenty rows repeated the same sentence twenty times."""
    found = marked_report(dict.fromkeys("abc", ROW) | {"d": {**ROW, "code": "110x"}})
    models = {
        name: replace(row, settings={"engine": "x", "shots": int(name == "c")})
        for name, row in found.models.items()
    }
    whole = "every question answered to its end"
    assert EvalResult.of(replace(found, models=models)).lines[1:] == (
        "every model: 0 % of word 4-grams repeated; template: not known; engine x.",
        f"a, b: {whole}; shots 0.",
        f"c: {whole}; shots 1.",
        "d: 1 too long; shots 0.",
    )
    alone = EvalResult.of(marked_report({"a": ROW})).lines[1:]
    assert alone == (f"a: {whole}; 0 % of word 4-grams repeated; template: not known.",)


def test_paired_counts_and_mcnemar_p():
    report = marked_report({"a": ROW, "b": {**ROW, "code": "0101", "memory": "0000"}})
    counts = report.compare("a", "b")
    assert counts["code"] == PairedCounts(wins=1, losses=1, ties=2)
    assert counts["memory"] == PairedCounts(wins=4, losses=0, ties=0)
    assert counts["skills"] == PairedCounts(wins=5, losses=1, ties=6)
    # Exact two-sided: 2 * 0.5**4 for 4 to 0; 1 for a draw or no disagreement.
    found = {domain: counts[domain].p_value for domain in ("memory", "code", "tool")}
    assert found == {"memory": pytest.approx(0.125), "code": 1.0, "tool": 1.0}
    assert counts["memory"].outcome(counts["memory"].p_value) == "inconclusive"
    clear = PairedCounts(wins=9, losses=0, ties=1)
    assert clear.outcome(clear.p_value) == "better"
    assert report.compare("b", "a")["memory"] == PairedCounts(0, 4, 0)


def test_the_average_counts_every_skill_alike_with_its_error():
    even = Average.over([DomainScore(60, 30), DomainScore(60, 45)])
    assert (even.score, even.n, even.correct) == (0.625, 120, 75)
    # Of domains of one size and score it is the share of all questions, interval included.
    alike = Average.over([DomainScore(60, 45), DomainScore(60, 45)])
    assert alike.ci95 == pytest.approx(DomainScore(120, 90).ci95)
    odd = Average.over([DomainScore(1000, 500), DomainScore(10, 10), DomainScore(0, 0)])
    assert odd.score == 0.75
    low, high = odd.ci95
    # The smaller domain decides how sure it is, though all of its answers are right.
    assert 0.1 < high - low < 0.25
    assert Average.over([DomainScore(60, 57)]).ci95 == pytest.approx(DomainScore(60, 57).ci95)
    # Wilson's half width, but for its own z^2 / n: 1.96 standard errors. It was 2.3 times as wide.
    unlike = Average.over([DomainScore(200, 190), DomainScore(200, 10)])
    low, high = unlike.ci95
    assert high - low == pytest.approx(2 * 1.96 * unlike.stderr, rel=0.05)


@pytest.mark.parametrize("scores", [(0.95, 0.05), (0.98, 0.98, 0.3), (0.9, 0.9), (1.0, 0.5)])
def test_interval_of_the_average_covers_the_truth(scores):
    rng = np.random.default_rng(1)
    drawn = rng.binomial(60, scores, size=(2000, len(scores)))
    ends = [Average.over(DomainScore(60, int(x)) for x in row).ci95 for row in drawn]
    assert np.mean([low <= np.mean(scores) <= high for low, high in ends]) >= 0.93


def test_the_exact_mcnemar_p_is_that_of_statsmodels():
    from statsmodels.stats.contingency_tables import mcnemar

    for wins, losses in ((1, 0), (5, 1), (12, 3), (40, 38), (0, 9)):
        expected = mcnemar([[7, wins], [losses, 3]], exact=True).pvalue
        assert PairedCounts(wins, losses, 10).p_value == pytest.approx(expected)


def test_millions_of_differences_are_tested_without_a_list(monkeypatch):
    """A model card states them; one by one they would take hours and gigabytes."""
    monkeypatch.setattr(comparison, "flip_test", None)
    counts = PairedCounts(5_000_000, 4_995_000, 0)
    expected = 2 * scipy.stats.norm.sf(4_999 / math.sqrt(9_995_000))  # continuity corrected
    assert counts.p_value == pytest.approx(expected, rel=1e-3)


def test_holm_corrects_as_published():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.9]) == pytest.approx((1.0, 1.0))
    assert holm([]) == ()


def test_each_model_meets_base_specialist_and_the_other_merges():
    row = {"tool": "1100110011", "math": "0101010101"}
    report = marked_report(dict.fromkeys(("base", "tooler", "one", "two"), row))
    table = report.compare_all(base="base", specialists={"tool": "tooler"})
    seen = {(c.domain, c.a, c.b, c.against) for c in table}
    assert seen == {
        *{(d, m, "base", "base") for d in row for m in ("tooler", "one", "two")},
        ("tool", "one", "tooler", "specialist"),
        ("tool", "two", "tooler", "specialist"),
        *{(d, "one", "two", "merge") for d in row},
    }
    assert all(c.outcome == "inconclusive" and c.p_adjusted == 1 for c in table)
    assert table[0].sentence().endswith("adjusted p 1).")


def test_a_lead_that_holds_alone_is_not_claimed_among_many_looks():
    lead = {"tool": "1" * 6 + "0" * 4}
    report = marked_report({"base": {"tool": "0" * 10}, "one": lead})
    (alone,) = report.compare_all(base="base")
    assert (alone.outcome, alone.p_adjusted) == ("better", pytest.approx(2 / 64))
    assert "one is better than base on tool (6 gained, 0 lost, 4 tied of 10" in alone.sentence()
    four = {f"m{i}": lead for i in range(4)}
    many = marked_report({"base": {"tool": "0" * 10}, **four}).compare_all(base="base")
    assert len(many) == 4 + 6
    assert {c.outcome for c in many} == {"inconclusive"}


def test_models_of_equal_skill_are_seldom_told_apart():
    # Six equal merges, 15 + 6 comparisons: the familywise error is bounded by 5 %, so 3 or more
    # false tables in 5 happen with a probability of about 0.1 %; the seed is fixed.
    rng = random.Random(3)
    false_tables = 0
    for _ in range(5):
        rows = {f"m{i}": {"tool": "".join(rng.choice("01") for _ in range(60))} for i in range(7)}
        table = marked_report(rows).compare_all(base="m0")
        false_tables += any(c.outcome != "inconclusive" for c in table)
    assert false_tables <= 2


def test_unknown_names_are_refused():
    report = marked_report({"base": {"tool": "10"}, "one": {"tool": "11"}})
    for options, said in (
        ({"base": "nobody"}, r"'nobody'.*base, one"),
        ({"specialists": {"math": "base"}}, "'math'"),
    ):
        with pytest.raises(EvaluationError, match=said):
            report.compare_all(**options)


def jackknifed(clusters):
    """Return how many questions have the error that is seen by leaving out each cluster in turn."""
    every = np.concatenate([np.array(own, float) for own in clusters])
    n, groups = len(every), len(clusters)
    others = [np.concatenate([np.array(own, float) for i, own in enumerate(clusters) if i != left])
              for left in range(groups)]  # fmt: skip
    jackknife = (groups - 1) / groups * sum((own.mean() - every.mean()) ** 2 for own in others)
    return min(n, every.var() / jackknife)


def of_scores(clusters):
    """Return the same beside two clusters of the usual size, one right and one wrong."""
    repeated = [own * len(clusters) for own in clusters]
    n = sum(map(len, clusters))
    found = jackknifed([*repeated, [True] * n, [False] * n])
    # Of clusters of one question each this is their number.
    return max(1, min(n, found * len(clusters) / (len(clusters) + 1)))


def of_differences(clusters):
    wider = (scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, len(clusters) - 1)) ** 2
    return max(1, jackknifed(clusters) * wider)


@pytest.mark.parametrize("seed", range(6))
def test_errors_are_cluster_robust_over_shared_documents(seed):
    from statsmodels.regression.linear_model import OLS

    drawn = random.Random(seed)
    clusters = [[drawn.random() < drawn.choice([0.1, 0.9])] * drawn.randint(1, 5)
                for _ in range(drawn.randint(5, 30))]  # fmt: skip
    answers = [Answer("", right, facts={CLUSTER: str(number)})
               for number, own in enumerate(clusters) for right in own]  # fmt: skip
    score = DomainScore.of(answers)
    y = np.array([answer.is_correct for answer in answers], float)
    groups = [int(answer.facts[CLUSTER]) for answer in answers]
    plain = DomainScore(score.n, score.correct)
    assert score.effective_n == pytest.approx(of_scores(clusters))
    assert score.stderr == pytest.approx(math.sqrt(y.var() / score.effective_n))
    assert score.ci95[1] - score.ci95[0] >= plain.ci95[1] - plain.ci95[0]
    # Of one question each, nothing changes.
    assert DomainScore.of([replace(a, facts={}) for a in answers]) == plain
    # Several samples tell no more than one where they are alike.
    twice = [replace(a, facts={**a.facts, SAMPLES: [a.is_correct] * 2}) for a in answers]
    assert sample_scores(twice).ci95 == pytest.approx(score.ci95)
    assert DomainScore.over_draws([[one] for one in twice]).ci95 == sample_scores(twice).ci95
    # Five documents that are all right say as much as five questions.
    assert effective_size([[True] * 4] * 5) == interval_size([[True] * 4] * 5) == 5
    # Of documents of one size the error is the usual cluster-robust one.
    even = [[drawn.random() < drawn.choice([0.1, 0.9])] * 3 for _ in range(9)]
    y, groups = np.ravel(even).astype(float), np.repeat(range(9), 3)
    fit = OLS(y, np.ones((27, 1))).fit(cov_type="cluster", cov_kwds={"groups": groups})
    assert y.var() / effective_size(even) == pytest.approx(fit.bse[0] ** 2)
    mean = Average.over([score, plain])
    assert mean.stderr == pytest.approx(math.hypot(score.stderr, plain.stderr) / 2)


def test_models_with_fewer_samples_of_all_questions_have_none():
    """Where a server failed, the table of samples ended in an error."""

    def figures(*marks: list[bool]):
        answers = [Answer("", own[0], facts={SAMPLES: own, PARAPHRASES: own}) for own in marks]
        sampled, worded = sample_scores(answers), paraphrase_scores(answers)
        return ({"math": sampled} if sampled else {}), ({"math": worded} if worded else {})

    whole = figures([True, False, True], [True, False])
    rows = sample_rows([figures([True, True]), whole, figures([True])])
    assert [what for what, _ in rows] == [
        *("math: mean of 3", "math: pass@2", "math: pass@3", "math: mean of 3 wordings")
    ]
    assert all(own[0] == own[2] == "-" != own[1] for _, own in rows)
    assert sample_rows(reversed([figures([True, True]), whole]))[2][1] == ["1.000", "-"]
    assert sample_rows([]) == []


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    ("score", "documents", "kind", "alike"),
    [(0.5, 50, "one large", 0.5), (0.95, 20, "5 each", 0.9)],
)
def test_intervals_cover_where_documents_are_alike(score, documents, kind, alike, samples):
    held = document_coverage(score, documents, kind, alike, 400, samples=samples)
    assert held >= 0.92


@pytest.mark.parametrize("seed", range(6))
def test_paired_differences_are_cluster_robust(seed):
    drawn = random.Random(seed)
    clusters = [[drawn.choice((-1, 0, 1, 1))] * drawn.randint(1, 5)
                for _ in range(drawn.randint(5, 11))]  # fmt: skip
    marks = [(d > 0, d < 0, str(i)) for i, own in enumerate(clusters) for d in own]
    first, second = ([Answer("", row[side], facts={CLUSTER: row[2]}) for row in marks]
                     for side in (0, 1))  # fmt: skip
    counts = paired_counts(first, second)
    groups = len(clusters)
    assert counts.effective_n == pytest.approx(of_differences(clusters))
    value, low, high = counts.difference()
    assert value == pytest.approx(sum(map(sum, clusters)) / len(marks))
    alone = replace(counts, clusters=None)
    assert high - low >= alone.difference()[2] - alone.difference()[1]
    # Every way in which whole clusters could change sign.
    sums = [sum(own) for own in clusters]
    ways = [abs(sum(map(math.prod, zip(signs, sums, strict=True))))
            for signs in itertools.product((-1, 1), repeat=groups)]  # fmt: skip
    assert counts.p_value == pytest.approx(np.mean([way >= abs(sum(sums)) for way in ways]))
    # Of clusters of one question it is McNemar's test.
    ones = replace(counts, clusters=tuple((d,) for own in clusters for d in own))
    assert ones.p_value == pytest.approx(alone.p_value)


def test_three_documents_show_no_more_than_three_questions():
    rows = {"base": {"qa": "0" * 12}, "agent": {"qa": "1" * 12}, "merge": {"qa": "0" * 12}}
    report = marked_report(rows)
    assert {c.outcome for c in report.compare_all(base="base")} == {"better", "inconclusive"}
    assert skill_verdicts(report, {"qa": "agent"}, "base")[0].verdict == "damaged"
    shared = marked_report(rows, document=4)
    assert {c.outcome for c in shared.compare_all(base="base")} == {"inconclusive"}
    counts = shared.compare("agent", "base")
    assert (counts["qa"].p_value, counts["qa"].effective_n) == (0.25, 3)
    assert counts["qa"].difference() == pytest.approx(PairedCounts(3, 0, 0).difference())
    assert PairedCounts(1, 0, 0).difference()[2] == 1.0
    both = PairedCounts.over([counts["qa"], PairedCounts(3, 0, 1)])
    assert (both.wins, both.n, both.p_value) == (15, 16, 2 * 0.5**6)
    (verdict,) = skill_verdicts(shared, {"qa": "agent"}, "base")
    assert (verdict.verdict, verdict.retained_gain.value, verdict.n) == ("inconclusive", 0, 12)
