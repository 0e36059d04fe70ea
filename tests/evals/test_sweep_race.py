"""The rule that drops settings: its arithmetic, and the error it promises."""

import math
import random

import pytest
from scipy.stats import binomtest

from ram_studio.evals.experiment.race import ERROR, level_for, loss_to, sign_test, stage_shares


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (0, 9), (3, 14), (9, 0), (40, 61)])
def test_the_test_is_the_one_sided_exact_sign_test(wins, losses):
    both = wins + losses
    expected = binomtest(losses, both, 0.5, alternative="greater").pvalue if both else 1.0
    assert sign_test(wins, losses) == pytest.approx(expected)


def test_only_items_that_both_answered_count():
    own = {"a": False, "b": False, "c": True, "d": True}
    theirs = {"a": True, "b": True, "c": True, "z": False}
    loss = loss_to("rival", theirs, own, level=0.25)
    assert (loss.items, loss.wins, loss.losses, loss.p_value) == (3, 0, 2, 0.25)
    assert loss_to("rival", theirs, own, level=0.2499) is None


def test_items_of_one_document_are_one_loss():
    own, theirs = dict.fromkeys("abcdefgh", False), dict.fromkeys("abcdefgh", True)
    assert loss_to("rival", theirs, own, level=0.01).p_value == 0.5**8
    pairs = {item: item in "abcd" for item in own}
    assert loss_to("rival", theirs, own, level=0.24, clusters=pairs) is None
    assert loss_to("rival", theirs, own, level=0.25, clusters=pairs).p_value == 0.25


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
    verdicts = [
        {i: (hardness[i] < p) != noise[k][i] for i in range(items)} for k, p in enumerate(scores)
    ]
    alive = set(range(len(scores)))
    for size in (math.ceil(items * share) for share in shares):
        seen = [{i: v[i] for i in range(size)} for v in verdicts]
        leader = max(sorted(alive), key=lambda k: sum(seen[k].values()))
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
