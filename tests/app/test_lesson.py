"""The lesson: its scenes on the shipped sets, and a walk through all of them in the real app."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from ram_studio.algorithm.ladder import DEFAULT_INDEX
from ram_studio.app.load.examples import FOLDERS, example_profile, record_file, skill_table

pytestmark = pytest.mark.browser

LINKS = {folder: link for link, folder in FOLDERS.items()}
IDS = ("changed", "average", "sum", "ram", "epsilon", "rounding", "limits")
OF_TABLE = ["average", "sum", "ram", "epsilon", "limits"]
"""Scenes that need a table of measured settings."""

SCENES_JS = """async (sets) => {
  const { SCENES } = await import('./lesson/scenes.js');
  const { missingOf } = await import('./lesson/record.js');
  const { skillsOf } = await import('./canvas/table.js');
  const flat = (pieces) => pieces.flat().join("");
  return SCENES.map((scene) => {
    const { profile, table, record } = sets[scene.set];
    if (table) profile.skills ??= skillsOf(table, profile);
    const at = (settings) => ({ profile, record, settings, skills: profile.skills || null });
    const told = { id: scene.id, set: scene.set, missing: missingOf(scene, at(null)).length,
      bare: missingOf(scene, { profile, record: null, skills: null }).join(" and ") };
    if (told.missing) return told;
    const [start, target] = [scene.start(at(null)), scene.target(at(null))];
    const measured = scene.measured(at(target));
    const shown = at(target);
    return { ...told, target, measured, reveal: flat(scene.reveal(shown)),
      atStart: scene.isReached(at(start)), atTarget: scene.isReached(shown),
      isShare: scene.guess === "share", choices: scene.guess.length,
      ask: flat(scene.ask(at(start))), task: flat(scene.task(at(start))),
      chart: scene.chart(shown).label };
  });
}"""


def table_of(folder: str) -> dict:
    path = skill_table(LINKS[folder])
    assert path is not None
    return json.loads(gzip.decompress(path.read_bytes()))


def record_of(folder: str) -> dict:
    path = record_file(LINKS[folder])
    assert path is not None
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scenes(page) -> dict[str, dict[str, Any]]:
    sets = {
        folder: {
            "profile": json.loads(example_profile(link)),
            "table": table_of(folder),
            "record": record_of(folder),
        }
        for folder, link in LINKS.items()
    }
    return {scene["id"]: scene for scene in page.evaluate(SCENES_JS, sets)}


def right(folder: str, method: str, **settings: Any) -> int:
    """Return how many prompts of the three learned skills a row of a table solves."""
    table = table_of(folder)
    (row,) = (
        r
        for r in table["rows"]
        if r["method"] == method and settings.items() <= r["settings"].items()
    )
    return row["right"][: 3 * table["n"]].count("1")


def test_every_scene_begins_unanswered_and_can_be_answered(scenes) -> None:
    assert tuple(scenes) == IDS
    for name, scene in scenes.items():
        assert scene["missing"] == 0, name
        assert (scene["atStart"], scene["atTarget"]) == (False, True), name
        value = scene["measured"]["value"]
        assert 0 <= value <= 1 if scene["isShare"] else value in range(scene["choices"]), name
        texts = [scene[part] for part in ("ask", "task", "reveal", "chart")]
        texts.append(scene["measured"]["text"])
        assert all(texts), name
        assert not any(word in text for text in texts for word in ("undefined", "NaN", "null")), (
            name
        )


def test_what_is_told_is_what_the_files_hold(scenes) -> None:
    agents = record_of("house")["agents"]
    least = min(agent["unique_share"] for agent in agents.values())
    assert scenes["changed"]["measured"]["value"] == pytest.approx(least, rel=1e-12)
    merges = {
        "average": {"method": "task-arithmetic", "scale": None},
        "sum": {"method": "task-arithmetic", "scale": 1.0},
        "ram": {"method": "ram+", "epsilon": 1e-5, "r": 0.1, "alpha": 2.0},
        "limits": {"method": "task-arithmetic", "scale": 1.0},
    }
    for name, row in merges.items():
        scene = scenes[name]
        said = f"{right(scene['set'], **row)} of {3 * table_of(scene['set'])['n']} ("
        assert scene["measured"]["text"].startswith(said), name
    assert scenes["rounding"]["target"]["point"] == DEFAULT_INDEX
    assert scenes["rounding"]["measured"]["value"] < 0.5  # most of a small push is lost


def test_few_weights_are_those_of_the_record(scenes) -> None:
    found = record_of("example")["few_weights"]
    own = found["agents"]["coding"]
    (fewest,) = (row for row in own["rows"] if row["k"] == 300)
    assert fewest["largest"] == own["whole"] == 1
    reveal = scenes["epsilon"]["reveal"]
    assert f"300 largest changes: {found['n']} of {found['n']}" in reveal
    assert f"{100 * sum(fewest['random']) / len(fewest['random']):.0f} % (mean of" in reveal


def test_a_set_without_measured_settings_says_what_is_missing(scenes) -> None:
    without = [name for name, scene in scenes.items() if scene["bare"]]
    assert without == OF_TABLE
    assert "measured settings" in scenes["average"]["bare"]
    assert "only some of their changes" in scenes["epsilon"]["bare"]


# ---------------------------------------------------------------------------- a walk through all

PHASE = ".ls[data-scene='{}'][data-phase={}]"


class Learner:
    """Somebody who takes the lesson, scene by scene."""

    def __init__(self, it) -> None:
        self.it, self.page = it, it.page

    def wait(self, scene: int, phase: str) -> None:
        self.page.wait_for_selector(PHASE.format(scene, phase), state="visible")

    def predict(self, scene: int, *, by_keyboard: bool) -> None:
        """Say something; until then the canvas waits."""
        self.wait(scene, "predict")
        assert self.page.locator(".cv-mech[inert]").count() == 1
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
        assert self.page.locator(".cv-mech[inert]").count() == 0
        assert self.page.locator(".ls-target").count() > 0

    def answered(self, scene: int) -> str:
        """Return what is told once the answer was reached, in the live region."""
        self.wait(scene, "answer")
        return self.page.inner_text(".ls [aria-live=polite]")

    def press(self, selector: str, *keys: str) -> None:
        self.page.focus(selector)
        for key in keys:
            self.page.keyboard.press(key)

    def next(self) -> None:
        self.page.click("[data-part=lesson-next]")


def drag_line(page) -> None:
    """Pull the line of epsilon to the far right; nothing is told while it is held."""
    pill, stage = (page.locator(s).bounding_box() for s in ("#epsilon-line", ".cv-stage"))
    y = pill["y"] + pill["height"] / 2
    page.mouse.move(pill["x"] + pill["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(stage["x"] + stage["width"] - 4, y, steps=8)
    page.mouse.up()


def test_the_whole_lesson_by_keyboard_and_by_hand(visit) -> None:
    it = visit()
    it.open()
    learner = Learner(it)
    page = it.page
    page.click("a[data-lesson]")

    learner.predict(0, by_keyboard=True)
    page.wait_for_selector("#epsilon-line:focus")  # what is to be moved is at hand
    page.keyboard.press("Home")
    least = min(agent["unique_share"] for agent in record_of("house")["agents"].values())
    assert f"{100 * least:.1f}" in learner.answered(0)
    learner.next()

    # Back and on again: what was found stays.
    learner.wait(1, "predict")
    page.click("[data-part=lesson-back]")
    learner.answered(0)
    learner.next()
    learner.predict(1, by_keyboard=False)
    page.click("[data-method=task-arithmetic-mean]")
    assert "You said 50" in learner.answered(1)
    learner.next()
    learner.predict(2, by_keyboard=True)
    learner.press("[data-method=task-arithmetic-mean]", "ArrowRight")
    learner.answered(2)
    learner.next()
    learner.predict(3, by_keyboard=False)
    # A reload keeps what was said, and what was found before.
    page.reload()
    learner.wait(3, "drag")
    assert page.locator(".ls-head .done").count() == 3
    page.click("[data-method='ram+']")
    learner.answered(3)
    learner.next()
    learner.predict(4, by_keyboard=False)
    # Other models of the same names, at the same settings: the formula is theirs.
    rho = record_of("example")["agents"]["coding"]["rho"]
    page.wait_for_selector(f".cv-formula:has-text('= {rho:.1f}')")
    drag_line(page)
    learner.answered(4)
    learner.next()
    learner.predict(5, by_keyboard=True)
    learner.press("#dial-r", "Home", "ArrowRight")
    learner.answered(5)
    learner.next()
    learner.predict(6, by_keyboard=False)
    page.click("[data-method=task-arithmetic-sum]")
    learner.answered(6)
    learner.next()
    page.wait_for_selector(".ls[data-phase=end]")
    assert page.locator(".ls-summary li").count() == len(IDS)
    page.wait_for_url("**lesson=7**")

    page.click(".ls-leave")
    page.wait_for_selector(".ls", state="detached")
    page.wait_for_url(lambda url: "lesson" not in url)
    assert page.locator("[inert]").count() == 0
    assert page.is_visible("#reset")
