"""A room of visitors on one server: does everybody get through, and how long does each wait?

The app runs as on a public Space, in a process of its own, on two processors and over loopback
only. Visitors come within the first seconds, each from an address of its own, and do what a class
does: open the page, take the example, tune (in the browser: no request), open the details, merge,
check the merge against the base and an agent, read History; again until the time is over.

    python benchmarks/space.py [--visitors 30] [--seconds 180]

Printed are errors, server calls while tuning, how long light requests and heavy jobs took (waiting
included), the server's most memory, and the disk before, with everybody there, and after all left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from measuring import ROOT, machine_facts, table

# The visitor of the tests.
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "app")]
from app_process import running_app
from visitor import RefusedError, Visitor

LIGHT = ("page", "example", "details", "preview", "history")
HEAVY = ("merge", "check")
TUNED = ("epsilon", "r", "alpha", "rule")
GONE_SECONDS = 8.0

SERVER = """
import dataclasses, sys
from ram_studio.app import Settings, launch
settings = Settings.from_environment()
launch(dataclasses.replace(settings, gone_seconds=float(sys.argv[1])), quiet=True)
"""


@dataclass
class Log:
    """What the visitors measured: seconds by request, errors as they were said."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def timed(self, name: str) -> AsyncIterator[None]:
        """Time a request; an error is noted and ends the visitor's round."""
        start = time.perf_counter()
        try:
            yield
        except (RefusedError, httpx.HTTPError) as error:
            self.errors.append(f"{name}: {type(error).__name__} {error}"[:200])
            raise
        self.seconds[name].append(time.perf_counter() - start)

    def p95(self, names: tuple[str, ...]) -> float:
        """Return the 95th percentile over some requests."""
        every = [seconds for name in names for seconds in self.seconds[name]]
        return statistics.quantiles(every, n=20)[-1] if len(every) > 1 else float("nan")


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run the app as on a Space; yield its address and process id."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPACE_ID": "owner/ram-studio",
        "TMPDIR": str(folder),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    pids: list[int] = []

    def started(pid: int) -> None:
        pids.append(pid)
        with contextlib.suppress(AttributeError, OSError):  # not on every system
            os.sched_setaffinity(pid, sorted(os.sched_getaffinity(0))[:2])

    command = [sys.executable, "-c", SERVER, str(GONE_SECONDS)]
    with running_app(command, folder, environment, on_start=started) as url:
        yield url, pids[0]


async def visit(url: str, number: int, end: float, log: Log) -> None:
    """Be one visitor until the time is over."""
    think = random.Random(number)
    await asyncio.sleep(think.uniform(0, 8))
    async with Visitor(url, f"127.0.0.{number % 250 + 2}") as visitor:
        try:
            async with log.timed("page"):
                await visitor.open()
            while time.monotonic() < end:
                await _round(visitor, think, end, log)
        except (RefusedError, httpx.HTTPError):
            return


async def _round(visitor: Visitor, think: random.Random, end: float, log: Log) -> None:
    async def pause(least: float, most: float) -> bool:
        await asyncio.sleep(min(think.uniform(least, most), max(0.0, end - time.monotonic())))
        return time.monotonic() < end

    async with log.timed("example"):
        await visitor.press("use-example")
    # Tuning: the browser computes; no request.
    if not await pause(5, 20):
        return
    async with log.timed("details"):
        await visitor.press("draw-details")
    async with log.timed("preview"):
        await visitor.call("preview", r=think.uniform(0, 0.5))
    if not await pause(2, 8):
        return
    async with log.timed("merge"):
        # A class tries the same few settings.
        r = think.choice([0.0, 0.1, 0.2, 0.3])
        merged = await visitor.call("merge", method="ram+", settings={"r": r})
    if not await pause(3, 10):
        return
    async with log.timed("check"):
        models = ["base", "coding", merged["merge"]]
        await visitor.call("evaluate", models=models, limit=50)
    await pause(2, 8)
    async with log.timed("history"):
        await visitor.press("to-history")
    await pause(5, 20)


def calls_while_tuning(url: str) -> int:
    """Return how many of the page's events call the server when a slider of Tune moves."""

    async def count() -> int:
        async with Visitor(url) as visitor:
            await visitor.open()
            return sum(len(visitor.handlers(name)) for name in TUNED)

    return asyncio.run(count())


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process held, 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder, without the log."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "app.log"]
    return sum(path.stat().st_size for path in files)


def run(visitors: int, seconds: float) -> dict[str, float]:
    """Let them all in; return the figures."""
    with tempfile.TemporaryDirectory(prefix="ram-space-") as name:
        folder = Path(name)
        with server(folder) as (url, pid):
            calls = calls_while_tuning(url)
            time.sleep(GONE_SECONDS + 7)  # that visitor's session
            before, log = folder_bytes(folder), Log()

            async def everybody() -> int:
                end = time.monotonic() + seconds
                await asyncio.gather(*(visit(url, n, end, log) for n in range(visitors)))
                return folder_bytes(folder)  # of visitors who have just left

            during = asyncio.run(everybody())
            time.sleep(GONE_SECONDS + 7)
            after, peak = folder_bytes(folder), peak_bytes(pid)
        left = folder_bytes(folder)
    print(f"{visitors} visitors, {seconds:g} s. {machine_facts()}")
    rows = [
        (name, len(times), f"{statistics.median(times):.2f}", f"{max(times):.2f}")
        for name, times in sorted(log.seconds.items())
    ]
    print(table(("request", "times", "median s", "most s"), rows))
    for error in sorted(set(log.errors))[:10]:
        print(f"error ({log.errors.count(error)}x): {error}")
    return {
        "errors": len(log.errors),
        "calls_while_tuning": calls,
        "light_p95": log.p95(LIGHT),
        "heavy_p95": log.p95(HEAVY),
        "peak_bytes": peak,
        "disk_before": before,
        "disk_during": during,
        "disk_after": after,
        "disk_after_sigterm": left,
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse the flags, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visitors", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=180.0)
    flags = parser.parse_args(arguments)
    figures = run(flags.visitors, flags.seconds)
    print(f"errors                      {figures['errors']:.0f}")
    print(f"server calls while tuning   {figures['calls_while_tuning']:.0f}")
    print(f"light requests, p95         {figures['light_p95']:.2f} s")
    print(f"heavy jobs, p95             {figures['heavy_p95']:.2f} s")
    print(f"most memory of the server   {figures['peak_bytes'] / 1e9:.2f} GB")
    kinds = ("before", "during", "after", "after_sigterm")
    disk = ", ".join(f"{kind} {figures[f'disk_{kind}'] / 1e6:.1f} MB" for kind in kinds)
    print(f"disk                        {disk}")
    return 1 if figures["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
