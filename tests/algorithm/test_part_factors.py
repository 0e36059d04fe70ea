"""Own and shared factors against plain loops over elements, in exact arithmetic, and NumPy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from element_blocks import NARROW, WIDE, ElementBlock, examples, make_block, some_blocks, stored_as
from hypothesis import given
from hypothesis import strategies as st
from test_relations import POINTS, changes, count, relate
from test_retained import energies

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
from ram_studio.algorithm.meters.part_factors import (
    REFERENCE,
    PartFactors,
    measured_factors,
    part_sums,
)
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.meters.relations import RowLayout

LAMBDAS = (1.2, 1.0, 1.155, 11.0, 1.01, 1.1, 1.3)
blocks = some_blocks(NARROW + WIDE, (0, 1, 2, 17, 40))


def factors(block: ElementBlock) -> PartFactors:
    rows = relate(block)[0][0][:, RowLayout(len(block.agents)).factors]
    return PartFactors.of_rows(rows, len(block.agents))


def plain_factors(block: ElementBlock, merged) -> list[list[float | None]]:
    """Return each agent's own and shared factor of a merge, element by element.

    merged: an element's change, from its number and everybody's tau.
    """
    n = len(block.agents)
    sums = [[[Fraction(0), Fraction(0)] for _ in range(2)] for _ in range(n)]
    for i, (tau, members) in enumerate(changes(block, EPSILON_GRID[REFERENCE])):
        for t in members:
            own = sums[t][len(members) > 1]
            own[0] += tau[t] * merged(i, tau)
            own[1] += tau[t] ** 2
    return [[float(m / e) if e else None for m, e in agent] for agent in sums]


def tau_scale(block: ElementBlock) -> float:
    """Return how far factors may be from 0: the largest |tau| over the smallest that is in a part.

    Sums of products are rounded relative to their largest terms.
    """
    everything = [abs(float(x)) for tau, _ in changes(block, 0.0) for x in tau]
    return max(everything, default=0.0) / EPSILON_GRID[REFERENCE]


def check(found, expected, scale: float) -> None:
    for one, other in zip(found.tolist(), expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert math.isnan(a) if b is None else a == pytest.approx(b, rel=1e-9, abs=scale)


@examples(60)
@given(block=blocks, point=st.sampled_from(POINTS), last=st.sampled_from([1.0, 0.0, -0.5]))
def test_ram_factors_are_those_of_a_plain_loop(block, point, last):
    weights = (*(1.0,) * (len(block.agents) - 1), last)
    active = [members for _, members in changes(block, EPSILON_GRID[point])]

    def ram(i, tau):
        on = active[i]
        if len(on) == 1:
            return Fraction(LAMBDAS[on[0]]) * Fraction(weights[on[0]]) * tau[on[0]]
        return sum((Fraction(weights[t]) * tau[t] for t in on), Fraction(0)) / max(len(on), 1)

    scale = 1e-12 * max(LAMBDAS) * tau_scale(block)
    lambdas = LAMBDAS[: len(block.agents)]
    check(factors(block).of_ram(point, lambdas, weights), plain_factors(block, ram), scale)


@examples(40)
@given(block=blocks)
def test_sum_factors_are_those_of_a_plain_loop(block):
    expected = plain_factors(block, lambda i, tau: sum(tau))
    check(factors(block).sum, expected, 1e-12 * tau_scale(block))


@examples(40)
@given(block=blocks, data=st.data())
def test_measured_factors_are_those_of_a_plain_loop(block, data):
    n = len(block.base_values)
    number = st.floats(-2, 2, width=32)
    change = np.array(data.draw(st.lists(number, min_size=n, max_size=n)), dtype=np.float32)
    tau = np.array([[float(x) for x in t] for t, _ in changes(block, 0.0)], dtype=np.float32)
    tau = tau.reshape(n, len(block.agents)).T
    half = n // 2  # blocks add up
    sums = part_sums(tau[:, :half], change[:half]) + part_sums(tau[:, half:], change[half:])
    found = measured_factors(sums)
    expected = plain_factors(block, lambda i, tau: Fraction(float(change[i])))
    for t, agent in enumerate(expected):
        for part, value in zip(("own", "shared"), agent, strict=True):
            scale = 1e-12 * 2 / EPSILON_GRID[REFERENCE]
            assert found[part][t] == (
                None if value is None else pytest.approx(value, rel=1e-9, abs=scale)
            )


def test_average_weakens_and_ram_keeps_what_one_agent_changed():
    base = stored_as(np.zeros(3), "BF16")
    first, second = stored_as([0.5, 0.5, 0.0], "BF16"), stored_as([0.0, 0.5, 0.25], "BF16")
    found = factors(ElementBlock(base, (first, second)))
    assert found.of_ram(REFERENCE, (1.0, 1.2)).tolist() == [[1.0, 1.0], [1.2, 1.0]]
    assert (found.sum / 2).tolist() == [[0.5, 1.0], [0.5, 1.0]]
    assert not found.of_ram(len(EPSILON_GRID) - 1, (1.0, 1.2)).any(), "nothing is above it"


def test_previews_tables_and_the_profile_have_the_factors():
    block = make_block(3, 3, 400, "BF16", "every overlap")
    parts = factors(block)
    analysis = Analysis(
        agents=("a", "b", "c"),
        tensors=(TensorEntry("w", 400),),
        counts=count(block),
        magnitudes=np.zeros((3, BIN_COUNT), dtype=np.int64),
        energies=energies(block),
        part_factors=parts,
    )
    found = analysis.preview(9, "ram+s", 0.4)
    lambdas = [agent["lambda"] for agent in found["agents"].values()]
    expected = parts.of_ram(9, lambdas).tolist()
    told = [[a["factors"]["own"], a["factors"]["shared"]] for a in found["agents"].values()]
    assert told == expected
    assert found["methods"]["average"]["b"]["factors"]["own"] == pytest.approx(1 / 3)
    frame = analysis.to_frame("model", 9, "ram+s", 0.4)
    assert frame[["own_factor", "shared_factor"]].values.tolist() == expected
    profile = client_profile(analysis)
    row = profile["parts"]["shared"][9][1]
    by_hand = row[0] + sum(b * factor for b, factor in zip(row[1:], lambdas, strict=True))
    assert by_hand == pytest.approx(expected[1][1], abs=1e-5)
    assert profile["sum"]["own"] == pytest.approx(parts.sum[:, 0].tolist(), abs=1e-6)
    turned = analysis.select(["c", "a", "b"]).preview(9, "ram+s", 0.4)
    for name, agent in turned["agents"].items():
        assert agent["factors"] == pytest.approx(found["agents"][name]["factors"], rel=1e-12)


def test_without_an_agent_the_parts_are_not_known():
    block = make_block(3, 3, 400, "BF16", "every overlap")
    assert factors(block).keep_agents([0, 2]) is None
    base = stored_as(np.zeros(2), "F32")
    moved = stored_as([1.0, 1.0], "F32")
    alone = factors(ElementBlock(base, (moved, base, base)))
    assert np.isnan(alone.sum).tolist() == [[False, True], [True, True], [True, True]]
