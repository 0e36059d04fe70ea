"""Many users on one server: are all requests served, and how long do users wait?

The app runs as on a public Space, in a separate process, on two processors and over loopback only.
Users arrive within the first seconds, each from its own address, and act like a course: open the
page, load the example, tune (in the browser: no request), open the details, merge, check the merge
against the base and an agent, read History; repeated until the time is over.

    python benchmarks/space.py [--users 30] [--seconds 180] [--sessions 200]

It prints errors, server calls while tuning, the times of light requests and heavy jobs (including
waits) with the machine's load average, the server's peak memory, its memory after many sessions
were opened and closed, and disk usage before, with all users, and after all left.
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

# The HTTP user of the tests.
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "app")]
from app_process import running_app
from http_user import HttpUser, RefusedError

LIGHT = ("page", "example", "details", "preview", "history")
HEAVY = ("merge", "check")
LOADS = ("before", "at the end", "in 5 minutes")
TUNED = ("settings", "record-settings")
GONE_SECONDS = 8.0
SETTLED_SECONDS = GONE_SECONDS + 7
_AT_ONCE = 10

SERVER = """
import dataclasses, sys
from ram_studio.app import Settings, launch
settings = Settings.from_environment()
launch(dataclasses.replace(settings, gone_seconds=float(sys.argv[1])), quiet=True)
"""


@dataclass
class Log:
    """The users' measurements: seconds by request, and error messages."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def timed(self, name: str) -> AsyncIterator[None]:
        """Time a request; an error is recorded and ends the user's round."""
        start = time.perf_counter()
        try:
            yield
        except (RefusedError, httpx.HTTPError) as error:
            self.errors.append(f"{name}: {type(error).__name__} {error}"[:200])
            raise
        self.seconds[name].append(time.perf_counter() - start)

    def p95(self, names: tuple[str, ...]) -> float:
        """Return the 95th percentile over these requests."""
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
    """Act as one user until the time is over."""
    think = random.Random(number)
    await asyncio.sleep(think.uniform(0, 8))
    async with HttpUser(url, f"127.0.0.{number % 250 + 2}") as user:
        try:
            async with log.timed("page"):
                await user.open()
            while time.monotonic() < end:
                await _round(user, think, end, log)
        except (RefusedError, httpx.HTTPError):
            return


async def _round(user: HttpUser, think: random.Random, end: float, log: Log) -> None:
    async def pause(least: float, most: float) -> bool:
        await asyncio.sleep(min(think.uniform(least, most), max(0.0, end - time.monotonic())))
        return time.monotonic() < end

    async with log.timed("example"):
        await user.press("use-shared-style")
    # Tuning: the browser computes; no request.
    if not await pause(5, 20):
        return
    async with log.timed("details"):
        await user.press("draw-details")
    async with log.timed("preview"):
        await user.call("preview", r=think.uniform(0, 0.5))
    if not await pause(2, 8):
        return
    async with log.timed("merge"):
        # A class tries few settings, mostly the same.
        r = think.choice([0.0, 0.1, 0.2, 0.3])
        merged = await user.call("merge", method="ram+", settings={"r": r})
    if not await pause(3, 10):
        return
    async with log.timed("check"):
        models = ["base", "coding", merged["merge"]]
        await user.call("evaluate", models=models, limit=50)
    await pause(2, 8)
    async with log.timed("history"):
        await user.press("to-history")
    await pause(5, 20)


def calls_while_tuning(url: str) -> int:
    """Return the number of the page's events that call the server when a slider of Tune moves."""

    async def count() -> int:
        async with HttpUser(url) as user:
            await user.open()
            return sum(len(user.handlers(name)) for name in TUNED)

    return asyncio.run(count())


def open_and_close(url: str, sessions: int) -> None:
    """Open this many pages with a set, ten in parallel, and close them."""

    async def one(number: int, turns: asyncio.Semaphore) -> None:
        async with turns, HttpUser(url, f"127.0.0.{number % 250 + 2}") as user:
            await user.open()
            await user.press("use-shared-style")

    async def every() -> None:
        turns = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(one(number, turns) for number in range(sessions)))

    asyncio.run(every())


def memory_bytes(pid: int, field: str) -> int:
    """Return a process's current (VmRSS) or peak memory (VmHWM), 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder, without the log."""
    total = 0
    # os.walk skips folders that the server deletes meanwhile.
    for parent, _, names in os.walk(folder):
        for name in set(names) - {"app.log"}:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def run(users: int, seconds: float, sessions: int) -> dict[str, float]:
    """Open and close the sessions, then run all users; return the measurements."""
    with tempfile.TemporaryDirectory(prefix="ram-space-") as name:
        folder = Path(name)
        with server(folder) as (url, pid):
            calls = calls_while_tuning(url)
            time.sleep(SETTLED_SECONDS)  # that user's session
            start = memory_bytes(pid, "VmRSS")
            open_and_close(url, sessions)
            time.sleep(SETTLED_SECONDS)
            grown = memory_bytes(pid, "VmRSS") - start
            load = os.getloadavg()[0]
            before, log = folder_bytes(folder), Log()

            async def everybody() -> int:
                end = time.monotonic() + seconds
                await asyncio.gather(*(visit(url, n, end, log) for n in range(users)))
                return folder_bytes(folder)  # after all users left

            during = asyncio.run(everybody())
            loads = load, *os.getloadavg()[:2]
            time.sleep(SETTLED_SECONDS)
            after, peak = folder_bytes(folder), memory_bytes(pid, "VmHWM")
        left = folder_bytes(folder)
    print(f"{users} users, {seconds:g} s. {machine_facts()}")
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
        **{f"load_{when}": load for when, load in zip(LOADS, loads, strict=True)},
        "peak_bytes": peak,
        "sessions_bytes": grown,
        "disk_before": before,
        "disk_during": during,
        "disk_after": after,
        "disk_after_sigterm": left,
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse the flags, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--sessions", type=int, default=200)
    flags = parser.parse_args(arguments)
    figures = run(flags.users, flags.seconds, flags.sessions)
    print(f"errors                      {figures['errors']:.0f}")
    print(f"server calls while tuning   {figures['calls_while_tuning']:.0f}")
    print(f"light requests, p95         {figures['light_p95']:.2f} s")
    print(f"heavy jobs, p95             {figures['heavy_p95']:.2f} s")
    load = ", ".join(f"{figures[f'load_{when}']:.1f} {when}" for when in LOADS)
    print(f"load average                {load}")
    print(f"most memory of the server   {figures['peak_bytes'] / 1e9:.2f} GB")
    grown = f"{figures['sessions_bytes'] / 1e6:+.0f} MB after {flags.sessions} opened and closed"
    print(f"memory since the start      {grown}")
    kinds = ("before", "during", "after", "after_sigterm")
    disk = ", ".join(f"{kind} {figures[f'disk_{kind}'] / 1e6:.1f} MB" for kind in kinds)
    print(f"disk                        {disk}")
    return 1 if figures["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
