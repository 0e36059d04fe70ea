"""From the base to agents and from the shipped table back: on a random model, and on the real one.

The real one's tests run where RAM_STUDIO_REAL_SET names the folder of `training.real_set.train`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from ram_studio.resources import asset_path
from training.real_set import grpo, ship, train
from training.real_set.grpo import Settings
from training.real_set.model import of_seed
from training.real_set.tasks import SKILLS

REAL = os.environ.get("RAM_STUDIO_REAL_SET", "")
needs_real = pytest.mark.skipif(not REAL, reason="RAM_STUDIO_REAL_SET names no folder")


def check_two_steps(base: Path, folder: Path, skill: str, **settings: object) -> None:
    """Train an agent for two steps from the base; its log and its checkpoints belong together."""
    two = Settings(skill, max_steps=2, check_every=2, validation=4, stop_at=2.0, **settings)
    agent = train.train(two, base, folder)
    _, *points = map(json.loads, (folder / "log" / f"{skill}.jsonl").read_text().splitlines())
    assert [point["step"] for point in points] == [1, 2]
    assert 0.0 <= points[-1]["validation"] <= 1.0
    assert not list((folder / "state").iterdir())
    total = changed = 0
    files = (base, agent, Path(f"{agent}-float32"))
    before, after, exact = (safe_open(f / "model.safetensors", "pt") for f in files)
    for name in before.keys():  # noqa: SIM118, it is no dict
        own, kept = after.get_tensor(name), exact.get_tensor(name)
        assert (own.dtype, kept.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(own, kept.bfloat16())
        changed += int((own != before.get_tensor(name)).sum())
        total += own.numel()
    assert changed / total == points[-1]["density"]
    assert bool(changed) == any(point["useful_prompts"] for point in points)


@pytest.mark.parametrize("skill", SKILLS)
def test_two_steps_from_a_random_base(base, tmp_path, monkeypatch, skill):
    monkeypatch.setattr(grpo, "reward", lambda _, text: float(len(set(text.lower())) % 2 == 0))
    monkeypatch.setattr(grpo, "MAX_NEW_TOKENS", dict.fromkeys(SKILLS, 6))
    check_two_steps(base, tmp_path, skill, prompts=2, group=4, learning_rate=2e-3)


@pytest.mark.slow
@needs_real
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("skill", SKILLS)
def test_two_steps_from_the_real_base(tmp_path, skill):
    check_two_steps(Path(REAL) / "base", tmp_path, skill)


@pytest.mark.slow
@needs_real
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1])
def test_five_random_rows_of_the_shipped_table_come_out_again(seed):
    if not all((Path(REAL) / "agents" / of_seed(skill, seed)).exists() for skill in SKILLS):
        pytest.skip(f"{REAL} holds no agents of seed {seed}")
    wrong, of = ship.differing(Path(REAL), asset_path("real"), 5, seed, items=8)
    assert of == 5 * 8 * len(SKILLS)
    # Other batches and machines round sums differently, and an answer on the edge may then flip.
    assert wrong <= of // 20
