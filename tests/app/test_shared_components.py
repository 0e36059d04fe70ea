"""What every panel is made of: templates that escape, a watched job, a change that all show."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_analyses import make_analysis

from ram_studio.app import templates
from ram_studio.app.session import jobs
from ram_studio.app.session.jobs import JobControls, watch
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.shared import Change
from ram_studio.errors import OutputError, RamStudioError, SettingsError, Stopped

NASTY = "<img src=x onerror='a()'>&\""


@pytest.mark.parametrize(
    "html",
    [
        templates.callout(NASTY, "warn"),
        templates.empty_state(NASTY),
        templates.step_head(NASTY, NASTY),
        templates.progress(0.5, NASTY, NASTY),
        templates.failure(RamStudioError(NASTY), "stopped"),
        templates.callout("ours") + NASTY,
    ],
)
def test_texts_from_elsewhere_stay_text(html: str) -> None:
    assert "<img" not in html
    assert "onerror='" not in html
    assert "&lt;img" in html
    # What is HTML already is not escaped again.
    assert html in html + templates.callout("a < b")
    assert templates.failure(Stopped("x"), "Stopped.") == templates.callout("Stopped.")


@pytest.mark.parametrize("fraction", [None, -1.0, 0.0, 0.25, 2.0])
def test_progress_stays_between_its_ends(fraction: float | None) -> None:
    html = templates.progress(fraction, "work")
    assert ("aria-valuenow" in html) == (fraction is not None)
    if fraction is not None:
        assert f'aria-valuenow="{100 * min(max(fraction, 0), 1):.0f}"' in html


@pytest.fixture
def session(tmp_path: Path) -> Session:
    loaded = LoadedModels("x", None, "base", {"agent0": "a", "agent1": "b"}, make_analysis(2))
    return Session("key", tmp_path, loaded)


@pytest.fixture
def controls() -> JobControls:
    # Only keys here: ``watch`` asks nothing of its components.
    return JobControls("start", "stop", "status")


def run(session: Session, controls: JobControls, prepare: Callable, **more: Any) -> list[dict]:
    def tell(event: Any) -> dict:
        return {controls.status: f"at {event}"}

    def finish(result: Any) -> dict:
        if result == "too large":
            raise OutputError("cannot be shown")
        return {controls.status: f"done {result}"}

    return list(watch(session, controls, prepare, tell, finish, **more))


def test_a_job_is_told_from_start_to_end(session: Session, controls: JobControls) -> None:
    first, *_, last = run(session, controls, lambda: lambda report, cancel: 7)
    assert first[controls.status] == "at None"
    assert (first[controls.start]["interactive"], first[controls.stop]["visible"]) == (False, True)
    assert last[controls.status] == "done 7"
    assert (last[controls.start]["interactive"], last[controls.stop]["visible"]) == (True, False)
    assert session.job.is_done


def _refuse() -> Any:
    raise SettingsError("tick one")


def _fail(error: Exception) -> Callable:
    def work(report: Any, cancel: Any) -> None:
        raise error

    return lambda: work


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_refuse, "tick one"),
        (_fail(SettingsError("found x")), "found x"),
        (_fail(Stopped("x")), jobs.STOPPED),
        (_fail(ZeroDivisionError("secret")), "ZeroDivisionError"),
        (lambda: lambda report, cancel: "too large", "cannot be shown"),
    ],
)
def test_what_went_wrong_is_said_and_the_panel_is_ready_again(
    session: Session, controls: JobControls, caplog: Any, prepare: Callable, said: str
) -> None:
    *_, last = run(session, controls, prepare)
    assert said in last[controls.status]
    # A bug's own words are for the log.
    assert "secret" not in last[controls.status]
    assert ("secret" in caplog.text) == ("ZeroDivision" in said)
    assert last.get(controls.start, {"interactive": True})["interactive"]


def test_nothing_starts_without_models_or_beside_another_job(session, controls) -> None:
    class Busy:
        is_done = False

    session.job = Busy()
    (refused,) = run(session, controls, _refuse)
    assert jobs.BUSY in refused[controls.status]
    session.job = session.loaded = None
    (refused,) = run(session, controls, _refuse)
    assert jobs.NEED_LOAD in refused[controls.status]
    *_, last = run(session, controls, lambda: lambda *_: 1, needs_loaded=False)
    assert last[controls.status] == "done 1"


def test_what_stays_as_it_was_is_not_sent_again(session: Session, controls: JobControls) -> None:
    seen = [threading.Event() for _ in range(4)]

    def work(report: Any, cancel: Any) -> None:
        for number, event in enumerate(seen):
            report(number)
            assert event.wait(60)

    def tell(event: Any) -> dict:
        if event is None:
            return {controls.status: "", "grid": ""}
        seen[event].set()
        return {controls.status: f"speed {event // 3}", "grid": f"{event // 2} answers"}

    _, *told, _ = watch(session, controls, lambda: work, tell, lambda _: {}, poll_seconds=0.001)
    both = {controls.status: "speed 0", "grid": "0 answers"}
    assert told == [both, {"grid": "1 answers"}, {controls.status: "speed 1"}]


def test_nothing_is_told_once_other_models_are_loaded(session, controls) -> None:
    told, loaded = [], threading.Event()

    def work(report: Any, cancel: Any) -> str:
        report(1)
        assert loaded.wait(60)
        report(2)
        loaded.clear()
        loaded.wait(0.2)  # long enough to be told
        return "late"

    def tell(event: Any) -> dict:
        told.append(event)
        if event == 1:
            session.job.stop(jobs.LOADED)
            loaded.set()
        return {controls.status: f"at {event}"}

    options = {"poll_seconds": 0.001}
    *_, last = watch(session, controls, lambda: work, tell, lambda _: {"grid": ""}, **options)
    assert told == [None, 1]
    assert "grid" not in last
    assert "other models were loaded" in last[controls.status]


def test_leaving_the_page_stops_the_work(session: Session, controls: JobControls) -> None:
    def work(report: Any, cancel: Any) -> None:
        for number in itertools.count():
            report(number)
            cancel.raise_if_cancelled()

    def tell(event: Any) -> dict:
        return {controls.status: str(event)}

    watched = watch(session, controls, lambda: work, tell, lambda result: {})
    next(watched)
    next(watched)
    watched.close()
    assert session.job.is_done
    with pytest.raises(Stopped):
        session.job.result()


def test_a_change_is_shown_by_every_listener_once(session: Session) -> None:
    change = Change()
    change.listen(["a", "b"], lambda s: {"a": s.key, "b": 1})
    change.listen(["b", "c"], lambda s: {"c": 2})
    assert change.components == ["a", "b", "c"]
    assert change.updates(session) == {"a": "key", "b": 1, "c": 2}
