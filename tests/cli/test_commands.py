"""What each command does and says, by table."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml
from safetensors import safe_open
from typer.main import get_command
from verdict_table import analysis_of, cases

from ram_studio import __version__
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.cli.main import commands
from ram_studio.cli.options import parse_size
from ram_studio.engine.merge_log import past_merges
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")
ANALYSIS = asset_path("independent", "analysis.safetensors")


def test_version_and_help(cli):
    code, out, err = cli("--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(
        rf"ram-studio {re.escape(__version__)}(\+g[0-9a-f]{{12}}(\.dirty)?)?\n", out
    )
    code, out, _ = cli("--help")
    assert code == 0
    every = "app analyze preview inspect microscope merge verify recipe evaluate history"
    for command in (*every.split(), "compare", "sweep", "fisher"):
        assert f"\n  {command} " in out


def test_every_output_has_the_same_short_option():
    found, left = {}, [get_command(commands)]
    while left:
        command = left.pop()
        left += getattr(command, "commands", {}).values()
        for option in command.params:
            if "--out" in option.opts:
                found[command.name] = option.opts
    assert {"merge", "fisher", "gallery", "compact", "recipe"} <= found.keys()
    assert all("-o" in names for names in found.values()), found


def test_analyze_says_what_epsilon_leaves_of_each_update(cli, tmp_path):
    for case in cases()[:2]:
        analysis_of(case, folder := tmp_path / case["name"].replace(" ", "-"))
        base, *agents = case["dtypes"]
        named = [f"--agent={name}={folder / name}" for name in agents]
        code, out, _ = cli("analyze", "--base", folder / base, *named)
        assert code == 0
        assert case["text"] in " ".join(out.split())


def test_analyze_writes_an_analysis_that_preview_reads(cli, example, tmp_path):
    analysis = tmp_path / "s.safetensors"
    code, out, err = cli("analyze", *example, "--analysis", analysis, "--json")
    assert (code, err) == (0, "")
    analyzed = json.loads(out)
    assert analyzed["analysis"] == str(analysis)
    code, out, _ = cli("preview", analysis, "--json")
    assert code == 0
    assert analyzed["towers"] is analyzed["experts"] is None, "this model has none"
    more = ("analysis", "warnings", "storage", "towers", "experts")
    assert json.loads(out) == {k: v for k, v in analyzed.items() if k not in more}


def test_preview_prints_the_contract(cli):
    code, out, _ = cli("preview", ANALYSIS, "--json", "--rule", "ram+s")
    result = json.loads(out)
    assert code == 0
    counted = {"epsilon", "rule", "r", "alpha", "agents", "patterns"}
    assert set(result) == counted | {"relations", "rounding", "methods", "lost_to_epsilon"}
    assert result["lost_to_epsilon"] is None
    assert list(result["agents"]) == ["coding", "tool", "memory"]
    numbers = "total active unique shared overlap density rho rho_m lambda retained"
    told = {*numbers.split(), "factors", "interference", "interference_rounding"}
    assert set(result["agents"]["tool"]) == told
    pairs = "coding+tool coding+memory tool+memory coding+tool+memory"
    assert set(result["patterns"]) == {*AGENTS, *pairs.split()}
    tool = result["agents"]["tool"]
    assert tool["lambda"] == 1 + 0.1 * tool["rho"] / (1 + tool["rho"])
    assert sum(tool["overlap"]) == tool["active"] == tool["unique"] + tool["shared"]
    # Without an agent its elements count as if it were not there.
    _, out, _ = cli("preview", ANALYSIS, "--agents", "tool,memory", "--json")
    every = result["patterns"]
    both = json.loads(out)["patterns"]["tool+memory"]
    assert both == every["tool+memory"] + every["coding+tool+memory"]
    for by in ("layer", "module", "tensor"):
        _, out, _ = cli("preview", ANALYSIS, "--by", by, "--json")
        groups = json.loads(out)["groups"].values()
        assert sum(group["agents"]["tool"]["active"] for group in groups) == tool["active"]
    # An epsilon off the epsilon grid goes to the nearest point, and that is said.
    code, out, err = cli("preview", ANALYSIS, "--epsilon", "2.1e-5", "--json")
    assert code == 0
    assert json.loads(out)["epsilon"] in EPSILON_GRID
    assert "2.1e-05 is not on the grid" in err


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_merge_prints_the_contract_and_verify_matches(cli, example, tmp_path, home):
    out_folder = tmp_path / "merged"
    code, out, err = cli("merge", *example, "--out", out_folder, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    told = "out method agents bytes_read bytes_written seconds peak_rss_bytes warnings"
    assert set(result) == set(told.split())
    told = {"rho", "lambda", "effective_lambda", "effective_lambda_range"}
    told |= {"retained", "interference", "interference_rounding"}
    assert set(result["agents"]["tool"]) == told
    assert result["method"] == "ram+"
    # It joins the list that History shows.
    (past,) = past_merges(home)
    assert (past.name, past.title, past.method) == ("merged", ", ".join(AGENTS), "ram+")
    assert list(past.agents) == list(AGENTS)
    assert past.settings["epsilon"] == 1e-5
    assert past.fingerprint == LocalEngine(out_folder).identity["fingerprint"]
    code, out, _ = cli("verify", out_folder, "--full", "--json")
    checked = json.loads(out)
    assert code == 0
    assert checked["compared_bytes"] == checked["total_bytes"] > 0
    # An analysis saves the counting and changes nothing.
    assert cli("merge", *example, "--out", tmp_path / "analyzed", "--analysis", ANALYSIS)[0] == 0
    assert files_of(tmp_path / "analyzed") == files_of(out_folder)


@pytest.mark.parametrize(("method", "has_lambda"), [("ram+s", True), ("ties", False)])
def test_merge_prints_lambda_where_the_method_has_one(cli, example, tmp_path, method, has_lambda):
    code, out, _ = cli("merge", *example, "--method", method, "--out", tmp_path / "merged")
    assert code == 0
    assert ("effective" in out) is ("requested" in out) is has_lambda
    assert "retained" in out


def test_provenance_recipe_reproduces_the_merge_bit_for_bit(cli, example, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    options = ("--rounding", "stochastic", "--seed", "7", "--r", "0.2")
    assert cli("merge", *example, "--out", first, *options, "--json")[0] == 0
    recipe = json.loads((first / "ram_studio.json").read_text())["recipe"]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert cli("merge", path, "--out", second, "--json")[0] == 0
    assert files_of(first) == files_of(second)


def test_options_win_over_the_recipe(cli, recipe, tmp_path):
    how = ("--dtype", "bfloat16", "--method", "ram+", "--out", tmp_path / "m", "--json")
    code, out, _ = cli(
        "merge", recipe(method="ram", dtype="float32"), "--out", tmp_path / "m", *how
    )
    assert code == 0
    assert json.loads(out)["agents"]["coding"]["lambda"] == 1.2
    with safe_open(tmp_path / "m" / "model.safetensors", framework="np") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


def test_max_shard_size_splits_the_output(cli, example, tmp_path):
    assert {*map(parse_size, ("400KB", "0.4MB", " 400000", "400000b"))} == {400_000}
    out = tmp_path / "m"
    assert cli("merge", *example, "--out", out, "--max-shard-size", "400KB", "--json")[0] == 0
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
        (("--analysis", "nothing.safetensors"), "nothing.safetensors does not exist"),
    ],
)
def test_bad_settings_are_one_clear_line_and_write_nothing(cli, example, tmp_path, arguments, text):
    code, out, err = cli("merge", *example, "--out", tmp_path / "m", *arguments)
    assert (code, out) == (65 if "--analysis" in arguments else 2, "")
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


@pytest.mark.parametrize("preset", ["paper", "authors-script", "mergekit"])
def test_presets_give_the_dialects_that_the_analysis_shows(cli, example, tmp_path, preset):
    code, out, _ = cli("merge", *example, "--preset", preset, "--out", tmp_path / preset, "--json")
    assert code == 0
    shown = load_analysis(ANALYSIS).dialects()[preset].tolist()
    merged = [a["lambda"] for a in json.loads(out)["agents"].values()]
    assert merged == pytest.approx(shown, rel=1e-12)


def test_an_agent_of_another_base_is_merged_only_when_asked(cli, tmp_path):
    from safetensors.torch import load_file, save_file

    base, other = asset_path("independent", "base"), tmp_path / "other"
    shutil.copytree(base, other)
    tensors = load_file(base / "model.safetensors")
    moved = {name: 0.5 - tensor for name, tensor in tensors.items()}
    save_file(moved, other / "model.safetensors", {"format": "pt"})
    options = ["--base", str(base), "--agent", f"far={other}"]
    code, out, _ = cli("inspect", *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["sampled"]["far"] > 0.99
    assert [f["kind"] for f in found["storage"]["findings"] if f["level"] == "warn"] == ["dense"]
    code, _, said = cli("merge", *options, "--out", tmp_path / "out")
    assert (code, (tmp_path / "out").exists()) == (65, False)
    assert "of all elements. Is this the base it was trained from?" in said
    assert "--allow-base-mismatch" in said
    code, _, said = cli("merge", *options, "--allow-base-mismatch", "--out", tmp_path / "out")
    assert code == 0
    assert 'warning: Agent "far" changed about' in said


def test_a_merge_can_keep_an_agents_tokenizer_and_stop_tokens(cli, tmp_path):
    tool = tmp_path / "tool"
    shutil.copytree(asset_path("independent", "tool"), tool)
    (tool / "chat_template.jinja").write_text("{{ messages }} of the tool agent")
    (tool / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    options = ["--base", str(asset_path("independent", "base")), "--agent", f"tool={tool}"]
    assert cli("merge", *options, "--tokenizer-from", "tool", "--out", tmp_path / "out")[0] == 0
    shown = cli("inspect", *options)[1]
    assert re.search(r"chat template: base +tool *\n", shown)
    assert "{{ messages }} of the tool agent" in shown
    assert "set stop_tokens: union" in " ".join(shown.split())
    assert cli("merge", *options, "--stop-tokens", "union", "--out", tmp_path / "union")[0] == 0
    stops = json.loads((tmp_path / "union" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == [0, 1, 2]  # the base's first
    retained = (tmp_path / "out" / "chat_template.jinja").read_text()
    assert retained == "{{ messages }} of the tool agent"
    code, _, said = cli(
        "merge", *options, "--tokenizer-from", "nobody", "--out", tmp_path / "other"
    )
    assert (code, "name of an agent" in said) == (2, True)
