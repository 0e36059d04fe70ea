"""A class in one room while others merge: does every vote arrive, and how soon is it visible?

The app runs as on a public Space, in a separate process, on two processors and over loopback.
Students have one address, like a school's, join, poll every two seconds (plus or minus a quarter)
and vote in both rounds of every question; a teacher leads; two users merge without pause.

    python benchmarks/room.py [--students 60] [--questions 7] [--merging 2]

It prints errors, missing votes at the end, the time of a vote, the time from the teacher's click to
a student's reveal, the server's memory before and after, and the handlers' computing time in a full
room.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
from measuring import machine_facts, table
from space import HttpUser, Log, RefusedError, memory_bytes, server

from ram_studio.app.room import report, views
from ram_studio.app.room.questions import MAX_QUESTIONS, NewRoom
from ram_studio.app.room.rooms import MAX_STUDENTS, Room

EVERY = 2.0
STAYS = {"ask": 2.0, "first": 6.0, "talk": 2.0, "second": 6.0, "reveal": 5.0}
"""Seconds of each phase: a lesson many times faster than a real one."""
_SETTLED = 20.0
_CERTIFICATES = ssl.create_default_context()
"""One for all students: creating one takes longer than joining."""


def question(number: int) -> dict[str, Any]:
    """Return a question as long as the lesson's."""
    return {
        "id": f"question-{number}",
        "title": f"Question {number}",
        "ask": ["Alone, each agent solves its own skill. Which share does one merge solve? " * 3],
        "line": {"low": 0, "high": 100, "step": 1, "unit": "%"},
        "truth": {"value": 68, "text": "123 of 180 (68 %, 95 % interval 61 to 75 %)"},
        "reveal": ["Averaging divides every change by the number of agents. " * 5],
        "explore": "?set=shared-style&rule=average",
    }


class Lesson:
    """One room on a server, and its users' measurements."""

    def __init__(self, url: str, log: Log) -> None:
        self.url, self.log = url, log
        self.code, self.revealed = "", dict[int, float]()
        self.is_over = asyncio.Event()
        self.missing = 0

    async def ask(self, http: httpx.AsyncClient, name: str, path: str, **more: Any) -> Any:
        """Return a timed response; another status than 200 and 304 is an error."""
        async with self.log.timed(name):
            verb = "POST" if "json" in more else "GET"
            answer = await http.request(verb, f"room/api{path}", **more)
            if answer.status_code not in (200, 304):
                raise RefusedError(f"{answer.status_code} {answer.text[:100]}")
        return answer

    def client(self) -> httpx.AsyncClient:
        """Return a browser of this lesson's."""
        return httpx.AsyncClient(base_url=self.url, timeout=60, verify=_CERTIFICATES)

    async def student(self, number: int) -> None:
        """Act as one student until the lesson is over."""
        draw = random.Random(number)
        await asyncio.sleep(draw.uniform(0, 3))
        async with self.client() as http:
            joined = await self.ask(http, "join", f"/{self.code}/join", json={})
            headers = {"Room-Student": joined.json()["student"]}
            etag, done = "", set()
            while not self.is_over.is_set():
                extra = {"If-None-Match": etag} if etag else {}
                poll = await self.ask(http, "poll", f"/{self.code}", headers={**headers, **extra})
                if poll.status_code == 200:
                    etag, state = poll.headers["etag"], poll.json()
                    step = (state["place"], state["phase"])
                    if step not in done:
                        done.add(step)
                        await self._follow(http, headers, step, draw)
                await asyncio.sleep(EVERY * draw.uniform(0.75, 1.25))

    async def _follow(
        self,
        http: httpx.AsyncClient,
        headers: dict[str, str],
        step: tuple[int, str],
        draw: random.Random,
    ) -> None:
        place, phase = step
        if phase == "reveal":
            self.log.seconds["see the reveal"].append(time.perf_counter() - self.revealed[place])
        elif phase in ("first", "second"):
            await asyncio.sleep(draw.uniform(0, 2.5))
            vote = {"place": place, "round": phase, "value": draw.randint(0, 100)}
            await self.ask(http, "vote", f"/{self.code}/vote", json=vote, headers=headers)

    async def lead(self, questions: int, students: int) -> None:
        """Act as the teacher: open the room, admit all students, ask the questions, end."""
        async with self.client() as http:
            new = {"questions": [question(n) for n in range(questions)]}
            opened = (await self.ask(http, "open", "", json=new)).json()
            self.code = opened["code"]
            headers = {"Room-Token": opened["token"]}
            at = f"/{self.code}/teacher"
            class_ = [asyncio.create_task(self.student(n)) for n in range(students)]
            await asyncio.sleep(6)
            state = (await self.ask(http, "watch", at, headers=headers)).json()
            while state["phase"] != "done":
                action = {"action": "next", "place": state["place"], "phase": state["phase"]}
                if state["phase"] == "second":
                    self.revealed[state["place"]] = time.perf_counter()
                state = (await self.ask(http, "lead", at, json=action, headers=headers)).json()
                until = time.monotonic() + STAYS.get(state["phase"], 3.0)
                while time.monotonic() < until:
                    await self.ask(http, "watch", at, headers=headers)
                    await asyncio.sleep(1.0)
            self.is_over.set()
            for task in class_:
                with contextlib.suppress(RefusedError, httpx.HTTPError):
                    await task
            ended = await self.ask(http, "end", at, json={"action": "end"}, headers=headers)
            rounds = [q[name]["answers"] for q in ended.json()["report"]["questions"]
                      for name in ("first", "second")]  # fmt: skip
            self.missing = 2 * questions * students - sum(rounds)


async def merging(url: str, number: int, log: Log, is_over: asyncio.Event) -> None:
    """Act as a user who merges without pause."""
    async with HttpUser(url, f"127.0.0.{number + 2}") as user:
        with contextlib.suppress(RefusedError, httpx.HTTPError):
            await user.open()
            async with log.timed("example"):
                await user.press("use-shared-style")
            n = 0
            while not is_over.is_set():
                n += 1
                async with log.timed("merge"):
                    settings = {"r": 0.001 * (n + 500 * number)}
                    await user.call("merge", method="ram+", settings=settings)


def longest_work() -> list[tuple[str, str]]:
    """Return the computing time of the heaviest handlers in a full room."""
    new = {"questions": [question(n) for n in range(MAX_QUESTIONS)]}
    made = NewRoom.read(new)
    room = Room("BCDF", "token", list(made.questions), 0.0, phase="reveal")
    for number in range(MAX_STUDENTS):
        room.last_seen[str(number)] = 0.0
        for votes in room.votes:
            votes.first[str(number)] = votes.second[str(number)] = float(number % 101)
    results = report.results(room)
    work: dict[str, Callable[[], Any]] = {
        "opening (24 questions)": lambda: NewRoom.read(new),
        "a student's poll": lambda: orjson.dumps(views.student_view(room, "1")),
        "the teacher's poll": lambda: orjson.dumps(views.teacher_view(room, 0.0)),
        "report": lambda: report.results(room),
        "CSV": lambda: report.csv_text(results),
    }
    rows = []
    for name, act in work.items():
        times = []
        for _ in range(50):
            start = time.perf_counter()
            act()
            times.append(time.perf_counter() - start)
        rows.append((name, f"{1e3 * statistics.median(times):.2f}", f"{1e3 * max(times):.2f}"))
    return rows


async def run(url: str, students: int, questions: int, others: int) -> tuple[Log, Lesson]:
    """Hold a lesson beside users who merge."""
    log = Log()
    lesson = Lesson(url, log)
    users = [asyncio.create_task(merging(url, n, log, lesson.is_over)) for n in range(others)]
    try:
        await lesson.lead(questions, students)
    finally:
        lesson.is_over.set()
        await asyncio.gather(*users)
    return log, lesson


def main(arguments: list[str] | None = None) -> int:
    """Parse the flags, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=60)
    parser.add_argument("--questions", type=int, default=7)
    parser.add_argument("--merging", type=int, default=2)
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ram-room-") as name, server(Path(name)) as (url, pid):
        # The first merge loads and compiles; then the server is warm.
        asyncio.run(run(url, 2, 1, flags.merging))
        time.sleep(_SETTLED)
        before = memory_bytes(pid, "VmRSS")
        log, lesson = asyncio.run(run(url, flags.students, flags.questions, flags.merging))
        time.sleep(_SETTLED)
        after = memory_bytes(pid, "VmRSS")
    print(f"{flags.students} students, {flags.questions} questions. {machine_facts()}")
    rows = [
        (
            what,
            len(times),
            f"{1e3 * statistics.median(times):.0f}",
            f"{1e3 * log.p95((what,)):.0f}",
            f"{1e3 * max(times):.0f}",
        )
        for what, times in sorted(log.seconds.items())
    ]
    print(table(("request", "times", "median ms", "p95 ms", "most ms"), rows))
    print(table(("work in a full room", "median ms", "most ms"), longest_work()))
    for error in sorted(set(log.errors))[:10]:
        print(f"error ({log.errors.count(error)}x): {error}")
    print(f"errors          {len(log.errors)}")
    print(f"missing votes   {lesson.missing}")
    print(f"memory          {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
    return 1 if log.errors or lesson.missing else 0


if __name__ == "__main__":
    sys.exit(main())
