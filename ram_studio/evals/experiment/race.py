"""Find the settings of a sweep that clearly lose, with a bound on the error.

Items are asked in stages. After each, a setting is dropped when the best so far is right and it is
wrong on so many more items than the other way round that an even split would give as many with
probability at most

    level = ERROR / ((settings - 1) * stages)        (one-sided exact sign test, McNemar's)

Items that share a document change sign together, see `flip_test`.

Here all questions have equal weight, while settings are ranked by the mean over the skills: the two
may disagree where suites differ in size.

Bonferroni over all rivals and stages: a setting that is truly the best on such items is dropped or
called worse with probability at most ERROR, whichever rivals lead at whichever stage. This holds
for settings fixed before the first answer (a grid) and items drawn at random. A search chooses
later settings by earlier answers to the same items: there it is a guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ram_studio.evals.question import Answer
from ram_studio.evals.report.comparison import flip_test, paired_counts, sign_test

ERROR = 0.05
SHARES = (0.25, 0.5, 1.0)
# With fewer items no stage could drop a setting at a usual level.
LEAST_ITEMS = 24


@dataclass(frozen=True)
class Loss:
    """Why a setting was dropped: on `items` items it lost to `rival` `losses` times, won `wins`."""

    rival: str
    items: int
    wins: int
    losses: int
    p_value: float
    level: float


def stage_shares(items: int, early_stop: bool) -> tuple[float, ...]:
    """Return the shares of the items after which settings are compared; the last is 1."""
    return SHARES if early_stop and items >= LEAST_ITEMS else (1.0,)


def level_for(settings: int, stages: int) -> float:
    """Return the level of one test: ERROR divided among all rivals and stages."""
    return ERROR / (max(1, settings - 1) * stages)


def loss_to(
    rival: str, theirs: Mapping[str, Answer], own: Mapping[str, Answer], level: float
) -> Loss | None:
    """Return the loss of a setting to a rival on the items both answered, None if not clear.

    Args:
        theirs, own: answers by item.
        level: of the test, see `level_for`.
    """
    both = [item for item in own if item in theirs]
    pairs = paired_counts([own[item] for item in both], [theirs[item] for item in both])
    if pairs.clusters is None:
        p = sign_test(pairs.losses, pairs.wins)
    else:
        p = flip_test([-sum(cluster) for cluster in pairs.clusters])
    return Loss(rival, pairs.n, pairs.wins, pairs.losses, p, level) if p <= level else None
