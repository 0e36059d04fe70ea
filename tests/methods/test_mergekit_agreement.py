"""Agreement with mergekit 0.1.5 where the definitions coincide, element by element.

mergekit is a program under the LGPL with dependencies of its own; it runs as another process in an
environment of its own, which is not made here:

    python -m venv /tmp/mergekit && /tmp/mergekit/bin/pip install mergekit==0.1.5
    RAM_STUDIO_MERGEKIT_PYTHON=/tmp/mergekit/bin/python python -m pytest tests/methods
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from random_zoo import flat

from ram_studio.checkpoints.record.mergekit import export_mergekit
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.merge import merge
from ram_studio.resources import asset_path

PYTHON = os.environ.get("RAM_STUDIO_MERGEKIT_PYTHON")
EXAMPLE = asset_path("example")
AGENTS = ("coding", "tool", "memory")
SEED = 3

pytestmark = pytest.mark.skipif(
    PYTHON is None,
    reason="RAM_STUDIO_MERGEKIT_PYTHON names no Python with mergekit 0.1.5 installed",
)


def both(tmp_path: Path, method: str, **settings) -> tuple[dict, dict]:
    """Return what RAM Studio and mergekit make of one recipe, in float32."""
    recipe = make_recipe(
        {
            "base": str(EXAMPLE / "base"),
            "agents": {name: str(EXAMPLE / name) for name in AGENTS},
            "method": method,
            "settings": settings,
            "dtype": "float32",
            "seed": SEED,
        }
    )
    merge(recipe, tmp_path / "ours")
    config = tmp_path / "config.yaml"
    config.write_text(export_mergekit(recipe)[0])
    script = Path(__file__).with_name("run_mergekit.py")
    out = tmp_path / "theirs"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(PYTHON), str(script), str(config), str(out), str(SEED), *AGENTS],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return flat(tmp_path / "ours"), flat(out)


def assert_agree(ours: dict, theirs: dict, where=lambda name: slice(None)) -> None:
    """mergekit's float32 chain of a few operations against one rounding.

    atol: task vectors go up to 0.13, of which a float32 unit in the last place is 1.5e-8.
    """
    base = flat(EXAMPLE / "base")
    assert set(theirs) >= set(base)
    for name in base:
        a, b = ours[name][where(name)], theirs[name][where(name)]
        assert b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=2**-22, atol=2e-8, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ram", {}),
        ("ram+", {"scope": "tensor", "alpha": 2.0}),
        ("ram+", {"scope": "tensor", "alpha": 0.2, "r": 0.3, "epsilon": 1e-4}),
        ("task-arithmetic", {}),
        ("task-arithmetic", {"scale": 0.7}),
        ("dare-ta", {"drop_rate": 0.4, "scale": 0.8}),
    ],
)
def test_the_same_merge(method, settings, tmp_path) -> None:
    assert_agree(*both(tmp_path, method, **settings))


def elsewhere(density: float | None):
    """Return a mask per tensor without the cases that the two decide otherwise on purpose.

    Those are magnitudes equal to the threshold's (mergekit keeps some of them, we all), and
    task vectors that cancel exactly (mergekit takes the positive ones, we stay at the base).
    """
    base = flat(EXAMPLE / "base")
    agents = [flat(EXAMPLE / name) for name in AGENTS]

    def where(name: str) -> torch.Tensor:
        taus = torch.stack([a[name].float() - base[name].float() for a in agents]).double()
        keep = torch.ones(taus.shape[1:], dtype=torch.bool)
        if density is not None:
            for t, tau in enumerate(taus):
                k = max(1, int(density * tau.numel()))
                limit = tau.abs().flatten().sort(descending=True).values[k - 1]
                keep &= (tau.abs() - limit).abs() > 0.01 * limit
                taus[t] = torch.where(tau.abs() >= limit, tau, 0.0)
        return keep & (taus.sum(0) != 0)

    return where


def test_ties_away_from_ties(tmp_path) -> None:
    ours, theirs = both(tmp_path, "ties", scope="tensor", density=0.2, scale=0.7)
    where = elsewhere(0.2)
    assert sum(int(where(name).sum()) for name in ours) > 20_000
    assert_agree(ours, theirs, where)


def test_dare_ties_with_the_same_mask(tmp_path) -> None:
    ours, theirs = both(tmp_path, "dare-ties", drop_rate=0.4, density=1.0, scale=0.8)
    base = flat(EXAMPLE / "base")
    # Where all that is left cancels, mergekit moves and we stay: told by our own result.
    moved = {name: ours[name] != base[name].float() for name in base}
    assert sum(int(m.sum()) for m in moved.values()) > 100_000
    assert_agree(ours, theirs, lambda name: moved[name])
