"""WUDI against the published loss under autograd, and its closed form against its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_zoo import flat, recipe_for, write_zoo

from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, make_settings
from ram_studio.algorithm.methods.matrices import is_linear
from ram_studio.engine.merge import merge

LINEAR = "model.layers.0.mlp.up_proj.weight"


def loss(merged: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
    """The published loss; agents that left the layer alone are out."""
    taus = taus[taus.flatten(1).any(1)]
    norms = taus.flatten(1).norm(dim=1).square()
    inner = (merged - taus) @ taus.transpose(1, 2)
    return (inner.square() / norms[:, None, None]).sum()


def published(taus: torch.Tensor, steps: int, learning_rate: float) -> torch.Tensor:
    merged = torch.nn.Parameter(taus.sum(0))
    optimizer = torch.optim.Adam([merged], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(merged, taus).backward()
        optimizer.step()
    return merged.data


def random_taus(seed: int, agents: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    taus = 1e-4 * torch.randn(agents, rows, columns, generator=generator, dtype=torch.float64)
    return taus * (torch.rand(taus.shape, generator=generator) < 0.4)


def merged_tau(taus: torch.Tensor, name: str = LINEAR, **values) -> torch.Tensor:
    """Return what the method adds to a base of zeros, through float32 as files store it."""
    rule = METHODS["wudi"].prepare(
        make_settings("wudi", values), Facts(("a", "b", "c")[: len(taus)], 0, (name,))
    )
    agents = taus.float().flatten(1)
    block = BlockInput(torch.zeros(agents.shape[1]), agents, 0, name, 0, tuple(taus.shape[1:]))
    return METHODS["wudi"].merge(block, rule).values.view(taus.shape[1:])


shapes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=25)
@given(draw=shapes)
def test_the_steps_are_those_of_the_published_optimiser(draw) -> None:
    taus = random_taus(*draw).float().double()
    want = published(taus, 12, 1e-5)
    got = merged_tau(taus, iterations=12)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-14)


@settings(max_examples=25)
@given(draw=shapes)
def test_the_closed_form_has_no_gradient_left(draw) -> None:
    taus = random_taus(*draw).float().double()
    best = merged_tau(taus, solver="closed").requires_grad_()
    loss(best, taus).backward()
    start = taus.sum(0).requires_grad_()
    loss(start, taus).backward()
    assert best.grad.norm() <= 1e-6 * start.grad.norm() + 1e-20
    assert loss(best, taus) <= loss(start, taus) * (1 + 1e-9)


def test_many_steps_arrive_at_the_closed_form() -> None:
    # More rows than columns: well-conditioned, so the minimum is one point.
    taus = random_taus(1, 3, 40, 6).float().double()
    best = merged_tau(taus, solver="closed")
    walked = merged_tau(taus, iterations=1500, learning_rate=3e-6)
    assert (walked - best).norm() <= 1e-2 * (taus.sum(0) - best).norm()


def test_one_agent_comes_back_whole() -> None:
    taus = random_taus(2, 1, 5, 4).float().double()
    torch.testing.assert_close(merged_tau(taus), taus[0], rtol=0, atol=1e-18)
    torch.testing.assert_close(merged_tau(taus, solver="closed"), taus[0], rtol=1e-6, atol=1e-12)


def test_an_agent_that_left_the_layer_alone_changes_nothing() -> None:
    taus = random_taus(3, 2, 5, 4)
    with_idle = torch.cat([taus, torch.zeros(1, 5, 4, dtype=torch.float64)])
    assert torch.equal(merged_tau(taus), merged_tau(with_idle))
    assert not merged_tau(torch.zeros(2, 3, 3, dtype=torch.float64)).any()


@pytest.mark.parametrize(
    ("name", "shape", "linear"),
    [
        (LINEAR, (4, 3), True),
        ("model.layers.0.self_attn.q_proj.bias", (4,), False),
        ("model.embed_tokens.weight", (9, 4), False),
        ("lm_head.weight", (9, 4), False),
        ("model.layers.0.mlp.experts.down_proj", (2, 4, 3), True),
        ("model.layers.0.conv1d.weight", (8, 1, 4), False),
    ],
)
def test_which_tensors_are_linear_layers(name, shape, linear) -> None:
    assert is_linear(make_settings("wudi", {}), name, shape) is linear


def test_the_engine_hands_over_whole_matrices_whatever_the_threads(tmp_path) -> None:
    shapes = {
        "model.embed_tokens.weight": (600, 120),
        "model.layers.0.mlp.up_proj.weight": (700, 120),
        "model.layers.0.mlp.down_proj.weight": (120, 700),
        "model.norm.weight": (120,),
    }
    base, agents = write_zoo(tmp_path / "zoo", 1, shapes=shapes)
    recipe = recipe_for(base, agents, "wudi", settings={"iterations": 5}, dtype="float32")
    merge(recipe, tmp_path / "a", threads=1, block_elements=1 << 16)
    merge(recipe, tmp_path / "b", threads=3, block_elements=1 << 18)
    stored, again = flat(tmp_path / "a"), flat(tmp_path / "b")
    x, ys = flat(base), [flat(folder) for folder in agents.values()]
    for name in shapes:
        assert torch.equal(stored[name], again[name])
        taus = torch.stack([y[name].double() - x[name].double() for y in ys])
        tau = (
            published(taus, 5, 1e-5)
            if is_linear(make_settings("wudi", {}), name, shapes[name])
            else taus.mean(0)
        )
        torch.testing.assert_close(
            stored[name].double(), x[name].double() + tau, rtol=2**-23, atol=1e-12
        )
