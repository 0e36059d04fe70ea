"""The rule that drops settings: its arithmetic, and the error it promises."""

import math
import random
from dataclasses import replace

import pytest
import scipy
from marked_report import ANSWERS

from ram_studio.evals.experiment.race import ERROR, level_for, loss_to, stage_shares
from ram_studio.evals.question import CLUSTER
from ram_studio.evals.report.comparison import flip_test, sign_test


def answers(**marks: str) -> dict:
    """Return answers by item, of marks as those of `marked_report`."""
    return {item: ANSWERS[mark] for item, mark in marks.items()}


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (0, 9), (3, 14), (9, 0), (40, 61)])
def test_the_test_is_the_one_sided_exact_sign_test(wins, losses):
    both = wins + losses
    expected = (
        scipy.stats.binomtest(losses, both, 0.5, alternative="greater").pvalue if both else 1.0
    )
    assert sign_test(losses, wins) == pytest.approx(expected)
    assert flip_test([-1] * wins + [1] * losses) == pytest.approx(expected)


def test_only_items_that_both_answered_count():
    own, theirs = answers(a="0", b="0", c="1", d="1", e="0"), answers(a="1", b="1", c="1", z="0")
    # One that could not be asked was not answered.
    theirs |= answers(e="x")
    loss = loss_to("rival", theirs, own, level=0.25)
    assert (loss.items, loss.wins, loss.losses, loss.p_value) == (3, 0, 2, 0.25)
    assert loss_to("rival", theirs, own, level=0.2499) is None


def test_items_of_one_document_are_one_loss():
    own, theirs = (answers(**dict.fromkeys("abcdefgh", mark)) for mark in "01")
    assert loss_to("rival", theirs, own, level=0.01).p_value == 0.5**8
    halves = {i: replace(a, facts={CLUSTER: str(i in "abcd")}) for i, a in own.items()}
    assert loss_to("rival", theirs, halves, level=0.24) is None
    assert loss_to("rival", theirs, halves, level=0.25).p_value == 0.25


def test_stages_end_with_all_items_and_small_sweeps_have_one():
    assert stage_shares(100, True)[-1] == 1
    assert stage_shares(100, False) == stage_shares(10, True) == (1.0,)
    assert level_for(1, 1) == ERROR


def _race(scores: list[float], items: int, draw: random.Random) -> set[int]:
    """Return which of these settings a race over random items drops."""
    shares = stage_shares(items, True)
    level = level_for(len(scores), len(shares))
    # One draw per item, shared: settings are right on easy items and wrong on hard ones.
    hardness = [draw.random() for _ in range(items)]
    noise = [[draw.random() < 0.15 for _ in range(items)] for _ in scores]
    given = [
        {i: ANSWERS["01"[(hardness[i] < p) != noise[k][i]]] for i in range(items)}
        for k, p in enumerate(scores)
    ]
    alive = set(range(len(scores)))
    for size in (math.ceil(items * share) for share in shares):
        seen = [{i: own[i] for i in range(size)} for own in given]
        right = [sum(answer.is_correct for answer in own.values()) for own in seen]
        leader = max(sorted(alive), key=right.__getitem__)
        alive -= {k for k in alive - {leader} if loss_to(str(leader), seen[leader], seen[k], level)}
    return set(range(len(scores))) - alive


def test_the_best_is_seldom_dropped_and_a_clear_loser_always():
    draw, races = random.Random(1), 300
    # All are equally good: each is a best one, so dropping any single one counts against it.
    assert sum(0 in _race([0.6] * 8, 120, draw) for _ in range(races)) <= ERROR * races
    draw = random.Random(2)
    results = [_race([0.9, 0.88, 0.3], 120, draw) for _ in range(50)]
    assert all(2 in dropped for dropped in results)
    assert sum(0 in dropped for dropped in results) <= ERROR * len(results)
