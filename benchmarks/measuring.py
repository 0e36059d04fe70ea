"""Running commands in turns and printing tables, with the facts of the machine."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """One whole process: wall and processor seconds, and its peak memory."""

    wall: float
    cpu: float
    peak_bytes: int


def run_process(command: Sequence[str]) -> Run:
    """Run a command to its end.

    Raises: RuntimeError with the end of its output when it fails.
    """
    with tempfile.TemporaryFile("w+") as output:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        start = time.perf_counter()
        process = subprocess.Popen(
            list(command), stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{output.read()[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def run_in_turns(
    commands: dict[str, Callable[[Path], Sequence[str]]],
    rounds: int,
    scratch: Path,
    again: Callable[[str, int], bool] = lambda name, number: True,
    may_fail: Callable[[str], bool] = lambda name: False,
) -> dict[str, list[Run]]:
    """Run every command once per round, so that a drifting machine affects all of them equally.

    commands: from an output folder, which is removed after each run, to the command line;
    again: whether a command runs in a round, counted from 0;
    may_fail: whether a failing command is reported and then left out.
    """
    results: dict[str, list[Run]] = {name: [] for name in commands}
    failed: set[str] = set()
    out = scratch / "out"
    for number in range(rounds):
        for name, command in commands.items():
            if name in failed or not again(name, number):
                continue
            shutil.rmtree(out, ignore_errors=True)
            try:
                results[name].append(run_process(command(out)))
            except RuntimeError as error:
                if not may_fail(name):
                    raise
                print(f"round {number + 1}: {name}: {error}", file=sys.stderr)
                failed.add(name)
                continue
            last = results[name][-1]
            line = f"round {number + 1}: {name}: {last.wall:.2f} s, cpu {last.cpu:.2f} s"
            print(line, file=sys.stderr)
    shutil.rmtree(out, ignore_errors=True)
    return results


def median_ratio(runs: list[Run], against: list[Run], figure: str = "wall") -> float:
    """Return the median over rounds of one command's wall or cpu time over another's."""
    pairs = zip(runs, against, strict=False)
    return statistics.median(getattr(a, figure) / getattr(b, figure) for a, b in pairs)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine_facts() -> str:
    """Return one paragraph on when and where a benchmark ran."""
    import llvmlite
    import numba
    import numpy

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg()) if hasattr(os, "getloadavg") else "-"
    return (
        f"{datetime.date.today()}; {_processor()}, {cores} cores, {_memory()}; "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, numpy "
        f"{numpy.__version__}, numba {numba.__version__}, llvmlite {llvmlite.__version__}; "
        f"load average at the end {load}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        has_avx512 = any("avx512f" in line for line in lines)
        return name + (" with AVX-512" if has_avx512 else "")
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError, AttributeError):
        return "memory unknown"
