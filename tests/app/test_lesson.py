"""The lesson: its scenes on the shipped sets, and a walk through all of them in the real app."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from app_parts import load_modules, run

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.lesson.scene_answers import few_weights, shared_times, small_push
from ram_studio.app.session.deep_link import SCENES
from ram_studio.app.session.sets import TITLES, load_set, record_of, set_profile, shipped_table

pytestmark = pytest.mark.browser

IDS = tuple(SCENES)
OF_TABLE = ["average", "sum", "ram", "epsilon", "limits"]
"""Scenes that need a table of measured settings."""

SCENES_JS = """async (sets) => {
  const { SCENES } = await import('./lesson/scenes.js');
  const { missingOf } = await import('./lesson/record.js');
  const { skillsOf } = await import('./canvas/model/data.js');
  const { axisOf } = await import('./canvas/model/histogram.js');
  const flat = (pieces) => pieces.flat().join("");
  return SCENES.map((scene) => {
    const { profile, table, record } = sets[scene.set];
    profile.axis ??= axisOf(profile);
    if (table) profile.skills ??= skillsOf(table, profile);
    const at = (settings) => ({ profile, record, settings, skills: profile.skills || null });
    const told = { id: scene.id, title: scene.title, set: scene.set,
      missing: missingOf(scene, at(null)).length,
      bare: missingOf(scene, { profile, record: null, skills: null }).join(" and ") };
    if (told.missing) return told;
    const [start, target] = [scene.start(at(null)), scene.target(at(null))];
    const measured = scene.measured(at(target));
    const shown = at(target);
    return { ...told, target, measured, reveal: flat(scene.reveal(shown)),
      atStart: scene.isReached(at(start)), atTarget: scene.isReached(shown),
      isShare: scene.guess === "share", choices: scene.guess.length,
      ask: flat(scene.ask(at(start))), task: flat(scene.task(at(start))),
      example: scene.example?.(at(start)) ?? null, chart: scene.chart(shown) };
  });
}"""


@pytest.fixture(scope="module")
def scenes(module_page) -> dict[str, dict[str, Any]]:
    sets = {
        folder: {
            "profile": json.loads(set_profile(folder)),
            "table": shipped_table(folder),
            "record": record_of(folder),
        }
        for folder in TITLES
    }
    return {scene["id"]: scene for scene in run(module_page, SCENES_JS, sets)}


def least_alone(point: int) -> float:
    """Return the least share that an agent which learned a skill changed alone."""
    agents = load_set("shared-style").analysis.preview(point)["agents"]
    own = [agents[name] for name in ("coding", "tool", "memory")]
    return min(agent["unique"] / agent["active"] for agent in own)


def right(folder: str, method: str, **settings: Any) -> int:
    """Return how many questions of the three learned skills a row of a table solves."""
    table = shipped_table(folder)
    rows = (row for row in table["rows"] if row["method"] == method)
    (row,) = (row for row in rows if settings.items() <= row["settings"].items())
    return row["right"][: 3 * table["n"]].count("1")


def test_every_scene_begins_unanswered_and_can_be_answered(scenes) -> None:
    assert {name: scene["title"] for name, scene in scenes.items()} == SCENES
    for name, scene in scenes.items():
        assert scene["missing"] == 0, name
        assert (scene["atStart"], scene["atTarget"]) == (False, True), name
        value = scene["measured"]["value"]
        assert 0 <= value <= 1 if scene["isShare"] else value in range(scene["choices"]), name
        texts = [scene[part] for part in ("ask", "task", "reveal")]
        texts += [scene["chart"]["label"], scene["measured"]["text"]]
        assert all(texts), name
        assert not re.search("undefined|NaN|null", " ".join(texts)), name
        # A room tells them without the figure.
        assert not re.search("amber|blue", " ".join(texts)), name


def test_what_is_told_is_what_the_files_hold(scenes) -> None:
    alone = scenes["changed"]["measured"]["value"]
    assert alone == pytest.approx(least_alone(DEFAULT_INDEX), rel=1e-12)
    assert "coding, tool and memory solve 176 of 180" in scenes["average"]["ask"]
    times = shared_times(outcomes_of("shared-style"))
    assert f"applied {times:.1f} times" in scenes["sum"]["reveal"]
    merges = {
        "average": {"method": "task-arithmetic", "scale": None},
        "sum": {"method": "task-arithmetic", "scale": 1.0},
        "ram": {"method": "ram", "epsilon": 1e-5},
        "limits": {"method": "task-arithmetic", "scale": 1.0},
    }
    for name, row in merges.items():
        scene = scenes[name]
        said = f"{right(scene['set'], **row)} of {3 * shipped_table(scene['set'])['n']} ("
        assert scene["measured"]["text"].startswith(said), name
    assert scenes["rounding"]["target"]["point"] == DEFAULT_INDEX
    assert scenes["rounding"]["measured"]["value"] < 0.5  # most of a small push is lost
    few = few_weights()
    said = scenes["epsilon"]["measured"]["text"].replace(",", "")
    assert said.startswith(f"{few.enough} of {few.changed} (")
    reveal = scenes["epsilon"]["reveal"]
    for found in (f"With {few.enough} changes", f"with {few.too_few} ", f"{few.control} largest"):
        assert found in reveal
    assert f"at random {100 * few.random:.0f} % (mean of" in reveal
    name, asked, stored = small_push()
    assert f"{name}: λ {asked:.3f} requested, {stored:.3f} stored" in scenes["rounding"]["reveal"]


def test_a_scene_asks_and_reveals_the_same_method(scenes) -> None:
    named = {"average": "Average", "sum": "Sum", "ram": "RAM", "limits": "Sum"}
    for name, title in named.items():
        scene = scenes[name]
        assert scene["task"] == f"Choose {title}."
        strong = [row for row in scene["chart"]["rows"] if row.get("isStrong")]
        assert [row["name"].lower() for row in strong] == [title.lower()], name
        assert scene["measured"]["text"].startswith(f"{strong[0]['figure']['right']} of ") or (
            scene["choices"] > 1
        )
    # One picture that grows: own parts, shared parts, questions solved.
    rows = scenes["ram"]["chart"]["rows"]
    assert [row["name"] for row in rows] == ["average", "sum", "RAM"]
    own, shared = ([row[part] for row in rows] for part in ("own", "shared"))
    assert own == pytest.approx([1 / 3, 1, 1], abs=1e-3)
    assert shared[0] < 1 < shared[1]
    assert shared[2] < 1


def test_scene_one_takes_a_newcomer_a_minute(scenes) -> None:
    scene = scenes["changed"]
    assert scene["example"]["lines"][0]["right"] is False
    assert scene["example"]["lines"][1]["right"] is True
    texts = [scene["example"]["prompt"], *(scene[part] for part in ("ask", "task", "reveal"))]
    words = sum(len(text.split()) for text in texts)
    # Read at 200 words a minute; guess, drag and a look at the figure take five seconds each.
    assert words / 200 * 60 + 3 * 5 < 60


def test_a_set_without_measured_settings_says_what_is_missing(scenes) -> None:
    without = [name for name, scene in scenes.items() if scene["bare"]]
    assert without == OF_TABLE
    assert "measured settings" in scenes["average"]["bare"]
    assert "only some of their changes" in scenes["epsilon"]["bare"]


# ---------------------------------------------------------------------------- a walk through all

PHASE = ".ls[data-scene='{}'][data-phase={}]"


def test_a_presenters_key_waits_for_the_first_set(module_page) -> None:
    errors: list[str] = []
    module_page.on("pageerror", lambda error: errors.append(str(error)))
    load_modules(module_page)
    opened = module_page.evaluate(
        """async () => {
          const { mountLesson, takeLesson } = await import("./lesson/lesson.js");
          const opened = [];
          mountLesson({ openSet: (set) => opened.push(set) });
          document.documentElement.classList.add("cv-present");
          takeLesson("1");
          for (const key of ["PageDown", " "]) {
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
          }
          return opened;
        }"""
    )
    load_modules(module_page)
    assert (opened, errors) == (["shared-style"], [])


PANELS = ".cv > :is(.cv-verdict, .cv-answers, .cv-curve, .cv-map, .cv-weights, .cv-parts)"


class Learner:
    """Somebody who takes the lesson, scene by scene."""

    def __init__(self, it) -> None:
        self.it, self.page = it, it.page

    def wait(self, scene: int, phase: str) -> None:
        """Wait for a phase of a scene, which shows one figure."""
        self.page.wait_for_selector(PHASE.format(scene, phase), state="visible")
        shown = "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.className)"
        panels = self.page.eval_on_selector_all(PANELS, shown)
        assert len(panels) == 1, panels

    def predict(self, scene: int, *, by_keyboard: bool) -> None:
        """Say something; until then the canvas waits."""
        self.wait(scene, "predict")
        assert self.page.locator(".cv-weights[inert]").count() == 1
        # No alarm on entry: what the scene begins with is not its news.
        seen = "(all) => all.some((one) => one.checkVisibility({ visibilityProperty: true }))"
        assert not self.page.eval_on_selector_all(".cv-line-merge, .cv-score", seen)
        field = self.page.locator(".ls-guess :is(input, button)").first
        if by_keyboard:
            field.focus()
            if field.get_attribute("type") == "range":
                self.page.keyboard.press("ArrowRight")
                self.page.keyboard.press("Tab")
            self.page.keyboard.press("Enter")
        else:
            self.page.locator(".ls-guess button").first.click()
        self.wait(scene, "drag")
        assert self.page.locator(".cv-weights[inert]").count() == 0
        assert self.page.locator(".ls-target").count() > 0

    def answered(self, scene: int) -> str:
        """Return what is told once the answer was reached, in the live region."""
        self.wait(scene, "answer")
        return self.page.inner_text(".ls [aria-live=polite]")

    def press(self, selector: str, *keys: str) -> None:
        self.page.focus(selector)
        for key in keys:
            self.page.keyboard.press(key)

    def drag_line(self, to: float) -> None:
        """Pull the line of epsilon, to 0 (far left) ... 1; nothing is told while it is held."""
        pill, stage = (
            self.page.locator(s).bounding_box() for s in ("#epsilon-line", ".cv-weights .cv-plot")
        )
        y = pill["y"] + pill["height"] / 2
        self.drag(
            pill["x"] + pill["width"] / 2, stage["x"] + 4 + to * (stage["width"] - 8) * 0.8, y
        )

    def drag_curve(self, to: float) -> None:
        """Pull the curve, whose dial is epsilon, to 0 (far left) ... 1."""
        box = self.page.locator("#curve-plot").bounding_box()
        at = [box["x"] + box["width"] * (0.07 + 0.7 * place) for place in (0.4, to)]
        self.drag(*at, box["y"] + box["height"] / 2)

    def drag_dial(self, to: float) -> None:
        """Pull the card's slider to 0 (far left) ... 1."""
        box = self.page.locator(".ls-dial input").bounding_box()
        at = [box["x"] + 9 + (box["width"] - 18) * place for place in (0.5, to)]
        self.drag(*at, box["y"] + box["height"] / 2)

    def drag(self, start: float, end: float, y: float) -> None:
        self.page.mouse.move(start, y)
        self.page.mouse.down()
        self.page.mouse.move(end, y, steps=8)
        self.page.mouse.up()

    def next(self, *, by_keyboard: bool) -> None:
        if by_keyboard:
            self.press("[data-part=lesson-next]", "Enter")
        else:
            self.page.click("[data-part=lesson-next]")


MOVES: dict[bool, list[Callable[[Learner], None]]] = {
    True: [
        lambda it: it.press("#epsilon-line", "Home"),
        lambda it: it.press("[data-choose='ram+']", *["ArrowRight"] * 2),
        lambda it: it.press("[data-choose=average]", "ArrowRight"),
        lambda it: it.press("[data-choose=sum]", *["ArrowLeft"] * 2),
        lambda it: it.press("#curve-plot", "End"),
        lambda it: it.press(".ls-dial input", "Home", "ArrowRight"),
        lambda it: it.press("[data-choose='ram+']", *["ArrowRight"] * 3),
    ],
    False: [
        lambda it: it.drag_line(0),
        lambda it: it.page.click("[data-choose=average]"),
        lambda it: it.page.click("[data-choose=sum]"),
        lambda it: it.page.click("[data-choose=ram]"),
        lambda it: it.drag_curve(1),
        lambda it: it.drag_dial(0.1),
        lambda it: it.page.click("[data-choose=sum]"),
    ],
}
"""How each scene's answer is reached, by keyboard or not."""


@pytest.mark.slow
def test_the_whole_lesson_by_keyboard_and_then_by_hand(visit) -> None:
    it = visit()
    it.open()
    learner = Learner(it)
    page = it.page
    page.click("a[data-lesson]")
    learner.wait(0, "predict")
    it.check_access("a scene that asks", forced=True)

    for scene, move in enumerate(MOVES[True]):
        learner.predict(scene, by_keyboard=True)
        if scene == IDS.index("changed"):
            page.wait_for_selector("#epsilon-line:focus")  # what is to be moved is at hand
        elif scene == IDS.index("ram"):
            # A reload keeps what was said, and what was found before.
            page.reload()
            learner.wait(scene, "drag")
            assert page.locator(".ls-head .done").count() == scene
        elif scene == IDS.index("epsilon"):
            # Other models of the same names, at the same settings: the numbers are theirs.
            rho = load_set("independent").analysis.preview()["agents"]["coding"]["rho"]
            page.wait_for_selector(
                f"[data-agent=coding][data-rho^='{str(rho)[:8]}']", state="attached"
            )
        move(learner)
        said = learner.answered(scene)
        if scene == IDS.index("changed"):
            assert f"{100 * least_alone(0):.1f}" in said  # the far left
        if scene == IDS.index("epsilon"):
            it.check_access("a scene with its answer", forced=True)
        learner.next(by_keyboard=True)
    page.wait_for_selector(".ls[data-phase=end]")
    it.check_access("the lesson's end", forced=True)
    assert page.locator(".ls-summary li").count() == len(IDS)
    page.wait_for_url("**lesson=7**")
    # Six are counted; the seventh is a last word.
    marks = page.locator(".ls-head li button")
    assert marks.all_inner_texts() == [*map(str, range(1, len(IDS))), "+"]
    assert marks.last.get_attribute("aria-label").startswith("A last word")

    learner.next(by_keyboard=False)  # start over
    for scene, move in enumerate(MOVES[False]):
        learner.predict(scene, by_keyboard=False)
        move(learner)
        assert "Measured: " in learner.answered(scene)
        learner.next(by_keyboard=False)
        if scene == 0:
            # Back and on again: what was found stays.
            learner.wait(1, "predict")
            page.click("[data-part=lesson-back]")
            learner.answered(0)
            learner.next(by_keyboard=False)
    page.wait_for_selector(".ls[data-phase=end]")

    page.click(".ls-leave")
    page.wait_for_selector(".ls", state="detached")
    page.wait_for_url(lambda url: "lesson" not in url)
    assert page.locator("[inert]").count() == 0
    assert page.is_visible("#reset")
