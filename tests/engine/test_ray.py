"""Parts on a real Ray of two and three nodes: the same bytes, and workers that die."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_zoo import Zoo, contents, make_zoo, model_options, run_command

from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.checkpoints.write.shard_writer import ShardWriter
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.engine.parts import on_ray, planning, ray_cluster
from ram_studio.engine.parts.on_ray import analyze_on_ray, merge_on_ray
from ram_studio.engine.parts.planning import (
    divisible_job,
    make_plan,
    memory_of_parts,
    plan_of,
)
from ram_studio.engine.parts.steps import PartResult, merge_part
from ram_studio.errors import CheckpointError, EvaluationError, SettingsError, Stopped
from ram_studio.evals import on_ray as far
from ram_studio.evals.on_ray import evaluate_on_ray
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path

ray = pytest.importorskip("ray", reason="make test-ray installs Ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

RUN = {"device": "cpu", "threads": 1}
SHARD = 500


STORE = {"object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of Ray on this machine, connected."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **STORE}
    )
    made.add_node(num_cpus=1, **STORE)
    ray.init(made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def nodes(cluster: Any) -> str:
    """The address of two nodes."""
    return cluster.address


@pytest.fixture(scope="module")
def three(cluster: Any) -> Iterator[str]:
    """The address, with a third node."""
    third = cluster.add_node(num_cpus=1, **STORE)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.remove_node(third)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 2, seed=3)


def test_two_nodes_merge_to_the_bytes_of_one_process(nodes, zoo, tmp_path):
    seen = []
    merge(zoo.recipe(), tmp_path / "one", max_shard_bytes=SHARD, **RUN)
    told = RUN | {"on_progress": seen.append}
    result = merge_on_ray(zoo.recipe(), tmp_path / "ray", nodes, told, max_shard_bytes=SHARD)
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    assert result.bytes_written == sum(
        p.stat().st_size for p in (tmp_path / "ray").glob("*.safetensors")
    )
    assert seen[-1].stage == "check"


def test_the_command_line_merges_and_counts_on_ray(nodes, zoo, tmp_path, monkeypatch):
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    models = model_options(zoo.recipe())
    for where in ((), ("--ray", nodes)):
        shards = ("--max-shard-size", SHARD)
        run_command("merge", *models, "--out", tmp_path / f"out{len(where)}", *shards, *where)
        run_command("analyze", *models, "--analysis", tmp_path / f"analysis{len(where)}", *where)
    assert contents(tmp_path / "out2") == contents(tmp_path / "out0")
    assert (tmp_path / "analysis2").read_bytes() == (tmp_path / "analysis0").read_bytes()


def test_two_nodes_count_the_analysis_of_one_process(nodes, zoo, tmp_path):
    one = save_analysis(zoo.analyze(**RUN), tmp_path / "one")
    both = save_analysis(analyze_on_ray(zoo.recipe(), nodes, RUN), tmp_path / "both")
    assert both.read_bytes() == one.read_bytes()


class Killed:
    """Merges a part; the worker that does part 2 first is killed in the middle of its writing."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, plan: Any, part: int, out: str, analysis: Any, **run: Any) -> PartResult:
        if part == 2 and not self.mark.exists():
            self.mark.touch()
            write = ShardWriter.write

            def fatal(self: ShardWriter, *piece: Any) -> None:
                write(self, *piece)
                os.kill(os.getpid(), signal.SIGKILL)

            ShardWriter.write = fatal
        elif part == 2:
            self.mark.with_name("again").touch()
        return merge_part(plan, part, out, analysis=analysis, **run)


def sent_by_value() -> None:
    """Workers know this file by name only: what is sent must say itself how it is made."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_stopping_leaves_what_is_done_and_the_rest_can_follow(nodes, zoo, tmp_path, caplog):
    caplog.set_level("INFO", logger="ram_studio")
    out, cancel = tmp_path / "ray", CancelToken()
    plan = make_plan(zoo.recipe(), max_shard_bytes=SHARD)
    analysis = zoo.analyze(**RUN)
    merge_part(plan, 1, out, analysis=analysis, **RUN)
    cancel.cancel()
    asked = {"analysis": analysis, "max_shard_bytes": SHARD}
    with pytest.raises(Stopped):
        merge_on_ray(zoo.recipe(), out, nodes, RUN | {"cancel": cancel}, **asked)
    merge_on_ray(zoo.recipe(), out, nodes, RUN, **asked)
    # More than the first where another was merged before the stop came.
    found = rf"{re.escape(str(out))} held [1-{len(plan.parts)}] of {len(plan.parts)} parts already"
    assert any(re.fullmatch(found, told) for told in caplog.messages)
    merge(zoo.recipe(), tmp_path / "one", max_shard_bytes=SHARD, **RUN)
    assert contents(out) == contents(tmp_path / "one")


def test_an_error_of_a_part_is_told_as_it_is(nodes, tmp_path):
    made = make_zoo(tmp_path / "zoo", 2, copied=False)
    shard = made.folder / "agent1" / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-16:] = b"\xff" * 16  # NaN, in the last tensor of the file
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"^Part \d of 8: .*NaN"):
        analyze_on_ray(made.recipe(), nodes, RUN)


def test_a_task_that_dies_again_and_again_is_told(nodes):
    @ray.remote(max_retries=0)
    def die() -> None:
        os._exit(1)

    with pytest.raises(SettingsError, match="Part 1 of 1: its worker died"):
        ray_cluster.gather(ray, {die.remote(): "part 1 of 1"}, lambda: None)


def test_ray_is_imported_only_where_it_is_asked_for():
    code = (
        "import sys, ram_studio.cli.main, ram_studio.engine.parts.on_ray\n"
        "assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def told(row: Any) -> list[tuple[str, bool]]:
    """What a model said, and whether it was right."""
    return [(a.text, a.is_correct) for answers in row.answers.values() for a in answers]


def test_models_answer_on_ray_as_they_do_here(nodes, tmp_path, monkeypatch):
    models = {name: asset_path("independent", name) for name in ("base", "coding")}
    asked = {"limit": 3, "suites": "demo", "device": "cpu", "base": "base"}
    here = evaluate(models, **asked)
    with AnswerStore(tmp_path / "answers") as store:
        there = evaluate_on_ray(models, nodes, store=store, **asked)
        assert {run.model: run.answered for run in store.runs()} == {"base": 12, "coding": 12}
        # What is stored is not asked again.
        monkeypatch.setattr(far, "_answer", lambda *_: pytest.fail("asked again"))
        again = evaluate_on_ray(models, nodes, store=store, **asked)
    for report in (there, again):
        for name, row in report.models.items():
            assert told(row) == told(here.models[name])


def test_what_does_not_go_on_ray_is_told_before_it_is_begun():
    with pytest.raises(EvaluationError, match="health is not measured"):
        evaluate_on_ray({"base": asset_path("independent", "base")}, "nowhere:1", "health")


def test_an_address_without_ray_is_told(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(SettingsError, match=r"No Ray was found at '127.0.0.1:1': .*refused"),
        ray_cluster.connect_ray("127.0.0.1:1"),
    ):
        pass


def test_a_cluster_that_cannot_be_joined_is_told_in_time(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", 8.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        told = rf"^The Ray at '{address}' answers but cannot be joined: .*nodes"
        with pytest.raises(SettingsError, match=told), ray_cluster.connect_ray(address):
            pass
        assert time.monotonic() - start < 20


def test_a_cluster_that_can_be_joined_is(nodes):
    ray_cluster._try_to_join(nodes)


def test_a_part_asks_for_the_memory_that_it_needs(nodes, zoo, tmp_path, monkeypatch):
    job = divisible_job(zoo.recipe())
    plan = plan_of(job, 2, max_shard_bytes=SHARD, hash_sources=False)
    few, more = (memory_of_parts(job, plan, threads) for threads in (1, 4))
    assert all(300 << 20 < a < b < 400 << 20 for a, b in zip(few, more, strict=True))
    wudi = divisible_job(zoo.recipe(method="wudi"))
    monkeypatch.setattr(planning, "BLOCK_ELEMENTS", 1)
    largest = max(t.numel for t in wudi.merged if wudi.is_whole(t))
    own = [
        memory_of_parts(j, plan_of(j, 1, max_shard_bytes=9999, hash_sources=False), 1)[0]
        for j in (job, wudi)
    ]
    assert own[1] - own[0] == 16 * (largest - 1) * (len(zoo.agents) + 2)
    monkeypatch.setattr(on_ray, "memory_of_parts", lambda *_: [1 << 60] * 99)
    with pytest.raises(SettingsError, match=r"^Part 1 of \d needs 1 cores.* the largest offers"):
        merge_on_ray(zoo.recipe(), tmp_path / "ray", nodes, RUN, max_shard_bytes=SHARD)


def test_a_path_that_a_node_does_not_see_is_told_by_node(nodes, zoo, tmp_path, monkeypatch):
    second = ray.nodes()[1]["NodeID"]

    def find_unseen(paths: list[str]) -> list[str]:
        is_second = ray.get_runtime_context().get_node_id() == second
        names = ("/agent1", "/coding")
        return [p for p in paths if not Path(p).exists() or (is_second and p.endswith(names))]

    sent_by_value()
    monkeypatch.setattr(ray_cluster, "find_unseen", find_unseen)
    told = r"^node .* does not see \S+/(agent1|coding)\. All nodes"
    models = {name: asset_path("independent", name) for name in ("base", "coding")}
    for go in (
        lambda: analyze_on_ray(zoo.recipe(), nodes, RUN),
        lambda: merge_on_ray(zoo.recipe(), tmp_path / "ray", nodes, RUN),
        lambda: evaluate_on_ray(models, nodes, limit=1, suites="demo", device="cpu"),
    ):
        with pytest.raises(SettingsError, match=told):
            go()
    assert not any(tmp_path.iterdir())


def test_without_ray_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"ram-studio\[ray\]"), ray_cluster.connect_ray("local"):
        pass


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_parts_on_two_and_three_nodes(
    nodes, zoo, tmp_path, count, parts, request, monkeypatch
):
    if count == 3:
        request.getfixturevalue("three")
    assert ray_cluster.alive_nodes(ray) == count
    out = tmp_path / "ray"
    merge(zoo.recipe(), tmp_path / "one", max_shard_bytes=SHARD // 2, **RUN)
    analysis = zoo.analyze(**RUN)
    how = {"analysis": analysis, "max_shard_bytes": SHARD // 2}
    if parts > 1:  # part 2 is killed mid-way, part 1 is done twice
        plan = make_plan(zoo.recipe(), parts, max_shard_bytes=SHARD // 2)
        merge_part(plan, 1, out, analysis=analysis, **RUN)
        sent_by_value()
        monkeypatch.setattr(on_ray, "_merge", Killed(tmp_path / "mark"))
    merge_on_ray(zoo.recipe(), out, nodes, RUN, parts=parts, **how)
    assert (tmp_path / "again").exists() == (parts > 1)
    assert contents(out) == contents(tmp_path / "one")


def killed_once(mark: Path) -> Any:
    """Answers for a model; the worker that is first dies before it has sent anything."""
    answer = far._answer

    def work(*asked: Any) -> Any:
        found = answer(*asked)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return work


def test_a_check_survives_its_worker_on_three_nodes(three, tmp_path, monkeypatch):
    models = {name: asset_path("independent", name) for name in ("base", "coding")}
    asked = {"limit": 2, "suites": "demo", "device": "cpu", "base": "base"}
    here = evaluate(models, **asked)
    sent_by_value()
    monkeypatch.setattr(far, "_answer", killed_once(tmp_path / "mark"))
    there = evaluate_on_ray(models, three, **asked)
    assert (tmp_path / "mark").exists()
    for name, row in there.models.items():
        assert told(row) == told(here.models[name])
