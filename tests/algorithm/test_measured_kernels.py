"""Merging and measuring in one loop: the same bits, counts and sums as the plain kernels."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from element_blocks import KINDS, ElementBlock, examples, make_block, stored_as
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import kernels, measured_kernels, sum_kernels
from ram_studio.algorithm.measured_kernels import can_measure, merge_measured
from ram_studio.algorithm.processor import HAS_BFLOAT16, HAS_FAST_LANES, LANES, STEP, target_cpu

pytestmark = pytest.mark.skipif(not HAS_FAST_LANES, reason="the processor lacks AVX-512")

ROOT = Path(__file__).parents[2]
FACTORS = (1.0, 1.2, 1.5, 1.0823, 2.0, 7.3, 0.5, 1 + 2.0**-30)
EPSILONS = (2.0**-60, 1e-5, 0.0123)

blocks = st.builds(
    make_block,
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 8),
    size=st.sampled_from((0, 1, 15, 31, 32, 33, 64, 333)),
    dtype=st.just("BF16"),
    kind=st.sampled_from(KINDS),
)


def assert_like_plain_kernels(
    block: ElementBlock,
    epsilon: float,
    factors: tuple[float, ...],
    cuts: list[int],
    rtol: float = 1e-6,
    is_sum: bool = False,
) -> np.ndarray:
    threshold = np.float32(epsilon)
    n = len(block.base)
    expected, active = np.empty(n, np.uint16), np.empty(n, np.uint8)
    merged = np.empty(n, np.uint16)
    assert can_measure(block.base, "BF16", threshold, factors, is_sum=is_sum)
    if is_sum:
        rule = (factors[0], (), np.uint64(0), np.uint64(0))
        is_finite = sum_kernels.merge_sum(block.base, block.agents, expected, active, *rule)
    else:
        rule = (threshold, factors)
        is_finite = kernels.merge_mean(block.base, block.agents, expected, active, *rule)
    measured = merge_measured(
        block.base, block.agents, merged, threshold, factors, cuts, is_sum=is_sum
    )
    assert measured.is_finite == is_finite
    if not is_finite:
        return merged
    np.testing.assert_array_equal(merged, expected)
    assert measured.is_in_range == kernels.is_finite(expected)
    for t, agent in enumerate(block.agents):
        counted = kernels.count_active(active, t)
        assert (measured.changed[t], measured.unique[t]) == counted
        for row, (start, stop) in enumerate(itertools.pairwise(cuts)):
            part = slice(start, stop)
            sums = kernels.stored_change(
                block.base[part], agent[part], expected[part], active[part], t
            )
            if measured.is_in_range:
                np.testing.assert_allclose(measured.sums[row, :, t], sums, rtol=rtol)
    return merged


@examples(150)
@given(
    block=blocks,
    epsilon=st.sampled_from(EPSILONS),
    seed=st.integers(0, 99),
    pieces=st.integers(1, 4),
)
def test_measured_merge_equals_the_plain_kernels(block, epsilon, seed, pieces):
    rng = np.random.default_rng(seed)
    factors = tuple(rng.choice(FACTORS, len(block.agents)).tolist())
    n = len(block.base)
    cuts = [0, *sorted(rng.integers(0, n + 1, pieces - 1).tolist()), n]
    assert_like_plain_kernels(block, epsilon, factors, cuts)


@examples(150)
@given(
    block=blocks,
    factor=st.sampled_from((*FACTORS, 1 / 3, 1 / 5, 0.2)),
    seed=st.integers(0, 99),
    pieces=st.integers(1, 4),
)
def test_a_measured_sum_equals_the_plain_kernels(block, factor, seed, pieces):
    n = len(block.base)
    cuts = [0, *sorted(np.random.default_rng(seed).integers(0, n + 1, pieces - 1).tolist()), n]
    factors = (factor,) * len(block.agents)
    assert_like_plain_kernels(block, 0.0, factors, cuts, is_sum=True)


@pytest.mark.parametrize("is_measuring", [True, False])
def test_task_vectors_that_cancel_in_a_sum_leave_the_base_as_it_is(is_measuring):
    base = np.array([0x8000, 0x0000, 0x3F80, 0x8000, 0x3F80], np.uint16)
    up = np.array([0x3F80, 0x3F80, 0x3F81, 0x8000, 0x3F81], np.uint16)
    down = np.array([0xBF80, 0xBF80, 0x3F7E, 0x8000, 0x3F80], np.uint16)
    merged = np.empty_like(base)
    merge_measured(
        base,
        (up, down),
        merged,
        np.float32(0),
        (1.0, 1.0),
        [0, 5],
        is_measuring=is_measuring,
        is_sum=True,
    )
    assert merged.tolist() == [0x8000, 0x0000, 0x3F80, 0x8000, 0x3F81]


def test_sums_over_many_elements_agree_to_nine_digits():
    """They are formed in float32 over 512 elements, whose errors average out."""
    rng = np.random.default_rng(3)
    n = 1 << 16
    base = (rng.standard_normal(n, dtype=np.float32) * 0.02).view(np.uint32) >> 16
    agents = tuple((base + rng.integers(-2, 3, n)).astype(np.uint16) for _ in range(2))
    block = ElementBlock(base.astype(np.uint16), agents)
    assert_like_plain_kernels(block, 1e-5, (1.2, 1.1), [0, n], rtol=1e-8)
    assert_like_plain_kernels(block, 0.0, (0.3, 0.3), [0, n], rtol=1e-8, is_sum=True)


def test_merging_alone_stores_the_same():
    rng = np.random.default_rng(4)
    base = rng.integers(0x3C00, 0x3F80, 1000)
    agents = np.where(rng.random((3, 1000)) < 0.4, base + rng.integers(-3, 4, (3, 1000)), base)
    arguments = (base.astype(np.uint16), tuple(agents.astype(np.uint16)))
    stored = [np.empty(1000, np.uint16) for _ in range(2)]
    factors = (1.2, 1.1, 1.0823)
    for out, is_measuring in zip(stored, (True, False), strict=True):
        measured = merge_measured(
            *arguments, out, np.float32(1e-5), factors, [0, 1000], is_measuring=is_measuring
        )
        assert measured.changed.any() == is_measuring
        assert measured.sums.any() == is_measuring
    np.testing.assert_array_equal(*stored)


@pytest.mark.parametrize("agents", [1, 2, 3, 5, 8])
def test_numbers_at_the_edge_of_what_float32_holds_exactly(agents):
    """Up to 15 octaves apart, at full precision: beyond some spread only float64 is exact."""
    rng = np.random.default_rng(agents)
    for octaves in range(9, 17):
        base = rng.integers(0x3F00, 0x3F80, 2048)
        lower = rng.integers(0, octaves + 1, (agents, 2048)) << 7
        models = tuple(((base | 1) - row).astype(np.uint16) for row in lower)
        factors = tuple((1 + rng.integers(1, 1 << 23, agents) / 2**23).tolist())
        block = ElementBlock(base.astype(np.uint16), models)
        assert_like_plain_kernels(block, 1e-9, factors, [0, 2048])
        assert_like_plain_kernels(block, 0.0, factors[:1] * agents, [0, 2048], is_sum=True)


MERGE_AND_DIGEST = """
import hashlib
import numpy as np
from ram_studio.algorithm import processor
from ram_studio.algorithm.measured_kernels import merge_measured
rng = np.random.default_rng(5)
base = rng.integers(0x3C00, 0x3D00, 4096)
agents = tuple((base + rng.integers(-3, 4, 4096)).astype(np.uint16) for _ in range(3))
out = np.empty(4096, np.uint16)
measured = merge_measured(
    base.astype(np.uint16), agents, out, np.float32(1e-5), (1.2, 1.1, 1.5), [0, 4096]
)
print(processor.HAS_BFLOAT16, hashlib.sha256(out).hexdigest(), measured.sums.tolist())
"""


@pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor lacks the instruction")
def test_rounding_by_the_processor_stores_what_rounding_by_steps_does(tmp_path):
    name, features = target_cpu()
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = []
    for has in ("+", "-"):
        asked = told | {
            "NUMBA_CPU_FEATURES": f"{features},{has}avx512bf16".replace(",+avx512bf16,", ",")
        }
        run = [sys.executable, "-c", MERGE_AND_DIGEST]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | asked
        done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split(" ", 1))
    assert [has for has, _ in found] == ["True", "False"]
    assert found[0][1] == found[1][1]


def test_ties_and_near_ties_are_decided_as_in_float64():
    """Every pair and triple of small steps beside a power of two, where the spacing changes."""
    one = 0x3F80
    steps = np.arange(-5, 6)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij")).reshape(3, -1)
    for start in (one, one + 1, one + 127, one - 1, 0x3C23):
        base = np.full(grid.shape[1], start, np.uint16)
        agents = tuple((start + row).astype(np.uint16) for row in grid)
        block = ElementBlock(base, agents)
        for factors in ((1.0, 1.5, 1.25), (1.2, 1.5 + 2.0**-24, 0.5), (1.0, 1.0, 1.0)):
            assert_like_plain_kernels(block, 1e-9, factors, [0, len(base)])


def test_every_step_and_factor_of_one_agent():
    base = np.arange(0x3F00, 0x4000, dtype=np.uint16)
    for step in range(-40, 41):
        agent = (base.astype(np.int64) + step).astype(np.uint16)
        for factor in (1.0, 1.1, 1.2, 1 + 1 / 3, 1.5, 1.75, 4.0, 16.5):
            assert_like_plain_kernels(ElementBlock(base, (agent,)), 1e-9, (factor,), [0, len(base)])


@pytest.mark.parametrize("spread", [0, 5, 9, 10, 11, 20, 40, 90])
def test_numbers_many_octaves_apart(spread):
    rng = np.random.default_rng(spread)
    base = rng.integers(0x3F00, 0x4000, 4096).astype(np.uint16)
    agents = tuple(
        (base - (rng.integers(0, spread + 1, 4096) << 7) + rng.integers(0, 128, 4096)).astype(
            np.uint16
        )
        for _ in range(3)
    )
    assert_like_plain_kernels(ElementBlock(base, agents), 1e-5, (1.1, 1.2, 1.5), [0, 4096])


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC1])
@pytest.mark.parametrize("place", [0, LANES - 1, LANES, STEP - 1, STEP, STEP + LANES + 3])
def test_numbers_that_are_not_finite_are_noticed(bits, place):
    for row in range(3):
        arrays = [np.full(STEP + LANES + 5, 0x3F80 + t, np.uint16) for t in range(3)]
        arrays[row][place] = bits
        merged = np.empty_like(arrays[0])
        measured = merge_measured(
            arrays[0],
            tuple(arrays[1:]),
            merged,
            np.float32(1e-5),
            (1.0, 1.0),
            [0, len(merged)],
        )
        assert not measured.is_finite


def test_a_result_out_of_range_is_noticed():
    base, agent = (stored_as([2.0**126], "BF16") for _ in range(2))
    agent = agent + np.uint16(128)
    merged = np.empty(1, np.uint16)
    measured = merge_measured(base, (agent,), merged, np.float32(1e-5), (8.0,), [0, 1])
    assert measured.is_finite
    assert not measured.is_in_range


def test_extreme_numbers_are_left_to_the_plain_kernels():
    base = np.zeros(16, np.uint16)
    assert not can_measure(base, "BF16", np.float32(0), (1.0,))
    assert not can_measure(base, "BF16", np.float32(1e-5), (1.0, 1e9))
    assert not can_measure(base, "BF16", np.float32(1e-5), (0.0,))
    assert not can_measure(base, "F32", np.float32(1e-5), (1.0,))
    assert not can_measure(base.astype(np.float32), "BF16", np.float32(1e-5), (1.0,))


def test_bounds_enclose_a_factor_and_are_it_when_it_is_short():
    low, high = (measured_kernels._bounds((1.2, 1.5, 1.0), side) for side in (-1, 1))
    assert low[0] < 1.2 < high[0]
    assert low[1:] == high[1:] == (1.5, 1.0)


def test_a_factor_that_nearly_cancels_the_base_is_rounded_like_float64():
    """The result is then far smaller than what it was made of, so its last bits are unsure."""
    base = np.arange(0x3F00, 0x4000, dtype=np.uint16)
    for octaves in range(1, 10):
        agent = base - np.uint16(octaves << 7)
        share = 1 - 2.0**-octaves
        for factor in (1 / share, np.nextafter(1 / share, 9), 1 / share + 1e-6, 1.0003 / share):
            block = ElementBlock(base, (agent,))
            assert_like_plain_kernels(block, 1e-9, (float(factor),), [0, len(base)])
