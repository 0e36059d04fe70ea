"""Retained and interference against plain loops over elements, in exact arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from element_blocks import (
    NARROW,
    WIDE,
    ElementBlock,
    examples,
    make_block,
    some_blocks,
    stored_as,
)
from hypothesis import given
from hypothesis import strategies as st
from test_relations import POINTS, changes, count, of_three, relate

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.meters.relations import RowLayout
from ram_studio.algorithm.meters.retained import (
    Energies,
    RetainedShares,
    build_energies,
    retained_dict,
)
from ram_studio.algorithm.meters.weighted import GroupSettings, retained_of, sums_of_products

FACTORS = (1.2, 1.0, 1.155, 11.0, 1.01, 1.1, 1.3)


def energies(block: ElementBlock) -> Energies:
    table = relate(block)[0]
    return build_energies(table[0][:, RowLayout(len(block.agents)).products], count(block))


class Loop:
    """One block's elements: who changed each by more than epsilon, and by how much."""

    def __init__(self, block: ElementBlock, epsilon: float) -> None:
        self.n = len(block.agents)
        self.elements = list(changes(block, epsilon))

    def norm2(self, t: int) -> Fraction:
        return sum((tau[t] ** 2 for tau, _ in self.elements), Fraction(0))

    def sums(self, t: int, others: int) -> tuple[Fraction, Fraction]:
        """Return the sums of tau_t**2, and of tau_t times the others', where others changed too."""
        own, cross = Fraction(0), Fraction(0)
        for tau, active in self.elements:
            if t in active and len(active) == others + 1:
                own += tau[t] ** 2
                cross += tau[t] * sum(tau[s] for s in active if s != t)
        return own, cross

    def meet(self, c: int) -> Fraction:
        parts = (sum(tau[s] for s in on) ** 2 for tau, on in self.elements if len(on) == c > 0)
        return sum(parts, Fraction(0))

    def retained(self, t: int, own_part, *, norm2: Fraction) -> tuple[float, float]:
        """Return retained and interference of what ``own_part(tau, active, t)`` brings in."""
        along, rest = Fraction(0), Fraction(0)
        for tau, active in self.elements:
            own = own_part(tau, active, t)
            along += own * tau[t]
            rest += sum(own_part(tau, active, s) for s in range(self.n) if s != t) ** 2
        return float(along / norm2), math.sqrt(float(rest / norm2))


def ram_part(tau, active, t) -> Fraction:
    if t not in active:
        return Fraction(0)
    return Fraction(FACTORS[t]) * tau[t] if len(active) == 1 else tau[t] / len(active)


blocks = some_blocks(NARROW + WIDE, (0, 1, 2, 17, 40))


def near(found: float, expected: Fraction, scale: float) -> bool:
    return abs(found - float(expected)) <= 1e-12 * scale


@examples(40)
@given(block=blocks, point=st.sampled_from(POINTS))
def test_sums_are_those_of_a_plain_loop(block, point):
    found, loop = energies(block), Loop(block, EPSILON_GRID[point])
    norm2 = [float(loop.norm2(t)) for t in range(loop.n)]
    most = max(norm2)
    np.testing.assert_allclose(found.norm2, norm2, rtol=1e-13)
    for t, j in itertools.product(range(loop.n), repeat=2):
        square, cross = loop.sums(t, j)
        assert near(found.square[point, t, j], square, norm2[t])
        # Of others that moved further the last digit is larger, too.
        assert near(found.cross[point, t, j], cross, loop.n * math.sqrt(norm2[t] * most))
        assert square or found.square[point, t, j] == 0  # and not the last digit of a difference
    for c in range(loop.n + 1):
        assert near(found.meet[point, c], loop.meet(c), loop.n**2 * most)


@examples(40)
@given(block=blocks, point=st.sampled_from(POINTS), scale=st.sampled_from([0.0, 1 / 3, 1.0, 2.5]))
def test_kept_and_all_else_are_those_of_a_plain_merge(block, point, scale):
    found, loop, bare = energies(block), Loop(block, EPSILON_GRID[point]), Loop(block, 0.0)
    of_sum = lambda tau, active, t: Fraction(scale) * tau[t]  # noqa: E731
    cases = [
        (loop, found.ram(point, FACTORS[: loop.n]), ram_part),
        (bare, found.scaled_sum(scale), of_sum),
    ]
    most = math.sqrt(max(found.norm2, default=0.0))
    for one, retained, part in cases:
        for t, own in enumerate(retained):
            norm2 = loop.norm2(t)
            if norm2 == 0:
                assert own is None
                continue
            assert isinstance(own, RetainedShares)
            total, rest = one.retained(t, part, norm2=norm2)
            assert own.retained == pytest.approx(total, rel=1e-11, abs=1e-12)
            # Interference is the root of a difference.
            assert own.interference == pytest.approx(rest, rel=1e-9, abs=1e-5 * most / norm2**0.5)
            parts = own.unique + own.shared + own.lost_to_averaging + own.lost_to_epsilon
            assert parts == pytest.approx(1.0, abs=1e-12)
            assert own.unique + own.boost + own.shared == pytest.approx(own.retained, abs=1e-12)


@examples(25)
@given(block=of_three, point=st.sampled_from(POINTS), last=st.sampled_from([0.0, -0.5, 1.7]))
def test_weights_are_those_of_a_plain_merge(block, point, last):
    found, loop = energies(block), Loop(block, EPSILON_GRID[point])
    weights = np.array((0.7, 2.0, last)[: loop.n])

    def weighted(tau, active, t):
        return Fraction(weights[t]) * ram_part(tau, active, t)

    most = math.sqrt(max(found.norm2, default=0.0))
    own = weights[None]
    applied = GroupSettings(np.array([point]), own * FACTORS[: loop.n], own, np.array([-1]))
    sums = sums_of_products(found.products[None], loop.n)
    for t, own in enumerate(retained_of(*sums, applied)):
        if (norm2 := loop.norm2(t)) == 0:
            assert own is None
            continue
        total, rest = loop.retained(t, weighted, norm2=norm2)
        assert own.retained == pytest.approx(total, rel=1e-11, abs=1e-12)
        assert own.interference == pytest.approx(rest, rel=1e-9, abs=1e-5 * most / norm2**0.5)


@examples(25)
@given(block=of_three, data=st.data())
def test_agents_left_out_were_never_there(block, data):
    n = len(block.agents)
    keep = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    chosen = energies(block).keep_agents(keep)
    alone = energies(ElementBlock(block.base, tuple(block.agents[t] for t in keep)))
    for name in ("square", "cross", "meet"):
        a, b = getattr(chosen, name), getattr(alone, name)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * max(alone.meet.max(), 1e-300))


def test_beyond_six_agents_none_can_be_left_out():
    with pytest.raises(ValueError, match="by set"):
        energies(make_block(1, 7, 33, "BF16", "every overlap")).keep_agents([0])


def test_the_largest_and_smallest_float32_changes_are_told():
    base = stored_as(np.zeros(4), "F32")
    huge = stored_as([3e38, 0.0, 0.0, 2e38], "F32")
    tiny = stored_as([0.0, 1e-45, 3e-45, 1e-45], "F32")
    found = energies(ElementBlock(base, (huge, tiny, base)))
    least = float(np.float32(1e-45)) ** 2
    assert found.norm2.tolist() == pytest.approx([13e76, 6 * least, 0.0], rel=1e-6)
    assert found.energy[0, 1].tolist() == pytest.approx([5 / 6, 1 / 6, 0.0])
    assert not found.energy[1:, 1].any(), "below every other epsilon"


def test_an_agent_that_changed_nothing_has_no_kept():
    base = stored_as(np.ones(3), "BF16")
    found = energies(ElementBlock(base, (base, stored_as([2.0, 2.0, 1.0], "BF16"))))
    idle, other = found.ram(0, (1.0, 1.5))
    assert retained_dict(idle) == {
        "retained": None,
        "interference": None,
        "interference_rounding": None,
    }
    assert (other.retained, other.interference) == (1.5, 0.0)
    assert found.others_all.tolist() == [0.0, 0.0]


def test_previews_tables_and_the_profile_tell_it():
    block = make_block(3, 3, 400, "BF16", "every overlap")
    analysis = Analysis(
        agents=("a", "b", "c"),
        tensors=(TensorEntry("w", 400),),
        counts=count(block),
        magnitudes=np.zeros((3, BIN_COUNT), dtype=np.int64),
        energies=energies(block),
    )
    found = analysis.preview(9, "ram+s", 0.4)
    factors = [agent["lambda"] for agent in found["agents"].values()]
    expected = [retained_dict(own) for own in analysis.energies.ram(9, factors)]
    told = [{k: a[k] for k in expected[0]} for a in found["agents"].values()]
    assert told == expected
    of_sum = found["methods"]["sum"]["b"]
    assert of_sum.pop("factors") == {"own": None, "shared": None}
    assert of_sum == retained_dict(analysis.energies.scaled_sum(1.0)[1])
    assert found["methods"]["average"]["c"]["retained"]["total"] == pytest.approx(1 / 3)
    frame = analysis.to_frame("model", 9, "ram+s", 0.4)
    assert frame["retained"].tolist() == [own["retained"]["total"] for own in expected]
    alone = analysis.select(["b"]).preview()
    assert alone["agents"]["b"]["interference"] == 0
    # The browser's arithmetic: shares of |tau|^2 in twelve digits.
    profile = client_profile(analysis)
    unique, *shared = profile["energy"][9][1]
    by_hand = factors[1] * unique + sum(e / (j + 2) for j, e in enumerate(shared))
    assert by_hand == pytest.approx(expected[1]["retained"]["total"], abs=1e-9)
    for name, shape in {"energy": (58, 3, 3), "cross": (58, 3, 3), "norm2": (3,)}.items():
        assert np.shape(profile[name]) == shape
