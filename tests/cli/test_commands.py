"""What each command does and says, by table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from ram_studio import __version__
from ram_studio.algorithm.ladder import LADDER
from ram_studio.checkpoints.read.content_hash import blake3_of
from ram_studio.checkpoints.record.merge_log import past_merges
from ram_studio.checkpoints.record.passport import PASSPORT_FILE, seal_of
from ram_studio.checkpoints.record.sketch_file import load_sketch
from ram_studio.evals.answering import LocalEngine
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")
SKETCH = "sketch.safetensors"


def test_version_and_help(cli):
    assert cli("--version") == (0, f"ram-studio {__version__}\n", "")
    code, out, _ = cli("--help")
    assert code == 0
    every = "app analyze preview inspect microscope merge verify recipe evaluate history"
    for command in (*every.split(), "compare", "sweep", "fisher"):
        assert f"\n  {command} " in out


def test_analyze_writes_a_sketch_that_preview_reads(cli, example, tmp_path):
    sketch = tmp_path / "s.safetensors"
    code, out, err = cli("analyze", *example, "--sketch", sketch, "--json")
    assert (code, err) == (0, "")
    analyzed = json.loads(out)
    assert analyzed["sketch"] == str(sketch)
    code, out, _ = cli("preview", sketch, "--json")
    assert code == 0
    more = ("sketch", "warnings", "storage")
    assert json.loads(out) == {k: v for k, v in analyzed.items() if k not in more}


def test_preview_prints_the_contract(cli):
    code, out, _ = cli("preview", asset_path("example", SKETCH), "--json", "--rule", "ram+s")
    result = json.loads(out)
    assert code == 0
    counted = {"epsilon", "rule", "r", "alpha", "agents", "patterns"}
    assert set(result) == counted | {"relations", "rounding"}
    assert list(result["agents"]) == ["coding", "tool", "memory"]
    numbers = "total active unique shared overlap density rho rho_m lambda"
    assert set(result["agents"]["tool"]) == set(numbers.split())
    pairs = "coding+tool coding+memory tool+memory coding+tool+memory"
    assert set(result["patterns"]) == {*AGENTS, *pairs.split()}
    tool = result["agents"]["tool"]
    assert tool["lambda"] == 1 + 0.1 * tool["rho"] / (1 + tool["rho"])
    assert sum(tool["overlap"]) == tool["active"] == tool["unique"] + tool["shared"]


def test_preview_snaps_an_epsilon_off_the_ladder_and_says_so(cli):
    code, out, err = cli("preview", asset_path("example", SKETCH), "--epsilon", "2.1e-5", "--json")
    assert code == 0
    assert json.loads(out)["epsilon"] in LADDER
    assert "2.1e-05 is not on the sketch's ladder" in err


def test_preview_of_some_agents_leaves_the_others_out(cli):
    path = asset_path("example", SKETCH)
    _, out, _ = cli("preview", path, "--agents", "tool,memory", "--json")
    both = json.loads(out)["patterns"]
    _, out, _ = cli("preview", path, "--json")
    every = json.loads(out)["patterns"]
    assert both["tool+memory"] == every["tool+memory"] + every["coding+tool+memory"]


@pytest.mark.parametrize("by", ["layer", "module", "tensor"])
def test_preview_by_group_adds_up_to_the_model(cli, by):
    _, out, _ = cli("preview", asset_path("example", SKETCH), "--by", by, "--json")
    result = json.loads(out)
    total = sum(group["agents"]["tool"]["active"] for group in result["groups"].values())
    assert total == result["agents"]["tool"]["active"]


def test_merge_prints_the_contract_and_verify_matches(cli, example, tmp_path):
    out_folder = tmp_path / "merged"
    code, out, err = cli("merge", *example, "--out", out_folder, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    told = "out method agents bytes_read bytes_written seconds peak_rss_bytes"
    assert set(result) == set(told.split())
    assert set(result["agents"]["tool"]) == {"rho", "lambda", "effective_lambda"}
    assert result["method"] == "ram+"
    code, out, _ = cli("verify", out_folder, "--full", "--json")
    checked = json.loads(out)
    assert code == 0
    assert checked["compared_bytes"] == checked["total_bytes"] > 0


def test_a_merge_joins_the_list_that_history_shows(cli, example, tmp_path, home):
    assert cli("merge", *example, "--out", tmp_path / "merged", "--method", "ram", "--json")[0] == 0
    (past,) = past_merges(home)
    assert (past.name, past.title, past.method) == ("merged", ", ".join(AGENTS), "ram")
    assert list(past.agents) == list(AGENTS)
    assert past.settings["epsilon"] == 1e-5
    assert past.fingerprint == LocalEngine(tmp_path / "merged").identity["fingerprint"]


def test_merge_with_a_sketch_equals_merge_without(cli, example, tmp_path):
    sketch = ("--sketch", asset_path("example", SKETCH))
    for name, options in (("with", sketch), ("without", ())):
        assert cli("merge", *example, "--out", tmp_path / name, *options, "--json")[0] == 0
    files = sorted(p.name for p in (tmp_path / "with").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "without").iterdir())
    for name in files:
        with_, without = ((tmp_path / n / name).read_bytes() for n in ("with", "without"))
        assert with_ == without, name


def test_passport_recipe_reproduces_the_merge_bit_for_bit(cli, example, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    options = ("--rounding", "stochastic", "--seed", "7", "--r", "0.2")
    assert cli("merge", *example, "--out", first, *options, "--json")[0] == 0
    recipe = json.loads((first / "ram_studio.json").read_text())["recipe"]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert cli("merge", path, "--out", second, "--json")[0] == 0
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name


def test_options_win_over_the_recipe(cli, example, tmp_path):
    recipe = tmp_path / "r.yaml"
    base, *agents = [x for x in example if not x.startswith("--")]
    lines = "\n".join(f"  {a.partition('=')[0]}: {a.partition('=')[2]}" for a in agents)
    recipe.write_text(f"base: {base}\nagents:\n{lines}\nmethod: ram\n")
    code, out, _ = cli(
        "merge", recipe, "--out", tmp_path / "m", "--dtype", "float32", "--method", "ram+", "--json"
    )
    assert code == 0
    assert json.loads(out)["agents"]["coding"]["lambda"] == 1.2
    with safe_open(tmp_path / "m" / "model.safetensors", framework="np") as file:
        name = next(iter(file.keys()))
        assert file.get_slice(name).get_dtype() == "F32"


@pytest.mark.parametrize("size", ["400KB", "0.4MB", "400000"])
def test_max_shard_size_splits_the_output(cli, example, tmp_path, size):
    out = tmp_path / "m"
    assert cli("merge", *example, "--out", out, "--max-shard-size", size, "--json")[0] == 0
    shards = sorted(out.glob("model-*.safetensors"))
    assert len(shards) > 3
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {s.name for s in shards}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--r", "-1"), "r is -1.0"),
        (("--epsilon", "nan"), "epsilon is nan"),
        (("--alpha", "inf"), "alpha is inf"),
        (("--method", "mean"), "must be one of ram, ram+, ram+s"),
        (("--preset", "mine"), "preset is 'mine'"),
        (("--set", "lamda=3"), "ram+ has no setting 'lamda'"),
        (("--set", "scope=shard"), "scope is 'shard'"),
        (("--dtype", "int8"), "dtype"),
        (("--device", "tpu"), "device is 'tpu'"),
        (("--max-shard-size", "0"), "shard size is '0'"),
        (("--rounding", "up"), "rounding"),
        (("--threads", "0"), "threads is 0"),
        (("--sketch", "nothing.safetensors"), "nothing.safetensors does not exist"),
    ],
)
def test_bad_settings_are_one_clear_line_and_write_nothing(cli, example, tmp_path, arguments, text):
    code, out, err = cli("merge", *example, "--out", tmp_path / "m", *arguments)
    assert (code, out) == (1, "")
    assert text in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("merge", "--out", "x"),
        ("merge", "--base", "x", "--out", "y"),
        ("merge", "--base", "x", "--agent", "coding", "--out", "y"),
        ("merge", "--base", "x", "--agent", "a=1", "--agent", "a=2", "--out", "y"),
        ("analyze", "--wrong"),
        ("preview",),
        ("nonsense",),
    ],
)
def test_usage_errors_exit_with_2(cli, arguments):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert "Error" in err


def test_an_existing_output_is_refused_and_left_alone(cli, example, tmp_path):
    out = tmp_path / "m"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    code, _, err = cli("merge", *example, "--out", out)
    assert code == 1
    assert "exists and is not empty" in err
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (out / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("preset", ["paper", "authors-script", "mergekit"])
def test_presets_give_the_dialects_that_the_sketch_shows(cli, example, tmp_path, preset):
    code, out, _ = cli("merge", *example, "--preset", preset, "--out", tmp_path / preset, "--json")
    assert code == 0
    shown = {d.name: d.factors for d in load_sketch(asset_path("example", SKETCH)).dialects()}
    merged = [a["lambda"] for a in json.loads(out)["agents"].values()]
    assert merged == pytest.approx(shown[preset], rel=1e-12)


UP = "model.layers.1.mlp.up_proj.weight"


def with_tensors(folder: Path, change) -> None:
    """Change the tensors of a folder's only shard."""
    path = folder / "model.safetensors"
    tensors = load_torch(path)
    change(tensors)
    save_torch(tensors, path, metadata={"format": "pt"})


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[UP][3, 5] = float("nan")


def shorter(tensors: dict[str, torch.Tensor]) -> None:
    tensors[UP] = tensors[UP][:-1].contiguous()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda agent: with_tensors(agent, nan), f"tensor `{UP}` has 1 NaN or Inf element, the"),
        (lambda agent: with_tensors(agent, shorter), UP),
        (lambda agent: truncated(agent / "model.safetensors"), "model.safetensors"),
        (lambda agent: (agent / "model.safetensors").rename(agent / "model.bin"), "pickle"),
    ],
    ids=["nan", "shape", "truncated", "pickle"],
)
def test_a_broken_agent_is_named_and_nothing_is_written(cli, example, tmp_path, damage, words):
    agent = tmp_path / "agent"
    shutil.copytree(asset_path("example", "tool"), agent)
    damage(agent)
    options = [f"tool={agent}" if x.startswith("tool=") else x for x in example]
    code, out, err = cli("merge", *options, "--out", tmp_path / "m")
    assert (code, out) == (1, "")
    assert 'Agent "tool"' in err
    assert words in err
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["agent"]


def test_verify_names_the_shard_with_one_flipped_bit(cli, example, tmp_path):
    out = tmp_path / "m"
    assert cli("merge", *example, "--out", out, "--max-shard-size", "1MB", "--json")[0] == 0
    shard = sorted(out.glob("model-*.safetensors"))[1]
    data = bytearray(shard.read_bytes())
    data[-7] ^= 1
    shard.write_bytes(data)
    code, _, err = cli("verify", out)
    assert code == 1
    assert shard.name in err


def test_verify_finds_a_merge_that_its_sources_do_not_give(cli, example, tmp_path):
    out = tmp_path / "m"
    assert cli("merge", *example, "--out", out, "--json")[0] == 0
    shard = out / "model.safetensors"
    with_tensors(out, lambda tensors: tensors["model.norm.weight"].view(torch.int16)[0].add_(1))
    passport = json.loads((out / PASSPORT_FILE).read_text())
    record = passport["shards"][shard.name]
    record["blake3"], record["nbytes"] = blake3_of(shard), shard.stat().st_size
    (out / PASSPORT_FILE).write_text(json.dumps(passport))
    code, _, err = cli("verify", out)
    assert code == 1
    assert "differs from its seal" in err
    # Whoever forges the seal too is found out by the sources.
    passport["seal"] = seal_of(passport)
    (out / PASSPORT_FILE).write_text(json.dumps(passport))
    assert cli("verify", out)[0] == 0
    code, _, err = cli("verify", out, "--full")
    assert code == 1
    assert "model.norm.weight" in err


def test_inspect_reads_only_headers(cli, example):
    code, out, _ = cli("inspect", *example, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["elements"] == 854144
    assert set(report["agents"]) == {"coding", "tool", "memory"}


def test_merge_of_identical_checkpoints_is_the_base(cli, tmp_path):
    base = asset_path("example", "base")
    code, out, _ = cli(
        "merge", "--base", base, "--agent", f"same={base}", "--out", tmp_path / "m", "--json"
    )
    assert code == 0
    assert json.loads(out)["agents"]["same"] == {
        "rho": 0.0,
        "lambda": 1.0,
        "effective_lambda": None,
    }
    merged = (tmp_path / "m" / "model.safetensors").read_bytes()
    original = (base / "model.safetensors").read_bytes()
    assert merged[-1_000_000:] == original[-1_000_000:]


def test_float32_folders_merge_too(cli, tmp_path):
    random = np.random.default_rng(1)
    base = {"w": random.standard_normal((8, 9)).astype(np.float32)}
    agent = {"w": base["w"] + np.float32(0.5)}
    for name, tensors in (("base", base), ("agent", agent)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    folders = ("--base", tmp_path / "base", "--agent", f"a={tmp_path / 'agent'}")
    assert cli("merge", *folders, "--out", tmp_path / "m", "--json")[0] == 0
    np.testing.assert_array_equal(load_file(tmp_path / "m" / "model.safetensors")["w"], agent["w"])


def test_evaluate_scores_models_side_by_side(cli):
    code, out, _ = cli(
        "evaluate",
        asset_path("example", "base"),
        f"coder={asset_path('example', 'coding')}",
        "--limit",
        "20",
        "--json",
    )
    report = json.loads(out)
    assert code == 0
    assert list(report["models"]) == ["base", "coder"]
    score = report["models"]["coder"]["domains"]["code"]
    assert score["n"] == 20
    assert score["correct"] >= 18
    assert score["ci95"][0] <= score["score"] <= score["ci95"][1]
