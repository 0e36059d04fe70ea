"""Counting overlap patterns: the kernels, their torch twins, and the arithmetic on histograms."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from element_blocks import (
    NARROW,
    ElementBlock,
    examples,
    make_block,
    some_blocks,
    stored_as,
    tensors_of,
)
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import epsilon_grid, overlap
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EDGE_BITS, EPSILON_GRID, GRID_BINS
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels import torch as twin
from ram_studio.algorithm.kernels.loops.elements import TILE
from ram_studio.algorithm.kernels.rules import Drawing, Rule, means
from ram_studio.algorithm.overlap import OverlapCounts

SIZES = (0, 1, 2, 7, 63, 64, 65, 129)
DTYPES = ("BF16", "F32")
FEW = (*NARROW[:2], (3, "F32"))
MANY = NARROW[2:]


def chain_of(block: ElementBlock, edge_bits: int = EDGE_BITS) -> np.ndarray:
    n = len(block.agents)
    chain = np.zeros((1 << n) * n * BIN_COUNT, dtype=np.int32)
    assert cpu.fill_chain(block.base, block.agents, chain, cpu.Grid.anchored(edge_bits))
    chain = chain.reshape(1 << n, n, BIN_COUNT).astype(np.int64)
    chain[0] = 0  # scratch
    return chain


def steps_of(block: ElementBlock) -> np.ndarray:
    n = len(block.agents)
    steps = np.zeros((n, n, BIN_COUNT), dtype=np.int32)
    assert cpu.fill_steps(block.base, block.agents, steps)
    return steps.astype(np.int64)


def sizes_of(block: ElementBlock) -> np.ndarray:
    table = np.zeros((len(block.agents), BIN_COUNT + cpu.TILE), dtype=np.int32)
    assert cpu.count_sizes(block.base, block.agents, table)
    return table[:, :BIN_COUNT]


def expected_patterns(block: ElementBlock, epsilons=EPSILON_GRID) -> list[list[int]]:
    base, agents = block.base_values, block.agent_values
    return [reference.pattern_counts(base, agents, epsilon) for epsilon in epsilons]


def assert_chain_counts_like_reference(block: ElementBlock) -> None:
    counted = overlap.patterns_from_chain(chain_of(block), GRID_BINS, len(block.base))
    assert counted.tolist() == expected_patterns(block)


blocks = some_blocks(FEW, SIZES)
many_agents = some_blocks(MANY, SIZES)


@examples(60)
@given(block=blocks)
def test_patterns_equal_a_plain_count_at_every_grid_point(block):
    assert_chain_counts_like_reference(block)


@pytest.mark.parametrize(("agents", "dtype"), FEW)
def test_every_overlap_count_occurs_and_is_counted(agents, dtype):
    block = make_block(agents, agents, 150, dtype, "every overlap")
    counts = np.array(expected_patterns(block)[0])
    sizes = np.array([mask.bit_count() for mask in range(1 << agents)])
    assert [counts[sizes == c].sum() > 0 for c in range(agents + 1)] == [True] * (agents + 1)
    assert_chain_counts_like_reference(block)


@pytest.mark.parametrize("size", [2047, 2048, 2049, 4097])
def test_patterns_are_right_around_the_kernels_tile(size):
    assert TILE == cpu.TILE  # else loops write beyond the rows and columns made for them
    block = make_block(size, 3, size, "BF16", "every overlap")
    points = [0, epsilon_grid.DEFAULT_INDEX, len(EPSILON_GRID) - 1]
    counted = overlap.patterns_from_chain(chain_of(block), GRID_BINS[points], size)
    assert counted.tolist() == expected_patterns(block, [EPSILON_GRID[p] for p in points])


def test_a_change_of_exactly_epsilon_does_not_count():
    # Changes of exactly each grid point and of its neighbors, of both signs.
    sizes = [
        sign * value
        for edge in (np.float32(e) for e in EPSILON_GRID[1:])
        for value in (np.nextafter(edge, np.float32(0)), edge, np.nextafter(edge, np.float32(9)))
        for sign in (np.float32(1), np.float32(-1))
    ]
    agents = tuple(stored_as(np.roll(sizes, 5 * t), "F32") for t in range(3))
    block = ElementBlock(stored_as(np.zeros(len(sizes)), "F32"), agents)
    counted = overlap.patterns_from_chain(chain_of(block), GRID_BINS, len(block.base))
    # Two of the six elements around each edge lie above it, and all of those around later ones.
    for point in range(1, len(EPSILON_GRID)):
        active = counted[point, 1::2].sum()
        assert active == 2 + 6 * (len(EPSILON_GRID) - 1 - point), EPSILON_GRID[point]
    assert counted.tolist() == expected_patterns(block)
    # Nor as it is counted of many agents.
    shared = overlap.shared_from_steps(steps_of(block), GRID_BINS)
    assert shared.tolist() == [reference.shared_counts(c, 3) for c in counted.tolist()]


@pytest.mark.parametrize("epsilon", [0.0, 1e-45, 3e-9, 1.1e-5, 0.0123456789, 2.5, 1e30, 3e38])
def test_an_epsilon_off_the_epsilon_grid_is_counted_exactly(epsilon):
    threshold = float(epsilon_grid.float32_threshold(epsilon))
    exact = stored_as([0.0, threshold, -threshold, np.nextafter(np.float32(threshold), 1)], "F32")
    wild = make_block(11, 3, 130, "F32", "wild")
    for block in (ElementBlock(np.zeros(4, np.float32), (exact, -exact, exact)), wild):
        chain = chain_of(block, int(np.float32(threshold).view(np.uint32)))
        first = np.array([-epsilon_grid.LOWEST_BIN])
        counted = overlap.patterns_from_chain(chain, first, len(block.base))
        assert counted.tolist() == expected_patterns(block, [epsilon])


@examples(40)
@given(block=many_agents)
def test_shared_counts_of_many_agents_equal_a_plain_count(block):
    agents = len(block.agents)
    counted = overlap.shared_from_steps(steps_of(block), GRID_BINS)
    expected = [reference.shared_counts(c, agents) for c in expected_patterns(block)]
    assert counted.tolist() == expected


def expected_magnitudes(block: ElementBlock) -> list[list[int]]:
    """Return per agent the elements between one bin edge (not included) and the next (included)."""
    edges = np.array([epsilon_grid.edge_value(k) for k in range(1, BIN_COUNT)])
    tables = []
    for agent in block.agent_values:
        sizes = [abs(reference.tau(x, y)) for x, y in zip(block.base_values, agent, strict=True)]
        # What lies below the first or above the last edge is kept in the outermost bins.
        bins = np.searchsorted(edges, [s for s in sizes if s > 0], side="left")
        tables.append(np.bincount(bins, minlength=BIN_COUNT).tolist())
    return tables


@examples(40)
@given(block=some_blocks((*FEW, *MANY), SIZES))
def test_magnitudes_are_histograms_of_the_sizes_of_changes(block):
    expected = expected_magnitudes(block)
    assert sizes_of(block).tolist() == expected
    assert twin.count_sizes(*tensors_of(block), EDGE_BITS).tolist() == expected
    if len(block.agents) <= overlap.MAX_PATTERN_AGENTS:
        assert chain_of(block).sum(0).tolist() == expected


@examples(20)
@given(block=blocks)
def test_torch_twin_fills_the_same_chain_histogram(block):
    base, agents = tensors_of(block)
    found = twin.chain_histogram(base, agents, EDGE_BITS)
    np.testing.assert_array_equal(found.numpy(), chain_of(block))


@examples(8)
@given(block=many_agents)
def test_torch_twin_fills_the_same_step_histogram(block):
    twin_steps = twin.step_histogram(*tensors_of(block), EDGE_BITS).numpy()
    # Steps of agents in one bin cancel in the kernel's order or another: compare what they add to.
    whole = [steps[..., ::-1].cumsum(-1) for steps in (twin_steps, steps_of(block))]
    np.testing.assert_array_equal(*whole)


@examples(30)
@given(block=blocks, cut=st.floats(0, 1))
def test_counts_of_two_parts_add_up_to_those_of_the_whole(block, cut):
    middle = round(cut * len(block.base))
    first, second = block.part(0, middle), block.part(middle, len(block.base))
    np.testing.assert_array_equal(chain_of(first) + chain_of(second), chain_of(block))


six_agents = some_blocks(((1, "BF16"), (3, "F32"), (6, "BF16")), SIZES)
"""Whose patterns are counted in plain Python here: nothing is compiled for them."""


def counts_of(block: ElementBlock) -> OverlapCounts:
    patterns = np.array(expected_patterns(block), dtype=np.int64)
    return OverlapCounts.from_patterns(np.array([len(block.base)]), patterns[None])


@examples(30)
@given(block=six_agents, data=st.data())
def test_dropping_agents_is_the_same_as_never_having_had_them(block, data):
    order = data.draw(st.permutations(range(len(block.agents))))
    keep = order[: data.draw(st.integers(1, len(order)))]
    fewer = ElementBlock(block.base, tuple(block.agents[t] for t in keep))
    kept, expected = counts_of(block).keep_agents(keep), expected_patterns(fewer)
    assert kept.patterns[0].tolist() == expected
    assert kept.shared[0].tolist() == [reference.shared_counts(c, len(keep)) for c in expected]


@examples(30)
@given(block=six_agents)
def test_elements_by_overlap_and_agent_follow_from_patterns(block):
    agents, counts = len(block.agents), counts_of(block)
    masks = range(1 << agents)
    for point, by_mask in enumerate(counts.patterns[0].tolist()):
        assert counts.by_count[0, point].tolist() == [
            sum(by_mask[m] for m in masks if m.bit_count() == c) for c in range(agents + 1)
        ]
        assert counts.active[0, point].tolist() == [
            sum(by_mask[m] for m in masks if m >> t & 1) for t in range(agents)
        ]
    without_patterns = OverlapCounts(counts.numel, None, counts.shared)
    np.testing.assert_array_equal(without_patterns.by_count, counts.by_count)


def test_grouped_counts_are_sums_over_the_groups_members():
    parts = [make_block(seed, 2, 40 + seed, "BF16", "every overlap") for seed in range(3)]
    expected = [expected_patterns(part) for part in parts]
    counts = OverlapCounts.from_patterns(np.array([40, 41, 42]), np.array(expected, dtype=np.int64))
    grouped = counts.grouped([[2, 0], [1]])
    assert grouped.numel.tolist() == [82, 41]
    for point in range(len(EPSILON_GRID)):
        total = reference.add_counts([expected[2][point], expected[0][point]])
        assert grouped.patterns[0, point].tolist() == total
        assert grouped.shared[0, point].tolist() == reference.shared_counts(total, 2)
        assert grouped.patterns[1, point].tolist() == expected[1][point]


def test_agents_are_not_dropped_where_patterns_were_not_counted():
    counts = OverlapCounts(np.array([3]), None, np.zeros((1, 1, 7, 7), dtype=np.int64))
    with pytest.raises(ValueError, match="patterns"):
        counts.keep_agents([0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 2049])
@pytest.mark.parametrize("where", ["base", "agent", "both"])
def test_one_number_that_is_not_finite_is_noticed_wherever_it_is(bad, size, where):
    for position in {0, size // 2, size - 1}:
        base, agents = np.ones(size, np.float32), [np.ones(size, np.float32) for _ in range(3)]
        spoilt = {"base": [base], "agent": agents[2:], "both": [base, *agents]}
        for array in spoilt[where]:
            array[position] = bad
        for arithmetic in ("float32", "float64"):
            stored = [
                (a.view(np.uint32) >> 16).astype(np.uint16) if arithmetic == "float32" else a
                for a in (base, *agents)
            ]
            x, ys = stored[0], tuple(stored[1:])
            chain = np.zeros(24 * BIN_COUNT, dtype=np.int32)
            steps = np.zeros((3, 3, BIN_COUNT), np.int32)
            sizes = np.zeros((3, BIN_COUNT + cpu.TILE), np.int32)
            pattern = np.empty(size, np.uint8)
            assert not cpu.fill_chain(x, ys, chain)
            assert not cpu.fill_steps(x, ys, steps)
            assert not cpu.count_sizes(x, ys, sizes)
            assert not cpu.find_patterns(x, ys, pattern, np.float32(1e-5))
            assert not cpu.is_tau_finite(x, ys)
            out, ones = np.empty(size, x.dtype), (1.0, 1.0, 1.0)
            drawing = Drawing((np.uint64(1),) * 3, (1 << 53,) * 3)  # everything is dropped
            for rule in (
                Rule(0.0, ones, means(3)),
                Rule(0.0, ones, means(3), elect_sign=True, thresholds=(1e30,) * 3),
                Rule(0.0, ones, (0.5,) * 4, drawing=drawing),
            ):
                assert not cpu.merge(rule, x, ys, out, pattern, arithmetic=arithmetic)


@pytest.mark.parametrize(("dtype", "arithmetic"), [("BF16", "float32"), ("F32", "float64")])
@pytest.mark.parametrize("elect_sign", [False, True])
def test_a_merged_element_beyond_the_outputs_range_is_noticed(dtype, arithmetic, elect_sign):
    base = stored_as([0.0] * 40, dtype)
    agents = (stored_as([0.0] * 20 + [2.0**127 * 1.5] + [0.0] * 19, dtype), base, base)
    out, pattern = np.empty_like(base), np.empty(40, np.uint8)
    for factor, fits in ((1.0, True), (1.4, False)):
        rule = Rule(0.0, (factor,) * 3, means(3, factor), elect_sign)
        assert cpu.merge(rule, base, agents, out, pattern, arithmetic=arithmetic) == fits
    assert cpu.is_tau_finite(base, agents)


def test_a_difference_beyond_float32_is_noticed():
    x = np.array([3e38], np.float32)
    chain = np.zeros(24 * BIN_COUNT, dtype=np.int32)
    assert not cpu.fill_chain(x, (-x, x, x), chain)
