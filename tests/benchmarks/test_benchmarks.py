"""Benchmarks measure what they say: the zoo's make-up, the floor's bytes, whole processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import floor
import measuring
import merges
import numpy as np
import pytest
import zoo
from safetensors import safe_open

from ram_studio.engine.analyze import analyze


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.make_zoo(tmp_path_factory.mktemp("zoo"), "tiny", 3)


def shard_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.safetensors")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "benchmarks/gpu.py",
        "benchmarks/intervals.py",
        "benchmarks/nodes.py",
        "benchmarks/url_requests.py",
        "scripts/cli_reference.py",
        "scripts/real_model.py",
        "scripts/recorded_figures.py",
    ],
)
def test_a_script_says_how_to_run_it_and_does_nothing(script, tmp_path):
    command = [sys.executable, str(measuring.ROOT / script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {Path(script).name} [-h]")
    assert "python benchmarks/nodes.py python" not in " ".join(done.stdout.split())
    assert not list(tmp_path.iterdir())


def test_zoo_is_a_checkpoint_of_its_size(tiny):
    with safe_open(tiny / "base" / "model.safetensors", "np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert shapes == dict(zoo.SIZES["tiny"].tensors())
    assert zoo.elements("tiny") == sum(int(np.prod(s)) for s in shapes.values())
    assert json.loads((tiny / "base" / "config.json").read_text())["hidden_size"] == 64


def test_only_the_same_arguments_give_the_same_bytes(tiny, tmp_path):
    again = zoo.make_zoo(tmp_path / "again", "tiny", 3)
    other = zoo.make_zoo(tmp_path / "other", "tiny", 3, seed=1)
    for name in ("base", *zoo.agent_names(3)):
        assert shard_bytes(again / name) == shard_bytes(tiny / name)
        assert shard_bytes(other / name) != shard_bytes(tiny / name)


def test_shards_of_a_zoo_are_indexed(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "SHARD_BYTES", 60_000)
    folder = zoo.make_zoo(tmp_path, "tiny", 1)
    index = json.loads((folder / "base" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {name for name, _ in zoo.SIZES["tiny"].tensors()}
    files = {path.name for path in (folder / "agent_1").glob("*.safetensors")}
    assert files == set(index["weight_map"].values())
    assert len(files) > 1


def test_agents_change_their_share_of_the_base(tiny):
    agents = {name: tiny / name for name in zoo.agent_names(3)}
    analysis = analyze(tiny / "base", agents, threads=1)
    changed = analysis.model.active[0, 0] / analysis.total
    assert changed == pytest.approx(zoo.DENSITIES[:3], abs=0.01)


@pytest.mark.parametrize("passes", [1, 2])
def test_the_floor_reads_every_pass_and_writes_the_first_model(tiny, tmp_path, passes):
    models = [tiny / "base", tiny / "agent_1"]
    read, written = floor.run_floor(tmp_path, models, passes)
    assert read == passes * sum(len(shard_bytes(model)) for model in models)
    assert written == len(shard_bytes(models[0]))
    assert shard_bytes(tmp_path) == shard_bytes(models[0])


def test_a_process_is_measured_and_its_failure_reported():
    run = measuring.run_process([sys.executable, "-c", "sum(range(10**6)); bytearray(30 << 20)"])
    assert run.wall > 0
    assert run.cpu > 0
    assert run.peak_bytes > 30 << 20
    with pytest.raises(RuntimeError, match="wrong"):
        measuring.run_process([sys.executable, "-c", "raise SystemExit('wrong')"])


def test_the_command_that_is_timed_merges(tiny, tmp_path):
    runs = measuring.run_in_turns({"ram+": merges.merge_command(tiny, 2, "ram+")}, 1, tmp_path)
    assert len(runs["ram+"]) == 1
    assert not (tmp_path / "out").exists()


def test_a_tool_that_fails_is_left_out_and_one_of_ours_is_not(tmp_path, capsys):
    commands = {
        "theirs": lambda out: [sys.executable, "-c", "raise SystemExit('their bug')"],
        "ours": lambda out: [sys.executable, "-c", ""],
    }
    theirs_may = {"may_fail": lambda name: name == "theirs"}
    runs = measuring.run_in_turns(commands, 2, tmp_path, **theirs_may)
    assert (len(runs["theirs"]), len(runs["ours"])) == (0, 2)
    assert capsys.readouterr().err.count("failed:") == 1
    with pytest.raises(RuntimeError, match="their bug"):
        measuring.run_in_turns(commands, 1, tmp_path)


def test_a_tool_may_run_in_the_first_rounds_only(tmp_path):
    commands = dict.fromkeys((3, 1), lambda out: [sys.executable, "-S", "-c", ""])
    runs = measuring.run_in_turns(commands, 3, tmp_path, again=lambda times, number: number < times)
    assert {times: len(found) for times, found in runs.items()} == {3: 3, 1: 1}


def test_large_tensors_are_pieced_together_from_the_pool():
    parts, again = (list(zoo._Pool(2, 0).tensor("weight", 2 * zoo.CHUNK + 5)) for _ in range(2))
    assert [len(part[0]) for part in parts] == [zoo.CHUNK, zoo.CHUNK, 5]
    for ours, theirs in zip(parts, again, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_zoo_that_would_fill_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "SPARE_BYTES", 1 << 60)
    with pytest.raises(SystemExit, match="GB are free"):
        zoo.make_zoo(tmp_path, "tiny", 1)


def test_ratios_are_medians_within_rounds_in_markdown():
    ours, theirs = ([measuring.Run(w, 0, 0) for w in walls] for walls in ((2, 30, 9), (1, 10, 3)))
    assert measuring.median_ratio(ours, theirs) == 3
    assert measuring.table(("a", "b"), [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |"


def test_kernels_are_timed_on_slices_that_cover_everything():
    import loops as loop_benchmark

    models = loop_benchmark.arrays(1 << 20, 3)
    for make in loop_benchmark.kernels_on(models).values():
        assert loop_benchmark.processor_seconds(make, len(models[0]), 2) > 0


def test_the_large_profile_has_its_layers_and_agents():
    import preview

    profile = preview.large_profile(28, 5)
    assert len(profile["agents"]) == 5
    assert len(profile["layers"]) == 28
