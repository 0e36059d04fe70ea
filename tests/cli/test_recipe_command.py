"""Recipes to and from mergekit's YAML on the command line."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from engine_zoo import make_zoo

from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.checkpoints.record.provenance import read_provenance
from ram_studio.checkpoints.record.recipe import recipe_yaml

RECIPE = """base: ./base
agents: {coding: ./coding, memory: ./memory}
method: ram+
settings: {scope: tensor, alpha: 0.3}
dtype: bfloat16
"""


def test_a_recipe_goes_to_mergekit_and_comes_back(cli, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    code, out, err = cli("recipe", tmp_path / "r.yaml")
    assert (code, err) == (0, "")
    completed = {"epsilon": 1e-5, "shared": "mean", "r": 0.1, "scope": "tensor", "alpha": 0.3}
    assert yaml.safe_load(out)["settings"] == completed
    there, back = tmp_path / "mergekit.yaml", tmp_path / "back.yaml"
    assert cli("recipe", tmp_path / "r.yaml", "--to-mergekit", "--out", there)[0] == 0
    config = yaml.safe_load(there.read_text())
    assert config["merge_method"] == "ramplus_tl"
    assert config["parameters"]["alpha"] == 0.3
    assert cli("recipe", there, "--from-mergekit", "--out", back)[0] == 0
    returned = yaml.safe_load(back.read_text())
    assert returned["method"] == "ram+"
    assert returned["settings"]["scope"] == "tensor"
    assert returned["settings"]["alpha"] == 0.3


def test_agents_become_the_teachers_of_a_distillation(cli, tmp_path):
    (tmp_path / "r.yaml").write_text(
        "base: Qwen/Qwen2.5-7B-Instruct@main\n"
        "agents: {coding.v2: org/coder, memory: ./it's mine}\nweights: {memory: 0.5}\n"
    )
    code, out, err = cli("recipe", tmp_path / "r.yaml", "--to-mopd", "verl")
    assert code == 0
    overrides = dict(line.split("=", 1) for line in out.splitlines())
    assert overrides["actor_rollout_ref.model.path"] == "Qwen/Qwen2.5-7B-Instruct"
    entry = "+distillation.teacher_models.coding_v2"
    assert (overrides[f"{entry}.key"], overrides[f"{entry}.model_path"]) == (
        "coding.v2",
        "org/coder",
    )
    assert overrides["+distillation.teacher_models.memory.model_path"] == r"'./it\'s mine'"
    # verl's DistillationConfig: replicas times their GPUs must be the pool.
    gpus = [int(v) for k, v in overrides.items() if k.endswith(("replicas", "_parallel_size"))]
    pool = int(overrides["distillation.n_gpus_per_node"]) * int(overrides["distillation.nnodes"])
    assert gpus[0] * gpus[1] + gpus[2] * gpus[3] == pool == 2
    for note in ("take no revision; download main", "data_source", "no weight and no filter"):
        assert note in err
    code, out, err = cli("recipe", tmp_path / "r.yaml", "--to-mopd", "nemo-rl")
    assert code == 0
    made = yaml.safe_load(out)
    assert made["policy"] == {"model_name": "Qwen/Qwen2.5-7B-Instruct"}
    assert made["grpo"]["adv_estimator"] == {"name": "opd"}
    assert made["on_policy_distillation"]["teacher_model_by_agent_name"] == {
        "coding.v2": "org/coder",
        "memory": "./it's mine",
    }
    for agents, said in (
        ("teacher_model: a", "verl drops a teacher called teacher_model"),
        ("teacher-model: a", "teacher_model, as teacher-model would be; give"),
        ("code.2: a, code-2: b", "For verl code.2 and code-2 are both called code_2"),
    ):
        (tmp_path / "r.yaml").write_text(f"base: b\nagents: {{{agents}}}\n")
        code, _, err = cli("recipe", tmp_path / "r.yaml", "--to-mopd", "verl")
        assert (code, said in err) == (2, True), err


def test_a_provenance_keeps_its_dtype_on_the_way_to_mergekit(cli, example, tmp_path):
    assert cli("merge", *example, "--method", "ties", "--out", tmp_path / "m")[0] == 0
    merged = tmp_path / "m" / "ram_studio.json"
    (tmp_path / "kept.json").write_bytes(merged.read_bytes())
    for file in (merged, tmp_path / "kept.json"):
        code, out, err = cli("recipe", file, "--to-mergekit")
        assert code == 0
        assert yaml.safe_load(out)["out_dtype"] == "bfloat16"
        assert "dtype is not known" not in err


def test_a_wrong_method_is_told_before_anything_else(cli, tmp_path):
    (tmp_path / "r.yaml").write_text("base: b\nagents: {}\nmethod: tie\n")
    code, _, err = cli("recipe", tmp_path / "r.yaml")
    assert code == 2
    assert "no method is named 'tie', did you mean 'ties'?; agents: give at least one" in err


def test_refusals_are_one_line_and_write_nothing(cli, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "slerp.yaml").write_text("merge_method: slerp\nbase_model: a\nmodels: []\n")
    for arguments, expected, text in (
        (("recipe", tmp_path / "slerp.yaml", "--from-mergekit"), 2, "slerp"),
        (("recipe", tmp_path / "none.yaml"), 2, "none.yaml"),
        (("recipe", tmp_path / "r.yaml", "--out", tmp_path / "r.yaml"), 65, "exists"),
    ):
        code, out, err = cli(*arguments)
        assert (code, out) == (expected, "")
        assert text in err
        assert err.count("\n") == 1
    assert (tmp_path / "r.yaml").read_text() == RECIPE


def test_a_stopped_write_leaves_no_half_a_recipe(cli, tmp_path, small_files):
    (tmp_path / "r.yaml").write_text(RECIPE)
    with small_files(20):
        code, _, err = cli("recipe", tmp_path / "r.yaml", "--out", tmp_path / "out.yaml")
    assert (code, "out.yaml cannot be written: File too large" in err) == (65, True)
    assert [path.name for path in tmp_path.iterdir()] == ["r.yaml"]


@pytest.mark.parametrize(("method", "r"), [(None, 0.3), ("ram+", 0.3), ("ram+s", 0.1)])
def test_a_recipes_settings_are_kept_for_its_own_method_alone(cli, recipe, tmp_path, method, r):
    asked = () if method is None else ("--method", method)
    path = recipe(settings={"r": 0.3})
    assert cli("merge", path, "--out", tmp_path / "m", *asked, "--json")[0] == 0
    used = json.loads((tmp_path / "m" / "ram_studio.json").read_text())["recipe"]
    assert (used["method"], used["settings"]["r"]) == (method or "ram+", r)


def test_a_dry_run_cuts_no_cell_off(cli, recipe):
    own = {"match": "*.mlp.*", "layers": [0, 1], "weights": {"coding": 0.7}, "settings": {"r": 0.3}}
    _, out, _ = cli("merge", recipe(filters=[own]), "--dry-run")
    assert "…" not in out
    assert "weights coding=0.7, r 0.3" in out


def test_weights_and_a_dry_run_from_the_command_line(cli, tmp_path):
    zoo, file = make_zoo(tmp_path / "zoo", 3), tmp_path / "r.yaml"
    own = [{"match": "*.mlp.up*", "layers": [0, 0], "weights": {"agent1": 0.5}}]
    file.write_text(recipe_yaml(zoo.recipe(filters=own, other_base="accept")))
    weights = ["--weight", "agent0=0.7", "--weight", "agent2=0.2,0.8"]
    code, out, err = cli("merge", file, *weights, "--dry-run", "--json")
    assert (code, err) == (0, "")
    caught, rest = json.loads(out)["filters"]
    assert caught["filter"] == "*.mlp.up*, layers 0 to 0"
    assert caught["tensors"] == ["model.layers.0.mlp.up_proj.weight"]
    assert caught["does"] == {"weights": {"agent1": 0.5}}
    assert (rest["filter"], len(rest["tensors"])) == (None, len(zoo.counted) - 1)
    code, made, _ = cli("merge", file, *weights, "--out", tmp_path / "m", "--json")
    assert code == 0
    kept = read_provenance(tmp_path / "m").recipe
    assert kept.weights == {"agent0": 0.7, "agent2": (0.2, 0.8)}
    assert len(kept.filters) == 1
    analysis = save_analysis(zoo.analyze(threads=1), tmp_path / "analysis")
    as_merged = tmp_path / "m" / "ram_studio.json"
    code, out, err = cli("preview", analysis, "--recipe", as_merged, "--json")
    assert (code, err) == (0, "")
    told, merged = json.loads(out), json.loads(made)["agents"]
    out = cli("preview", analysis, "--recipe", as_merged)[1]
    assert "*.mlp.up*, layers 0 to 0: 1 tensor\n" in out
    for name, agent in told["agents"].items():
        # Stored in bfloat16: what rounding did is told apart.
        retained = merged[name]["retained"]
        asked = retained["total"] - retained["rounding"]
        assert agent["retained"]["total"] == pytest.approx(asked, abs=1e-3)
    code, out, _ = cli("preview", analysis, "--weight", "agent0=0.5", "--json")
    assert code == 0
    assert "agent0" not in json.loads(out)["rounding"]["bfloat16"], "no curve below lambda 1"
    code, out, _ = cli("preview", analysis, "--weight", "agent1=1.5")
    stored = re.search(r"agent1 .*±.*", out.partition("each output dtype")[2])
    requested, exactly = (float(stored[0].split()[n]) for n in (1, -3))
    assert requested == pytest.approx(exactly, abs=1e-3), "both with the weight"
    for weight in ("0.2,0.8x", "nan", "0,-inf"):
        code, _, err = cli("preview", analysis, "--weight", f"agent0={weight}", "--json")
        assert code == 2
        assert "give numbers" in err
    code, _, err = cli("merge", file, "--weight", "maths=1", "--dry-run")
    assert code != 0
    assert "no agent is named 'maths'" in err
