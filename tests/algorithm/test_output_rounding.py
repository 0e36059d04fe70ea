"""Storing float64 results in an output dtype: to nearest, stochastically, and the torch twin."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import reference
import torch
from element_blocks import bits_of, examples
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.algorithm import rounding
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels import torch as torch_kernels

DTYPES = ("BF16", "F16", "F32")
KEY = rounding.stream_key(7, "rounding", "model.layers.0.mlp.up_proj.weight")
FALSE_ALARM = 1e-9


def as_numbers(stored: np.ndarray, dtype: str) -> list[float]:
    return rounding.decode(stored, dtype).astype(np.float64).tolist()


def twin_bits(stored: torch.Tensor) -> list[int]:
    return bits_of(stored.view(torch.int32 if stored.itemsize == 4 else torch.int16).numpy())


def in_range(dtype: str) -> st.SearchStrategy[list[float]]:
    """Lists of numbers whose nearest neighbors in the dtype are finite, of every size."""
    top = float(reference.largest(dtype))
    return st.lists(
        st.one_of(
            st.floats(-top, top),
            st.floats(-2.0, 2.0),
            st.floats(-1e-7, 1e-7),
            st.floats(-1e-40, 1e-40),
            st.integers(-149, 15).map(lambda e: 2.0**e),
            st.sampled_from([0.0, -0.0, top, -top, 1.0 + 2.0**-9, 1.0 - 2.0**-12]),
        ),
        max_size=40,
    )


dtype_and_values = st.sampled_from(DTYPES).flatmap(
    lambda dtype: st.tuples(st.just(dtype), in_range(dtype))
)


def before_storing(value: float, dtype: str) -> Fraction:
    """Return the number that is rounded: bfloat16 goes through float32, as torch's cast does."""
    return Fraction(reference.float32(value) if dtype == "BF16" else value)


@examples(150)
@given(case=dtype_and_values)
def test_nearest_rounding_takes_the_nearest_number_ties_to_even(case):
    dtype, values = case
    stored = as_numbers(rounding.store(np.array(values, np.float64), dtype), dtype)
    for value, got in zip(values, stored, strict=True):
        assert Fraction(got) == reference.nearest(before_storing(value, dtype), dtype)
        assert math.copysign(1, got) == math.copysign(1, value)


@examples(150)
@given(case=dtype_and_values, start=st.integers(0, 2**40))
def test_stochastic_rounding_takes_one_of_the_two_neighbors(case, start):
    dtype, values = case
    array = np.array(values, np.float64)
    stored = as_numbers(rounding.store(array, dtype, "stochastic", key=KEY, start=start), dtype)
    for value, got in zip(values, stored, strict=True):
        assert Fraction(got) in reference.neighbors(before_storing(value, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_representable_values_are_stored_as_they_are(dtype):
    top = float(reference.largest(dtype))
    lowest = {"BF16": -133, "F16": -24, "F32": -149}[dtype]
    numbers = [0.0, 1.5, 3.0, top, *(2.0**e for e in range(lowest, 16))]
    values = np.array([s * n for n in numbers for s in (1, -1)], np.float64)
    expected = rounding.store(values, dtype)
    assert as_numbers(expected, dtype) == values.tolist()
    for seed in range(20):
        key = rounding.stream_key(seed, "rounding", "x")
        drawn = rounding.store(values, dtype, "stochastic", key=key)
        assert bits_of(drawn) == bits_of(expected)
        twin = torch_kernels.store(torch.from_numpy(values), dtype, None, int(key), 0)
        assert twin_bits(twin) == bits_of(expected)


@examples(150)
@given(
    case=dtype_and_values,
    seed=st.integers(0, 2**64 - 1),
    start=st.integers(0, 2**40),
    mode=st.sampled_from(("nearest", "stochastic")),
    data=st.data(),
)
def test_torch_twin_stores_the_same_bits(case, seed, start, mode, data):
    dtype, values = case
    array = np.array(values, np.float64)
    changed = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_
    )
    key = rounding.stream_key(seed, "rounding", "tensor")
    stored = rounding.store(array, dtype, mode, changed.astype(np.uint8), key, start)
    twin = torch_kernels.store(
        torch.from_numpy(array),
        dtype,
        torch.from_numpy(changed),
        int(key) if mode == "stochastic" else None,
        start,
    )
    assert twin_bits(twin) == bits_of(stored)


@pytest.mark.parametrize("share", [0.0625, 0.25, 0.5, 0.8125])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("origin", ["normal", "denormal"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_keeps_the_mean(dtype, origin, sign, share):
    digits, lowest, _ = reference.FORMATS[dtype]
    below = 1.25 if origin == "normal" else 3 * 2.0 ** (lowest - digits + 1)
    step = float(reference.spacing(Fraction(below), dtype))
    count = 100_000
    values = np.full(count, sign * (below + share * step))
    stored = rounding.store(values, dtype, "stochastic", key=KEY)
    up = np.mean(np.abs(rounding.decode(stored, dtype)).astype(np.float64) > below)
    # Hoeffding: a mean of `count` draws in [0, 1] is further off with probability below this.
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count))
    assert abs(up - share) < allowed


@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_does_not_depend_on_the_block(dtype):
    values = np.random.default_rng(3).standard_normal(1000) * 0.02
    whole = rounding.store(values, dtype, "stochastic", key=KEY, start=500)
    for cut in (1, 63, 512, 999):
        parts = [
            rounding.store(values[:cut], dtype, "stochastic", key=KEY, start=500),
            rounding.store(values[cut:], dtype, "stochastic", key=KEY, start=500 + cut),
        ]
        assert bits_of(np.concatenate(parts)) == bits_of(whole)


@pytest.mark.parametrize("other", [(8, "rounding", "w"), (7, "drop", "w"), (7, "rounding", "v")])
def test_seeds_purposes_and_tensors_draw_independently(other):
    count = 100_000
    halves = np.full(count, 1.0 + 2.0**-8)
    first, second = (
        rounding.store(halves, "BF16", "stochastic", key=rounding.stream_key(*which))
        for which in ((7, "rounding", "w"), other)
    )
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count))
    assert abs(np.mean(first == second) - 0.5) < allowed
    assert bits_of(first) == bits_of(
        rounding.store(halves, "BF16", "stochastic", key=rounding.stream_key(7, "rounding", "w"))
    )


@pytest.mark.parametrize(
    ("dtype", "mask_dtype"), [*((dtype, np.uint8) for dtype in DTYPES), ("BF16", np.uint32)]
)
def test_stochastic_rounding_touches_changed_elements_only(dtype, mask_dtype):
    values = np.random.default_rng(4).standard_normal(2000)
    values[::7] = -0.0
    patterns = np.where(np.arange(2000) % 3 == 0, 4, 0)
    changed = patterns.astype(mask_dtype)
    drawn = rounding.store(values, dtype, "stochastic", changed, KEY)
    settled = rounding.store(values, dtype)
    still = changed == 0
    assert bits_of(drawn[still]) == bits_of(settled[still])
    assert (drawn[~still] != settled[~still]).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_never_crosses_to_infinity(dtype):
    top = reference.largest(dtype)
    step = reference.spacing(top, dtype)
    # Everything that rounds to the largest number or that float32 holds (bfloat16) stays finite.
    beyond = float(top + step / 4) if dtype != "F32" else float(top)
    values = np.tile([float(top), -float(top), beyond, -beyond, float(top - step / 2)], 4000)
    stored = rounding.store(values, dtype, "stochastic", key=KEY)
    twin = torch_kernels.store(torch.from_numpy(values), dtype, None, int(KEY), 0)
    for sizes in (np.abs(as_numbers(stored, dtype)), twin.double().abs().numpy()):
        assert np.isfinite(sizes).all()
        assert sizes.max() == float(top)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_values_beyond_the_dtype_become_infinite_and_are_told(dtype, mode):
    value = {"BF16": 4e38, "F16": 65520.0, "F32": 4e38}[dtype]
    stored = rounding.store(np.array([value, -value]), dtype, mode, key=KEY)
    assert as_numbers(stored, dtype) == [math.inf, -math.inf]
    with np.errstate(over="ignore"):
        twin = torch_kernels.store(
            torch.tensor([value, -value], dtype=torch.float64),
            dtype,
            None,
            int(KEY) if mode == "stochastic" else None,
        )
    assert twin.double().tolist() == [math.inf, -math.inf]


@examples(60)
@given(key=st.integers(0, 2**64 - 1), start=st.integers(0, 2**62), size=st.integers(0, 9))
def test_random_words_are_those_of_splitmix64(key, start, size):
    expected = [reference.splitmix64(key, start + i) for i in range(size)]
    words = np.empty(size, np.uint64)
    cpu.random_words(np.uint64(key), start, words)
    assert words.tolist() == expected
    twin = torch_kernels.random_words(key, start, size, "cpu")
    assert [w % 2**64 for w in twin.tolist()] == expected
    uniform = torch_kernels.uniform(key, start, size, "cpu")
    assert uniform.tolist() == [(w >> 11) * 2.0**-53 for w in expected]


def test_stored_elements_decode_to_the_numbers_they_stand_for():
    every = np.arange(1 << 16, dtype=np.uint16)
    for dtype, stored, torch_dtype in (
        ("BF16", every, torch.bfloat16),
        ("F16", every.view(np.float16), torch.float16),
    ):
        expected = torch.from_numpy(every.view(np.int16)).view(torch_dtype).float().numpy()
        np.testing.assert_array_equal(rounding.decode(stored, dtype), expected)
