"""What runs on a GPU gives the CPU kernels' bits, counts and sums: Triton, and its plain twin.

Without a CUDA device Triton's interpreter runs the kernels' source on CPU tensors, and the compiler
shows that they also compile for one, see test_gpu_compilation.
"""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch
from element_blocks import KINDS, ElementBlock, examples, float32_of, make_block, stored_as
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import device_kernels, kernels, rounding, sum_kernels
from ram_studio.algorithm.ladder import BIN_COUNT, EDGE_BITS
from ram_studio.algorithm.rounding import decode, stream_key
from ram_studio.algorithm.torch_kernels import TORCH_DTYPES

HAS_CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_CUDA else "cpu")
HAS_TRITON = importlib.util.find_spec("triton") is not None and (
    HAS_CUDA or os.environ.get("TRITON_INTERPRET") == "1"
)
TILE = device_kernels.TILE
KEY = int(stream_key(3, "rounding", "model.norm.weight"))

implementations = pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            "triton",
            marks=pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed here"),
        ),
        "plain",
    ],
)

blocks = st.tuples(st.sampled_from(["BF16", "F16", "F32"]), st.integers(1, 6)).flatmap(
    lambda drawn: st.tuples(
        st.just(drawn[0]),
        st.builds(
            make_block,
            seed=st.integers(0, 2**32),
            agents=st.just(drawn[1]),
            size=st.sampled_from((0, 1, 15, 333, TILE, TILE + 17)),
            dtype=st.just(drawn[0]),
            kind=st.sampled_from(KINDS),
        ),
    )
)


def implementation(run: str) -> device_kernels.DeviceKernels:
    if run == "plain":
        return device_kernels.PLAIN
    from ram_studio.algorithm import triton_kernels

    return triton_kernels


def on_device(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """Return elements as the CPU kernels take them as a tensor of the storage dtype."""
    values = torch.from_numpy(float32_of(stored).copy())
    return values.to(TORCH_DTYPES[dtype]).to(DEVICE)


def tensors_of(block: ElementBlock, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return base and stacked agents; rows lie further apart than they are long."""
    n = len(block.base)
    base = on_device(block.base, dtype)
    agents = torch.full((len(block.agents), n + 3), 7.0, dtype=base.dtype, device=DEVICE)
    for t, agent in enumerate(block.agents):
        agents[t, :n] = on_device(agent, dtype)
    return base, agents[:, :n]


def count(run: str, block: ElementBlock, dtype: str, copies: int = 2) -> tuple[np.ndarray, bool]:
    n_agents = len(block.agents)
    shape = (copies, 1 << n_agents, n_agents, BIN_COUNT)
    chain = torch.zeros(shape, dtype=torch.int32, device=DEVICE)
    flags = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with np.errstate(all="ignore"):  # the interpreter computes with numpy
        implementation(run).count_block(*tensors_of(block, dtype), chain, flags, EDGE_BITS)
    return chain.sum(0).cpu().numpy(), flags.tolist() == [0, 0]


def counted_on_cpu(block: ElementBlock) -> tuple[np.ndarray, bool]:
    n_agents = len(block.agents)
    chain = np.zeros((1 << n_agents) * n_agents * BIN_COUNT, dtype=np.int32)
    is_finite = kernels.fill_chain(block.base, block.agents, chain, np.int32(EDGE_BITS))
    chain = chain.reshape(1 << n_agents, n_agents, BIN_COUNT)
    chain[0] = 0  # scratch
    return chain, is_finite


@implementations
@examples(6)
@given(case=blocks)
def test_counting_gives_the_same_histogram(run, case):
    dtype, block = case
    (found, is_fine), (expected, is_finite) = count(run, block, dtype), counted_on_cpu(block)
    assert is_fine == is_finite
    np.testing.assert_array_equal(found, expected)


Found = tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]
"""Stored elements as ``rounding`` stores them, counts, sums and flags."""


def run_merge(fused, block: ElementBlock, dtype: str, output: str, start: int) -> Found:
    """Run what merges (base, agents) into (merged, flags, counts, sums), full of rubbish."""
    base, agents = tensors_of(block, dtype)
    n_agents, n = agents.shape
    merged = torch.full((n,), 7.0, dtype=TORCH_DTYPES[output], device=DEVICE)
    flags = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    rows = device_kernels.tiles(start, n) if n else 0
    counts = torch.full((rows, 2, n_agents), 99, dtype=torch.int32, device=DEVICE)
    sums = torch.full((rows, 2, n_agents), 9.9, dtype=torch.float64, device=DEVICE)
    with np.errstate(all="ignore"):  # the interpreter computes with numpy
        fused(base, agents, merged, flags, counts, sums)
    bits = merged.view(torch.int16) if output == "BF16" else merged
    stored = bits.cpu().numpy().view(rounding.STORAGE[output])
    return stored, counts.cpu().numpy(), sums.cpu().numpy(), flags.tolist()


def merge(
    run: str,
    block: ElementBlock,
    dtype: str,
    output: str,
    *,
    epsilon: np.float32,
    factors: tuple[float, ...],
    elect_sign: bool = False,
    key: int | None = None,
    start: int = 0,
) -> Found:
    def fused(base, agents, merged, flags, counts, sums):
        implementation(run).merge_block(
            base,
            agents,
            merged,
            flags,
            epsilon=float(epsilon),
            factors=torch.tensor(factors, dtype=torch.float64, device=DEVICE),
            elect_sign=elect_sign,
            key=key,
            start=start,
            measured=(counts, sums),
        )

    return run_merge(fused, block, dtype, output, start)


def merged_on_cpu(
    block: ElementBlock,
    output: str,
    *,
    epsilon: np.float32,
    factors: tuple[float, ...],
    elect_sign: bool,
    key: int | None,
    start: int,
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return stored elements, patterns, and whether all task vectors are finite."""
    n = len(block.base)
    values, active = np.empty(n), np.empty(n, np.uint8)
    kernel = kernels.merge_elected if elect_sign else kernels.merge_mean
    is_finite = kernel(block.base, block.agents, values, active, epsilon, factors)
    how = "nearest" if key is None else "stochastic"
    stored = rounding.store(values, output, how, active, np.uint64(key or 0), start)
    return stored, active, is_finite


def assert_same_stored(
    found: Found,
    block: ElementBlock,
    output: str,
    start: int,
    expected: np.ndarray,
    active: np.ndarray,
    is_finite: bool,
) -> None:
    stored, counts, sums, flags = found
    assert flags[0] == (not is_finite)
    if not is_finite:
        return
    width = f"u{stored.itemsize}"
    np.testing.assert_array_equal(stored.view(width), expected.view(width))
    is_in_range = bool(np.isfinite(decode(expected, output)).all())
    assert flags[1] == (not is_in_range)
    first = TILE - start % TILE
    edges = [0, *range(first, len(stored), TILE), len(stored)] if len(stored) else [0]
    assert len(counts) == len(edges) - 1
    base32 = float32_of(block.base)
    for row in range(len(counts)):
        part = slice(edges[row], edges[row + 1])
        for t, agent in enumerate(block.agents):
            own = active[part]
            assert counts[row, :, t].tolist() == list(kernels.count_active(own, t))
            if is_in_range:
                wanted = kernels.stored_change(
                    base32[part], float32_of(agent)[part], decode(expected, output)[part], own, t
                )
                np.testing.assert_allclose(sums[row, :, t], wanted, rtol=1e-9)


def assert_same_merge(run: str, block: ElementBlock, dtype: str, output: str, **rule) -> None:
    rule = {"elect_sign": False, "key": None, "start": 0, **rule}
    found = merge(run, block, dtype, output, **rule)
    assert_same_stored(found, block, output, rule["start"], *merged_on_cpu(block, output, **rule))


FACTORS = (1.0, 1.2, 1.5, 1.0823, 2.0, 7.3, 0.5, 0.0, -1.0)


@implementations
@examples(12)
@given(
    case=blocks,
    output=st.sampled_from(["BF16", "F16", "F32"]),
    epsilon=st.sampled_from((0.0, 1e-5, 0.0123, 3e38)),
    elect_sign=st.booleans(),
    key=st.sampled_from((None, None, KEY, 5)),
    start=st.sampled_from((0, 65536, 3 * 65536 + 1000)),
    seed=st.integers(0, 99),
)
def test_merging_stores_and_measures_the_same(
    run, case, output, epsilon, elect_sign, key, start, seed
):
    dtype, block = case
    factors = np.random.default_rng(seed).choice(FACTORS, len(block.agents)).tolist()
    assert_same_merge(
        run,
        block,
        dtype,
        output,
        epsilon=np.float32(epsilon),
        factors=tuple(factors),
        elect_sign=elect_sign,
        key=key,
        start=start,
    )


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed here")
@examples(12)
@given(
    case=blocks,
    output=st.sampled_from(["BF16", "F16", "F32"]),
    threshold=st.sampled_from((None, 0.0, 1e-5, 0.0123)),
    factor=st.sampled_from((1.0, 0.25, 1.3, -0.7, 0.0)),
    cut=st.sampled_from((None, 0, 2**52, 3 * 2**51 + 1)),
    key=st.sampled_from((None, KEY)),
    start=st.sampled_from((0, 65536, 3 * 65536 + 1000)),
)
def test_summing_stores_and_measures_the_same(case, output, threshold, factor, cut, key, start):
    assert_same_sum(*case, output, threshold, factor, cut, key, start)


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed here")
def test_a_word_just_at_the_cut_is_kept():
    words = np.empty(40, np.uint64)
    rounding.random_words(np.uint64(KEY), 7, words)
    block = make_block(3, 1, 40, "F32", "all")
    for cut in (int(words[5] >> np.uint64(11)), int(words[5] >> np.uint64(11)) + 1):
        assert_same_sum("F32", block, "F32", None, 1.0, cut, None, 7)


def assert_same_sum(
    dtype: str,
    block: ElementBlock,
    output: str,
    threshold: float | None,
    factor: float,
    cut: int | None,
    key: int | None,
    start: int,
) -> None:
    from ram_studio.algorithm import triton_kernels

    n_agents, n = len(block.agents), len(block.base)
    keys = () if cut is None else tuple(np.uint64(KEY * (t + 1) % 2**64) for t in range(n_agents))
    drawing = (keys, np.uint64(cut or 0), np.uint64(start))
    limits = None
    values, active = np.empty(n), np.empty(n, np.uint8)
    if threshold is None:
        arguments = (factor, *drawing)
        is_finite = sum_kernels.merge_sum(block.base, block.agents, values, active, *arguments)
    else:
        limits = tuple(np.float32(threshold * (t + 1)) for t in range(n_agents))
        arguments = (limits, factor, *drawing)
        is_finite = sum_kernels.merge_trimmed(block.base, block.agents, values, active, *arguments)
    how = "nearest" if key is None else "stochastic"
    expected = rounding.store(values, output, how, active, np.uint64(key or 0), start)

    def fused(base, agents, merged, flags, counts, sums):
        triton_kernels.sum_block(
            base,
            agents,
            merged,
            flags,
            thresholds=None if limits is None else torch.tensor(limits, device=DEVICE),
            factor=torch.tensor([factor], dtype=torch.float64, device=DEVICE),
            keys=torch.tensor([triton_kernels.signed(int(k)) for k in keys], device=DEVICE)
            if keys
            else None,
            cut=cut or 0,
            key=key,
            start=start,
            measured=(counts, sums),
        )

    found = run_merge(fused, block, dtype, output, start)
    assert_same_stored(found, block, output, start, expected, active, is_finite)


@implementations
@pytest.mark.parametrize("elect_sign", [False, True])
def test_ties_of_rounding_are_decided_alike(run, elect_sign):
    """Small steps beside powers of two, where means lie exactly between two stored numbers."""
    steps = np.arange(-5, 6)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij")).reshape(3, -1)
    for near in (0x3F80, 0x3F80 + 127, 0xBC23):
        base = np.full(grid.shape[1], near, np.uint16)
        stepped = tuple((near + row).astype(np.uint16) for row in grid)
        assert_same_merge(
            run,
            ElementBlock(base, stepped),
            "BF16",
            "BF16",
            epsilon=np.float32(0),
            factors=(1.5, 1.25, 1.125),
            elect_sign=elect_sign,
        )


@implementations
def test_a_negative_zero_stays_where_agents_cancel(run):
    base = stored_as(np.full(4, -0.0), "F32")
    agents = (base + np.float32(0.5), base - np.float32(0.5))
    rule = {"epsilon": np.float32(0), "factors": (1.0, 1.0)}
    block = ElementBlock(base, agents)
    for elect_sign in (False, True):
        assert_same_merge(run, block, "F32", "F32", elect_sign=elect_sign, **rule)
    assert np.signbit(merge(run, block, "F32", "F32", elect_sign=True, **rule)[0]).all()


@implementations
def test_float16_output_is_rounded_once(run):
    """Beside the middle of two float16 numbers, by less than float32 can tell."""
    middle = 1 + np.array([0, 1023]) * 2.0**-10 + 2.0**-11
    block = ElementBlock(stored_as(np.zeros(2), "F32"), (stored_as(np.ones(2), "F32"),))
    for factor in (*(middle + 2.0**-40), *(middle - 2.0**-40), *middle):
        assert_same_merge(run, block, "F32", "F16", epsilon=np.float32(0), factors=(float(factor),))


@implementations
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, TILE + 5])
def test_one_element_that_is_not_finite_is_seen(run, value, where):
    block = make_block(1, 3, TILE + 6, "BF16", "sparse")
    assert count(run, block, "BF16")[1]
    with np.errstate(invalid="ignore"):
        bad = np.array([np.float32(value)]).view(np.uint32) >> 16
    block.agents[1][where] = bad[0]
    assert not count(run, block, "BF16")[1]
    rule = {"epsilon": np.float32(1e-5), "factors": (1.0, 1.0, 1.0)}
    assert merge(run, block, "BF16", "BF16", **rule)[3][device_kernels.NOT_FINITE] == 1


@implementations
def test_counts_add_up_over_blocks(run):
    block = make_block(5, 3, 3 * TILE + 5, "BF16", "every overlap")
    whole, _ = count(run, block, "BF16")
    parts = [block.part(0, TILE), block.part(TILE, 2000), block.part(2000, 3 * TILE + 5)]
    np.testing.assert_array_equal(sum(count(run, part, "BF16")[0] for part in parts), whole)


@implementations
def test_stochastic_rounding_does_not_depend_on_blocks(run):
    block = make_block(6, 2, 5000, "BF16", "sparse")
    rule = {"epsilon": np.float32(0), "factors": (1.3, 1.1), "key": KEY}
    whole = merge(run, block, "BF16", "BF16", **rule)[0]
    halves = [
        merge(run, block.part(*ends), "BF16", "BF16", start=ends[0], **rule)[0]
        for ends in ((0, 1111), (1111, 5000))
    ]
    np.testing.assert_array_equal(np.concatenate(halves), whole)
    assert (whole != merge(run, block, "BF16", "BF16", **{**rule, "key": 9})[0]).any()
