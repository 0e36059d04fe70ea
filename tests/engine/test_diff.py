"""`diff`: what changed between two models, against plain loops over the elements."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
from engine_zoo import run_command, write_folder

import ram_studio as rs
from ram_studio.errors import CompatibilityError

EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    shapes = {
        "model.embed_tokens.weight": (40, 6),
        "model.layers.0.self_attn.q_proj.weight": (300, 300),
        "model.layers.1.self_attn.q_proj.weight": (6, 6),
        EXPERTS: (3, 4, 5),
        "model.layers.0.mlp.experts.down_proj": (3, 5, 4),
        "model.norm.weight": (6,),
    }
    return {n: torch.randn(s, generator=made).bfloat16() for n, s in shapes.items()}


@pytest.fixture
def pair(tmp_path):
    """A base, and a model with a few kinds of change."""
    base = model()
    changed = {name: tensor.clone() for name, tensor in base.items()}
    changed["model.layers.0.self_attn.q_proj.weight"][3, ::7] += 0.25
    changed[EXPERTS][1] *= 1.5
    base["model.norm.weight"][0] = 0.0
    changed["model.norm.weight"][0] = -0.0
    changed["model.embed_tokens.weight"][0, 0] = math.nan
    changed["model.embed_tokens.weight"][0, 1] = math.inf
    return (
        write_folder(tmp_path / "base", base),
        write_folder(tmp_path / "other", changed),
        base,
        changed,
    )


def by_hand(base: torch.Tensor, other: torch.Tensor) -> tuple[int, float, float, int]:
    """Return elements with other bits, the difference's norm, the largest, and not finite ones."""
    count, squares, largest, odd = 0, 0.0, 0.0, 0
    for a, b in zip(base.flatten(), other.flatten(), strict=True):
        if a.view(torch.int16) != b.view(torch.int16):
            count += 1
            odd += not math.isfinite(b)
            tau = float(b) - float(a)
            if math.isfinite(tau):
                squares += tau * tau
                largest = max(largest, abs(tau))
    return count, math.sqrt(squares), largest, odd


@pytest.mark.parametrize("threads", [1, 3])
def test_every_change_is_what_plain_loops_count(pair, threads):
    base, other, before, after = pair
    found = rs.diff(base, other, threads=threads, block_elements=1 << 16)
    rows = {one.name: one for one in found.by("tensor")}
    for name, tensor in before.items():
        stack = EXPERTS if name == EXPERTS else None
        parts = [(name, tensor, after[name])]
        if "experts" in name:
            parts = [(f"{name}[{i}]", tensor[i], after[name][i]) for i in range(3)]
        for label, a, b in parts:
            row = rows[label]
            count, norm, largest, odd = by_hand(a, b)
            assert (row.elements, row.changed, row.not_finite) == (a.numel(), count, odd), label
            assert row.norm == pytest.approx(norm, rel=1e-12), (label, stack)
            assert row.largest == pytest.approx(largest)
            size = float(a.double().norm())
            assert row.relative == pytest.approx(norm / size)
    experts = {one.name: one.changed for one in found.by("expert")}
    assert experts == {"0/0": 0, "0/1": 20, "0/2": 0}
    layers = {one.name: one.changed for one in found.by("layer")}
    assert layers == {"embedding": 2, "0": 43 + 20, "1": 0, "other": 1}
    assert found.total.changed == 66
    assert not found.is_equal
    assert "66 of 90,402 elements differ" in found.verdict
    assert "2 elements of the model: NaN or infinite" in found.verdict
    assert len(repr(found)) < 300


def test_a_base_again_is_called_so(pair):
    base = pair[0]
    found = rs.diff(base, base)
    assert found.is_equal
    assert found.verdict == "No weight differs from the base: all 10 tensors are bit-identical."


def test_a_merge_of_nothing_is_the_base_again(pair, tmp_path):
    base, _, before, _ = pair
    small = {n: t.clone() for n, t in before.items()}
    small["model.layers.1.self_attn.q_proj.weight"][0, 0] += 1e-3
    agent = write_folder(tmp_path / "agent", small)
    recipe = rs.make_recipe(
        {
            "base": str(base),
            "agents": {"a": str(agent)},
            "method": "ram+",
            "settings": {"epsilon": 0.1},
        }
    )
    merged = rs.merge(recipe, tmp_path / "merged").out
    assert rs.diff(base, merged).is_equal
    assert "No weight differs from the base" in run_command("diff", base, merged)
    found = rs.diff(base, merged, adapter=agent)
    assert found.total.carried == 0
    assert rs.diff(base, agent, adapter=agent).total.carried == 1
    assert "0.0% of the adapter" not in rs.diff(base, base).verdict


def test_tensors_of_one_model_alone_are_not_called_equal(pair, tmp_path):
    base, _, before, _ = pair
    less = {n: t for n, t in before.items() if "norm" not in n}
    folder = write_folder(tmp_path / "less", less | {"model.new.weight": torch.ones(2).bfloat16()})
    found = rs.diff(base, folder)
    assert (found.missing, found.extra) == (("model.norm.weight",), ("model.new.weight",))
    assert not found.is_equal
    assert "lacks 1 base tensor" in found.verdict
    wide = write_folder(tmp_path / "wide", before | {"model.norm.weight": torch.ones(7).bfloat16()})
    with pytest.raises(CompatibilityError, match=r"model\.norm\.weight"):
        rs.diff(base, wide)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_models(tmp_path):
    big = {"model.layers.0.mlp.up_proj.weight": torch.zeros(8000, 8000, dtype=torch.bfloat16)}
    base = write_folder(tmp_path / "base", big)
    program = (
        "import resource, sys, ram_studio as rs, ram_studio.engine.diff\n"
        "import ram_studio.algorithm.kernels.cpu, torch\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert rs.diff(sys.argv[1], sys.argv[1], threads=2).is_equal\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", program, str(base)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout)
    assert kilobytes < 80_000, "128 MB were read, twice"
