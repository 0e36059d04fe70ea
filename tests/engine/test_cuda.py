"""Devices count what the CPU counts and store the bytes that it stores, block after block.

"torch:2" is the CUDA path on the CPU, as two devices: the same staging, residence and formulas. The
same tests run on CUDA where there is one.
"""

from __future__ import annotations

import itertools
import os
import re
import threading

import numpy as np
import pytest
import torch
from engine_zoo import (
    COPIED,
    NAMES,
    ODD,
    Zoo,
    make_odd_zoo,
    make_zoo,
    refused,
    weights_in,
    write_folder,
)
from test_analyze_counts import assert_same_analysis
from test_source_faults import TENSOR, poisoned

from ram_studio.algorithm.kernels.cpu import as_float32
from ram_studio.checkpoints.write.shard_writer import ShardWriter
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.engine.events import CancelToken, Progress
from ram_studio.engine.in_memory import TensorSink
from ram_studio.engine.job import MergeJob
from ram_studio.engine.merge import merge
from ram_studio.engine.passes import driver
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.passes.torch_backend import TorchBackend
from ram_studio.engine.reading import residence, staging
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, blocks_of
from ram_studio.engine.reading.devices import choose_device, devices_of
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.reading.residence import Residence
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.reading.staging import DeviceReader
from ram_studio.engine.result import MergeResult
from ram_studio.errors import NonFiniteError, SettingsError, SourceChangedError, Stopped

HAS_CUDA = torch.cuda.is_available()
on_devices = pytest.mark.parametrize(
    "device",
    [
        "torch:2",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device here"),
            ],
        ),
    ],
)
BIG = {"model.layers.0.w": (3 * GROUP_ELEMENTS + 12345,), "model.layers.1.w": (70_001, 2)}
EVERY_METHOD = {
    "ram": {},
    "ram+": {"scope": "tensor"},
    "ram+s": {"shared": "ties", "epsilon": 1.1e-5},
    "task-arithmetic": {},
    "ties": {},
    "dare-ta": {},
    "dare-ties": {"scope": "tensor"},
    "wudi": {},
    "region": {"part": "shared"},
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("big"), 3, shapes=BIG, shards=2, seed=5)


def assert_same_results(a: MergeResult, b: MergeResult) -> None:
    assert weights_in(a.out) == weights_in(b.out)
    assert a.agents.keys() == b.agents.keys()
    for one, other in zip(a.agents.values(), b.agents.values(), strict=True):
        assert (one.changed, one.unique, one.scaling_factor, one.rho) == (
            other.changed,
            other.unique,
            other.scaling_factor,
            other.rho,
        )
        stored = other.effective_scaling_factor
        assert one.effective_scaling_factor == (
            None if stored is None else pytest.approx(stored, rel=1e-6)
        )


@on_devices
@pytest.mark.parametrize(
    ("agents", "dtypes"), [(1, None), (3, None), (7, None), (3, ("BF16", "F32", "F16"))]
)
def test_a_device_makes_the_same_analysis(tmp_path, device, agents, dtypes):
    zoo = make_zoo(tmp_path, agents, agent_dtypes=dtypes, seed=1)
    expected = zoo.analyze()
    assert (expected.rounded is None) == (dtypes is None)
    assert_same_analysis(zoo.analyze(device=device), expected)


@on_devices
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_and_threads_do_not_change_what_a_device_counts(big, device, threads):
    report = big.load()
    expected = big.analyze()
    for groups in (1, 2):
        analysis = analyze_report(
            report, device=device, threads=threads, block_elements=groups * GROUP_ELEMENTS
        )
        assert_same_analysis(analysis, expected)


@on_devices
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(
    ("dtype", "agents", "output", "shared"),
    [
        ("BF16", ("BF16", "F32", "F16"), "BF16", "ties"),
        ("BF16", ("BF16", "F32", "F16"), "F16", "ties"),
        ("BF16", ("BF16", "F32", "F16"), "F32", "ties"),
        ("BF16", None, "BF16", "mean"),
        ("F16", None, "BF16", "mean"),
        ("F32", None, "F32", "ties"),
    ],
)
def test_a_device_stores_the_same_bytes(tmp_path, device, dtype, agents, output, shared, rounding):
    zoo = make_zoo(tmp_path / "zoo", 3, dtype=dtype, agent_dtypes=agents, seed=2)
    recipe = zoo.recipe(dtype=NAMES[output], rounding=rounding, settings={"shared": shared})
    results = [merge(recipe, tmp_path / name, device=name) for name in ("cpu", device)]
    assert_same_results(*results)


@on_devices
@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_stores_the_same_bytes(tmp_path, device, method):
    zoo = make_zoo(tmp_path / "zoo", 3, seed=4)
    for rounding in ("nearest", "stochastic"):
        recipe = zoo.recipe(method=method, settings=EVERY_METHOD[method], rounding=rounding)
        outs = {name: tmp_path / f"{rounding}-{name}" for name in ("cpu", device)}
        assert_same_results(*(merge(recipe, out, device=name) for name, out in outs.items()))


@on_devices
@pytest.mark.parametrize("threads", [1, 3])
def test_many_blocks_store_the_same_bytes(big, tmp_path, device, threads):
    recipe = big.recipe(rounding="stochastic")
    expected = merge(recipe, tmp_path / "cpu")
    options = {"device": device, "threads": threads, "block_elements": GROUP_ELEMENTS}
    assert_same_results(merge(recipe, tmp_path / "out", **options), expected)


@on_devices
@pytest.mark.parametrize("odd", ODD)
def test_agents_that_lack_something_are_merged_alike(tmp_path, device, odd):
    seen = make_odd_zoo(tmp_path, odd, agent_dtypes=("BF16", "F32", "BF16"), seed=6)
    recipe = seen.recipe(**ODD[odd])
    results = [merge(recipe, tmp_path / place, device=place) for place in ("cpu", device)]
    assert_same_results(*results)


@on_devices
def test_what_the_counting_pass_uploaded_is_not_read_again(big, tmp_path, device, monkeypatch):
    recipe = big.recipe()
    nbytes = 4 * 2 * sum(big.base[name].numel() for name in big.counted)
    expected = merge(recipe, tmp_path / "cpu")
    assert expected.bytes_read == 2 * nbytes
    everything = merge(recipe, tmp_path / "all", device=device)
    assert everything.bytes_read == nbytes
    # Room for the smaller tensor only: the other one is streamed in both passes.
    sizes = [4 * 2 * big.base[name].numel() for name in big.counted]
    budget = [(min(sizes) + max(sizes)) // 2] * len(devices_of(device))
    original = Residence.__init__
    monkeypatch.setattr(
        Residence,
        "__init__",
        lambda self, tensors, devices, _: original(self, tensors, devices, budget),
    )
    some = merge(recipe, tmp_path / "some", device=device, block_elements=GROUP_ELEMENTS)
    assert some.bytes_read == nbytes + max(sizes)
    monkeypatch.undo()
    monkeypatch.setattr(residence, "free_bytes", lambda device: 0)
    nothing = merge(recipe, tmp_path / "none", device=device, block_elements=GROUP_ELEMENTS)
    assert nothing.bytes_read == 2 * nbytes
    for result in (everything, some, nothing):
        assert_same_results(result, expected)


@on_devices
def test_a_file_changed_between_the_passes_is_refused(big, device):
    report = big.load()
    job = MergeJob(report, big.recipe(), RunOptions.of(device))
    plan = job.plan()
    path = next(iter(report.agents[1].shards))
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        with pytest.raises(SourceChangedError, match=rf"{path} changed after it was loaded"):
            job.run(plan, TensorSink({}, {}))
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@on_devices
@pytest.mark.parametrize("method", ["ram+", "ram", "task-arithmetic"])
def test_a_number_that_is_not_finite_is_named(tmp_path, device, method):
    zoo = poisoned(tmp_path, "agent1", "BF16", {(2, 5): float("nan"), (7, 0): float("inf")})
    said = rf"`{TENSOR}` has 2 NaN or Inf .*\(2, 5\)"
    with refused(NonFiniteError, tmp_path / "out", said):
        merge(zoo.recipe(method=method), tmp_path / "out", device=device)


@on_devices
def test_overflow_of_the_output_dtype_is_refused(tmp_path, device):
    zoo = make_zoo(tmp_path / "zoo", 1, dtype="F32", shapes={"w": (300,)}, copied=False)
    write_folder(tmp_path / "far", {"w": zoo.base["w"] + 1e5})
    how = {"method": "task-arithmetic", "dtype": "float16", "other_base": "accept"}
    recipe = zoo.recipe(agents={"far": str(tmp_path / "far")}, **how)
    with pytest.raises(SettingsError, match=r"`w`: a merged element is beyond .* \(F16\)"):
        merge(recipe, tmp_path / "out", device=device)


@on_devices
def test_flags_of_blocks_are_read_many_at_a_time(big, tmp_path, device, monkeypatch):
    read: list[int] = []
    read_flags = TorchBackend.read_flags

    def noted(self, flags):
        read.append(len(flags))
        assert all(isinstance(flag, torch.Tensor) and flag.ndim == 0 for flag in flags)
        return read_flags(self, flags)

    monkeypatch.setattr(TorchBackend, "read_flags", noted)
    options = {"device": device, "threads": 1, "block_elements": GROUP_ELEMENTS}
    report = big.load()
    blocks = len(list(blocks_of(report.tensors, GROUP_ELEMENTS)))
    monkeypatch.setattr(driver, "FLAGS", 4)
    expected = analyze_report(report, relations=False)
    read.clear()
    assert_same_analysis(analyze_report(report, relations=False, **options), expected)
    whole, rest = divmod(blocks, 4)
    assert (read, whole > 0) == ([4] * whole + [rest], True)
    bad = poisoned(tmp_path, "agent1", "BF16", {(7, 0): float("nan")})
    with pytest.raises(NonFiniteError, match=rf"`{re.escape(TENSOR)}` has 1 NaN"):
        bad.analyze(**options)


@on_devices
def test_memory_that_runs_out_is_said_in_plain_words(big, tmp_path, device, monkeypatch):
    def merge_block(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate a lot")

    monkeypatch.setattr(TorchBackend, "merge", merge_block)
    with refused(SettingsError, tmp_path / "out", r"memory ran out \(.* has .* free\)"):
        merge(big.recipe(), tmp_path / "out", device=device)


@on_devices
def test_progress_adds_up_and_stopping_leaves_nothing(big, tmp_path, device, monkeypatch):
    options = {"device": device, "threads": 2, "block_elements": GROUP_ELEMENTS}
    seen: list[Progress] = []
    merge(big.recipe(), tmp_path / "out", on_progress=seen.append, **options)
    stages = dict.fromkeys(p.stage for p in seen if p.stage != "flush")  # on a busy disk
    assert list(stages) == ["count", "merge"]
    assert seen[-1].fraction == 1.0
    cancel = CancelToken()

    def stop(progress: Progress) -> None:
        if progress.stage == "merge":
            cancel.cancel()

    # A sink that waits for the stop: some blocks are then on their way.
    original = ShardWriter.write

    def write(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            assert cancel._event.wait(60)
        original(self, *arguments)

    monkeypatch.setattr(ShardWriter, "write", write)
    with refused(Stopped, tmp_path / "stopped"):
        merge(big.recipe(), tmp_path / "stopped", on_progress=stop, cancel=cancel, **options)


@pytest.mark.parametrize("stored", [("BF16", "BF16"), ("BF16", "F32"), ("F16", "F16")])
def test_a_device_reads_what_the_cpu_reads(tmp_path, stored):
    """Whole tensors and rows that only some agents have too, with and without a residence."""
    name = "model.embed_tokens.weight"
    zoo = make_zoo(tmp_path / "zoo", 2, agent_dtypes=stored, shapes={name: (400, 200)}, seed=3)
    write_folder(tmp_path / "short", {**COPIED, name: zoo.agents["agent0"][name][:250]})
    agents = {"short": tmp_path / "short", "agent1": zoo.agent_paths["agent1"]}
    report = load(zoo.base_path, agents, rows="common")
    stays = Residence(report.tensors, ("cpu",), [1 << 30])
    small = list(blocks_of(report.tensors, GROUP_ELEMENTS))
    whole = list(blocks_of(report.tensors, GROUP_ELEMENTS, lambda tensor: True))
    assert (len(small), len(whole)) == (3, 1)
    with Sources(*report.checkpoints) as sources:
        for blocks, place in itertools.product((small, whole), (None, stays, stays)):
            on_cpu = BlockReader(sources, GROUP_ELEMENTS)
            reader = DeviceReader(sources, ("cpu",), GROUP_ELEMENTS, place)
            for block in blocks:
                base, rows = reader.read(block)
                expected, others = on_cpu.read(block)
                for found, array in zip((base, *rows), (expected, *others), strict=True):
                    np.testing.assert_array_equal(found.float().numpy(), as_float32(array))
            if place is not None:
                place.fill(blocks, sources)


def test_threads_and_blocks_are_dealt_to_the_devices(big, monkeypatch):
    report = big.load()
    used: list[str] = []

    def rows_on(dtypes, n, device):
        used.append(device)
        return residence.empty_rows(dtypes, n, "cpu")

    monkeypatch.setattr(staging, "empty_rows", rows_on)
    monkeypatch.setattr(staging, "host_buffer", lambda n, _: torch.empty(n, dtype=torch.uint8))
    monkeypatch.setattr(DeviceReader, "_enter", lambda self, device: used.append(device))
    devices = ("gpu:0", "gpu:1")
    blocks = list(blocks_of(report.tensors, GROUP_ELEMENTS))
    with Sources(*report.checkpoints) as sources:
        for number in range(4):
            reader = DeviceReader(sources, devices, GROUP_ELEMENTS, number=number)
            used.clear()
            for block in blocks:
                reader.read(block)
            assert set(used) == {devices[number % 2]}
        stays = Residence(report.tensors, ("cpu", "cpu"), [1 << 30] * 2)
        reader = DeviceReader(sources, devices, GROUP_ELEMENTS, stays)
        used.clear()
        for block in blocks:
            reader.read(block)
        # The device with more room left takes the next tensor.
        names = [t.name for t in report.tensors if t.kind == "merge"]
        expected = [devices[names.index(block.tensor.name) % 2] for block in blocks]
        assert used == expected


def test_blocks_of_a_device_are_as_large_as_its_memory_lets_them(monkeypatch):
    for free, mebi in ((80 << 30, 4), (8 << 30, 2), (4 << 30, 1), (1 << 30, 1)):
        monkeypatch.setattr(residence, "free_bytes", lambda name, free=free: free)
        assert RunOptions.of("torch:2", threads=8).block_elements == mebi << 20, free
    asked = RunOptions.of("torch:2", block_elements=GROUP_ELEMENTS)
    assert asked.block_elements == GROUP_ELEMENTS


def test_threads_share_a_residence(big):
    """Each piece's memory is taken once, whoever comes first."""
    report = big.load()
    stays = Residence(report.tensors, ("cpu",), [1 << 30])
    blocks = list(blocks_of(report.tensors, GROUP_ELEMENTS))
    found: list[int] = []

    def look() -> None:
        for block in blocks:
            rows = stays.find(block)
            found.append(rows.rows.untyped_storage().data_ptr())

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(big.counted)


@pytest.mark.parametrize("name", ["tpu", "torch:x", "torch:0", "cpu:1", "torch:2:1"])
def test_unknown_devices_are_refused(name):
    with pytest.raises(SettingsError, match="must be one of auto, cpu, cuda"):
        choose_device(name)


@pytest.mark.skipif(HAS_CUDA, reason="there is a CUDA device here")
def test_cuda_is_refused_in_plain_words_where_there_is_none(tmp_path):
    zoo = make_zoo(tmp_path, 1)
    with pytest.raises(SettingsError, match="sees no CUDA device"):
        zoo.analyze(device="cuda")
