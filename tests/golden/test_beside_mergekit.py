"""mergekit 0.1.5 itself beside us: what ``dtype: float32`` stores is the same number, everywhere.

Its packages are in the folder that RAM_STUDIO_MERGEKIT names; ``make test-all`` installs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from engine_zoo import read_folder
from safetensors.torch import save_file

from ram_studio.checkpoints.record.mergekit import export_mergekit, import_mergekit
from ram_studio.engine.merge import merge

FOLDER = os.environ.get("RAM_STUDIO_MERGEKIT")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="mergekit is not installed: make test-all"),
]

LAYERS = 3
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": False,
}
SHAPES = {
    "model.embed_tokens.weight": (70, 48),
    "model.norm.weight": (48,),
    "lm_head.weight": (70, 48),
    **{
        f"model.layers.{i}.{part}.weight": shape
        for i in range(LAYERS)
        for part, shape in {
            **dict.fromkeys((f"self_attn.{p}_proj" for p in "qkvo"), (48, 48)),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (96, 48)),
            "mlp.down_proj": (48, 96),
            **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (48,)),
        }.items()
    },
}
AGENTS = ("./one", "./two", "./three", "./four")
OWN = (0.7, 0.33, -0.2, 0.45)
RAMPS = ([0.2, 0.9], [{"filter": "mlp", "value": [0.5, 0.1, 0.3]}, {"value": 1.1}], 0.4, -0.3)
SHARES = (0.2, 0.29, 0.5, 0.37)


def config(method, n=3, weights=OWN, densities=(), base_weight=None, base="./base", **shared):
    """Return a configuration of mergekit's, with each agent's own weight and density."""
    models = [] if base_weight is None else [{"model": base, "parameters": {"weight": base_weight}}]
    for t, agent in enumerate(AGENTS[:n]):
        own = {"weight": weights[t], **({"density": densities[t]} if densities else {})}
        models.append({"model": agent, "parameters": own})
    based = {"base_model": base} if base else {}
    return {
        "merge_method": method,
        "models": models,
        **based,
        "dtype": "float32",
        **({"parameters": shared} if shared else {}),
    }


ONES = (1.0,) * 4
CONFIGS = [
    config("linear", base=None),
    config("linear", 2, ONES, base=None),
    config("linear", base_weight=0.3, weights=(0.7, 0.33, 0.2)),
    config("linear", base_weight=0.4, weights=(0.2, 0.3, 0.1), normalize=False),
    config("linear", 4, RAMPS, base_weight=1.0),
    *(config("task_arithmetic", n) for n in (1, 2, 3, 4)),
    config("task_arithmetic", 4, RAMPS),
    config("task_arithmetic", weights=(0.4,) * 3, **{"lambda": 0.3}),
    config("task_arithmetic", weights=ONES, normalize=True),
    config("task_arithmetic", normalize=True, **{"lambda": 0.6}),
    config("ties", 4, ONES, SHARES, **{"lambda": 0.7}),
    config("ties", 3, RAMPS, ([0.2, 0.8], 0.4, 0.3)),
    config("ties", 3, OWN, SHARES, normalize=False),
    config("ties", 2, (0.5, 0.5)),
    config("dare_linear", densities=(0.6,) * 3, rescale=False, **{"lambda": 1 / 0.6}),
    config("dare_linear", densities=(0.6,) * 3, rescale=False, normalize=True),
    config("dare_ties", 3, RAMPS, (0.6,) * 3, rescale=False, normalize=True, **{"lambda": 1.3}),
]


def write(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> None:
    (folder / name).mkdir()
    save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})
    (folder / name / "config.json").write_text(json.dumps(CONFIG))


def make(folder: Path, dtype: str) -> Path:
    """Dense and sparse changes of every size, merged by mergekit in a process of its own."""
    kind, dice = getattr(torch, dtype), torch.Generator().manual_seed(7)

    def drawn(size: float) -> dict[str, torch.Tensor]:
        return {name: size * torch.randn(s, generator=dice) for name, s in SHAPES.items()}

    base = {name: t.to(kind) for name, t in drawn(0.02).items()}
    write(folder, "base", base)
    kinds = (1.0, 1e-2), (0.6, 3e-3), (0.1, 1e-4), (0.9, 1e-3)
    for (share, size), agent in zip(kinds, AGENTS, strict=True):
        moved = drawn(size)
        for name, tau in moved.items():
            tau *= torch.rand(tau.shape, generator=dice) < share
            moved[name] = (base[name].float() + tau).to(kind)
        write(folder, agent, moved)
    (folder / "configs.json").write_text(json.dumps(CONFIGS))
    script = Path(__file__).with_name("make_mergekit.py")
    paths = os.pathsep.join([str(script.parents[2]), str(FOLDER)])
    subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    return {d: make(tmp_path_factory.mktemp(d), d) for d in ("float32", "bfloat16")}


CASES = [
    pytest.param(dtype, number, id=f"{dtype}-{number}-{asked['merge_method']}")
    for dtype in ("float32", "bfloat16")
    for number, asked in enumerate(CONFIGS)
    # Changes of bfloat16 are often of one size, and cancel: there each side breaks ties its way.
    if dtype == "float32" or not asked["merge_method"].endswith("ties")
]


@pytest.mark.parametrize(("dtype", "number"), CASES)
def test_every_element_is_mergekits(made, dtype, number, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(made[dtype])
    recipe, _ = import_mergekit(yaml.safe_dump(CONFIGS[number]))
    merge(recipe.model_copy(update={"seed": 3, "other_base": "accept"}), tmp_path / "out")
    ours, theirs = read_folder(tmp_path / "out"), read_folder(made[dtype] / str(number))
    assert ours.keys() == theirs.keys() == SHAPES.keys()
    assert [name for name in SHAPES if not torch.equal(ours[name], theirs[name])] == []


def test_what_is_exported_asks_mergekit_for_the_same() -> None:
    for asked in CONFIGS:
        recipe, _ = import_mergekit(yaml.safe_dump(asked))
        back, _ = import_mergekit(export_mergekit(recipe)[0])
        for name in SHAPES:
            own, again = (r.choices([name, *SHAPES]) for r in (recipe, back))
            assert (own and own[0].weights) == (again and again[0].weights)
