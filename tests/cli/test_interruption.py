"""Stopping a merge in a process of its own. Faults at every single write: tests/engine."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file


@pytest.fixture(scope="module")
def big_zoo(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for a base and an agent that take a while: 4 tensors of 16 M elements."""
    zoo = tmp_path_factory.mktemp("big")
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(4)]
    noise = np.random.default_rng(0).standard_normal((4096, 4096), dtype=np.float32)
    for who in ("base", "coding"):
        (zoo / who).mkdir()
        save_file(dict.fromkeys(names, noise), zoo / who / "model.safetensors")
        (zoo / who / "config.json").write_text('{"model_type": "llama"}')
        noise = noise + np.float32(1e-3)
    return ["--base", str(zoo / "base"), "--agent", f"coding={zoo / 'coding'}"]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_merge_exits_with_130_and_leaves_nothing(
    start, big_zoo, tmp_path: Path, signal_number: int
) -> None:
    options = ("--yes-other-base", "--out", tmp_path / "merged", "--threads", "1")
    process = start("merge", *big_zoo, *options)
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob(".merged.partial-*/*.partial")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal_number)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == "ram-studio: Stopped as asked; nothing was left behind.\n"
    assert list(tmp_path.iterdir()) == []
