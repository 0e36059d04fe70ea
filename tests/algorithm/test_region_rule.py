"""Merging blocks by RAM's rule (Eq. 7): both kernels, their torch twin, and laws that must hold."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import reference
import torch
from element_blocks import (
    KINDS,
    ElementBlock,
    examples,
    float32_of,
    make_block,
    stored_as,
    values_of,
)
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import kernels, measured_kernels, torch_kernels
from ram_studio.algorithm.ladder import LADDER, float32_threshold

KERNELS = {"mean": kernels.merge_mean, "ties": kernels.merge_elected}
FACTORS = (1.0, 1.2, 1.05, 1.0, 1.13, 1.2, 1.01, 1.07)
EPSILONS = (0.0, 1e-5, LADDER[30], 0.0123)

blocks = st.builds(
    make_block,
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 8),
    size=st.sampled_from((0, 1, 2, 31, 64, 65)),
    dtype=st.just("BF16"),
    kind=st.sampled_from(KINDS),
)
wide_blocks = st.builds(
    make_block,
    seed=st.integers(0, 2**32),
    agents=st.just(3),
    size=st.sampled_from((0, 1, 65)),
    dtype=st.sampled_from(("F16", "F32")),
    kind=st.sampled_from(KINDS),
)
either = st.one_of(blocks, wide_blocks)


def merge(
    block: ElementBlock,
    shared: str,
    epsilon: float,
    factors: tuple[float, ...],
    out_dtype: type = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the merged elements and overlap patterns of the fused kernel."""
    out = np.empty(len(block.base), dtype=out_dtype)
    active = np.empty(len(block.base), dtype=np.uint8)
    rule = KERNELS[shared]
    assert rule(block.base, block.agents, out, active, float32_threshold(epsilon), factors)
    return out, active


def bits(array: np.ndarray) -> list[int]:
    """Return bit patterns, which tell -0.0 from 0.0."""
    return array.view(f"u{array.itemsize}").tolist()


@examples(80)
@given(block=either, shared=st.sampled_from(("mean", "ties")), epsilon=st.sampled_from(EPSILONS))
def test_kernel_merges_each_element_as_the_reference_does(block, shared, epsilon):
    factors = FACTORS[: len(block.agents)]
    out, active = merge(block, shared, epsilon, factors)
    base, agents = block.base_values, block.agent_values
    expected = [
        reference.merged(x, ys, epsilon, factors, shared)
        for x, ys in zip(base, zip(*agents, strict=True), strict=True)
    ]
    assert bits(out) == bits(np.array(expected, dtype=np.float64))
    assert active.tolist() == reference.patterns(base, agents, epsilon)


@examples(40)
@given(block=either, shared=st.sampled_from(("mean", "ties")))
def test_float64_arithmetic_stays_within_rounding_of_the_exact_result(block, shared):
    factors = FACTORS[: len(block.agents)]
    out, _ = merge(block, shared, 1e-5, factors)
    for x, ys, got in zip(
        block.base_values, zip(*block.agent_values, strict=True), out.tolist(), strict=True
    ):
        exact = reference.merged_exactly(x, ys, 1e-5, factors, shared)
        scale = max(abs(v) for v in (x, *ys))
        active = [Fraction(y) - Fraction(x) for y in ys if abs(reference.tau(x, y)) > 1e-5]
        if shared == "ties" and abs(sum(active)) < scale * 2.0**-40:
            continue  # a sum that is 0 but for rounding may elect either sign
        # A difference, up to 8 additions, a product or quotient and a sum, each 2**-53 of at most
        # 2 * 8 times the largest number.
        assert abs(Fraction(got) - exact) <= Fraction(scale) * Fraction(160, 2**53)


@examples(40)
@given(
    block=either,
    shared=st.sampled_from(("mean", "ties")),
    epsilon=st.sampled_from(EPSILONS),
)
def test_torch_twin_merges_to_the_same_bits(block, shared, epsilon):
    factors = FACTORS[: len(block.agents)]
    out, active = merge(block, shared, epsilon, factors)
    twin, pattern = torch_kernels.merge_ram(
        torch.from_numpy(float32_of(block.base).copy()),
        torch.from_numpy(np.stack([float32_of(a) for a in block.agents])),
        float(float32_threshold(epsilon)),
        factors,
        shared == "ties",
    )
    assert bits(twin.numpy()) == bits(out)
    assert pattern.tolist() == active.tolist()


@examples(30)
@given(block=either, shared=st.sampled_from(("mean", "ties")), epsilon=st.sampled_from(EPSILONS))
def test_unchanged_elements_are_bit_equal_to_the_base(block, shared, epsilon):
    out, active = merge(block, shared, epsilon, FACTORS[: len(block.agents)])
    unchanged = active == 0
    base = float32_of(block.base).astype(np.float64)
    assert bits(out[unchanged]) == bits(base[unchanged])


@examples(30)
@given(block=either, shared=st.sampled_from(("mean", "ties")))
def test_unique_elements_are_bit_equal_to_their_agent_without_rescaling(block, shared):
    out, active = merge(block, shared, 0.0, (1.0,) * len(block.agents))
    for t, agent in enumerate(block.agents):
        mine = active == 1 << t
        assert bits(out[mine]) == bits(float32_of(agent).astype(np.float64)[mine])


@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_unique_elements_keep_their_scaled_change(shared):
    block = ElementBlock(
        stored_as([1.0, 1.0, 1.0], "F32"),
        (stored_as([1.5, 1.0, 1.0], "F32"), stored_as([1.0, 0.5, 1.0], "F32")),
    )
    out, active = merge(block, shared, 1e-5, (1.25, 1.5))
    assert out.tolist() == [1.625, 0.25, 1.0]
    assert active.tolist() == [1, 2, 0]


def test_shared_elements_take_the_mean_of_the_active_changes_only():
    base = [0.0] * 4
    agents = ([3.0, 3.0, 3.0, 3.0], [1.0, 0.0, 1e-6, -3.0], [2.0, 1.0, 1.0, 3.0])
    block = ElementBlock(stored_as(base, "F32"), tuple(stored_as(a, "F32") for a in agents))
    out, _ = merge(block, "mean", 1e-5, (5.0, 5.0, 5.0))
    # All three; the first and third (the second is unchanged, then below epsilon); a conflict.
    assert out.tolist() == [2.0, 2.0, 2.0, 1.0]


def test_sign_election_averages_only_those_who_agree_with_the_sum():
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
    shared=st.sampled_from(("mean", "ties")),
    order=st.permutations(range(4)),
)
def test_the_order_of_agents_changes_nothing_beyond_rounding(seed, shared, order):
    block = make_block(seed, 4, 64, "BF16", "every overlap")
    factors = FACTORS[:4]
    out, active = merge(block, shared, 1e-5, factors)
    permuted = ElementBlock(block.base, tuple(block.agents[t] for t in order))
    again, active_again = merge(permuted, shared, 1e-5, tuple(factors[t] for t in order))
    scale = np.max([np.abs(float32_of(a)) for a in (block.base, *block.agents)], axis=0)
    # A sum that is 0 but for rounding may elect either sign: such elements are left out.
    taus = np.array(block.agent_values) - np.array(block.base_values)
    is_tie = np.abs(np.where(np.abs(taus) > 1e-5, taus, 0).sum(0)) < 1e-12 * scale
    compared = np.ones(64, bool) if shared == "mean" else ~is_tie
    assert (np.abs(out - again) <= 2.0**-48 * scale)[compared].all()
    bits_of = {t: order.index(t) for t in range(4)}
    assert active_again.tolist() == [
        sum(1 << bits_of[t] for t in range(4) if mask >> t & 1) for mask in active.tolist()
    ]


@pytest.mark.parametrize("agents", [2, 3, 5, 8])
@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_equal_agents_give_that_agent(agents, shared):
    one = make_block(agents, 1, 65, "BF16", "all")
    block = ElementBlock(one.base, one.agents * agents)
    out, active = merge(block, shared, 0.0, (1.3,) * agents)
    np.testing.assert_allclose(out, values_of(one.agents[0]), rtol=2.0**-50, atol=0)
    assert set(active.tolist()) <= {0, (1 << agents) - 1}


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_a_lone_agent_comes_back_wherever_it_changed(dtype):
    block = make_block(5, 1, 129, dtype, "wild")
    out, _ = merge(block, "mean", 0.0, (1.0,))
    expected = np.where(
        float32_of(block.agents[0]) == float32_of(block.base),
        float32_of(block.base),
        float32_of(block.agents[0]),
    ).astype(np.float64)
    assert bits(out) == bits(expected)


@examples(30)
@given(block=blocks, shared=st.sampled_from(("mean", "ties")))
def test_bfloat16_written_by_the_kernel_is_the_nearest(block, shared):
    factors = FACTORS[: len(block.agents)]
    exact, _ = merge(block, shared, 1e-5, factors)
    out, _ = merge(block, shared, 1e-5, factors, np.uint16)
    for value, stored in zip(exact.tolist(), values_of(out), strict=True):
        if math.isinf(stored):
            assert abs(value) > float(reference.largest("BF16"))
            continue
        # The cast goes through float32, as torch's does.
        through = Fraction(reference.float32(value))
        assert Fraction(stored) == reference.nearest(through, "BF16")
        assert math.copysign(1, stored) == math.copysign(1, value)


def block_of_one_size(seed: int, agents: int, reach: int, size: int) -> ElementBlock:
    """Return bfloat16 numbers as in a weight matrix: no zero, few octaves, steps of a few ulps."""
    rng = np.random.default_rng(seed)
    octave = rng.integers(0x3C00 >> 7, 0x3C80 >> 7, size) + rng.integers(0, 7, size)
    base = (octave << 7 | rng.integers(0, 128, size) | rng.integers(0, 2, size) << 15).astype(
        np.uint16
    )
    changed = rng.random((agents, size)) < 0.5
    steps = rng.integers(-reach, reach + 1, (agents, size)) * changed
    return ElementBlock(base, tuple((base + row).astype(np.uint16) for row in steps))


@examples(60)
@given(
    seed=st.integers(0, 2**32),
    agents=st.sampled_from((1, 3, 7)),
    reach=st.sampled_from((1, 3, 40)),
    size=st.sampled_from((16, 33, 160)),
    epsilon=st.sampled_from((1e-5, 2.0**-13, 0.01)),  # the second is a step of many elements
    factors=st.lists(
        st.sampled_from((1.0, 1.2, 1.05, 1.5, 1 + 1 / 3, 2.0)), min_size=7, max_size=7
    ),
)
def test_merging_and_measuring_in_one_loop_stores_the_reference(
    seed, agents, reach, size, epsilon, factors
):
    block = block_of_one_size(seed, agents, reach, size)
    lambdas = tuple(factors[:agents])
    merged = np.empty(size, np.uint16)
    cuts = [0, size // 3, size]
    measured = measured_kernels.merge_measured(
        block.base, block.agents, merged, float32_threshold(epsilon), lambdas, cuts
    )
    base, values = block.base_values, block.agent_values
    expected = [
        reference.nearest(
            Fraction(reference.float32(reference.merged(x, ys, epsilon, lambdas))), "BF16"
        )
        for x, ys in zip(base, zip(*values, strict=True), strict=True)
    ]
    stored = values_of(merged)
    assert [Fraction(v) for v in stored] == expected
    masks = reference.patterns(base, values, epsilon)
    assert measured.changed.tolist() == [sum(m >> t & 1 for m in masks) for t in range(agents)]
    assert measured.unique.tolist() == [sum(m == 1 << t for m in masks) for t in range(agents)]
    for t in range(agents):
        effective = reference.effective_scaling(base, values, epsilon, t, stored)
        numerator, denominator = measured.sums[:, :, t].sum(0)
        if effective is None:
            assert denominator == 0
        else:
            assert numerator / denominator == pytest.approx(effective, rel=1e-12)
    assert measured.is_finite
    assert measured.is_in_range


@examples(15)
@given(block=wide_blocks, shared=st.sampled_from(("mean", "ties")))
def test_float32_written_by_the_kernel_is_the_nearest(block, shared):
    factors = FACTORS[: len(block.agents)]
    exact, _ = merge(block, shared, 1e-5, factors)
    out, _ = merge(block, shared, 1e-5, factors, np.float32)
    expected = [reference.float32(value) for value in exact.tolist()]
    assert bits(out) == bits(np.array(expected, dtype=np.float32))


@examples(30)
@given(block=blocks)
def test_changed_and_unique_elements_are_counted_per_agent(block):
    _, active = merge(block, "mean", 1e-5, FACTORS[: len(block.agents)])
    masks = reference.patterns(block.base_values, block.agent_values, 1e-5)
    for t in range(len(block.agents)):
        expected = (sum(m >> t & 1 for m in masks), sum(m == 1 << t for m in masks))
        assert kernels.count_active(active, t) == expected


@examples(25)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(("sparse", "every overlap", "one ulp")))
def test_stored_change_sums_give_the_effective_scaling(seed, kind):
    block = make_block(seed, 3, 129, "BF16", kind)
    out, active = merge(block, "mean", 1e-5, (1.2, 1.1, 1.0), np.uint16)
    base, agents, stored = block.base_values, block.agent_values, values_of(out)
    for t in range(3):
        expected = reference.effective_scaling(base, agents, 1e-5, t, stored)
        numerator, denominator = kernels.stored_change(block.base, block.agents[t], out, active, t)
        twin = torch_kernels.stored_change(
            torch.from_numpy(float32_of(block.base).copy()),
            torch.from_numpy(float32_of(block.agents[t]).copy()),
            torch.from_numpy(float32_of(out).copy()),
            torch.from_numpy(active == 1 << t),
        )
        assert twin == pytest.approx((numerator, denominator), rel=1e-12)
        if expected is None:
            assert denominator == 0
        else:
            assert numerator / denominator == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shared", ["mean", "ties"])
def test_the_sum_of_changes_that_underflow_still_has_a_sign(shared):
    tiny = float(np.float32(1e-45))
    block = ElementBlock(
        stored_as([0.0], "F32"), (stored_as([tiny], "F32"), stored_as([tiny], "F32"))
    )
    out, active = merge(block, shared, 0.0, (1.0, 1.0))
    assert out.tolist() == [tiny]
    assert active.tolist() == [3]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("size", [0, 1, 2048, 2049, 4100])
def test_one_changed_element_is_enough_to_be_changed(dtype, size):
    block = make_block(size, 3, size, dtype, "none")
    assert kernels.is_unchanged(block.base, block.agents)
    for place in {0, size // 2, size - 1} if size else ():
        agents = tuple(agent.copy() for agent in block.agents)
        agents[2][place] = stored_as([0.75], dtype)[0]
        assert not kernels.is_unchanged(block.base, agents)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_makes_a_block_so(dtype, bad):
    numbers = make_block(1, 1, 77, "BF16", "wild").base
    numbers = numbers if dtype == "BF16" else float32_of(numbers).copy()
    assert kernels.is_finite(numbers)
    for place in (0, 40, 76):
        spoilt = numbers.copy()
        high = (np.array([bad], np.float32).view(np.uint32) >> 16).astype(np.uint16)
        spoilt[place] = high[0] if dtype == "BF16" else bad
        assert not kernels.is_finite(spoilt)
