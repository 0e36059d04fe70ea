"""TSV-M and Iso-C against the published formulas in NumPy, and what must hold of their spectra."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, make_settings

LINEAR = "model.layers.0.mlp.up_proj.weight"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def random_taus(agents: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((agents, *shape)).astype(np.float32)


def merged_tau(method: str, taus: np.ndarray, name: str = LINEAR, **values) -> np.ndarray:
    """Return what the method adds to a base of zeros."""
    names = tuple(f"agent{t}" for t in range(len(taus)))
    prepared = METHODS[method].prepare(make_settings(method, values), Facts(names, 0, (name,)))
    agents = torch.from_numpy(taus.reshape(len(taus), -1))
    block = BlockInput(torch.zeros(agents.shape[1]), agents, 0, name, 0, taus.shape[1:])
    return METHODS[method].merge(block, prepared).values.numpy().reshape(taus.shape[1:])


def tsv(taus: np.ndarray) -> np.ndarray:
    parts = [np.linalg.svd(tau.astype(float), full_matrices=False) for tau in taus]
    k = min(taus.shape[1:]) // len(taus)
    u = np.hstack([p[0][:, :k] for p in parts])
    s = np.concatenate([p[1][:k] for p in parts])
    v = np.hstack([p[2][:k].T for p in parts])
    a, _, b = np.linalg.svd(u, full_matrices=False)
    c, _, d = np.linalg.svd(v, full_matrices=False)
    return a @ b @ np.diag(s) @ (c @ d).T


def iso(taus: np.ndarray) -> np.ndarray:
    u, s, vt = np.linalg.svd(taus.astype(float).sum(0), full_matrices=False)
    return s.mean() * u @ vt


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9)])
@pytest.mark.parametrize("agents", [1, 2, 3])
@pytest.mark.parametrize(("method", "formula"), [("tsv-m", tsv), ("iso-c", iso)])
def test_a_layer_is_merged_as_published(method, formula, agents, shape) -> None:
    taus = random_taus(agents, *shape)
    np.testing.assert_allclose(merged_tau(method, taus), formula(taus), rtol=1e-9, atol=1e-12)
    half = merged_tau(method, taus, scale=0.5)
    np.testing.assert_allclose(half, formula(taus) / 2, rtol=1e-9, atol=1e-12)


def test_one_agent_comes_back_from_tsv_and_with_a_flat_spectrum_from_iso() -> None:
    taus = random_taus(1, 5, 4)
    np.testing.assert_allclose(merged_tau("tsv-m", taus), taus[0], rtol=1e-9, atol=1e-9)
    values = np.linalg.svd(merged_tau("iso-c", taus), compute_uv=False)
    assert np.ptp(values) < 1e-9
    assert values.mean() == pytest.approx(np.linalg.svd(taus[0], compute_uv=False).mean())


@pytest.mark.parametrize("method", ["tsv-m", "iso-c"])
def test_directions_that_nobody_moved_stay(method) -> None:
    column, row = random_taus(1, 6, 1)[0], random_taus(1, 1, 4, seed=1)[0]
    taus = np.stack([column @ row, 2 * column @ row, 0 * column @ row])  # of rank one, and nothing
    merged = merged_tau(method, taus)
    assert np.linalg.matrix_rank(merged, tol=1e-6) <= 2
    across = np.linalg.svd(column @ row)[2][1:]
    if method == "iso-c":
        assert np.abs(merged @ across.T).max() < 1e-6
    assert not merged_tau(method, 0 * taus).any()


@pytest.mark.parametrize("method", ["tsv-m", "iso-c", "wudi"])
def test_packed_experts_are_matrices_of_their_own(method) -> None:
    taus = random_taus(2, 3, 6, 4)
    packed = merged_tau(method, taus, EXPERTS)
    for expert in range(3):
        alone = merged_tau(method, taus[:, expert])
        np.testing.assert_array_equal(packed[expert], alone)


@pytest.mark.parametrize("method", ["tsv-m", "iso-c", "wudi"])
@pytest.mark.parametrize(("others", "factor"), [("mean", 0.5), ("sum", 1.0), ("base", 0.0)])
def test_other_tensors_are_averaged_summed_or_left(method, others, factor) -> None:
    taus = random_taus(2, 6, 3)
    got = merged_tau(method, taus, "model.embed_tokens.weight", others=others)
    np.testing.assert_allclose(got, factor * taus.astype(float).sum(0), rtol=1e-6)
