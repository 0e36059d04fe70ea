"""Linear, MagMax, slerp, WARP, Model Stock and SCE against their published formulas in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from engine_zoo import read_folder
from random_zoo import random_elements, write_zoo

from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, make_settings
from ram_studio.algorithm.methods.whole import sce as whole_sce
from ram_studio.checkpoints.own_methods import bring_method
from ram_studio.engine.job import MergeJob
from ram_studio.engine.merge import merge
from ram_studio.errors import SettingsError


def linear(x, ys, w, base_weight=0.0, normalize=True, decay=1.0):
    w = w * decay ** np.arange(len(ys))[::-1]
    total = base_weight * x + (w[:, None] * ys).sum(0)
    return total / (base_weight + w.sum()) if normalize else total


def magmax(x, ys, w, scale=1.0):
    taus = w[:, None] * (ys - x)
    return x + scale * np.array([max(column, key=abs) for column in taus.T])


def arc(a, b, t):
    cosine = np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))
    if abs(cosine) > 0.9995:
        return (1 - t) * a + t * b
    angle = np.arccos(cosine)
    return (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)


def slerp(x, ys, w, t=0.5):
    return arc(x, ys[0], t * w[0])


def warp(x, ys, w, scale=1.0):
    mean = ys[0] - x
    for k in range(1, len(ys)):
        mean = arc(mean, ys[k] - x, w[k] / w[: k + 1].sum())
    return x + scale * mean


def model_stock(x, ys, w):
    taus = w[:, None] * (ys - x)
    pairs = itertools.combinations(taus, 2)
    cosine = np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs])
    n = len(ys)
    t = n * cosine / (1 + (n - 1) * cosine) if cosine > 0 else 0.0
    return x + t * taus.mean(0)


def sce(x, ys, w, select=1.0, scale=1.0):
    taus = w[:, None] * (ys - x)
    if select < 1:
        variance = taus.var(0)
        k = int(select * (variance > 0).sum())
        chosen = sorted(range(len(x)), key=lambda i: (-variance[i], i))[:k]
        taus = np.where(np.isin(np.arange(len(x)), chosen), taus, 0)
    shares = (taus**2).sum(1) / (taus**2).sum()
    out = x.copy()
    for i, column in enumerate(taus.T):
        own = [(c, v) for c, v in zip(shares, column, strict=True) if v * column.sum() > 0]
        if own:
            out[i] += scale * sum(c * v for c, v in own) / sum(c for c, _ in own)
    return out


FORMULAS = {
    "linear": linear,
    "magmax": magmax,
    "slerp": slerp,
    "warp": warp,
    "model-stock": model_stock,
    "sce": sce,
}
CASES = [
    ("linear", {}),
    ("linear", {"base_weight": 0.5, "decay": 0.8}),
    ("magmax", {"scale": 0.7}),
    ("slerp", {"t": 0.3}),
    ("warp", {"scale": 0.9}),
    ("model-stock", {}),
    ("sce", {"select": 0.4, "scale": 1.1}),
]


def merged_by(method, values, base, agents, weights=None):
    """Return one tensor merged, float64."""
    n, chosen = len(agents), METHODS[method]
    own = None if weights is None else np.array([weights])
    facts = Facts(tuple(f"a{t}" for t in range(n)), 0, ("w",), weights=own)
    block = BlockInput(
        torch.from_numpy(base),
        torch.from_numpy(agents),
        *(0, "w", 0, base.shape),
        weights=None if weights is None else tuple(weights),
    )
    prepared = chosen.prepare(make_settings(method, values), facts)
    return chosen.merge(block, prepared).values.numpy()


@pytest.mark.parametrize(("method", "values"), CASES)
@pytest.mark.parametrize("weights", [None, [0.7, 0.4, 1.5]])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_the_published_formula(method, values, weights, size):
    base, agents = random_elements(3, 211, 3, bfloat16=False)
    agents = (base + size * (agents - base)).astype(np.float32)  # far enough for an arc, or not
    if method == "slerp":
        agents, weights = agents[:1], weights and weights[:1]
    w = np.ones(len(agents)) if weights is None else np.array(weights)
    wanted = FORMULAS[method](base.astype(float), agents.astype(float), w, **values)
    got = merged_by(method, values, base, agents, weights)
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-13)
    assert np.abs(got - base).max() > 1e-6


def test_slerp_leaves_the_line_where_models_are_far_apart():
    base, agents = np.array([1.0, 0.0], np.float32), np.array([[0.0, 1.0]], np.float32)
    half = merged_by("slerp", {"t": 0.5}, base, agents)
    np.testing.assert_allclose(half, [0.5**0.5, 0.5**0.5], rtol=1e-12)  # a quarter circle
    two = np.array([[2.0, 0.0], [1.0, 1.0]], np.float32)  # tau (1, 0) and (0, 1)
    mean = merged_by("warp", {}, base, two) - base
    assert np.linalg.norm(mean) == pytest.approx(1.0)  # the mean of the two has length 0.71


def test_a_soup_of_float32_files_is_their_mean(tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 2, dtype=torch.float32)
    recipe = zoo.recipe(method="soup")
    assert recipe == zoo.recipe(method="linear")
    assert bring_method("soup") == "linear"
    merge(recipe, tmp_path / "out", device="cpu", threads=1)
    for name, tensor in read_folder(tmp_path / "out").items():
        mean = torch.stack([own[name].double() for own in zoo.agents.values()]).mean(0)
        # Each addition rounds, as in mergekit (test_mergekit_order.py).
        torch.testing.assert_close(tensor.double(), mean, rtol=2**-22, atol=1e-8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "linear", "settings": {"normalize": False}}, "add up to 3; they must add up"),
        ({"method": "linear", "weights": {"tool": -2}}, "add up to 0"),
        ({"method": "slerp"}, "one agent, not 3: choose one, or use warp"),
    ],
)
def test_what_cannot_be_merged_is_refused(changes, said, tmp_path):
    zoo = write_zoo(tmp_path / "zoo", 1)
    with pytest.raises(SettingsError, match=said):
        MergeJob(zoo.load(), zoo.recipe(**changes)).plan()


@pytest.mark.parametrize("select", [0.4, 1.0])
def test_sce_in_pieces_is_sce_at_once(monkeypatch, select):
    rng = np.random.default_rng(5)
    base, agents = rng.normal(size=50), rng.normal(size=(3, 50))
    monkeypatch.setattr(whole_sce, "_CHUNK", 7)
    expected = sce(base, agents, np.ones(3), select)
    found = merged_by("sce", {"select": select}, base, agents)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
