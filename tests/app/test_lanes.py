"""Whose job runs next: short before long, nobody for ever last, nobody twice, nothing twice."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

import pytest
from app_parts import Clock

from ram_studio.app.jobs import Job
from ram_studio.app.public.lanes import Effort, Lanes, LineFullError, Turn
from ram_studio.app.session import Session
from ram_studio.engine.events import CancelToken
from ram_studio.errors import Stopped


@pytest.fixture
def lanes(clock: Clock) -> Lanes:
    return Lanes(1, per_address=2, clock=clock)


def seconds(amount: float) -> Effort:
    return Effort("seconds", {"": amount})


def enter(lanes: Lanes, effort: Effort | float, who: str) -> Turn:
    work = effort if isinstance(effort, Effort) else seconds(effort)
    return lanes.enter(work, who, f"10.0.0.{who}")


def runs(turn: Turn) -> bool:
    return turn.granted.is_set()


def test_a_short_job_never_stands_behind_a_long_one(lanes: Lanes) -> None:
    check, sweep = enter(lanes, 30, "1"), enter(lanes, 30, "2")
    merge = enter(lanes, 0.5, "3")
    assert (runs(check), runs(sweep), runs(merge)) == (True, False, True)


def test_the_shortest_goes_first_and_waiting_counts(lanes: Lanes, clock: Clock) -> None:
    first = enter(lanes, 30, "1")
    old = enter(lanes, 40, "2")
    clock.now += 60
    young, short = enter(lanes, 20, "3"), enter(lanes, 5, "4")
    assert lanes.place(old).number == 1, "it waited longer than it will take"
    assert [lanes.place(t).number for t in (short, young)] == [2, 3]
    first.leave()
    assert runs(old)
    assert not runs(short)


def test_a_session_and_an_address_run_one_job_and_wait_with_one(lanes: Lanes) -> None:
    first = lanes.enter(seconds(1), "tab", "10.0.0.1")
    second = lanes.enter(seconds(1), "tab", "10.0.0.1")
    other_tab = lanes.enter(seconds(1), "other", "10.0.0.2")
    assert (runs(first), runs(second), runs(other_tab)) == (True, False, True)
    with pytest.raises(LineFullError, match=r"2 jobs of you .* Wait for one"):
        lanes.enter(seconds(1), "tab", "10.0.0.3")
    with pytest.raises(LineFullError, match="2 jobs of your address"):
        lanes.enter(seconds(1), "third", "10.0.0.1")
    other_tab.leave()
    first.leave()
    assert runs(second)


def test_the_line_ends_somewhere_for_an_address_and_for_all(clock: Clock) -> None:
    lanes = Lanes(1, most_waiting=3, clock=clock, hint="Duplicate this Space.", per_address=2)
    for number in range(40):
        with contextlib.nullcontext() if number < 2 else pytest.raises(LineFullError):
            lanes.enter(seconds(1800), f"bot{number}", "10.9.9.9")
    assert runs(enter(lanes, 0.5, "1")), "there is room for a visitor"
    enter(lanes, 60, "2"), enter(lanes, 60, "3")
    with pytest.raises(LineFullError, match=r"3 jobs are in line .* Duplicate this Space\.$"):
        enter(lanes, 60, "4")


def test_equal_checks_wait_for_one_run_and_are_short_then(lanes: Lanes) -> None:
    # The base and an agent are the same for all; twenty students check the same merge.
    check = Effort("answers", {"base": 900, "coding": 900, "merge": 900})
    first, *others = (enter(lanes, check, str(n)) for n in range(20))
    assert runs(first)
    assert not any(runs(turn) for turn in others)
    assert lanes.place(others[0]).seconds == pytest.approx(54, abs=1), "as long as the run takes"
    merge = enter(lanes, 0.5, "30")
    assert runs(merge)
    first.leave(finished=True)
    assert runs(others[0])
    assert lanes.place(others[-1]).seconds < 20, "their answers are stored"


def test_a_run_that_was_stopped_is_run_by_the_next(lanes: Lanes, clock: Clock) -> None:
    check = Effort("answers", {"base": 900})
    first, second = enter(lanes, check, "1"), enter(lanes, check, "2")
    third = enter(lanes, check, "3")
    first.leave(finished=False)
    assert runs(second)
    assert lanes.place(third).seconds > 10


def test_rates_are_learned(lanes: Lanes, clock: Clock) -> None:
    for who in ("1", "2", "3", "4", "5", "6", "7", "8"):
        turn = enter(lanes, Effort("merge", {"": 1e9}), who)
        clock.now += 1
        turn.leave(finished=True)
    enter(lanes, 60, "1"), enter(lanes, 2, "2")
    waiting = [enter(lanes, Effort("merge", {"": 5e9}), who) for who in ("3", "4")]
    gap = lanes.place(waiting[1]).seconds - lanes.place(waiting[0]).seconds
    assert gap == pytest.approx(5, rel=0.2)


def test_short_jobs_that_turn_out_long_do_not_close_their_lane(lanes: Lanes, clock: Clock) -> None:
    enter(lanes, 60, "1"), enter(lanes, 1, "2")
    third = enter(lanes, 1, "3")
    assert not runs(third)
    clock.now += 11
    fourth = enter(lanes, 1, "4")
    assert runs(third)
    assert not runs(fourth)


def test_leaving_while_in_line(lanes: Lanes) -> None:
    first, second, third = (enter(lanes, 30, who) for who in "123")
    cancel = CancelToken()
    threading.Timer(0.05, cancel.cancel).start()
    with pytest.raises(Stopped):
        second.wait(cancel, poll_seconds=0.01)
    second.leave()
    assert lanes.place(second) is None
    assert lanes.place(third).number == 1
    first.leave()
    third.wait(CancelToken())
    third.leave()
    assert lanes.counts == (0, 0)


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
