"""Matrix methods against the published loss and formulas in numpy, and what must hold of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_zoo import read_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from random_zoo import write_zoo

from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, make_settings
from ram_studio.algorithm.methods.whole.matrices import is_linear
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.projecting import removed_shares
from ram_studio.errors import SettingsError

LINEAR = "model.layers.0.mlp.up_proj.weight"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


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


def random_taus(seed: int, agents: int, *shape: int, share: float = 0.4) -> torch.Tensor:
    """Return changes of so many of the elements, which float32 holds."""
    generator = torch.Generator().manual_seed(seed)
    taus = 1e-4 * torch.randn(agents, *shape, generator=generator)
    return (taus * (torch.rand(taus.shape, generator=generator) < share)).double()


def merged_tau(
    method: str, taus: torch.Tensor, name: str = LINEAR, base: torch.Tensor | None = None, **values
) -> torch.Tensor:
    """Return what the method adds to a base (zeros), through float32 as files store it."""
    names = tuple(f"agent{t}" for t in range(len(taus)))
    prepared = METHODS[method].prepare(make_settings(method, values), Facts(names, 0, (name,)))
    x = torch.zeros(taus[0].numel()) if base is None else base.float().flatten()
    block = BlockInput(x, x + taus.float().flatten(1), 0, name, 0, tuple(taus.shape[1:]))
    return (METHODS[method].merge(block, prepared).values - x.double()).view(taus.shape[1:])


shapes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=25)
@given(draw=shapes)
def test_the_steps_are_those_of_the_published_optimiser(draw) -> None:
    taus = random_taus(*draw)
    want = published(taus, 12, 1e-5)
    got = merged_tau("wudi", taus, iterations=12)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-14)


@settings(max_examples=25)
@given(draw=shapes)
def test_the_closed_form_has_no_gradient_left(draw) -> None:
    taus = random_taus(*draw)
    best = merged_tau("wudi", taus, solver="closed").requires_grad_()
    loss(best, taus).backward()
    start = taus.sum(0).requires_grad_()
    loss(start, taus).backward()
    assert best.grad.norm() <= 1e-6 * start.grad.norm() + 1e-20
    assert loss(best, taus) <= loss(start, taus) * (1 + 1e-9)


def test_many_steps_arrive_at_the_closed_form() -> None:
    # More rows than columns: well-conditioned, so the minimum is one point.
    taus = random_taus(1, 3, 40, 6)
    best = merged_tau("wudi", taus, solver="closed")
    walked = merged_tau("wudi", taus, iterations=1500, learning_rate=3e-6)
    assert (walked - best).norm() <= 1e-2 * (taus.sum(0) - best).norm()


def test_one_agent_comes_back_whole() -> None:
    taus = random_taus(2, 1, 5, 4)
    torch.testing.assert_close(merged_tau("wudi", taus), taus[0], rtol=0, atol=1e-18)
    torch.testing.assert_close(
        merged_tau("wudi", taus, solver="closed"), taus[0], rtol=1e-6, atol=1e-12
    )


def test_an_agent_that_left_the_layer_alone_changes_nothing() -> None:
    taus = random_taus(3, 2, 5, 4)
    with_idle = torch.cat([taus, torch.zeros(1, 5, 4, dtype=torch.float64)])
    assert torch.equal(merged_tau("wudi", taus), merged_tau("wudi", with_idle))
    assert not merged_tau("wudi", torch.zeros(2, 3, 3, dtype=torch.float64)).any()


def tsv(taus: np.ndarray) -> np.ndarray:
    parts = [np.linalg.svd(tau, full_matrices=False) for tau in taus]
    k = min(taus.shape[1:]) // len(taus)
    u = np.hstack([p[0][:, :k] for p in parts])
    s = np.concatenate([p[1][:k] for p in parts])
    v = np.hstack([p[2][:k].T for p in parts])
    a, _, b = np.linalg.svd(u, full_matrices=False)
    c, _, d = np.linalg.svd(v, full_matrices=False)
    return a @ b @ np.diag(s) @ (c @ d).T


def iso(taus: np.ndarray) -> np.ndarray:
    u, s, vt = np.linalg.svd(taus.sum(0), full_matrices=False)
    return s.mean() * u @ vt


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9)])
@pytest.mark.parametrize("agents", [1, 2, 3])
@pytest.mark.parametrize(("method", "formula"), [("tsv-m", tsv), ("iso-c", iso)])
def test_a_layer_is_merged_as_published(method, formula, agents, shape) -> None:
    taus = random_taus(0, agents, *shape, share=1.0)
    want = formula(taus.numpy())
    for scale in (1.0, 0.5):
        got = merged_tau(method, taus, scale=scale)
        np.testing.assert_allclose(got, scale * want, rtol=1e-9, atol=1e-16)


def resmerge(taus, rank=1, low=0.7, high=1.0, budget=0.2, is_named=True):
    """The published equations, plainly."""
    n, heads, rests = len(taus), [], []
    for tau in taus:
        u, s, vt = np.linalg.svd(tau, full_matrices=False)
        heads.append(sum(s[k] * np.outer(u[:, k], vt[k]) for k in range(rank)))
        rests.append(tau - heads[-1])
    size = np.linalg.norm
    q = [rest / size(rest) for rest in rests]
    together = sum(q) / size(sum(q))
    pairs = [(a, b) for a in range(n) for b in range(a)]
    c = np.mean([(one * together).sum() for one in q])
    s_r = np.mean([(q[a] * q[b]).sum() for a, b in pairs])
    score = ((s_r + 1) / 2 + (c + 1) / 2) / 2 * is_named
    backbone = c ** (high - (high - low) * score) * np.mean([size(r) for r in rests]) * together
    if c <= 1 / n**0.5:
        backbone = np.mean(rests, 0)
    cosines = [(heads[a] * heads[b]).sum() / size(heads[a]) / size(heads[b]) for a, b in pairs]
    gate = np.mean([max(0.0, cosine) for cosine in cosines])
    head = np.mean(heads, 0)
    return backbone + budget * gate * size(backbone) * head / size(head)


@pytest.mark.parametrize("shared", [0.0, 1.0, -0.4])
@pytest.mark.parametrize("shape", [(8, 6), (5, 9)])
@pytest.mark.parametrize(
    ("name", "values", "own"),
    [
        (LINEAR, {}, {}),
        (LINEAR, {"head_rank": 2, "budget": 0.5}, {"rank": 2, "budget": 0.5}),
        ("model.layers.0.router.weight", {}, {"is_named": False}),
        ("model.layers.0.self_attn.q_proj.weight", {"beta_min": 0.2}, {"low": 0.2}),
    ],
)
def test_resmerge_is_the_published_equations(shared, shape, name, values, own) -> None:
    taus = random_taus(4, 3, *shape, share=1.0)
    taus[1:] += shared * taus[:1]  # agents that agree, that do not, that oppose
    want = resmerge(taus.float().double().numpy(), **own)
    np.testing.assert_allclose(merged_tau("resmerge", taus, name, **values), want, rtol=1e-8)


def test_resmerge_adds_nothing_where_no_agent_has_a_residual() -> None:
    column, row = (random_taus(seed, 6, 1, share=1.0) for seed in (0, 1))
    tau = 1e4 * column @ row[:4].T  # of rank one
    assert not merged_tau("resmerge", torch.stack([tau, 0 * tau])).any()
    assert merged_tau("resmerge", random_taus(0, 2, 6, 4)).any()
    with pytest.raises(SettingsError, match="beta_min 2 is above beta_max 1"):
        make_settings("resmerge", {"beta_min": 2})


@pytest.mark.parametrize("shape", [(8, 8), (12, 8), (8, 12)])
@pytest.mark.parametrize(("rank", "base_rank"), [(0.01, 1.0), (0.5, 0.5), (1.0, 0.25)])
def test_a_projection_keeps_the_bases_strongest_directions(shape, rank, base_rank) -> None:
    taus, base = random_taus(5, 2, *shape, share=1.0), 1e4 * random_taus(6, 1, *shape, share=1.0)[0]
    stored = (base.float() + taus.float()).double() - base.float().double()
    u, _, vt = np.linalg.svd(base.float().double().numpy(), full_matrices=False)
    k, r = (max(1, int(share * 8)) for share in (rank, base_rank))
    want = np.zeros(shape)
    for tau in stored.numpy():
        a, s, b = np.linalg.svd(tau, full_matrices=False)
        rewired = u[:, :r].T @ (a[:, :k] * s[:k]) @ b[:k] @ vt[:r].T
        want += u[:, :r] @ rewired @ vt[:r]
    got = merged_tau("project", taus, base=base, density=rank, base_rank=base_rank, scale=0.5)
    np.testing.assert_allclose(got, 0.5 * want, rtol=1e-6, atol=1e-10)
    # All of a square matrix's directions are the base's: the whole update comes back.
    if shape == (8, 8):
        whole = merged_tau("project", taus[:1], base=base, density=1.0)
        np.testing.assert_allclose(whole, stored[0], rtol=1e-6, atol=1e-11)
    assert not merged_tau("project", taus, "model.embed_tokens.weight", base=base).any()


def plain_projection(base: np.ndarray, tau: np.ndarray, k: int) -> np.ndarray:
    """Return a task vector's k strongest components in the base's directions, number by number."""
    u, s, vt = np.linalg.svd(base, full_matrices=False)
    a, sizes, b = np.linalg.svd(tau, full_matrices=False)
    rows, columns = tau.shape
    found = np.zeros(tau.shape)
    for c in range(k):
        left = [sum(u[i, r] * (u[:, r] @ a[:, c]) for r in range(len(s))) for i in range(rows)]
        right = [sum(vt[r, j] * (vt[r] @ b[c]) for r in range(len(s))) for j in range(columns)]
        for i in range(rows):
            for j in range(columns):
                found[i, j] += sizes[c] * left[i] * right[j]
    return found


def test_a_projection_has_densities_by_agent_and_filter(tmp_path) -> None:
    zoo = write_zoo(tmp_path / "zoo", 3, dtype=torch.float32)
    recipe = zoo.recipe(
        method="project",
        densities={"coding": 0.5, "memory": 0.0},
        filters=[{"match": "*.mlp.*", "layers": [1, 1], "densities": {"tool": 1.0}}],
    )
    merge(recipe, tmp_path / "out", device="cpu", threads=1)
    stored = read_folder(tmp_path / "out")
    for name, start in zoo.base.items():
        x = start.double().numpy()
        want = np.zeros(x.shape)
        if x.ndim == 2 and "embed" not in name:
            k = {"coding": 4, "tool": 8 if name.startswith("model.layers.1.") else 1}
            for agent, few in k.items():
                tau = zoo.agents[agent][name].double().numpy() - x
                want += plain_projection(x, tau, few)
        np.testing.assert_allclose(stored[name].double().numpy(), x + want, atol=1e-8)


def test_the_meter_says_what_projecting_an_agent_alone_removes(tmp_path, monkeypatch) -> None:
    zoo = write_zoo(tmp_path / "zoo", 4, dtype=torch.float32)
    report = zoo.load()
    before, threads = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    found = removed_shares(report)
    # Two of them take 30 times as long where something else holds a core.
    assert threads == [1, before]
    for agent, tensors in zoo.agents.items():
        kept = norm2 = 0.0
        for name, start in zoo.base.items():
            if start.ndim == 2 and "embed" not in name:
                x = start.double().numpy()
                tau = tensors[name].double().numpy() - x
                kept += (plain_projection(x, tau, 1) * tau).sum()
                norm2 += (tau * tau).sum()
        assert found[agent] == pytest.approx(1 - kept / norm2, abs=1e-9)
        assert 0.2 < found[agent] < 0.9
    monkeypatch.setattr("ram_studio.engine.reading.projecting.MOST_WORK", 100)
    assert removed_shares(report) is None


def test_one_agent_comes_back_from_tsv_and_flat_from_iso() -> None:
    taus = random_taus(0, 1, 5, 4, share=1.0)
    torch.testing.assert_close(merged_tau("tsv-m", taus), taus[0], rtol=1e-9, atol=1e-13)
    values = torch.linalg.svdvals(merged_tau("iso-c", taus))
    assert (values / torch.linalg.svdvals(taus[0]).mean()).tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("method", ["tsv-m", "iso-c"])
def test_directions_that_nobody_moved_stay(method) -> None:
    column, row = (random_taus(seed, 6, 1, share=1.0) for seed in (0, 1))
    tau = 1e4 * column @ row[:4].T  # of rank one
    taus = torch.stack([tau, 2 * tau, 0 * tau])
    merged = merged_tau(method, taus)
    assert torch.linalg.matrix_rank(merged, rtol=1e-6) <= 2
    across = torch.linalg.svd(tau)[2][1:]
    if method == "iso-c":
        # The mean over all 4 singular values, three of which are 0.
        assert torch.linalg.svdvals(merged)[0] == pytest.approx(
            3 * torch.linalg.svdvals(tau)[0] / 4
        )
        assert (merged @ across.T).abs().max() < 1e-6 * merged.abs().max()
    assert not merged_tau(method, 0 * taus).any()


@pytest.mark.parametrize("method", ["tsv-m", "iso-c", "wudi", "resmerge", "project"])
def test_packed_experts_are_matrices_of_their_own(method) -> None:
    taus = random_taus(0, 2, 3, 6, 4)
    packed = merged_tau(method, taus, EXPERTS)
    for expert in range(3):
        assert torch.equal(packed[expert], merged_tau(method, taus[:, expert]))


@pytest.mark.parametrize("method", ["tsv-m", "iso-c", "wudi", "resmerge", "project"])
@pytest.mark.parametrize(("others", "factor"), [("mean", 0.5), ("sum", 1.0), ("base", 0.0)])
def test_other_tensors_are_averaged_summed_or_left(method, others, factor) -> None:
    taus = random_taus(0, 2, 6, 3)
    got = merged_tau(method, taus, "model.embed_tokens.weight", others=others)
    torch.testing.assert_close(got, factor * taus.sum(0), rtol=1e-6, atol=0)


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


def test_the_engine_hands_over_whole_matrices_on_any_threads(tmp_path) -> None:
    shapes = {
        "model.embed_tokens.weight": (600, 120),
        "model.layers.0.mlp.up_proj.weight": (700, 120),
        "model.layers.0.mlp.down_proj.weight": (120, 700),
        "model.norm.weight": (120,),
    }
    zoo = write_zoo(tmp_path / "zoo", 1, shapes=shapes)
    recipe = zoo.recipe(method="wudi", settings={"iterations": 5}, dtype="float32")
    merge(recipe, tmp_path / "a", threads=1, block_elements=1 << 16)
    merge(recipe, tmp_path / "b", threads=3, block_elements=1 << 18)
    stored, again = read_folder(tmp_path / "a"), read_folder(tmp_path / "b")
    for name, shape in shapes.items():
        assert torch.equal(stored[name], again[name])
        x = zoo.base[name].double()
        taus = torch.stack([y[name].double() - x for y in zoo.agents.values()])
        is_layer = is_linear(make_settings("wudi", {}), name, shape)
        tau = published(taus, 5, 1e-5) if is_layer else taus.mean(0)
        torch.testing.assert_close(stored[name].double(), x + tau, rtol=2**-23, atol=1e-12)
