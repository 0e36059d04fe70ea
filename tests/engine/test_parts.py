"""Merges in parts: the same bytes as without, and only what belongs together is joined."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_zoo import Zoo, contents, make_zoo, read_folder, write_fisher_files, write_folder
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ram_studio.algorithm.exact_sums import ExactSum, rounded
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.partial import add_partial
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.record.analysis_file import load_analysis, load_partial, save_analysis
from ram_studio.checkpoints.record.part_plan import load_plan, save_plan
from ram_studio.checkpoints.record.part_receipt import read_receipt
from ram_studio.checkpoints.write import parts as parts_module
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.engine.parts import steps
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import cut, make_plan
from ram_studio.engine.parts.steps import analyze_part, merge_part
from ram_studio.errors import (
    AnalysisError,
    CheckpointError,
    OutputError,
    PlanError,
    SettingsError,
    Stopped,
)

SHARD = 300
"""Bytes a file: the zoo's output has seven or so."""

CPU = {"device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 3, shards=3, seed=4)


@pytest.fixture(scope="module")
def good(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one machine writes."""
    out = tmp_path_factory.mktemp("good") / "out"
    merge(zoo.recipe(), out, max_shard_bytes=SHARD, **CPU)
    return contents(out)


def analysis_in_parts(plan, relations=True):
    """Analyze all parts, the last first, through files."""
    count = len(plan.parts)
    return add_partial(
        [analyze_part(plan, i, relations=relations, **CPU) for i in range(count, 0, -1)]
    ).whole()


def merge_all(plan, out, analysis) -> None:
    for part in plan.parts:
        merge_part(plan, part.part, out, analysis=analysis, **CPU)


def merge_in_parts(plan, out, analysis) -> None:
    merge_all(plan, out, analysis)
    finish(plan, out, **CPU)


@pytest.fixture(scope="module")
def plan(zoo: Zoo):
    return make_plan(zoo.recipe(), 3, max_shard_bytes=SHARD)


@pytest.fixture(scope="module")
def analysis(zoo: Zoo):
    return zoo.analyze(**CPU)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 13])
def test_any_number_of_parts_gives_the_bytes_of_one_machine(zoo, good, parts, tmp_path):
    plan = make_plan(zoo.recipe(), parts, max_shard_bytes=SHARD)
    assert plan == make_plan(zoo.recipe(), parts, max_shard_bytes=SHARD)
    assert [part.part for part in plan.parts] == list(range(1, parts + 1))
    out = tmp_path / "out"
    merge_in_parts(plan, out, analysis_in_parts(plan))
    assert contents(out) == good


@pytest.mark.parametrize(
    "zoo_options",
    [
        {},
        {"agent_dtypes": ["BF16", "F32", "BF16"]},
        {"agents": 7},
    ],
    ids=["plain", "dtypes", "seven"],
)
def test_the_analyses_of_parts_add_up_to_the_very_file(zoo_options, tmp_path):
    made = make_zoo(tmp_path / "zoo", **{"agents": 3, "shards": 2, "seed": 9, **zoo_options})
    plan = make_plan(made.recipe(), 4, max_shard_bytes=SHARD)
    whole = save_analysis(made.analyze(**CPU), tmp_path / "whole")
    files = [
        save_analysis(analyze_part(plan, i, relations=True, **CPU), tmp_path / f"part-{i}")
        for i in (3, 1, 4, 2)
    ]
    odd = add_partial([load_partial(file) for file in files[:2]])
    halves = [save_analysis(odd, tmp_path / "odd"), *files[2:]]
    assert odd.missing == [2, 4]
    for found in (files, halves):
        added = add_partial([load_partial(file) for file in found]).whole()
        assert save_analysis(added, tmp_path / "added").read_bytes() == whole.read_bytes()


@pytest.fixture(scope="module")
def fisher(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Fisher files of the zoo's agents."""
    return write_fisher_files(zoo, tmp_path_factory.mktemp("fisher"))


OWN: dict[str, dict] = {
    "dare-ties": {"seed": 5},
    "wudi": {"settings": {"iterations": 3}},
    "ram+m": {"dtype": "float32"},
}
STOCHASTIC = {"settings": {"scope": "tensor"}, "rounding": "stochastic", "seed": 7}


@pytest.mark.parametrize(
    "changes",
    [*({"method": name} | OWN.get(name, {}) for name in METHODS), STOCHASTIC],
    ids=lambda changes: changes.get("method", "stochastic"),
)
def test_every_method_merges_in_parts(zoo, analysis, fisher, changes, tmp_path):
    if changes.get("method") == "fisher":
        changes = {**changes, "settings": {"files": str(fisher)}}
    recipe = zoo.recipe(**changes)
    if recipe.method == "slerp":  # between the base and one agent
        recipe = zoo.recipe(**changes, agents={"agent0": str(zoo.agent_paths["agent0"])})
        analysis = None
    merge(recipe, tmp_path / "one", max_shard_bytes=SHARD, **CPU)
    plan = make_plan(recipe, 2, max_shard_bytes=SHARD)
    merge_in_parts(plan, tmp_path / "parts", analysis)
    assert contents(tmp_path / "parts") == contents(tmp_path / "one")


def test_parts_merged_with_other_fisher_files_are_refused(zoo, tmp_path):
    folder = write_fisher_files(zoo, tmp_path)
    recipe = zoo.recipe(method="fisher", settings={"files": str(folder)})
    plan = make_plan(recipe, 2, max_shard_bytes=SHARD)
    merge_part(plan, 1, tmp_path / "out", **CPU)
    write_fisher_files(zoo, folder, seed=1)
    merge_part(plan, 2, tmp_path / "out", **CPU)
    with pytest.raises(PlanError, match=r"^Part 2 of 2: .*other Fisher files than part 1"):
        finish(plan, tmp_path / "out", **CPU)


def test_tied_heads_may_lie_in_another_part_than_their_embedding(tmp_path):
    made = make_zoo(tmp_path / "zoo", 2, copied=False)
    for name in ("base", *made.agents):
        folder = made.folder / name
        tensors = dict(made.base if name == "base" else made.agents[name])
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        shutil.rmtree(folder)
        write_folder(folder, tensors, tied=True)
    merge(made.recipe(), tmp_path / "one", max_shard_bytes=SHARD, **CPU)
    plan = make_plan(made.recipe(), 5, max_shard_bytes=SHARD)
    merge_in_parts(plan, tmp_path / "parts", analysis_in_parts(plan))
    assert contents(tmp_path / "parts") == contents(tmp_path / "one")


def test_what_an_analysis_does_not_hold_is_refused_when_planning(zoo):
    for changes, words in (
        ({"settings": {"epsilon": 1.23456e-5}}, "on the epsilon grid"),
        ({"method": "ties", "settings": {"scope": "tensor"}}, "scope tensor"),
    ):
        with pytest.raises(SettingsError, match=words):
            make_plan(zoo.recipe(**changes), 2)
    for parts in (0, 10**9):
        with pytest.raises(SettingsError, match=f"parts is {parts}; give 1 to"):
            make_plan(zoo.recipe(), parts)


def test_no_hashes_are_made_where_none_are_wanted(zoo, analysis, tmp_path):
    merge(zoo.recipe(), tmp_path / "one", hash_sources=False, **CPU)
    plan = make_plan(zoo.recipe(), 2, hash_sources=False)
    merge_in_parts(plan, tmp_path / "parts", analysis)
    assert contents(tmp_path / "parts") == contents(tmp_path / "one")


def test_nothing_looks_finished_before_it_is(plan, analysis, good, tmp_path):
    out = tmp_path / "out"
    for part in plan.parts:
        merge_part(plan, part.part, out, analysis=analysis, **CPU)
        assert not {"config.json", "model.safetensors.index.json"} & set(os.listdir(out))
        with pytest.raises(CheckpointError, match=f"not finished.* PLAN --out {out}`"):
            open_checkpoint(out, name="base")
    finish(plan, out, **CPU)
    assert contents(out) == good


def test_doing_a_step_again_changes_nothing(plan, analysis, good, tmp_path):
    out = tmp_path / "out"
    first = merge_part(plan, 2, out, analysis=analysis, **CPU)
    again = merge_part(plan, 2, out, analysis=analysis, **CPU)
    assert (first.is_done_before, again.is_done_before) == (False, True)
    victim = out / first.shards[0]
    victim.unlink()
    assert not merge_part(plan, 2, out, analysis=analysis, **CPU).is_done_before
    merge_in_parts(plan, out, analysis)
    told = finish(plan, out, **CPU)
    assert merge_part(plan, 1, out, analysis=analysis, **CPU).is_done_before
    assert contents(out) == good
    recorded = json.loads(good["ram_studio.json"])["agents"]
    for name, agent in told.to_dict()["agents"].items():
        assert agent["lambda"] == recorded[name]["scaling_factor"]
        assert agent["retained"] == recorded[name]["retained"]


def test_a_model_without_a_config_is_known_as_finished(tmp_path):
    zoo = make_zoo(tmp_path, 2)
    (zoo.folder / "base" / "config.json").unlink()
    once = make_plan(zoo.recipe(), 1)
    merge_in_parts(once, tmp_path / "out", zoo.analyze(**CPU))
    whole = contents(tmp_path / "out")
    assert "config.json" not in whole
    assert finish(once, tmp_path / "out", **CPU).bytes_read == 0
    assert merge(zoo.recipe(), tmp_path / "out", **CPU).is_done_before
    (tmp_path / "out" / "README.md").unlink()
    with pytest.raises(OutputError, match="exists and is not empty"):
        finish(once, tmp_path / "out", **CPU)


def test_a_part_is_analyzed_once(plan, tmp_path, monkeypatch):
    file = tmp_path / "part-2"
    analyze_part(plan, 1, file, **CPU)
    of_another = file.read_bytes()
    first = analyze_part(plan, 2, file, **CPU)
    assert file.read_bytes() != of_another
    monkeypatch.setattr(steps, "partial_analysis", None)
    assert analyze_part(plan, 2, file, **CPU).parts == first.parts
    with pytest.raises(TypeError):
        analyze_part(plan, 2, file, relations=True, **CPU)


def test_relations_are_collected_where_the_method_merges_by_them(zoo, plan, tmp_path):
    by_magnitude = make_plan(zoo.recipe(method="ram+m"), 2, max_shard_bytes=SHARD)
    assert analyze_part(by_magnitude, 1, **CPU).sums is not None
    assert analyze_part(plan, 1, **CPU).sums is None
    counts = add_partial([analyze_part(by_magnitude, i, relations=False, **CPU) for i in (1, 2)])
    with pytest.raises(AnalysisError, match=r"^Part 1 of 2: .*has counts only"):
        merge_part(by_magnitude, 1, tmp_path / "out", analysis=counts.whole(), **CPU)


def test_a_stopped_part_leaves_nothing(plan, analysis, tmp_path):
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Stopped):
        merge_part(plan, 1, tmp_path / "out", analysis=analysis, cancel=cancel, **CPU)
    assert not any(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from ram_studio.checkpoints.record.part_plan import load_plan
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.checkpoints.write.shard_writer import ShardWriter
from ram_studio.engine.parts.steps import merge_part
write, calls = ShardWriter.write, []
def fatal(self, *piece):
    calls.append(piece)
    if len(calls) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *piece)
ShardWriter.write = fatal
plan, analysis, out = sys.argv[1:]
merge_part(load_plan(plan), 2, out, analysis=load_analysis(analysis), device="cpu", threads=1)
"""


def test_a_killed_part_is_done_again(plan, analysis, good, tmp_path):
    out, file, counts = tmp_path / "out", tmp_path / "plan.json", tmp_path / "analysis"
    save_plan(plan, file)
    save_analysis(analysis, counts)
    merge_part(plan, 1, out, analysis=analysis, **CPU)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, file, counts, out],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(PlanError, match="parts 2, 3 of 3 missing"):
        finish(plan, out, **CPU)
    merge_in_parts(load_plan(file), out, load_analysis(counts))
    assert contents(out) == good


def test_a_finish_that_was_broken_off_is_done_again(plan, analysis, good, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def fail(path):
        raise OSError(5, "input/output error")

    merge_all(plan, out, analysis)
    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", fail)
        with pytest.raises(OutputError, match="input/output"):
            finish(plan, out, **CPU)
    finish(plan, out, **CPU)
    assert contents(out) == good


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "replace"])
def test_a_full_disk_says_what_stays(plan, analysis, tmp_path, monkeypatch, call):
    """It told that nothing was left behind, beside the shards of other parts."""
    merge_part(plan, 1, tmp_path / "out", analysis=analysis, **CPU)

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    said = r"Part 2 of 3: .*the disk is full.*\. Finished parts stay there\.$"
    with pytest.raises(OutputError, match=said):
        merge_part(plan, 2, tmp_path / "out", analysis=analysis, **CPU)


def test_shards_without_a_receipt_are_not_a_model(plan, analysis, good, tmp_path, monkeypatch):
    """Without its mark the folder was neither used again nor known as unfinished."""
    out = tmp_path / "out"

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(parts_module, "write_whole", fail)
        with pytest.raises(OutputError, match="the disk is full"):
            merge_part(plan, 1, out, analysis=analysis, **CPU)
    with pytest.raises(CheckpointError, match="not finished"):
        open_checkpoint(out, name="base")
    merge_in_parts(plan, out, analysis)
    assert contents(out) == good


def test_a_part_that_comes_too_late_leaves_nothing(plan, analysis, good, tmp_path, monkeypatch):
    """It made a finished model an unfinished one again."""
    out = tmp_path / "out"
    merge_all(plan, out, analysis)
    (out / next(iter(plan.parts[0].shards))).rename(tmp_path / "lost")
    real = parts_module.reserved

    def finish_first(folder):
        os.replace(tmp_path / "lost", out / next(iter(plan.parts[0].shards)))
        finish(plan, out, **CPU)
        return real(folder)

    with monkeypatch.context() as late:
        late.setattr(parts_module, "reserved", finish_first)
        with pytest.raises(OutputError, match="was finished by another run"):
            merge_part(plan, 1, out, analysis=analysis, **CPU)
    assert contents(out) == good
    assert merge_part(plan, 1, out, analysis=analysis, **CPU).is_done_before


def test_a_part_may_begin_while_another_looks(plan, analysis, good, tmp_path, monkeypatch):
    """It told the second to remove what the first had just begun."""
    out, real = tmp_path / "out", parts_module.check_output

    def begin_first(*given, **how):
        monkeypatch.setattr(parts_module, "check_output", real)
        merge_part(plan, 2, out, analysis=analysis, **CPU)
        real(*given, **how)

    monkeypatch.setattr(parts_module, "check_output", begin_first)
    merge_in_parts(plan, out, analysis)
    assert contents(out) == good


def test_parts_that_are_missing_or_damaged_are_named(plan, analysis, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(PlanError, match=f"parts 1 to 3 of 3 missing.* --part 1 --out {out}`"):
        finish(plan, out, **CPU)
    merge_all(plan, out, analysis)
    shard = out / next(iter(plan.parts[1].shards))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(PlanError, match=rf"^Part 2 of 3: {shard.name} not as written"):
        finish(plan, out, **CPU)
    merge_part(plan, 2, out, analysis=analysis, **CPU)  # is not taken for done
    finish(plan, out, **CPU)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, patterns=r.patterns[:-1]),
        lambda r: replace(r, patterns=r.patterns.astype(float)),
        lambda r: replace(r, sums=r.sums[:, :, :3]),
        lambda r: replace(r, sums=r.sums * math.nan),
        lambda r: replace(r, header=r.header.model_copy(update={"shards": {}})),
    ],
)
def test_a_receipt_that_cannot_be_is_refused(plan, analysis, tmp_path, change):
    out = tmp_path / "out"
    merge_all(plan, out, analysis)
    [file] = out.rglob("part-2.receipt")
    file.write_bytes(change(read_receipt(file.read_bytes(), "2")).to_bytes())
    with pytest.raises(PlanError, match=r"^Part 2 of 3: its receipt is damaged"):
        finish(plan, out, **CPU)


def test_what_is_of_another_plan_is_refused(zoo, plan, analysis, tmp_path):
    other = make_plan(zoo.recipe(seed=1), 3, max_shard_bytes=SHARD)
    mixed = [analyze_part(plan, 1, **CPU), analyze_part(other, 2, **CPU)]
    with pytest.raises(AnalysisError, match="part 2 of 3 is of another plan"):
        add_partial(mixed)
    with pytest.raises(AnalysisError, match="Part 1 of 3 is given twice"):
        add_partial([mixed[0], mixed[0]])
    with pytest.raises(AnalysisError, match=r"holds part 1 of 3; parts 2, 3 of 3 missing"):
        mixed[0].whole()
    partial = save_analysis(mixed[0], tmp_path / "partial")
    with pytest.raises(AnalysisError, match="part 1 of 3 only"):
        load_analysis(partial)
    with pytest.raises(AnalysisError, match="not one of a part"):
        load_partial(save_analysis(analysis, tmp_path / "whole"))
    out = tmp_path / "out"
    merge_part(plan, 1, out, analysis=analysis, **CPU)
    with pytest.raises(OutputError, match=r"^Part 2 of 3: .*parts of another plan"):
        merge_part(other, 2, out, analysis=analysis, **CPU)
    with pytest.raises(AnalysisError, match=r"^Part 2 of 3: The method needs counts"):
        merge_part(plan, 2, out, **CPU)
    with pytest.raises(PlanError, match="part is 4; expected 1 to 3"):
        merge_part(plan, 4, out, analysis=analysis, **CPU)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(OutputError, match=r"^Part 1 of 3: .*not empty"):
        merge_part(plan, 1, tmp_path / "full", analysis=analysis, **CPU)


def test_sources_and_analyses_that_changed_are_refused(tmp_path):
    made = make_zoo(tmp_path / "zoo", 2)
    plan = make_plan(made.recipe(), 2, max_shard_bytes=SHARD)
    analysis = made.analyze(**CPU)
    out = tmp_path / "out"
    merge_part(plan, 1, out, analysis=analysis, **CPU)
    shard = made.folder / "agent1" / "model.safetensors"
    tensors = read_folder(shard.parent)
    tensors["model.norm.weight"] += 1
    save_file(tensors, shard, {"format": "pt"})
    for step in (
        lambda: analyze_part(plan, 2, **CPU),
        lambda: merge_part(plan, 2, out, analysis=analysis, **CPU),
    ):
        with pytest.raises(PlanError, match=r'^Part 2 of 2: 1 source changed .*Agent "agent1"'):
            step()
    anew = make_plan(made.recipe(), 2, max_shard_bytes=SHARD)
    with pytest.raises(AnalysisError, match=r"^Part 2 of 2: The analysis is of .* agent1"):
        merge_part(anew, 2, tmp_path / "new", analysis=analysis, **CPU)


def test_a_part_refuses_an_analysis_of_other_counts(plan, analysis, tmp_path):
    patterns = analysis.counts.patterns.copy()
    row = next(i for i, t in enumerate(analysis.tensors) if t.name == "model.norm.weight")
    patterns[row, :, 1] += 1
    patterns[row, :, 0] -= 1
    wrong = replace(analysis, counts=OverlapCounts.from_patterns(analysis.counts.numel, patterns))
    outcomes = []
    for part in plan.parts:
        try:
            merge_part(plan, part.part, tmp_path / "out", analysis=wrong, **CPU)
        except AnalysisError as error:
            outcomes.append(str(error))
    assert len(outcomes) == 1
    assert "of 3: The analysis does not belong to these files" in outcomes[0]


def test_a_plan_that_was_changed_is_refused(plan, tmp_path):
    file = tmp_path / "plan.json"
    save_plan(plan, file)
    assert load_plan(file) == plan
    values = json.loads(file.read_text())
    values["recipe"]["seed"] = 3
    file.write_text(json.dumps(values))
    with pytest.raises(PlanError, match="was changed since it was made"):
        load_plan(file)
    for text, words in (("{", "damaged"), ("{}", "recipe: is required")):
        file.write_text(text)
        with pytest.raises(PlanError, match=words):
            load_plan(file)
    with pytest.raises(PlanError, match="make it with `ram-studio plan`"):
        load_plan(Path(tmp_path / "none"))


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 40))
def test_runs_are_whole_in_order_and_about_equal(sizes, parts):
    runs = cut(sizes, parts)
    assert [i for run in runs for i in run] == list(range(len(sizes)))
    assert sum(bool(run) for run in runs) == min(parts, len(sizes))
    if sizes:
        heaviest = max(sum(sizes[i] for i in run) for run in runs)
        assert heaviest <= 2 * max(max(sizes), sum(sizes) / parts)


@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20), st.randoms(use_true_random=False)
)
def test_exact_sums_do_not_depend_on_the_order(values, random):
    def total(order):
        added = ExactSum((2,))
        for value in order:
            added.add(np.array([value]), np.array([1]))
        return rounded(added.packed()).tolist()

    shuffled = random.sample(values, len(values))
    assert total(values) == total(shuffled) == [0.0, math.fsum(values)]
