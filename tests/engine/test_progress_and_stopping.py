"""Progress that adds up, and stopping that is quick and leaves nothing."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_zoo import EMBEDDING, Zoo, contents, make_zoo, refused
from test_source_faults import at_block

from ram_studio.algorithm.methods.whole import wudi
from ram_studio.checkpoints.write import shard_writer
from ram_studio.engine import events
from ram_studio.engine.events import CancelToken, Meter, Progress
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, Block
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.errors import Stopped

SHAPES = {EMBEDDING: (8 * GROUP_ELEMENTS,), "model.layers.0.w": (3 * GROUP_ELEMENTS + 5,)}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 2, shapes=SHAPES, seed=1)


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Let some blocks wait for the next report, as on a slow disk; returns the blocks read."""
    read, tell, told, blocks = BlockReader.read, Meter.report_progress, threading.Event(), []

    def slow_read(self, block):
        blocks.append(block)
        if len(blocks) % 3 == 0:
            told.clear()
            told.wait(1)  # at most: nobody tells any more once the pass was stopped
        return read(self, block)

    def noted_tell(self, on_progress):
        try:
            tell(self, on_progress)
        finally:
            told.set()

    monkeypatch.setattr(BlockReader, "read", slow_read)
    monkeypatch.setattr(Meter, "report_progress", noted_tell)
    return blocks


def test_progress_rises_to_all_bytes_of_every_pass(zoo, tmp_path, slow_reads):
    seen: list[Progress] = []
    here = threading.get_ident()

    def watch(progress: Progress) -> None:
        assert threading.get_ident() == here
        seen.append(progress)

    merge(
        zoo.recipe(), tmp_path / "out", threads=2, block_elements=GROUP_ELEMENTS, on_progress=watch
    )
    stages = list(dict.fromkeys(p.stage for p in seen if p.stage != "flush"))  # on a busy disk
    assert stages == ["count", "merge"]
    nbytes = 2 * 3 * sum(zoo.base[n].numel() for n in zoo.counted)
    for stage in stages:
        own = [p for p in seen if p.stage == stage]
        assert len(own) > 2
        for before, after in itertools.pairwise(own):
            assert before.done_bytes <= after.done_bytes
            assert before.tensor_index <= after.tensor_index
            assert before.seconds <= after.seconds
        assert {p.total_bytes for p in own} == {nbytes}
        last = own[-1]
        assert (last.fraction, last.done_bytes, last.eta_seconds) == (1.0, nbytes, 0.0)
        assert (last.tensor_index, last.tensor_count) == (2, 2)
        assert last.tensor == "model.layers.0.w"
        assert last.rate == pytest.approx(nbytes / last.seconds)


def test_analysis_reports_its_end_too(zoo):
    seen: list[Progress] = []
    zoo.analyze(on_progress=seen.append)
    assert (seen[-1].stage, seen[-1].fraction) == ("analyze", 1.0)


def test_progress_before_the_first_byte_knows_no_end():
    start = Meter("merge", 100, 1).read()
    assert (start.fraction, start.eta_seconds) == (0.0, None)
    assert replace(start, total_bytes=0).fraction == 1.0
    assert replace(start, seconds=0.0).rate == 0.0


def test_the_time_left_is_measured_without_a_slow_start(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = Meter("merge", 100, 10)
    told = []
    # Four seconds of compiling, then twenty bytes a second.
    for at, nbytes in ((4.0, 10), (4.5, 10), (5.0, 10), (6.0, 20), (8.5, 50)):
        now[0] = at
        meter.add(nbytes, "w", 0)
        told.append(meter.read().eta_seconds)
    assert told == [None, None, 3.5, 2.5, 0.0]


@pytest.mark.parametrize("stage", ["count", "merge"])
def test_stopping_from_the_progress_callback_leaves_nothing(zoo, tmp_path, slow_reads, stage):
    cancel = CancelToken()
    asked: list[int] = []

    def stop(progress: Progress) -> None:
        if progress.stage == stage and progress.done_bytes:
            cancel.cancel()
            asked.append(len(slow_reads))

    out, options = tmp_path / "out", {"threads": 2, "block_elements": GROUP_ELEMENTS}
    with refused(Stopped, out):
        merge(zoo.recipe(), out, on_progress=stop, cancel=cancel, **options)
    # Each of two threads may begin the block that it was about to.
    assert len(slow_reads) - asked[0] <= 2
    merge(zoo.recipe(), tmp_path / "out")


def test_stopping_an_analysis_ends_it(zoo, slow_reads):
    cancel = CancelToken()
    watch = {"cancel": cancel, "on_progress": lambda _: cancel.cancel()}
    with pytest.raises(Stopped):
        zoo.analyze(**watch)


def test_stopping_at_the_start_or_the_end_leaves_nothing(zoo, tmp_path):
    early, late = CancelToken(), CancelToken()
    early.cancel()

    def at_the_end(progress: Progress) -> None:
        if progress.stage == "merge" and progress.fraction == 1.0:
            late.cancel()

    for cancel, watch in ((early, None), (late, at_the_end)):
        with refused(Stopped, tmp_path / "out"):
            merge(zoo.recipe(), tmp_path / "out", cancel=cancel, on_progress=watch)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_failing_progress_callback_stops_and_leaves_nothing(zoo, tmp_path, slow_reads, error):
    def fail(progress: Progress) -> None:
        raise error("from the callback")

    threads = threading.active_count()
    with refused(error, tmp_path / "out"):
        merge(zoo.recipe(), tmp_path / "out", block_elements=GROUP_ELEMENTS, on_progress=fail)
    assert threading.active_count() == threads


def test_a_failing_disk_leaves_nothing_a_second_run_completes(zoo, tmp_path, monkeypatch):
    def fail() -> None:
        raise OSError(5, "Input/output error")

    merge(zoo.recipe(), tmp_path / "good")
    with monkeypatch.context() as patch, refused(OSError, tmp_path / "out", "Input/output"):
        at_block(patch, 5, fail)
        merge(zoo.recipe(), tmp_path / "out", threads=1, block_elements=GROUP_ELEMENTS)
    merge(zoo.recipe(), tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "good")


def test_stopping_does_not_wait_for_the_disk(zoo, tmp_path, monkeypatch):
    cancel, seen, ended, go_on = CancelToken(), [], [], threading.Event()

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.stage == "flush":
            cancel.cancel()

    def flush(path):
        go_on.wait(200)
        ended.append(path)

    monkeypatch.setattr(shard_writer, "flush", flush)
    try:
        with refused(Stopped, tmp_path / "out"):
            merge(zoo.recipe(), tmp_path / "out", cancel=cancel, on_progress=watch)
        assert not ended
    finally:
        go_on.set()
    assert (seen[-1].stage, seen[-1].done_bytes, seen[-1].fraction) == ("flush", 0, 0.0)


def test_a_method_that_takes_long_over_a_tensor_stops_inside_it(tmp_path, monkeypatch):
    zoo = make_zoo(tmp_path / "zoo", 2, shapes={"model.layers.0.w.weight": (48, 48)})
    cancel, ended = CancelToken(), []
    descend = wudi.descend

    def watched(*arguments):
        found = descend(*arguments)
        ended.append(found)
        return found

    monkeypatch.setattr(wudi, "descend", watched)
    recipe = zoo.recipe(method="wudi", settings={"iterations": 100_000})
    with refused(Stopped, tmp_path / "out"):
        merge(recipe, tmp_path / "out", cancel=cancel, on_progress=lambda _: cancel.cancel())
    assert not ended
