"""Magnitudes, signs, cancellation and dot products against plain loops over elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import reference
from element_blocks import (
    KINDS,
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

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, all_thresholds
from ram_studio.algorithm.kernels import relating
from ram_studio.algorithm.meters import relations, rounding_meter
from ram_studio.algorithm.meters.relations import Relations
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.engine.passes.counting import Counter, Tally
from ram_studio.engine.passes.cpu_backend import CpuBackend

GRID = all_thresholds()
POINTS = (0, 9, 22, 30, 45, len(EPSILON_GRID) - 1)


def count(block: ElementBlock) -> OverlapCounts:
    tally = Tally(1, len(block.agents), GRID)
    counter = Counter(tally, CpuBackend())
    assert counter.add(0, block.base, block.agents)
    counter.close()
    return tally.counts([len(block.base)])


def relate(block: ElementBlock, *, only_magnitudes: bool = False) -> np.ndarray:
    """Return the kernels' rows at every grid point, and the dot products."""
    n = len(block.agents)
    sums = relating.RelationSums.zeros(
        n, GRID.edge_bits, GRID.interval_of_bin, only_magnitudes=only_magnitudes
    )
    sums.places[:] = rounding_meter.kernel_places(["BF16"] * n)
    gathered = relating.ChangedElements.room_for(n, len(block.base))
    relating.gather_changed(block.base, block.agents, gathered)
    relating.add_relations(gathered, sums)
    rows, dots = sums.rows, sums.dots
    assert not rows[sums.touched == 0].any(), "rows that were added to are marked"
    return np.cumsum(rows[:, :0:-1], axis=1)[:, ::-1].T[None], dots[None]


def related(block: ElementBlock) -> Relations:
    return relations.build_relations(*relate(block), count(block))


def changes(block: ElementBlock, epsilon: float) -> Iterator[tuple[list[Fraction], list[int]]]:
    """Yield each element's tau, and who changed it by more than epsilon."""
    for x, ys in zip(block.base_values, zip(*block.agent_values, strict=True), strict=True):
        mask = reference.pattern(x, ys, epsilon)
        tau = [Fraction(reference.tau(x, y)) for y in ys]
        yield tau, [t for t in range(len(ys)) if mask >> t & 1]


class Expected:
    """One block's statistics at one epsilon, element by element, in exact arithmetic."""

    def __init__(self, block: ElementBlock, epsilon: float) -> None:
        n = len(block.agents)
        pairs = list(itertools.combinations(range(n), 2))
        self.magnitude = [[Fraction(0), Fraction(0)] for _ in range(n)]
        self.by_set: dict[tuple[int, int], Fraction] = {}
        self.conflicts = 0
        self.cancelled = [Fraction(0)] * n
        self.lost = Fraction(0)
        self.pair_counts = {p: [0, 0] for p in pairs}
        self.pair_sums = {p: [Fraction(0), Fraction(0)] for p in pairs}
        for tau, members in changes(block, epsilon):
            mask = sum(1 << t for t in members)
            for t in members:
                self.magnitude[t][len(members) > 1] += abs(tau[t])
                self.by_set[mask, t] = self.by_set.get((mask, t), Fraction(0)) + abs(tau[t])
            if len(members) < 2:
                continue
            total = sum(tau[t] for t in members)
            self.conflicts += len({tau[t] > 0 for t in members}) == 2
            self.lost += sum(abs(tau[t]) for t in members) - abs(total)
            for t in members:
                if total == 0:
                    self.cancelled[t] += abs(tau[t]) / 2
                elif (tau[t] > 0) != (total > 0):
                    self.cancelled[t] += abs(tau[t])
            for a, b in itertools.combinations(members, 2):
                self.pair_counts[a, b][0] += 1
                self.pair_counts[a, b][1] += (tau[a] > 0) != (tau[b] > 0)
                self.pair_sums[a, b][0] += abs(tau[a]) + abs(tau[b])
                self.pair_sums[a, b][1] += abs(tau[a]) + abs(tau[b]) - abs(tau[a] + tau[b])


def near(found: float, expected: Fraction, scale: float, size: int) -> bool:
    """Whether a sum is right but for rounding each |tau| to 2**-38, and sums beyond 2**15."""
    return abs(found - float(expected)) <= size * 2.0**-38 + 1e-12 * scale


few_agents = some_blocks(
    (*NARROW[:2], *WIDE), (0, 1, 2, 17, 60), kinds := tuple(k for k in KINDS if k != "wild")
)
of_three = some_blocks(NARROW[1:2], (0, 1, 2, 17, 60), kinds)


@examples(60)
@given(block=few_agents, point=st.sampled_from(POINTS))
def test_statistics_are_those_of_a_plain_loop(block, point):
    found = related(block)
    expected = Expected(block, EPSILON_GRID[point])
    n, size = len(block.agents), max(1, len(block.base))
    scale = sum(float(sum(m)) for m in Expected(block, 0.0).magnitude)
    for t in range(n):
        for c in (0, 1):
            value = found.magnitude[0, point, t, c]
            assert near(value, expected.magnitude[t][c], scale, size)
            if not expected.magnitude[t][c]:
                assert value == 0  # and not the last digit of what was taken away
        assert near(found.cancelled[0, point, t], expected.cancelled[t], scale, size)
    assert near(2 * found.cancelled[0, point].sum(), expected.lost, scale, 2 * n * size)
    for place, member in enumerate(relations.members_of(n)):
        wanted = expected.by_set.get(member, Fraction(0))
        assert near(found.by_set[0, point, place], wanted, scale, size)
    assert found.conflicts[0, point] == expected.conflicts
    for place, pair in enumerate(found.pairs):
        assert found.pair_counts[0, point, place].tolist() == expected.pair_counts[pair]
        for c in (0, 1):
            wanted = expected.pair_sums[pair][c]
            assert near(found.pair_sums[0, point, place, c], wanted, 2 * scale, 2 * size)


@examples(40)
@given(block=few_agents)
def test_dot_products_and_cosines_are_those_of_task_vectors(block):
    found = related(block)
    n = len(block.agents)
    tau = [
        [reference.tau(x, y) for x, y in zip(block.base_values, ys, strict=True)]
        for ys in block.agent_values
    ]
    norms = [math.sqrt(math.fsum(x * x for x in row)) for row in tau]
    for a, b in itertools.product(range(n), repeat=2):
        dot = math.fsum(x * y for x, y in zip(tau[a], tau[b], strict=True))
        assert found.dots[0, a, b] == pytest.approx(dot, abs=1e-12 * norms[a] * norms[b])
        cosine = found.cosines[0, a, b]
        if norms[a] == 0 or norms[b] == 0:
            assert math.isnan(cosine)
        else:
            assert cosine == pytest.approx(dot / norms[a] / norms[b], abs=1e-12)


@examples(40)
@given(block=of_three, data=st.data())
def test_agents_left_out_were_never_there(block, data):
    n = len(block.agents)
    keep = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    chosen = related(block).keep_agents(keep)
    alone = related(ElementBlock(block.base, tuple(block.agents[t] for t in keep)))
    np.testing.assert_array_equal(chosen.magnitude, alone.magnitude)
    np.testing.assert_array_equal(chosen.by_set, alone.by_set)
    np.testing.assert_array_equal(chosen.pair_counts, alone.pair_counts)
    np.testing.assert_array_equal(chosen.pair_sums, alone.pair_sums)
    np.testing.assert_allclose(chosen.dots, alone.dots, rtol=1e-12)
    for name in ("conflicts", "cancelled"):
        value = getattr(chosen, name)
        if len(keep) in (1, n) or (name == "conflicts" and len(keep) == 2):
            np.testing.assert_array_equal(value, getattr(alone, name))
        else:
            assert value is None


@examples(30)
@given(block=few_agents)
def test_the_lean_kernel_gives_the_same_magnitudes(block):
    counts = count(block)
    whole = related(block)
    lean, by_set = relations.build_magnitude(relate(block, only_magnitudes=True)[0], counts)
    np.testing.assert_array_equal(lean, whole.magnitude)
    np.testing.assert_array_equal(by_set, whole.by_set)


@examples(25)
@given(seed=st.integers(0, 10**6), point=st.sampled_from(POINTS))
def test_beyond_six_agents_magnitudes_are_kept_alone_and_shared(seed, point):
    block = make_block(seed, 7, 33, "BF16", "every overlap")
    found = related(block)
    expected = Expected(block, EPSILON_GRID[point])
    assert found.by_set is None
    scale = sum(float(sum(m)) for m in Expected(block, 0.0).magnitude)
    for t in range(7):
        for c in (0, 1):
            assert near(found.magnitude[0, point, t, c], expected.magnitude[t][c], scale, 33)
    assert found.conflicts[0, point] == expected.conflicts
    with pytest.raises(ValueError, match="by set"):
        found.keep_agents([0])


def test_statistics_of_parts_add_up():
    block = make_block(5, 3, 4000, "BF16", "every overlap")
    parts = [related(block.part(a, b)) for a, b in ((0, 1), (1, 1500), (1500, 4000))]
    both = Relations(
        **{name: np.concatenate([getattr(p, name) for p in parts]) for name in vars(parts[0])}
    ).grouped([[0, 1, 2]])
    whole = related(block)
    np.testing.assert_array_equal(both.conflicts, whole.conflicts)
    np.testing.assert_array_equal(both.pair_counts, whole.pair_counts)
    np.testing.assert_allclose(both.magnitude, whole.magnitude, rtol=1e-12)
    np.testing.assert_allclose(both.dots, whole.dots, rtol=1e-12)


def test_equal_and_opposite_changes_lose_all_and_half_of_it_each():
    base = stored_as(np.ones(4), "F32")
    up, down = stored_as(np.full(4, 1.5), "F32"), stored_as(np.full(4, 0.5), "F32")
    found = related(ElementBlock(base, (up, down, base)))
    assert found.cancelled[0, 0].tolist() == [1.0, 1.0, 0.0]
    assert found.pair_sums[0, 0, 0].tolist() == [4.0, 4.0]
    assert found.cosines[0, 0, 1] == -1.0
    assert (found.conflicts[0, 0], found.conflicts[0, -1]) == (4, 0)
    # Also where three add up to nothing.
    agents = tuple(stored_as(np.full(4, 1 + tau), "F32") for tau in (0.25, 0.25, -0.5))
    found = related(ElementBlock(base, agents))
    assert found.cancelled[0, 0].tolist() == [0.5, 0.5, 1.0]
    assert found.conflicts[0, 0] == 4


def test_nothing_unique_is_exactly_zero_in_inexact_sums_too():
    rng = np.random.default_rng(1)
    base = np.zeros(3000, np.float32)
    large = (10.0 ** rng.uniform(-4, 9, 3000)).astype(np.float32)
    small = (10.0 ** rng.uniform(-8, -5, 3000)).astype(np.float32)
    rows, dots = relate(block := ElementBlock(base, (large, small, base)))
    assert rows[0, 0, 3] != 0  # a last digit is left of what was taken away again
    found = relations.build_relations(rows, dots, count(block))
    assert found.magnitude[0, 0, 0, 0] == 0
    assert relations.group_ratios(found.magnitude[:, 0], [[0]])[0, 0] == math.inf


def test_zero_and_minus_zero_are_no_change():
    base = stored_as([0.0, -0.0, 1.0], "BF16")
    other = stored_as([-0.0, 0.0, 1.0], "BF16")
    found = related(ElementBlock(base, (other, base)))
    assert not found.magnitude.any()
    assert np.isnan(found.cosines).all()


def test_ratio_by_magnitude_has_the_edge_cases_of_the_count():
    magnitude = np.array([[[0.0, 0.0], [0.0, 2.0], [2.0, 3.0]]])
    assert relations.group_ratios(magnitude, [[0]]).tolist() == [[0.0, math.inf, 1.5]]
