"""The range of an effective factor against the ratio estimator's formula, written out."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm.exact_sums import LANES, ExactTotal, exact_product
from ram_studio.engine.passes.merging import MergeTally
from ram_studio.engine.passes.plan import MergedBlock


def test_an_effective_factors_range_is_a_ratio_estimators():
    sums = np.random.default_rng(0).random((7, 2, 9))
    sums[2, 1] = 0.0  # a group in which agent 1 changed nothing alone
    for blocks in ([sums], [sums[:3], sums[3:4], sums[4:]]):
        tally = MergeTally(2)
        for part in blocks:
            tally.add(MergedBlock(None, np.zeros(4, np.int64), part))
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
    one.add(MergedBlock(None, np.zeros(4, np.int64), sums[2:3]))
    assert one.effective_factor(0) is not None
    assert one.effective_interval(0) is None
    assert one.effective_factor(1) is None


def tally_of(blocks: list[np.ndarray]) -> MergeTally:
    tally = MergeTally(2)
    for sums in blocks:
        tally.add(MergedBlock(None, np.zeros(4, np.int64), sums))
    return tally


def test_parts_in_any_order_add_up_to_the_same_bits():
    rng = np.random.default_rng(1)
    blocks = [
        rng.normal(size=(rng.integers(1, 5), 2, 9)) * 10.0 ** rng.integers(-30, 30, (1, 2, 9))
        for _ in range(4 * LANES)
    ]
    whole = tally_of(blocks)
    random.Random(2).shuffle(blocks)
    parts = MergeTally(2)
    for part in (blocks[700:], blocks[:3], blocks[3:700]):
        parts.join(tally_of(part).total)
    assert parts.total.sums.tobytes() == whole.total.sums.tobytes()
    for agent in (0, 1):
        groups = [row for sums in blocks for row in sums[:, agent].tolist()]
        factor = math.fsum(g[0] for g in groups) / math.fsum(g[1] for g in groups)
        assert parts.effective_factor(agent) == whole.effective_factor(agent) == factor
        squares = sum((Fraction(g[0]) - Fraction(factor) * Fraction(g[1])) ** 2 for g in groups)
        n, bottom = len(groups), math.fsum(g[1] for g in groups)
        half = 1.96 * math.sqrt(float(squares) * n / (n - 1)) / bottom
        assert parts.effective_interval(agent) == whole.effective_interval(agent)
        assert whole.effective_interval(agent) == (factor - half, factor + half)
    # What is held and handed on does not grow with the blocks.
    few = tally_of(blocks[:8]).total.sums.nbytes
    assert whole.total.sums.nbytes <= 4 * few
    assert len(whole._waiting) < LANES


@given(st.lists(st.floats(-1e140, 1e140).filter(lambda x: not 0 < abs(x) < 1e-140), min_size=2))
def test_products_and_totals_are_exact(values):
    a, b = np.array(values[1:]), np.array(values[:-1])
    terms = exact_product(a, b)
    assert [Fraction(x) + Fraction(y) for x, y in zip(*terms, strict=True)] == [
        Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)
    ]
    total = ExactTotal(())
    total.add(a)
    packed = total.packed().tolist()
    assert sum(map(Fraction, packed)) == sum(map(Fraction, a.tolist()))
    assert packed[:1] == [math.fsum(a)][: len(packed)]
