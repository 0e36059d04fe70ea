"""The stage without the app: keys, what a screen reader is told, and the box at the pointer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from app_parts import run

from ram_studio.app.session.sets import build_profile
from ram_studio.app.templates import render
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path

pytestmark = pytest.mark.browser

_FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => done())))"""

_MOUNT = """async (html, profile, table) => {
  document.body.innerHTML = "<div id=live></div>";
  const live = document.getElementById("live");
  live.innerHTML = html;
  delete document.documentElement.dataset.panel;
  const [canvas, store] = await Promise.all(
    ["canvas", "store"].map((name) => import(`./canvas/${name}.js`)));
  Object.assign(window, { canvas, store });
  RAM.mount(live, { value: profile }, () => {});
  canvas.setTable(profile, table);
  canvas.reset();
}"""


@cache
def shipped(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a shipped set's profile and its table of measured settings."""
    folder = asset_path(name)
    analysis = load_analysis(folder / "analysis.safetensors")
    return build_profile(analysis), load_table(folder / "skills.json.gz")


def settle(page: Any) -> None:
    """Wait until the stage has drawn what it shows."""
    page.evaluate(_FRAMES)


def choose(page: Any, **settings: Any) -> None:
    """Choose settings on the stage, and wait until they are drawn."""
    run(page, "(settings) => store.choose(settings, 'method')", settings)
    settle(page)


def setting(page: Any, name: str) -> Any:
    """Return one of the settings that the stage shows, after a frame."""
    settle(page)
    return run(page, "(name) => store.state.settings[name]", name)


@pytest.fixture
def stage(page: Any) -> Any:
    """A page with the stage alone, at the paper's setting of the default set."""
    page.set_viewport_size({"width": 1280, "height": 800})
    run(page, _MOUNT, render("tune/canvas.html.j2"), *shipped("shared-style"))
    settle(page)
    return page


def test_escape_ends_a_presentation_from_a_slider(stage) -> None:
    stage.evaluate("() => store.weigh(0)")
    stage.evaluate("() => canvas.present(true)")
    stage.click("[data-panel=parts]")
    settle(stage)
    stage.focus("[data-weigh=coding]")
    stage.keyboard.press("Escape")
    assert not stage.evaluate("() => canvas.isPresenting()")


# ---------------------------------------------------------------------------- the lesson

_LESSON = """async (record) => {
  store.state.profile.set = "shared-style";
  const lesson = await import("./lesson/lesson.js");
  (await import("./lesson/progress.js")).forget();
  const ignore = () => {};
  lesson.mountLesson({ open: ignore, openSet: ignore, recordOf: async () => record,
    remember: ignore, titled: ignore, kit: "#kit" });
  lesson.takeLesson("average");
}"""


@pytest.fixture
def lesson(stage: Any) -> Any:
    """The stage in the second scene of the lesson, which asks for a prediction."""
    run(stage, _LESSON, {})
    stage.wait_for_selector(".ls[data-phase=predict]")
    settle(stage)
    return stage


def test_a_key_moves_no_method_before_the_prediction(lesson) -> None:
    before = setting(lesson, "method")
    lesson.keyboard.press("m")
    assert setting(lesson, "method") == before
    lesson.click("[data-part=lesson-predict]")
    lesson.wait_for_selector(".ls[data-phase=drag]")
    lesson.keyboard.press("m")
    assert setting(lesson, "method") != before


def test_who_leaves_the_lesson_sees_none_of_its_marks(lesson) -> None:
    lesson.click("[data-part=lesson-predict]")
    lesson.wait_for_selector(".ls-target")
    lesson.click(".ls-leave")
    settle(lesson)
    assert lesson.locator(".ls, .ls-target, [inert]").count() == 0
