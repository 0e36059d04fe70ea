"""Blocks of stored elements that are hard to get right: every overlap, every kind of number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

_BITS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
_LARGEST_BITS = {"BF16": 0x7CFF, "F16": 0x7BFF, "F32": 0x7E7FFFFF}
"""Largest magnitude drawn: differences stay finite in float32, as do seven of bfloat16, summed."""

NARROW = ((1, "BF16"), (3, "BF16"), (7, "BF16"))
WIDE = ((3, "F16"), (3, "F32"))
"""Agents and their dtype. Loops are compiled for each number of agents and storage, a second each:
what one agent alone, patterns of few and of many, and both storages need is shown with these."""

KINDS = ("sparse", "every overlap", "one ulp", "wild", "identical", "none", "all", "dense twins")


def examples(count: int) -> settings:
    """Return settings for a property test: as many examples, the same ones every time."""
    return settings(max_examples=count, derandomize=True, database=None)


@dataclass(frozen=True)
class ElementBlock:
    """Stored elements as the kernels take them, and the same numbers as Python floats."""

    base: np.ndarray
    agents: tuple[np.ndarray, ...]

    @property
    def base_values(self) -> list[float]:
        return values_of(self.base)

    @property
    def agent_values(self) -> list[list[float]]:
        return [values_of(agent) for agent in self.agents]

    def part(self, start: int, stop: int) -> ElementBlock:
        return ElementBlock(
            self.base[start:stop].copy(), tuple(a[start:stop].copy() for a in self.agents)
        )


def float32_of(stored: np.ndarray) -> np.ndarray:
    """Return uint16 bfloat16 bits, or float32, as float32."""
    if stored.dtype != np.uint16:
        return stored
    return (stored.astype(np.uint32) << 16).view(np.float32)


def tensors_of(block: ElementBlock) -> tuple[torch.Tensor, torch.Tensor]:
    """Return base and agents as the torch twins take them."""
    base, *agents = (torch.from_numpy(float32_of(a).copy()) for a in (block.base, *block.agents))
    return base, torch.stack(agents)


def bits_of(array: np.ndarray) -> list[int]:
    """Return bit patterns, which tell -0.0 from 0.0."""
    return array.view(f"u{array.itemsize}").tolist()


def values_of(stored: np.ndarray) -> list[float]:
    return float32_of(stored).astype(np.float64).tolist()


def stored_as(values, dtype: str) -> np.ndarray:
    """Return numbers as the kernels take them; they must be representable in the dtype."""
    array = np.asarray(values, dtype=np.float32)
    if dtype != "BF16":
        return array
    bits = array.view(np.uint32)
    assert not (bits & 0xFFFF).any(), "not bfloat16 numbers"
    return (bits >> 16).astype(np.uint16)


def _special(dtype: str, rng: np.random.Generator, size: int) -> np.ndarray:
    """Return bit patterns: zeros of both signs, denormals, neighbors of powers of two, huge."""
    top = _LARGEST_BITS[dtype]
    one = {"BF16": 0x3F80, "F16": 0x3C00, "F32": 0x3F800000}[dtype]
    pool = np.array([0, 0, 1, 2, 3, one - 1, one, one + 1, top, top - 1, top // 2, top // 3])
    sign = rng.integers(0, 2, size) * (1 << (np.iinfo(_BITS[dtype]).bits - 1))
    return pool[rng.integers(0, len(pool), size)] + sign


def _ordinary(dtype: str, rng: np.random.Generator, size: int) -> np.ndarray:
    values = (rng.standard_normal(size) * 10.0 ** rng.integers(-4, 1, size)).astype(np.float32)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.int64)
    if dtype == "F16":
        return values.astype(np.float16).view(np.uint16).astype(np.int64)
    return values.view(np.uint32).astype(np.int64)


def _moved(dtype: str, bits: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the numbers that many places in the last digit away (towards or from zero)."""
    sign_bit = 1 << (np.iinfo(_BITS[dtype]).bits - 1)
    magnitude = np.clip((bits & (sign_bit - 1)) + steps, 0, _LARGEST_BITS[dtype])
    return (bits & sign_bit) | magnitude


def _as_stored(dtype: str, bits: np.ndarray) -> np.ndarray:
    bits = bits.astype(_BITS[dtype])
    if dtype == "BF16":
        return bits
    return bits.view(np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def make_block(seed: int, agents: int, size: int, dtype: str, kind: str) -> ElementBlock:
    """Return a block whose changes are of the kind; the same arguments give the same block."""
    rng = np.random.default_rng(seed)
    base = np.where(rng.random(size) < 0.2, _special(dtype, rng, size), _ordinary(dtype, rng, size))
    if kind == "every overlap":
        # Overlap count i mod (agents + 1), by agents drawn anew for each element.
        rank = rng.random((agents, size)).argsort(axis=0).argsort(axis=0)
        changed = rank < np.arange(size) % (agents + 1)
    else:
        density = {"sparse": 0.1, "none": 0.0, "all": 1.0}.get(kind, 0.5)
        changed = rng.random((agents, size)) < density
    stored = []
    for t in range(agents):
        reach = 1 if kind == "one ulp" else 2 ** int(rng.integers(1, 12))
        steps = rng.integers(1, reach + 1, size) * rng.choice((-1, 1), size)
        new = _moved(dtype, base, steps)
        if kind == "wild":
            other = np.where(
                rng.random(size) < 0.5, _special(dtype, rng, size), _ordinary(dtype, rng, size)
            )
            new = np.where(rng.random(size) < 0.7, other, new)
        new = np.where(changed[t], new, base)
        if stored and kind in ("identical", "dense twins"):
            copied = np.ones(size, bool) if kind == "identical" else rng.random(size) < 0.5
            new = np.where(copied, stored[0], new)
        stored.append(new)
    return ElementBlock(_as_stored(dtype, base), tuple(_as_stored(dtype, bits) for bits in stored))


def some_blocks(
    cases: tuple[tuple[int, str], ...], sizes: tuple[int, ...], kinds: tuple[str, ...] = KINDS
) -> st.SearchStrategy[ElementBlock]:
    """Blocks of these numbers of agents and dtypes."""
    return st.builds(
        lambda seed, case, size, kind: make_block(seed, case[0], size, case[1], kind),
        st.integers(0, 2**32),
        st.sampled_from(cases),
        st.sampled_from(sizes),
        st.sampled_from(kinds),
    )
