"""mergekit's order of float32 operations: the loops, torch, and plain float32 arithmetic agree."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_zoo import Zoo, read_folder

from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels import torch as kernels
from ram_studio.algorithm.kernels.rules import float32_total
from ram_studio.algorithm.methods import METHODS, Facts, make_settings
from ram_studio.algorithm.methods.task_arithmetic import weighted_sum_rule
from ram_studio.algorithm.methods.ties import elected_rule
from ram_studio.engine.merge import merge
from ram_studio.engine.passes.plan import CollectedFacts, Plan
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS

WEIGHTS = (0.7, 0.33, -0.2)
DICE = np.random.default_rng(5)
BASE = (0.02 * DICE.standard_normal(3001)).astype(np.float32)
AGENTS = (BASE + 0.003 * DICE.standard_normal((3, 3001))).astype(np.float32)
AGENTS[:, ::5] = BASE[::5]


def stored(rule) -> np.ndarray:
    """Return what the loop stores, after torch stored the same bytes."""
    rule = rule._replace(is_as_mergekit=True)
    out, pattern = np.empty_like(BASE), np.empty(len(BASE), np.uint8)
    assert cpu.merge(rule, BASE, tuple(AGENTS), out, pattern)
    found = kernels.merge(rule, torch.from_numpy(BASE), torch.from_numpy(AGENTS))
    assert out.tobytes() == found.values.numpy().tobytes()
    assert pattern.tolist() == found.active.tolist()
    return out


def added(values) -> np.ndarray:
    """Return a sum of arrays, from left to right; every addition rounds to float32."""
    total = np.zeros_like(BASE)
    for value in values:
        total = total + value
    return total


@pytest.mark.parametrize("normalize", [False, True])
def test_sums_round_after_every_operation(normalize) -> None:
    rule = weighted_sum_rule(3, 0.6, WEIGHTS, normalize=normalize)
    change = added(np.float32(w) * (a - BASE) for w, a in zip(WEIGHTS, AGENTS, strict=True))
    if normalize:
        change = change / ((np.float32(0.7) + np.float32(0.33)) + np.float32(-0.2))
    assert np.array_equal(stored(rule), BASE + change * np.float32(0.6))


@pytest.mark.parametrize("normalize", [False, True])
def test_elections_round_after_every_operation(normalize) -> None:
    limits = np.array([1e-3, 2e-3, 5e-4], np.float32)
    rule = elected_rule(limits, 0.6, WEIGHTS, normalize=normalize)
    taus = [
        np.float32(w) * np.where(np.abs(a - BASE) > limit, a - BASE, np.float32(0))
        for w, a, limit in zip(WEIGHTS, AGENTS, limits, strict=True)
    ]
    sign = np.sign(added(taus))
    change = added(np.where(np.sign(tau) == sign, tau, np.float32(0)) for tau in taus)
    if normalize:
        parts = added(
            np.where(np.sign(tau) == sign, np.float32(w), np.float32(0))
            for w, tau in zip(WEIGHTS, taus, strict=True)
        )
        change = change / np.where(parts == 0, np.float32(1), parts)
    assert np.array_equal(stored(rule), BASE + change * np.float32(0.6))


def nearest(exact: Fraction) -> np.float32:
    """Return the float32 nearest to a number, of two the even one."""
    near = np.float32(float(exact))
    around = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), x.view(np.uint32) & 1))


@pytest.mark.parametrize(("first", "normalize"), [(0.3, True), (0.17, False)])
def test_averages_fuse_products_into_the_sum(first, normalize) -> None:
    facts = Facts(("a", "b", "c"), 0, ("w",), weights=np.array([WEIGHTS]))
    linear = METHODS["linear"]
    values = {"base_weight": first, "normalize": normalize}
    made = linear.prepare(make_settings("linear", values), facts)
    got = stored(linear.rule(made, 0, "w"))
    divisor = np.float32(float32_total((first, *WEIGHTS)) if normalize else 1.0)
    for i in range(0, len(BASE), 7):
        total = np.float32(0)
        for weight, model in zip((first, *WEIGHTS), (BASE, *AGENTS), strict=True):
            product = Fraction(float(np.float32(weight))) * Fraction(float(model[i]))
            total = nearest(product + Fraction(float(total)))
        assert got[i] == total / divisor


def test_a_fused_product_rounds_once_on_any_device() -> None:
    # Exactly between two float32 but for less than a float64 beside the sum can hold.
    a, b = np.float32(1 + 2**-12), np.float32(1 + 2**-12)
    for c in (2.0**60, 2.0**40, 2.0**25, 1.0, 2.0**-30, -(2.0**25), -1.0):
        for factor in (1.0, 2.0**-25, 3 * 2.0**-30):
            x = np.float32(a * np.float32(factor))
            exact = Fraction(float(x)) * Fraction(float(b)) + Fraction(c)
            number = torch.tensor([x]), torch.tensor(b), torch.tensor([c], dtype=torch.float32)
            assert kernels._fma(*number).item() == nearest(exact)


def test_weights_are_added_as_torch_adds_them() -> None:
    for n in range(1, 8):
        weights = np.random.default_rng(n).random(n).astype(np.float32)
        assert float32_total(weights.tolist()) == torch.from_numpy(weights).sum().item()


def test_only_float32_to_nearest_is_stored_in_that_order() -> None:
    report = SimpleNamespace(name="w", merged_as="w")
    facts = Facts(("a", "b", "c"), 0, ("w",), weights=np.array([WEIGHTS]))
    method = METHODS["task-arithmetic"]
    made = method.prepare(make_settings("task-arithmetic", {"scale": 0.6}), facts)
    for dtype, rounding, expected in (
        ("F32", "nearest", True),
        ("F32", "stochastic", False),
        ("BF16", "nearest", False),
    ):
        plan = Plan(method, made, CollectedFacts(facts), {"w": dtype}, {"w": 0}, rounding)
        assert plan.rule(report).is_as_mergekit is expected


@pytest.mark.parametrize("threads", [1, 2])
def test_the_kth_magnitude_itself_is_the_threshold(threads, tmp_path) -> None:
    """Thousands of magnitudes share a bin: in each tensor float32 keeps int(density * n)."""
    n = 3 * GROUP_ELEMENTS // 2
    dice = torch.Generator().manual_seed(1)
    base = {name: torch.randn(n, generator=dice) for name in ("a", "b")}
    agents = {
        agent: {name: x + size * torch.randn(n, generator=dice) for name, x in base.items()}
        for agent, size in (("one", 1e-2), ("two", 1e-3), ("three", 1e-3))
    }
    recipe = Zoo.write(tmp_path, base, agents).recipe(
        method="ties",
        settings={"scope": "tensor", "normalize": False},
        densities={"one": 0.29, "two": 0.4},
        weights={"one": 1.0, "two": 0.0, "three": 0.0},
        dtype="float32",
        other_base="accept",
    )
    run = {"device": "cpu", "threads": threads, "block_elements": GROUP_ELEMENTS}
    merge(recipe, tmp_path / "out", **run)
    for name, merged in read_folder(tmp_path / "out").items():
        sizes = (agents["one"][name] - base[name]).abs()
        is_kept = merged != base[name]
        assert int(is_kept.sum()) == int(0.29 * n)
        assert sizes[is_kept].min() > sizes[~is_kept].max()
