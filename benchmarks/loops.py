"""The CPU kernels against a plain copy of the same elements, in memory, at equal threads.

Arrays are far larger than the caches, as checkpoints are; then the same on one block per thread
that stays in its cache, like the engine's buffers. Kernels alternate; a number is the processor
time of all threads per element and thread (little affected by other programs), as a median over
rounds, and ratios are medians of those within a round.

    python benchmarks/loops.py [--agents 3] [--threads 1 2] [--rounds 7] [--elements 16000000]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
from measuring import machine_facts, table
from zoo import CHUNK, _chunk

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels.rules import Drawing, Rule, means
from ram_studio.engine.reading.blocks import BLOCK_ELEMENTS, GROUP_ELEMENTS

EPSILON = epsilon_grid.float32_threshold(1e-5)

Work = Callable[[slice], None]


def arrays(elements: int, agents: int) -> list[np.ndarray]:
    """Return bfloat16 bits of a base and agents, as in ``zoo``."""
    random = np.random.default_rng(0)
    chunks = [_chunk(random, CHUNK, agents, "weight") for _ in range(max(1, elements // CHUNK))]
    return [np.concatenate(parts) for parts in zip(*chunks, strict=True)]


def kernels_on(models: list[np.ndarray]) -> dict[str, Callable[[], Work]]:
    """Return by name a factory that makes, for each thread, a function on a slice."""
    base, agents = models[0], models[1:]
    n = len(agents)
    out, pattern = np.empty_like(base), np.zeros(len(base), dtype=np.uint8)
    mean = Rule(float(EPSILON), tuple(1.1 + 0.01 * t for t in range(n)), means(n))
    total = Rule(0.0, (0.4,) * n, (0.4,) * (n + 1))
    drawing = Drawing(tuple(np.uint64(t) for t in range(n)), (1 << 52,) * n)

    def blocks(part: slice) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        return base[part], tuple(a[part] for a in agents)

    def merge(rule: Rule) -> Work:
        return lambda part: cpu.merge(
            rule, *blocks(part), out[part], pattern[part], arithmetic="float32"
        )

    def measure(part: slice) -> None:
        length = part.stop - part.start
        cuts = [*range(0, length, GROUP_ELEMENTS), length]
        masks = pattern[part], pattern[part]
        cpu.measure(mean, *blocks(part), out[part], masks, cuts, arithmetic="float32")

    def count(part: slice) -> None:
        cpu.count_patterns(pattern[part], n)

    def find(part: slice) -> None:
        cpu.find_patterns(*blocks(part), pattern[part], EPSILON)

    def together(*steps: Work) -> Work:
        return lambda part: [step(part) for step in steps] and None

    def chain() -> Work:
        table = np.zeros((1 << n) * n * epsilon_grid.BIN_COUNT, dtype=np.int32)
        return lambda part: cpu.fill_chain(*blocks(part), table) and None

    def sizes() -> Work:
        table = np.zeros((n, epsilon_grid.BIN_COUNT + cpu.TILE), dtype=np.int32)
        return lambda part: cpu.count_sizes(*blocks(part), table) and None

    return {
        "copy of one tensor": lambda: lambda part: np.copyto(out[part], base[part]),
        "pass 1: patterns, counted": lambda: together(find, count),
        "pass 2: merge, counted and measured": lambda: together(merge(mean), count, measure),
        "merge": lambda: merge(mean),
        "merge with elected sign": lambda: merge(mean._replace(elect_sign=True)),
        "scaled sum": lambda: merge(total),
        "scaled sum, half dropped": lambda: merge(total._replace(drawing=drawing)),
        "count": lambda: count,
        "measure": lambda: measure,
        "analysis (chain histogram)": chain,
        "sizes (TIES)": sizes,
    }


def processor_seconds(
    make: Callable[[], Work], elements: int, threads: int, *, is_in_cache: bool = False
) -> float:
    """Return the processor seconds of one pass over all elements by several threads.

    is_in_cache: every thread repeats its first block instead.
    """
    used = [0.0] * threads
    bounds = [elements * k // threads // BLOCK_ELEMENTS * BLOCK_ELEMENTS for k in range(threads)]
    ready = threading.Barrier(threads)

    def run(number: int, start: int, stop: int) -> None:
        work = make()
        ready.wait()
        before = time.thread_time()
        for first in range(start, stop, BLOCK_ELEMENTS):
            block = slice(first, min(first + BLOCK_ELEMENTS, stop))
            work(slice(start, start + block.stop - block.start) if is_in_cache else block)
        used[number] = time.thread_time() - before

    workers = [
        threading.Thread(target=run, args=(number, *ends))
        for number, ends in enumerate(itertools.pairwise([*bounds, elements]))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(used)


def main() -> None:
    """Read the command line, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--elements", type=int, default=16 << 20)
    options = parser.parse_args()
    models = arrays(options.elements, options.agents)
    elements = len(models[0])
    rows = []
    makers = kernels_on(models)
    for is_in_cache, threads in itertools.product((False, True), options.threads):
        seconds: dict[str, list[float]] = {name: [] for name in makers}
        for number in range(options.rounds + 1):
            for name, make in makers.items():
                used = processor_seconds(make, elements, threads, is_in_cache=is_in_cache)
                if number:  # the first round loads or compiles the kernels
                    seconds[name].append(used)
        copies = seconds["copy of one tensor"]
        for name, found in seconds.items():
            each = statistics.median(found) / elements / threads * 1e9
            ratio = statistics.median(a / b for a, b in zip(found, copies, strict=True))
            where = "cache" if is_in_cache else "memory"
            rows.append([name, where, threads, f"{each:.3f}", f"{ratio:.1f}"])
    print(f"{options.agents} agents, {elements} bfloat16 elements, {options.rounds} rounds")
    print()
    print(table(("kernel", "in", "threads", "ns / element", "x copy"), rows))
    print()
    print(machine_facts())


if __name__ == "__main__":
    main()
