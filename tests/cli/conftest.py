"""The command line as a user meets it: a new process, or `main` in this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ram_studio.cli import main
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch) -> Path:
    """A user's folder of its own for each test: merges and answers are kept there."""
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def example() -> list[str]:
    """The options that name the example's base and agents."""
    named = [("--agent", f"{a}={asset_path('example', a)}") for a in AGENTS]
    return ["--base", str(asset_path("example", "base")), *(x for pair in named for x in pair)]


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run the command line in this process: returns (exit code, stdout, stderr)."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ram-studio", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def big_zoo(tmp_path_factory) -> list[str]:
    """Options for a base and an agent that take a while: 4 tensors of 16 M elements."""
    zoo = tmp_path_factory.mktemp("big")
    random = np.random.default_rng(0)
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(4)]
    base = {n: random.standard_normal((4096, 4096), dtype=np.float32) for n in names}
    options = []
    for who in ("base", "coding"):
        folder = zoo / who
        folder.mkdir()
        for i, name in enumerate(names):
            save_file({name: base[name]}, folder / f"model-{i + 1:05d}-of-00004.safetensors")
            base[name] = base[name] + np.float32(1e-3)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(
                {
                    "metadata": {"total_size": 4 * 4 * 4096 * 4096},
                    "weight_map": {
                        n: f"model-{i + 1:05d}-of-00004.safetensors" for i, n in enumerate(names)
                    },
                }
            )
        )
        (folder / "config.json").write_text('{"model_type": "llama"}')
        options += ["--base", str(folder)] if who == "base" else ["--agent", f"{who}={folder}"]
    return options


@pytest.fixture
def start(tmp_path: Path):
    """Start the command line as a process of its own; whatever still runs is killed at the end."""
    running: list[subprocess.Popen] = []

    def run(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "ram_studio", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()
