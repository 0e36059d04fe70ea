"""What merges store lies within a unit in the last place of the exact result, for every method."""

from __future__ import annotations

from fractions import Fraction

import method_reference
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_zoo import random_elements
from test_elementwise import CASES, TENSOR, expected_taus, prepared

from ram_studio.algorithm import rounding
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels.rules import arithmetic
from ram_studio.algorithm.methods import BlockInput, make_settings

RATIO = 0.7
EVERY = [
    *CASES,
    ("ram", {}),
    ("ram+", {"epsilon": 0.0}),
    ("ram+", {"r": 0.3, "shared": "ties"}),
    ("ram+s", {"epsilon": 1e-3}),
    ("ram+m", {}),
    ("region", {"part": "shared", "scale": 0.7}),
    ("region", {"part": "whole"}),
    ("two-regions", {"unique_scale": 0.3, "shared_scale": 2.0, "epsilon": 1e-3}),
    ("fisher", {"scale": 1.5}),
    ("wudi", {}),  # a tensor that is no linear layer: the mean of all tau
]


def merge(method: str, values: dict, base: np.ndarray, agents: np.ndarray, dtype: str):
    """Return what is stored, by the loops where the method has a rule, and by torch."""
    chosen, made = prepared(method, base, agents, ratio=RATIO, **values)
    kind = arithmetic((dtype,))
    block = BlockInput(
        torch.from_numpy(base),
        torch.from_numpy(agents),
        0,
        TENSOR,
        0,
        (len(base),),
        torch.from_numpy(np.abs(agents)),
        arithmetic=kind,
    )
    found = chosen.merge(block, made)
    on_torch = rounding.store(found.values.numpy(), dtype)
    if chosen.rule is None:
        return on_torch, on_torch
    stored = (base, *agents)
    if dtype == "BF16":
        stored = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in stored]
    out, pattern = np.empty_like(stored[0]), np.empty(len(base), np.uint8)
    rule = chosen.rule(made, 0, TENSOR)
    assert cpu.merge(rule, stored[0], tuple(stored[1:]), out, pattern, arithmetic=kind)
    return out, on_torch


def exactly(method: str, chosen: dict, x: float, ys: list[float]) -> Fraction:
    """Return one merged element, of the methods that need to know nothing of others."""
    base, n = Fraction(x), len(ys)
    taus = [Fraction(y) - base for y in ys]
    if method.startswith("ram"):
        factor = reference.scaling(RATIO, method, chosen.get("r", 0.0), chosen.get("alpha", 2.0))
        how = (chosen["epsilon"], (factor,) * n, chosen["shared"])
        return reference.merged_exactly(x, ys, *how)
    if method in ("fisher", "wudi"):
        weights = [abs(Fraction(y)) if method == "fisher" else Fraction(1) for y in ys]
        weights = weights if any(weights) else [Fraction(1)] * n
        mean = sum(w * tau for w, tau in zip(weights, taus, strict=True)) / sum(weights)
        return base + Fraction(chosen.get("scale", 1.0)) * mean
    mask = reference.pattern(x, ys, chosen["epsilon"])
    if method == "region":
        is_in = mask & 1 and (chosen["part"] == "whole" or mask.bit_count() > 1)
        return base + (Fraction(chosen["scale"]) * taus[0] if is_in else 0)
    scale = Fraction(chosen["unique_scale" if mask.bit_count() == 1 else "shared_scale"])
    ram = reference.merged_exactly(x, ys, chosen["epsilon"], (1.0,) * n)
    return base + scale * (ram - base)


def expected(method: str, values: dict, base: np.ndarray, agents: np.ndarray) -> list[Fraction]:
    """Return every merged element in float64, or exactly."""
    chosen = make_settings(method, values).model_dump()
    if (method, values) not in CASES:
        columns = zip(base.tolist(), agents.T.tolist(), strict=True)
        return [exactly(method, chosen, x, ys) for x, ys in columns]
    p = chosen.get("drop_rate", 0.0)
    scale = 1 / len(agents) if chosen["scale"] is None else chosen["scale"]
    taus = expected_taus(method, base, agents, chosen.get("density", 1.0), p)
    scale /= 1 - p
    if method in ("ties", "dare-ties"):
        merged = map(method_reference.elect, base.tolist(), taus, [scale] * len(base))
    else:
        merged = (x + scale * sum(left) for x, left in zip(base.tolist(), taus, strict=True))
    return [Fraction(value) for value in merged]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize(("method", "values"), EVERY, ids=str)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_stored_is_the_exact_result_to_its_last_place(method, values, dtype, seed):
    base, agents = random_elements(seed, 150, 3, dtype == "BF16")
    out, on_torch = merge(method, values, base, agents, dtype)
    assert out.tobytes() == on_torch.tobytes()
    wanted = expected(method, values, base, agents)
    strength = max(1.0, *(abs(v) for k, v in values.items() if k.endswith("scale")), 1.0)
    strength /= 1 - values.get("drop_rate", 0.5 if method.startswith("dare") else 0.0)
    for x, ys, want, got in zip(
        base.tolist(), agents.T.tolist(), wanted, rounding.decode(out, dtype).tolist(), strict=True
    ):
        taus = [Fraction(y) - Fraction(x) for y in ys]
        largest = max(abs(Fraction(x)), *(abs(t) * Fraction(strength) for t in taus))
        elects = method.endswith("ties") or values.get("shared") == "ties"
        if elects and abs(sum(taus)) * 2**20 < max(map(abs, taus)):
            continue  # a sum that is 0 but for rounding may elect either sign
        # Where results cancel, the arithmetic's rounding of the largest term shows.
        does_cancel = abs(want) * 4 < largest
        allowed = 2 * reference.spacing(largest, dtype)
        allowed = allowed if does_cancel else reference.spacing(want, dtype)
        assert abs(Fraction(got) - want) <= allowed
