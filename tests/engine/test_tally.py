"""The range of an effective factor against the ratio estimator's formula, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import Merged


def test_the_range_of_an_effective_factor_is_a_ratio_estimators_over_groups():
    sums = np.random.default_rng(0).random((7, 2, 9))
    sums[2, 1] = 0.0  # a group in which agent 1 changed nothing alone
    for blocks in ([sums], [sums[:3], sums[3:4], sums[4:]]):
        tally = MergeTally(2)
        for part in blocks:
            tally.add(Merged(None, np.zeros(4, np.int64), part))
        for agent in (0, 1):
            groups = [(top, bottom) for top, bottom, *_ in sums[:, agent].tolist() if bottom]
            total = sum(bottom for _, bottom in groups)
            factor = sum(top for top, _ in groups) / total
            assert tally.effective_factor(agent) == pytest.approx(factor, rel=1e-14)
            squares = sum((top - factor * bottom) ** 2 for top, bottom in groups)
            half = 1.96 * math.sqrt(squares * len(groups) / (len(groups) - 1)) / total
            expected = pytest.approx((factor - half, factor + half), rel=1e-13)
            assert tally.effective_interval(agent) == expected
    one = MergeTally(2)
    assert (one.effective_factor(0), one.effective_interval(0), one.retained(0)) == (
        None,
        None,
        None,
    )
    one.add(Merged(None, np.zeros(4, np.int64), sums[2:3]))
    assert one.effective_factor(0) is not None
    assert one.effective_interval(0) is None
    assert one.effective_factor(1) is None
