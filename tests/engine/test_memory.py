"""Memory: a pass holds blocks, never a tensor."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path

import torch
from safetensors.torch import save_file

from ram_studio.engine.analyze import analyze
from ram_studio.resources import asset_path

MEASURE = """
import sys
from pathlib import Path
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze
from ram_studio.engine.merge import merge

folder = Path(sys.argv[1])
agents = {"a": str(folder / "a"), "b": str(folder / "b")}
analyze(folder / "base", agents, threads=2)
for rounding in ("nearest", "stochastic"):
    recipe = make_recipe({"base": str(folder / "base"), "agents": agents, "rounding": rounding})
    result = merge(recipe, folder / rounding, threads=2)
assert "torch" not in sys.modules, "the CPU path needs no torch"
print(result.peak_rss_bytes)
"""


def peak_bytes(folder: Path, elements: int) -> int:
    """Return the peak memory of a process that analyzes and merges one tensor of that size."""
    base = torch.linspace(0, 1, 1000).bfloat16().repeat(elements // 1000)
    for name in ("base", "a", "b"):
        (folder / name).mkdir(parents=True)
        tensor = base.clone()
        if name != "base":
            tensor[:: 3 if name == "a" else 7] *= 1.5
        save_file({"w": tensor}, folder / name / "model.safetensors", {"format": "pt"})
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    held = bytearray(b"x") * 600_000_000
    small = peak_bytes(tmp_path / "small", 2_000_000)
    assert small < len(held), "the peak of a merge is its own, whoever started it"
    large = peak_bytes(tmp_path / "large", 26_000_000)
    # 4 MB and 52 MB in each of three checkpoints and the outputs.
    assert large - small < 30_000_000
    assert large < 400_000_000


def test_a_pass_keeps_no_block_that_it_has_dealt_out(monkeypatch):
    """A model of 671 B parameters has 2.6 million blocks of 905 bytes each."""
    from ram_studio.engine.passes import counting
    from ram_studio.engine.reading.blocks import blocks_of

    made: list[weakref.ref] = []
    alive = []

    def watched(*arguments, **named):
        for block in blocks_of(*arguments, **named):
            made.append(weakref.ref(block))
            alive.append(sum(one() is not None for one in made))
            yield block

    monkeypatch.setattr(counting, "blocks_of", watched)
    base, agent = (asset_path("independent", name) for name in ("base", "coding"))
    analyze(base, {"coding": agent}, threads=2)
    assert len(made) > 80
    assert max(alive) <= 8
