"""rho and lambda: the published rules and their edges."""

from __future__ import annotations

import math

import pytest
import reference
from element_blocks import examples
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import scaling
from ram_studio.errors import SettingsError

counts = st.integers(0, 10**12)
ratios = st.one_of(st.floats(0, 1e9), st.just(math.inf), st.just(0.0))


@examples(100)
@given(shared=counts, unique=counts)
def test_rho_is_shared_by_unique(shared, unique):
    assert scaling.overlap_unique_ratio(shared, unique) == reference.ratio([unique, shared])


@pytest.mark.parametrize(
    ("shared", "unique", "rho"), [(0, 0, 0.0), (0, 5, 0.0), (5, 0, math.inf), (3, 4, 0.75)]
)
def test_rho_of_agents_without_own_or_shared_elements(shared, unique, rho):
    assert scaling.overlap_unique_ratio(shared, unique) == rho


@examples(200)
@given(
    rho=ratios,
    rule=st.sampled_from(scaling.RULES),
    r=st.floats(0, 10),
    alpha=st.floats(0, 1e4),
)
def test_lambda_is_that_of_the_equations(rho, rule, r, alpha):
    expected = reference.scaling(rho, rule, r, alpha)
    assert scaling.scaling_factor(rho, rule, r, alpha) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("rho", "rule", "expected"),
    [
        (0.0, "ram+", 1.0),
        (0.5, "ram+", 1.05),
        (2.0, "ram+", 1.2),
        (16.61, "ram+", 1.2),
        (math.inf, "ram+", 1.2),
        (0.0, "ram+s", 1.0),
        (1.0, "ram+s", 1.05),
        (3.0, "ram+s", 1.075),
        (math.inf, "ram+s", 1.1),
        (7.0, "ram", 1.0),
        (math.inf, "ram", 1.0),
    ],
)
def test_lambda_at_the_papers_defaults(rho, rule, expected):
    assert scaling.scaling_factor(rho, rule) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("rule", "r", "alpha", "named"),
    [
        ("ram++", 0.1, 2.0, "ram\\+\\+"),
        ("ram+", -0.1, 2.0, "r is -0.1"),
        ("ram+", 0.1, -1.0, "alpha is -1.0"),
        ("ram+", math.nan, 2.0, "r is nan"),
        ("ram+s", 0.1, math.inf, "alpha is inf"),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(rule, r, alpha, named):
    with pytest.raises(SettingsError, match=named):
        scaling.scaling_factor(1.0, rule, r, alpha)
