"""Merging blocks by RAM's rule (Eq. 7): the loops, their torch twin, and laws that must hold."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import reference
import torch
from element_blocks import (
    NARROW,
    WIDE,
    ElementBlock,
    bits_of,
    examples,
    float32_of,
    make_block,
    some_blocks,
    stored_as,
    tensors_of,
    values_of,
)
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import rounding
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, float32_threshold
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels import torch as twin
from ram_studio.algorithm.kernels.rules import Rule, means
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
FACTORS = (1.0, 1.2, 1.05, 1.0, 1.13, 1.2, 1.01)
EPSILONS = (0.0, 1e-5, EPSILON_GRID[30], 0.0123)

either = st.sampled_from(("mean", "ties"))
blocks = some_blocks(NARROW + WIDE, (0, 1, 2, 31, 64, 65))


def region(shared: str, epsilon: float, factors: tuple[float, ...]) -> Rule:
    return Rule(float(float32_threshold(epsilon)), factors, means(len(factors)), shared == "ties")


def arithmetic_of(block: ElementBlock) -> str:
    return "float32" if block.base.dtype == np.uint16 else "float64"


def merge(
    block: ElementBlock,
    shared: str,
    epsilon: float,
    factors: tuple[float, ...],
    out_dtype: type | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the merged elements, by default not rounded, and overlap patterns of the loop."""
    arithmetic = arithmetic_of(block)
    out = np.empty(len(block.base), dtype=out_dtype or arithmetic)
    active = np.empty(len(block.base), dtype=np.uint8)
    rule = region(shared, epsilon, factors)
    assert cpu.merge(rule, block.base, block.agents, out, active, arithmetic=arithmetic)
    return out, active


@examples(50)
@given(block=blocks, shared=either, epsilon=st.sampled_from(EPSILONS))
def test_each_element_is_merged_as_published(block, shared, epsilon):
    factors = FACTORS[: len(block.agents)]
    out, active = merge(block, shared, epsilon, factors)
    assert active.tolist() == reference.patterns(block.base_values, block.agent_values, epsilon)
    unit = UNIT[arithmetic_of(block)]
    for x, ys, got in zip(
        block.base_values, zip(*block.agent_values, strict=True), out.tolist(), strict=True
    ):
        exact = reference.merged_exactly(x, ys, epsilon, factors, shared)
        scale = max(abs(v) for v in (x, *ys))
        changes = [Fraction(y) - Fraction(x) for y in ys if abs(reference.tau(x, y)) > epsilon]
        if shared == "ties" and abs(sum(changes)) <= scale * 40 * unit:
            continue  # a sum that is 0 but for rounding may elect either sign
        # A difference, up to 7 additions, a product and a sum, each one unit of at most 2 * 7
        # times the largest number; and denormals.
        allowed = Fraction(scale) * Fraction(160 * unit) + Fraction(2) ** -148
        assert abs(Fraction(got) - exact) <= allowed


@examples(60)
@given(block=blocks, shared=either, epsilon=st.sampled_from(EPSILONS))
def test_torch_twin_merges_to_the_same_bits(block, shared, epsilon):
    factors = FACTORS[: len(block.agents)]
    out, active = merge(block, shared, epsilon, factors)
    rule = region(shared, epsilon, factors)
    values, pattern, _ = twin.merge(rule, *tensors_of(block), arithmetic=arithmetic_of(block))
    assert bits_of(values.numpy()) == bits_of(out)
    assert pattern.tolist() == active.tolist()
    assert twin.find_patterns(*tensors_of(block), rule.epsilon).tolist() == active.tolist()


@examples(30)
@given(block=blocks, shared=either, epsilon=st.sampled_from(EPSILONS))
def test_unchanged_and_unscaled_elements_are_bit_equal(block, shared, epsilon):
    out, active = merge(block, shared, epsilon, (1.0,) * len(block.agents))
    for mask, stored in ((0, block.base), *((1 << t, y) for t, y in enumerate(block.agents))):
        mine = active == mask
        assert bits_of(out[mine]) == bits_of(float32_of(stored).astype(out.dtype)[mine])


@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_unique_elements_keep_their_scaled_change(shared):
    block = ElementBlock(
        stored_as([1.0, 1.0, 1.0], "F32"),
        tuple(stored_as(a, "F32") for a in ([1.5, 1.0, 1.0], [1.0, 0.5, 1.0], [1.0] * 3)),
    )
    out, active = merge(block, shared, 1e-5, (1.25, 1.5, 9.0))
    assert out.tolist() == [1.625, 0.25, 1.0]
    assert active.tolist() == [1, 2, 0]


def test_shared_elements_are_the_mean_of_the_active_changes():
    base = [0.0] * 4
    agents = ([3.0, 3.0, 3.0, 3.0], [1.0, 0.0, 1e-6, -3.0], [2.0, 1.0, 1.0, 3.0])
    block = ElementBlock(stored_as(base, "F32"), tuple(stored_as(a, "F32") for a in agents))
    out, _ = merge(block, "mean", 1e-5, (5.0, 5.0, 5.0))
    # All three; the first and third (the second is unchanged, then below epsilon); a conflict.
    assert out.tolist() == [2.0, 2.0, 2.0, 1.0]


def test_sign_election_averages_those_that_agree_with_the_sum():
    base = [0.0] * 5
    agents = (
        [3.0, 3.0, 1.0, -1.0, 9.0],
        [-1.0, -4.0, -1.0, -2.0, -1e-6],
        [1.0, 0.0, 0.0, -3.0, 1.0],
    )
    block = ElementBlock(stored_as(base, "F32"), tuple(stored_as(a, "F32") for a in agents))
    out, _ = merge(block, "ties", 1e-5, (1.0, 1.0, 1.0))
    # Sum 3: 3 and 1; sum -1: -4; sum 0: the base; all agree; the third only, and the first.
    assert out.tolist() == [2.0, -4.0, 0.0, -2.0, 5.0]


@examples(20)
@given(
    seed=st.integers(0, 2**32),
    shared=either,
    order=st.permutations(range(7)),
)
def test_the_order_of_agents_changes_nothing_beyond_rounding(seed, shared, order):
    block = make_block(seed, 7, 64, "BF16", "every overlap")
    out, active = merge(block, shared, 1e-5, FACTORS)
    permuted = ElementBlock(block.base, tuple(block.agents[t] for t in order))
    again, active_again = merge(permuted, shared, 1e-5, tuple(FACTORS[t] for t in order))
    scale = np.max([np.abs(values_of(a)) for a in (block.base, *block.agents)], axis=0)
    # A sum that is 0 but for rounding may elect either sign: such elements are left out.
    taus = np.array(block.agent_values) - np.array(block.base_values)
    is_tie = np.abs(np.where(np.abs(taus) > 1e-5, taus, 0).sum(0)) < 40 * UNIT["float32"] * scale
    compared = np.ones(64, bool) if shared == "mean" else ~is_tie
    assert (np.abs(out - again) <= 32 * UNIT["float32"] * scale)[compared].all()
    places = {t: order.index(t) for t in range(7)}
    assert active_again.tolist() == [
        sum(1 << places[t] for t in range(7) if mask >> t & 1) for mask in active.tolist()
    ]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_equal_agents_give_that_agent(dtype, shared):
    one = make_block(3, 1, 65, dtype, "all")
    block = ElementBlock(one.base, one.agents * 3)
    out, active = merge(block, shared, 0.0, (1.3,) * 3)
    far = np.abs(out - values_of(one.agents[0]))
    scale = np.maximum(np.abs(values_of(one.agents[0])), np.abs(values_of(one.base)))
    assert (far <= 8 * UNIT[arithmetic_of(block)] * scale).all()
    assert set(active.tolist()) <= {0, 7}


@examples(40)
@given(
    block=some_blocks(((3, "BF16"), *WIDE), (0, 1, 65)),
    shared=either,
    dtype=st.sampled_from(("BF16", "F32")),
)
def test_what_the_loop_writes_is_the_nearest(block, shared, dtype):
    exact, _ = merge(block, shared, 1e-5, FACTORS[:3])
    dtype = "BF16" if exact.dtype == np.float32 else dtype  # float32 is then not rounded
    out, _ = merge(block, shared, 1e-5, FACTORS[:3], rounding.STORAGE[dtype].type)
    for value, stored in zip(exact.tolist(), values_of(out), strict=True):
        # The cast goes through float32, as torch's does.
        through = reference.float32(value)
        if math.isinf(stored):
            assert math.isinf(through) or abs(value) > float(reference.largest(dtype))
            continue
        assert Fraction(stored) == reference.nearest(Fraction(through), dtype)
        assert math.copysign(1, stored) == math.copysign(1, value)


@examples(30)
@given(block=some_blocks(NARROW, (0, 1, 65)), extra=st.sampled_from((0, 191, 5000)))
def test_changed_and_unique_elements_are_counted_per_agent(block, extra):
    n = len(block.agents)
    longer = ElementBlock(
        np.concatenate([block.base, np.zeros(extra, np.uint16)]),
        tuple(
            np.concatenate([a, np.full(extra, t % 2, np.uint16)])
            for t, a in enumerate(block.agents)
        ),
    )
    expected = reference.pattern_counts(longer.base_values, longer.agent_values, 0.0)
    if n > MAX_PATTERN_AGENTS:
        expected = reference.shared_counts(expected, n)
    pattern = np.empty(len(longer.base), np.uint8)
    assert cpu.find_patterns(longer.base, longer.agents, pattern, np.float32(0))
    masks = reference.patterns(longer.base_values, longer.agent_values, 0.0)
    assert pattern.tolist() == masks
    assert cpu.count_patterns(pattern, n).tolist() == expected
    assert twin.count_patterns(torch.tensor(masks, dtype=torch.int64), n).tolist() == expected


@pytest.mark.parametrize("agents", range(1, 9))
def test_patterns_are_counted_whatever_their_number(agents):
    pattern = np.random.default_rng(agents).integers(0, 1 << agents, 5001).astype(np.uint8)
    expected = np.bincount(pattern, minlength=1 << agents).tolist()
    if agents > MAX_PATTERN_AGENTS:
        expected = reference.shared_counts(expected, agents)
    assert cpu.count_patterns(pattern, agents).tolist() == expected


@pytest.mark.parametrize(("agents", "width"), [(9, 2), (32, 4)])
def test_many_agents_have_wider_patterns(agents, width):
    block = make_block(agents, agents, 70, "BF16", "every overlap")
    pattern = np.empty(70, cpu.pattern_dtype(agents))
    assert [cpu.pattern_dtype(n).itemsize for n in (8, 16, 17, agents)] == [1, 2, 4, width]
    assert cpu.find_patterns(block.base, block.agents, pattern, np.float32(0))
    assert pattern.tolist() == reference.patterns(block.base_values, block.agent_values, 0.0)
    shared = np.zeros((agents, agents), np.int64)
    for mask in pattern.tolist():
        for t in range(agents):
            if mask >> t & 1:
                shared[t, mask.bit_count() - 1] += 1
    assert cpu.count_patterns(pattern, agents).tolist() == shared.tolist()


def loop_sums(block, pattern, stored, weights):
    """Return ``cpu.measure``'s sums; weights: per element, agent -> weight of its own part."""
    found = [[0.0] * cpu.SUMS for _ in block.agents]
    columns = zip(*block.agent_values, strict=True)
    for x, ys, z, mask, own in zip(
        block.base_values, columns, stored, pattern.tolist(), weights, strict=True
    ):
        parts = [own.get(t, 0.0) * (y - x) for t, y in enumerate(ys)]
        error = z - x - math.fsum(parts)
        for t, y in enumerate(ys):
            tau, is_mine = y - x, bool(mask >> t & 1)
            unique, shared = is_mine and mask == 1 << t, is_mine and mask != 1 << t
            terms = (
                unique * (z - x) * tau,
                unique * tau**2,
                unique * error * tau,
                shared * parts[t] * tau,
                shared * tau**2,
                shared * error * tau,
                tau**2,
                (z - x - parts[t]) ** 2,
                (z - x - error - parts[t]) ** 2,
            )
            found[t] = [a + b for a, b in zip(found[t], terms, strict=True)]
    return np.array(found)


def own_weights(block, shared, epsilon, factors):
    """Return per element the weights with which agents' tau enter the merge, as published."""
    for x, ys in zip(block.base_values, zip(*block.agent_values, strict=True), strict=True):
        mask = reference.pattern(x, ys, epsilon)
        voters = [t for t in range(len(ys)) if mask >> t & 1]
        if shared == "ties" and voters:
            total = sum(ys[t] - x for t in voters)
            voters = [t for t in voters if (ys[t] - x) * total > 0]
        alone = mask.bit_count() == 1
        yield {t: factors[t] if alone else 1 / len(voters) for t in voters}


@examples(24)
@given(
    block=some_blocks(
        ((3, "BF16"), (3, "F32")), (129, 1500), ("sparse", "every overlap", "one ulp")
    ),
    shared=either,
)
def test_what_was_stored_of_every_agent_is_that_of_a_plain_loop(block, shared):
    arithmetic, size, factors = arithmetic_of(block), len(block.base), (1.2, 1.1, 1.0)
    rule = region(shared, 1e-5, factors)
    out = np.empty_like(block.base)
    pattern, voters = np.empty((2, size), np.uint8)
    run = {"arithmetic": arithmetic, "voters": voters}
    assert cpu.merge(rule, block.base, block.agents, out, pattern, **run)
    masks, cuts = (pattern, voters), [0, 17, size]
    total = cpu.measure(
        rule, block.base, block.agents, out, masks, cuts, arithmetic=arithmetic
    ).sum(0)
    stored = values_of(out)
    expected = loop_sums(block, pattern, stored, own_weights(block, shared, 1e-5, factors))
    base, agents = tensors_of(block)
    merged = twin.merge(rule, base, agents, arithmetic="float64")
    told = torch.from_numpy(float32_of(out).copy())
    whole = [slice(0, 17), slice(17, size)]
    by_group = twin.measure(base, agents, told, merged, whole)
    on_torch = by_group.sum(0).numpy()
    with mock.patch.object(twin, "CHUNK", 50):  # a large tensor is measured in pieces
        pieces = twin.measure(base, agents, told, merged, whole)
    # Up to a thousand products, of which float32 holds eight digits; errors are differences, small
    # beside the changes that they are of.
    near = {"float32": 1e-4, "float64": 1e-12}[arithmetic]
    scale = np.maximum(np.sqrt(expected[:, 6:7] * np.maximum(expected[:, 6:8].max(), 0)), 1e-38)
    assert (np.abs(total - expected) <= near * np.maximum(np.abs(expected), scale)).all()
    assert (np.abs(on_torch - expected) <= 1e-12 * np.maximum(np.abs(expected), scale)).all()
    of_pieces, of_groups = pieces.numpy(), by_group.numpy()
    room = 1e-12 * np.maximum(np.abs(of_groups), scale)
    assert (np.abs(of_pieces - of_groups) <= room).all()
    for t in range(3):
        factor = reference.effective_scaling(block.base_values, block.agent_values, 1e-5, t, stored)
        if factor is None:
            assert total[t, 1] == 0
        else:
            assert total[t, 0] / total[t, 1] == pytest.approx(factor, rel=near)


@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_the_sum_of_changes_that_underflow_still_has_a_sign(shared):
    tiny = float(np.float32(1e-45))
    block = ElementBlock(stored_as([0.0], "F32"), (stored_as([tiny], "F32"),) * 3)
    out, active = merge(block, shared, 0.0, (1.0, 1.0, 1.0))
    assert out.tolist() == [tiny]
    assert active.tolist() == [7]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("size", [0, 1, 2048, 2049, 4100])
def test_one_changed_element_is_enough_to_be_changed(dtype, size):
    block = make_block(size, 3, size, dtype, "none")
    assert cpu.is_copy(block.base, block.agents)
    for place in {0, size // 2, size - 1} if size else ():
        agents = tuple(agent.copy() for agent in block.agents)
        agents[2][place] = stored_as([0.75], dtype)[0]
        assert not cpu.is_copy(block.base, agents)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_makes_a_block_so(dtype, bad):
    numbers = make_block(1, 1, 77, "BF16", "wild").base
    numbers = numbers if dtype == "BF16" else float32_of(numbers).copy()
    assert cpu.is_finite(numbers)
    for place in (0, 40, 76):
        spoilt = numbers.copy()
        high = (np.array([bad], np.float32).view(np.uint32) >> 16).astype(np.uint16)
        spoilt[place] = high[0] if dtype == "BF16" else bad
        assert not cpu.is_finite(spoilt)
