"""The epsilon grid: its points, its bins, and thresholds in float32."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from element_blocks import examples
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, DEFAULT_INDEX, EPSILON_GRID, GRID_BINS
from ram_studio.errors import SettingsError

thresholds = st.one_of(
    st.floats(0, 1e308),
    st.floats(0, 1),
    st.floats(0, 1e-30),
    st.sampled_from(EPSILON_GRID),
    st.sampled_from([1e-5, float(np.float32(1e-5)), 5e-324, 3.5e38]),
)


def test_the_epsilon_grid_holds_zero_and_the_papers_epsilon():
    assert EPSILON_GRID[0] == 0.0
    assert EPSILON_GRID[DEFAULT_INDEX] == 1e-5
    assert list(EPSILON_GRID) == sorted(set(EPSILON_GRID))
    assert 50 <= len(EPSILON_GRID) <= 64
    # Every point is a float32 but the paper's 1e-5, which is none.
    assert [e for e in EPSILON_GRID if float(np.float32(e)) != e] == [1e-5]


def test_grid_points_lie_within_half_a_bin_of_the_decades():
    for wanted in (1e-8, 2e-8, 5e-8, 1e-7, 1e-6, 2e-6, 5e-6, 2e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0):
        # 128 bins an octave, so neighbors differ by at most 1/128.
        assert abs(EPSILON_GRID[epsilon_grid.snap(wanted)] / wanted - 1) < 1 / 200, wanted


def test_bins_of_points_begin_at_their_epsilon():
    assert GRID_BINS[0] == 0
    assert [epsilon_grid.edge_value(int(b)) for b in GRID_BINS[1:]] == list(EPSILON_GRID[1:])


@examples(200)
@given(
    tau=st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.floats(-(2.0**-13), 2.0**-13, width=32),
        st.integers(0, BIN_COUNT - 1).map(epsilon_grid.edge_value).map(np.float32).map(float),
    )
)
def test_a_bin_holds_what_lies_above_its_edge_up_to_the_next(tau):
    k = int(epsilon_grid.key_of(np.array([tau], np.float32))[0])
    if tau == 0:
        assert k == -1
        return
    assert 0 <= k < BIN_COUNT
    if k > 0:
        assert abs(tau) > epsilon_grid.edge_value(k)
    if k < BIN_COUNT - 1:
        assert abs(tau) <= epsilon_grid.edge_value(k + 1)


@examples(200)
@given(epsilon=thresholds)
def test_the_float32_threshold_means_the_same_for_every_float32(epsilon):
    threshold = epsilon_grid.float32_threshold(epsilon)
    assert threshold.dtype == np.float32
    assert Fraction(float(threshold)) <= Fraction(epsilon)
    with np.errstate(over="ignore"):
        above = np.nextafter(threshold, np.float32(np.inf))
    assert math.isinf(above) or Fraction(float(above)) > Fraction(epsilon)


@examples(200)
@given(epsilon=thresholds)
def test_an_epsilon_on_the_grid_separates_the_same_numbers(epsilon):
    same = [
        i
        for i, point in enumerate(EPSILON_GRID)
        if epsilon_grid.float32_threshold(point) == epsilon_grid.float32_threshold(epsilon)
    ]
    assert epsilon_grid.find_grid_index(epsilon) == (same[0] if same else None)


@examples(100)
@given(epsilon=st.floats(EPSILON_GRID[1], 100.0))
def test_snapping_takes_the_nearest_point_in_proportion(epsilon):
    factors = [max(epsilon / p, p / epsilon) for p in EPSILON_GRID[1:]]
    snapped = EPSILON_GRID[epsilon_grid.snap(epsilon)]
    assert max(epsilon / snapped, snapped / epsilon) == pytest.approx(min(factors), rel=1e-12)


def test_snapping_what_is_nearly_zero_gives_zero():
    assert [epsilon_grid.snap(e) for e in (0.0, 1e-300, EPSILON_GRID[1] / 4)] == [0, 0, 0]
    assert epsilon_grid.snap(EPSILON_GRID[1] * 0.9) == 1
    assert epsilon_grid.find_grid_index(1e-300) == 0  # no float32 lies between
    assert epsilon_grid.find_grid_index(1e-12) is None


@pytest.mark.parametrize("bad", [-1e-9, math.inf, -math.inf, math.nan])
def test_an_epsilon_that_is_negative_or_not_finite_is_refused(bad):
    for use in (
        epsilon_grid.snap,
        epsilon_grid.float32_threshold,
        epsilon_grid.find_grid_index,
        epsilon_grid.check_epsilon,
    ):
        with pytest.raises(SettingsError, match="epsilon"):
            use(bad)
