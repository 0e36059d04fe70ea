"""Agreement with mergekit 0.1.5 where the definitions coincide, element by element.

What mergekit made of the golden checkpoints is recorded: make_mergekit.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import make_mergekit
import pytest
import torch
from engine_zoo import read_folder

from ram_studio.engine.merge import merge

HERE = Path(__file__).resolve().parent
RECORDED = json.loads((HERE / "mergekit.json").read_text())


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's elements, as float32."""
    return {name: tensor.float().flatten() for name, tensor in read_folder(folder).items()}


def comparable(method: str, density: float, name: str, ours: torch.Tensor) -> torch.Tensor:
    """Return where the two decide alike: of TIES not everywhere, on purpose.

    They differ where magnitudes equal the threshold's (mergekit keeps some of them, we all), and
    where task vectors cancel exactly (mergekit takes the positive ones, we stay at the base).
    """
    base = tensors(HERE / "base")[name]
    if method == "dare-ties":  # what is left cancels: told by our own result
        return ours != base
    keep = torch.ones(base.shape, dtype=torch.bool)
    if method != "ties":
        return keep
    taus = [(tensors(HERE / a)[name] - base).double() for a in make_mergekit.AGENTS]
    for t, tau in enumerate(taus):
        limit = tau.abs().sort(descending=True).values[max(1, int(density * len(tau))) - 1]
        keep &= tau.abs() != limit
        taus[t] = torch.where(tau.abs() >= limit, tau, 0.0)
    return keep & (sum(taus) != 0)


def title(told: dict) -> str:
    return f"{told['method']} {told['settings']}{' weighted' * told.get('is_weighted', False)}"


@pytest.mark.parametrize("told", RECORDED, ids=title)
def test_the_same_merge(told, tmp_path) -> None:
    method, settings = told["method"], told["settings"]
    # What was given to mergekit is what an export says today.
    how = {"is_weighted": told.get("is_weighted", False)}
    assert make_mergekit.config_of(method, settings, **how) == told["config"]
    merge(make_mergekit.recipe_in(str(HERE), method, settings, **how), tmp_path / "out")
    merged, compared = tensors(tmp_path / "out"), 0
    assert merged.keys() == told["merged"].keys()
    for name, values in told["merged"].items():
        where = comparable(method, settings.get("density", 1.0), name, merged[name])
        ours, theirs = merged[name][where], torch.tensor(values)[where]
        assert torch.equal(ours, theirs), name
        compared += len(ours)
    fewest = {"ties": 30, "dare-ties": 100}.get(method, 169)
    assert compared >= (min(fewest, 100) if how["is_weighted"] else fewest)
