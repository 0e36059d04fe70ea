"""GPU speed: merges of resident tensors, and streamed merges, against the device's I/O limits.

The limits are measured in the same run: copying within the device's memory, copying to and from it,
and reading the files. Without a CUDA device it prints that and measures nothing; ``--device torch``
runs the same on the CPU, which does not predict a GPU's speed.

    python benchmarks/gpu.py [--size 0.5b] [--agents 3] [--rounds 5] [--elements N]
                             [--device cuda] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import functools
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from measuring import machine_facts, table
from zoo import DENSITIES, SIZES, Shape, agent_names, make_zoo

from ram_studio.algorithm.epsilon_grid import all_thresholds
from ram_studio.algorithm.methods import Facts, get_method, make_settings
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import load
from ram_studio.engine.in_memory import ResidentMerge
from ram_studio.engine.merge import merge
from ram_studio.engine.passes.counting import Counter, Counting, Tally
from ram_studio.engine.passes.driver import RunOptions, run_pass
from ram_studio.engine.passes.plan import CollectedFacts, Plan
from ram_studio.engine.passes.torch_backend import TorchBackend
from ram_studio.engine.reading.blocks import Block, blocks_of
from ram_studio.engine.reading.devices import devices_of, free_bytes, settle
from ram_studio.engine.reading.residence import DEVICE_BLOCK_ELEMENTS, empty_rows
from ram_studio.engine.reading.staging import host_buffer

SEVEN_B = Shape(152064, 3584, 28, 18944, 28, 4)
"""Qwen2.5-7B, whose head is a separate matrix: 7.6 G elements."""

BLOCK_SIZES = tuple(DEVICE_BLOCK_ELEMENTS * size // 4 for size in (1, 4, 16))
"""Elements of streamed blocks: larger ones start fewer kernels and need more memory per thread."""


def seconds(work: Callable[[], object], device: str, rounds: int) -> float:
    """Return the median time of some work on a device, after a run that compiles and allocates."""
    times = []
    for number in range(rounds + 1):
        settle([device])
        start = time.perf_counter()
        work()
        settle([device])
        if number:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def tensors_of(shape: Shape, most: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield a model's tensors and its head, in order, up to ``most`` elements."""
    head = ("lm_head.weight", (shape.vocabulary, shape.hidden))
    for name, dimensions in (*shape.tensors(), head):
        if math.prod(dimensions) <= most:
            most -= math.prod(dimensions)
            yield name, dimensions


def blocks_like(shape: Shape, agents: int, most: int, block_elements: int) -> list[Block]:
    """Return the blocks of a model's tensors, without files."""
    tensors = []
    for name, dimensions in tensors_of(shape, most):
        info = TensorInfo(name, "BF16", dimensions, Path("nowhere"), 0, 2 * math.prod(dimensions))
        tensors.append(MergeTensor(info, (info,) * agents))
    return list(blocks_of(tensors, block_elements))


def fill(blocks: list[Block], agents: int, device: str) -> list[torch.Tensor]:
    """Return each block's stored rows on the device: agents one unit beside the base, or on it."""
    random = torch.Generator(device).manual_seed(0)
    found = []
    for block in blocks:
        rows = empty_rows(["BF16"] * (agents + 1), block.n, device)
        rows[0].normal_(0, 0.02, generator=random)
        for t in range(agents):
            draws = torch.rand(block.n, device=device, generator=random)
            moved = (draws < DENSITIES[t % len(DENSITIES)]).to(torch.int16)
            rows[t + 1] = (rows[0].view(torch.int16) + moved).view(torch.bfloat16)
        found.append(rows)
    return found


def copy_row(device: str, rounds: int) -> tuple[float, list[object]]:
    """Return a device's memory bandwidth in bytes per second, reading and writing, and its row."""
    n = 1 << 30 if device != "cpu" else 1 << 20
    source, target = (torch.ones(n, dtype=torch.uint8, device=device) for _ in range(2))
    found = seconds(lambda: target.copy_(source), device, rounds)
    floor = 2 * n / found
    return floor, ["memory: copy", "-", f"{found * 1e3:.1f}", _rate(floor), "-"]


def resident_rows(
    device: str, agents: int, most: int, rounds: int, block_elements: int, floor: float
) -> Iterator[list[object]]:
    """Time counting and merging tensors of a 7 B model in one device's memory.

    floor: the device's memory bandwidth in bytes per second, reading and writing.
    """
    if device != "cpu":
        torch.cuda.empty_cache()  # memory of the last call's tensors
    room = int(0.8 * free_bytes(device)) // (2 * (agents + 2))
    blocks = blocks_like(SEVEN_B, agents, min(most, room), block_elements)
    stored = fill(blocks, agents, device)
    elements = sum(block.n for block in blocks)
    names = tuple(agent_names(agents))
    tensors = dict.fromkeys(block.tensor.name for block in blocks)
    facts = Facts(names, 0, tuple(tensors))
    merged = [torch.empty(b.n, dtype=torch.bfloat16, device=device) for b in blocks]
    backend = TorchBackend()

    def count() -> None:
        tally = Tally(len(tensors), agents, all_thresholds())
        counter = Counter(tally, backend)
        for block, rows in zip(blocks, stored, strict=True):
            assert counter.add(block.tensor_index, rows[0], rows[1:])
        counter.close()

    def merge_all(rounding: str) -> Callable[[], None]:
        plan = Plan(
            get_method("ram"),
            get_method("ram").prepare(make_settings("ram", {}), facts),
            CollectedFacts(facts),
            dict.fromkeys(tensors, "BF16"),
            {name: index for index, name in enumerate(tensors)},
            rounding,
            device,
        )

        def work() -> None:
            for block, rows, target in zip(blocks, stored, merged, strict=True):
                target.copy_(backend.merge(plan, block, rows[0], rows[1:]).stored)

        return work

    for name, work, width in (
        ("count, all epsilons", count, 2 * (agents + 1)),
        ("merge, counted and measured", merge_all("nearest"), 2 * (agents + 2)),
        ("merge, stochastic", merge_all("stochastic"), 2 * (agents + 2)),
    ):
        found = seconds(work, device, rounds)
        rate = width * elements / found
        name = f"resident: {name}, blocks of {block_elements >> 20} Mi"
        row = [name, f"{elements / 1e9:.2f} G", f"{found * 1e3:.1f}", _rate(rate)]
        yield [*row, f"{rate / floor:.0%} of memory"]


def link_rows(device: str, rounds: int) -> Iterator[list[object]]:
    """Time page-locked copies to the device and back."""
    nbytes = 256 << 20 if device != "cpu" else 1 << 20
    host = host_buffer(nbytes, device)
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    for name, target, source in (("link: up", there, host), ("link: down", host, there)):
        found = seconds(lambda t=target, s=source: t.copy_(s, non_blocking=True), device, rounds)
        yield [name, "-", f"{found * 1e3:.1f}", _rate(nbytes / found), "-"]


def streamed_rows(
    zoo: Path, agents: int, device: str, rounds: int, out: Path
) -> Iterator[list[object]]:
    """Time whole merges from files and from memory, and reading the files only."""
    sources = {name: str(zoo / name) for name in agent_names(agents)}
    recipe = make_recipe({"base": str(zoo / "base"), "agents": sources, "method": "ram+"})
    report = load(recipe.base, recipe.agents)
    loading = Counting("load", report.tensors, ())
    run = RunOptions.of()
    nbytes = sum(block.nbytes for block in loading.blocks(run.block_elements))
    first = devices_of(device)[0]

    def read() -> None:
        run_pass(report, loading, run)

    def merge_on(name: str, **blocks: int) -> None:
        shutil.rmtree(out, ignore_errors=True)
        merge(recipe, out, device=name, **blocks)

    reading = seconds(read, first, rounds)
    resident = ResidentMerge(recipe.base, recipe.agents, device=device)
    factors = iter(np.linspace(0.0, 0.5, rounds + 1))
    into = resident.merge("ram+").tensors
    yield ["files: read", _elements(report), f"{reading * 1e3:.1f}", _rate(nbytes / reading), "-"]
    for name, work in (
        *(
            (
                f"streamed: merge on the device, blocks of {size >> 20} Mi",
                lambda size=size: merge_on(device, block_elements=size),
            )
            for size in BLOCK_SIZES
        ),
        ("streamed: merge on the CPU", lambda: merge_on("cpu")),
        (
            "ResidentMerge.merge, a new r each",
            lambda: resident.merge("ram+", {"r": float(next(factors))}, into=into),
        ),
    ):
        found = seconds(work, first, rounds)
        row = [name, _elements(report), f"{found * 1e3:.1f}", _rate(nbytes / found)]
        yield [*row, f"{found / reading:.2f} x reading"]
    shutil.rmtree(out, ignore_errors=True)


def _elements(report) -> str:
    return f"{report.counted_elements / 1e9:.2f} G"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f}"


def device_facts(device: str) -> str:
    """Return one sentence on the device and its software."""
    if device == "cpu":
        return "The CPU instead of a GPU: the same formulas, not a GPU's speed."
    about = torch.cuda.get_device_properties(device)
    return (
        f"{torch.cuda.device_count()} x {about.name}, {about.total_memory / 2**30:.0f} GiB; torch "
        f"{torch.__version__}, CUDA {torch.version.cuda}."
    )


def main() -> None:
    """Read the command line, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--elements", type=int, default=8_000_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, help="for the models; kept (default: temporary)")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("No CUDA device here: nothing was measured. Run this on a machine with a GPU.")
        return
    say = functools.partial(print, flush=True)  # so that a stopped run has printed its measurements
    say(device_facts(devices_of(options.device)[0]))
    say(f"{options.agents} agents, bfloat16, medians of {options.rounds} rounds\n")
    say(table(("what", "elements", "ms", "GB/s", "share of its floor"), []))
    for row in all_rows(options):
        say("| " + " | ".join(map(str, row)) + " |")
    say(f"\n{machine_facts()}")


def all_rows(options: argparse.Namespace) -> Iterator[list[object]]:
    """Yield every row of the table as it is measured, the slowest last."""
    first = devices_of(options.device)[0]
    yield from link_rows(first, options.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)) / f"{options.size}-{options.agents}"
        zoo, out = make_zoo(folder, options.size, options.agents), Path(scratch) / "merged"
        yield from streamed_rows(zoo, options.agents, options.device, options.rounds, out)
    floor, row = copy_row(first, options.rounds)
    yield row
    for size in reversed(BLOCK_SIZES):
        yield from resident_rows(
            first, options.agents, options.elements, options.rounds, size, floor
        )


if __name__ == "__main__":
    main()
