"""The job queue: light before heavy jobs, no starvation, no job and no part twice at once."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

import pytest
from app_parts import Clock

from ram_studio.app.public.job_queue import Effort, JobQueue, QueueFullError, Ticket
from ram_studio.app.session.jobs import Job
from ram_studio.app.session.session import Session
from ram_studio.engine.events import CancelToken
from ram_studio.errors import Stopped


@pytest.fixture
def queue(clock: Clock) -> JobQueue:
    return JobQueue(1, per_address=2, clock=clock)


def seconds(amount: float) -> Effort:
    return Effort("seconds", {"": amount})


def enter(queue: JobQueue, effort: Effort | float, who: str) -> Ticket:
    work = effort if isinstance(effort, Effort) else seconds(effort)
    return queue.enter(work, who, f"10.0.0.{who}")


def runs(ticket: Ticket) -> bool:
    return ticket.granted.is_set()


def test_a_light_job_never_waits_for_a_heavy_one(queue: JobQueue) -> None:
    check, sweep = enter(queue, 30, "1"), enter(queue, 30, "2")
    merge = enter(queue, 0.5, "3")
    assert (runs(check), runs(sweep), runs(merge)) == (True, False, True)


def test_the_shortest_goes_first_and_waiting_counts(queue: JobQueue, clock: Clock) -> None:
    first = enter(queue, 30, "1")
    old = enter(queue, 40, "2")
    clock.now += 60
    young, short = enter(queue, 20, "3"), enter(queue, 5, "4")
    assert queue.position(old).number == 1, "it waited longer than it will take"
    assert [queue.position(t).number for t in (short, young)] == [2, 3]
    first.leave()
    assert runs(old)
    assert not runs(short)


def test_a_session_and_an_address_run_one_job_and_wait_with_one(queue: JobQueue) -> None:
    first = queue.enter(seconds(1), "tab", "10.0.0.1")
    second = queue.enter(seconds(1), "tab", "10.0.0.1")
    other_tab = queue.enter(seconds(1), "other", "10.0.0.2")
    assert (runs(first), runs(second), runs(other_tab)) == (True, False, True)
    with pytest.raises(QueueFullError, match=r"You already have 2 jobs .* Wait for one"):
        queue.enter(seconds(1), "tab", "10.0.0.3")
    with pytest.raises(QueueFullError, match="Your address already has 2 jobs"):
        queue.enter(seconds(1), "third", "10.0.0.1")
    other_tab.leave()
    first.leave()
    assert runs(second)


def test_queue_length_is_limited_per_address_and_in_all(clock: Clock) -> None:
    queue = JobQueue(1, most_waiting=3, clock=clock, hint="Duplicate this Space.", per_address=2)
    for number in range(40):
        with contextlib.nullcontext() if number < 2 else pytest.raises(QueueFullError):
            queue.enter(seconds(1800), f"bot{number}", "10.9.9.9")
    assert runs(enter(queue, 0.5, "1")), "there is room for a user"
    enter(queue, 60, "2"), enter(queue, 60, "3")
    with pytest.raises(QueueFullError, match=r"3 jobs are queued .* Duplicate this Space\.$"):
        enter(queue, 60, "4")


def test_equal_checks_wait_for_one_run_and_are_short_then(queue: JobQueue) -> None:
    # The base and an agent are the same for all; twenty students check the same merge.
    check = Effort("answers", {"base": 900, "coding": 900, "merge": 900})
    first, *others = (enter(queue, check, str(n)) for n in range(20))
    assert runs(first)
    assert not any(runs(ticket) for ticket in others)
    assert queue.position(others[0]).seconds == pytest.approx(54, abs=1), "as long as the run takes"
    merge = enter(queue, 0.5, "30")
    assert runs(merge)
    first.leave(finished=True)
    assert runs(others[0])
    assert queue.position(others[-1]).seconds < 20, "their answers are stored"


def test_a_run_that_was_stopped_is_run_by_the_next(queue: JobQueue, clock: Clock) -> None:
    check = Effort("answers", {"base": 900})
    first, second = enter(queue, check, "1"), enter(queue, check, "2")
    third = enter(queue, check, "3")
    first.leave(finished=False)
    assert runs(second)
    assert queue.position(third).seconds > 10


def test_rates_are_learned(queue: JobQueue, clock: Clock) -> None:
    for who in ("1", "2", "3", "4", "5", "6", "7", "8"):
        ticket = enter(queue, Effort("merge", {"": 1e9}), who)
        clock.now += 1
        ticket.leave(finished=True)
    enter(queue, 60, "1"), enter(queue, 2, "2")
    waiting = [enter(queue, Effort("merge", {"": 5e9}), who) for who in ("3", "4")]
    gap = queue.position(waiting[1]).seconds - queue.position(waiting[0]).seconds
    assert gap == pytest.approx(5, rel=0.2)


def test_overdue_light_jobs_do_not_block_their_slot(queue: JobQueue, clock: Clock) -> None:
    enter(queue, 60, "1"), enter(queue, 1, "2")
    third = enter(queue, 1, "3")
    assert not runs(third)
    clock.now += 11
    fourth = enter(queue, 1, "4")
    assert runs(third)
    assert not runs(fourth)


def test_leaving_while_queued(queue: JobQueue) -> None:
    first, second, third = (enter(queue, 30, who) for who in "123")
    cancel = CancelToken()
    threading.Timer(0.05, cancel.cancel).start()
    with pytest.raises(Stopped):
        second.wait(cancel, poll_seconds=0.01)
    second.leave()
    assert queue.position(second) is None
    assert queue.position(third).number == 1
    first.leave()
    third.wait(CancelToken())
    third.leave()
    assert queue.counts == (0, 0)


def test_heavy_work_steps_back_behind_pages(tmp_path: Path) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    found: list[int] = []
    mine = priority()
    session = Session("tab", tmp_path, is_public=True)
    job = Job(session, lambda report, cancel: found.append(priority()))
    list(job.updates())
    # Elsewhere threads have no priority of their own.
    assert found == [min(mine + 5, 19) if sys.platform == "linux" else mine]
    assert priority() == mine, "whoever answers pages stays"
