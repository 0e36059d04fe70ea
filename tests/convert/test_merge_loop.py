"""The loop of examples/: merges of what a running FSDP2 job has saved, against plain loops."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ram_studio.evals.sandbox import is_sealed
from ram_studio.resources import asset_path

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, DECAY = (4, 6, 8), 0.75


def started(script: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(script: str, *arguments: object) -> tuple[int, str, str]:
    """Run a script to its end; returns (exit code, stdout, stderr)."""
    process = started(script, *arguments)
    out, error = process.communicate()
    return process.returncode, out, error


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t.double() for name, t in load_file(folder / "model.safetensors").items()}


@pytest.mark.slow
@pytest.mark.skipif(not is_sealed(), reason="this machine cannot seal a process")
def test_a_running_job_is_merged_every_few_steps(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    loop = ("merge_loop.py", run, out, "--agent", f"tool={asset_path('independent', 'tool')}")
    loop += ("--every", 2, "--soup", 2, "--decay", DECAY)
    job = started("toy_trainer.py", run, "--steps", 8, "--save-every", 1, "--pause", 2)
    while not (run / "step_4" / ".metadata").is_file():
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.1)
    # One that is being written has no .metadata yet, and steps between are not asked for.
    (run / "step_2" / ".metadata").unlink()
    assert job.poll() is None, "it is merged beside the running job"
    code, told, error = finished(*loop)
    assert (code, "step 4: merged" in told) == (0, True), error
    _, error = job.communicate()
    assert job.returncode == 0, error
    with open(out / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, error = finished(*loop)
    assert (code, "another run merges" in error) == (75, True)
    assert finished(*loop)[0] == 0
    assert sorted(path.name for path in (out / "merged").iterdir()) == [f"step_{n}" for n in STEPS]
    assert (out / "latest").resolve() == out / "merged" / "step_8"

    saved = {step: weights(out / f"step_{step}") for step in STEPS}
    assert any(not torch.equal(saved[4][name], saved[8][name]) for name in saved[4])
    average = saved[4]
    for before, step in zip((None, *STEPS), STEPS, strict=False):
        if before is not None:
            average = {
                name: DECAY * average[name] + (1 - DECAY) * tensor
                for name, tensor in saved[step].items()
            }
        found = weights(out / "ema" / f"step_{step}")
        mean = {n: (t + saved[before or step][n]) / 2 for n, t in saved[step].items()}
        soup = weights(out / "soup" / f"step_{step}")
        for name, tensor in soup.items():
            torch.testing.assert_close(tensor, mean[name], rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(found[name], average[name], rtol=1e-6, atol=1e-7)

    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    assert finished(*loop)[:2] == (0, "")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")} == before
