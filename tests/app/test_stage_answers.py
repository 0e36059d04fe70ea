"""The stage alone: what it says of measured merges is the table's, and it follows a drag."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_parts import open_modules
from stage_page import LEARNED, mount_stage, right, row_of, settle, shipped

from ram_studio.algorithm.epsilon_grid import snap

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return shipped("shared-style")[1]


_SHOWN = """() => [...document.querySelectorAll(".cv-card")].map((card) => ({
  skill: card.dataset.skill, solved: card.dataset.solved, asked: card.dataset.asked,
  item: Number(card.dataset.item), prompt: card.querySelector(".cv-prompt").textContent,
  answers: Object.fromEntries([...card.querySelectorAll(":scope > * > [data-answer]:not([hidden])")]
    .map((line) => [line.dataset.answer,
      [line.dataset.right, line.querySelector(".cv-text").title]])) }))"""


def check_shown(page, table: dict, rows: dict[str, dict]) -> list[int]:
    """Fail where a card shows what is not the table's; return the items."""
    found = page.evaluate(_SHOWN)
    assert [card["skill"] for card in found] == list(LEARNED)
    for card in found:
        item, solved = card["item"], right(table, rows["merge"], card["skill"]).count("1")
        assert (int(card["solved"]), int(card["asked"])) == (solved, table["n"])
        words = table["prompts"][item].split(": ", 1)[1].removesuffix(" answer:")
        assert card["prompt"].replace(" ", "") == words.replace(" ", "")
        agent = {"code": "coding"}.get(card["skill"], card["skill"])
        for who, row in {**rows, "agent": row_of(table, agent)}.items():
            text = table["answers"][item][row["answers"][item]].strip()
            assert card["answers"][who] == [row["right"][item], text], (who, item)
    return [card["item"] for card in found]


def test_ten_random_prompts_are_the_table_s(stage, table) -> None:
    rows = {"base": row_of(table, "base"), "merge": row_of(table, "ram+", epsilon=1e-5, r=0.1)}
    draw = random.Random(7)
    seen: set[int] = set()
    while len(seen) < 10:
        dots = stage.locator(".cv-dots").nth(draw.randrange(3))
        box = dots.bounding_box()
        x = draw.uniform(0, box["width"] - 1)
        dots.click(position={"x": x, "y": box["height"] / 2})
        settle(stage)
        seen |= set(check_shown(stage, table, rows))
    # Beside it, A: the average, on questions picked before.
    stage.click("[data-choose=average]")
    stage.click("[data-act=pin]")
    stage.click("[data-choose='ram+']")
    settle(stage)
    check_shown(stage, table, {**rows, "a": row_of(table, "task-arithmetic", scale=None)})
    stage.click("[data-act=pin]")


def test_hooks_say_what_is_shown(stage, table) -> None:
    parts = ("verdict", "answers", "curve", "map", "weights", "parts")
    assert all(stage.is_visible(f"[data-part={part}]") for part in parts)
    for name, row in (
        ("ram+", row_of(table, "ram+", epsilon=1e-5, r=0.1, alpha=2.0)),
        ("ram", row_of(table, "ram", epsilon=1e-5)),
        ("average", row_of(table, "task-arithmetic", scale=None)),
        ("sum", row_of(table, "task-arithmetic", scale=1.0)),
    ):
        stage.click(f"[data-choose='{name}']")
        stage.wait_for_selector(f".cv[data-method='{name}']")
        shown = stage.evaluate("() => ({...document.querySelector('.cv').dataset})")
        total = sum(right(table, row, skill).count("1") for skill in LEARNED)
        assert (int(shown["total"]), shown["nearest"]) == (total, "")
        assert shown["dial"] == ("scale" if name in ("average", "sum") else "point")
        # What comes forward by itself is kept by RAM as by RAM+: the scores say what each loses.
        settle(stage)
        solved = stage.locator("[data-answer=merge][data-right='1']").count()
        assert (solved == 3) == (name in ("ram", "ram+")), name
    # Every other method that was measured, at its best.
    for name in ("ties", "dare-ties"):
        stage.click(f"[data-choose='{name}']")
        stage.wait_for_selector(f".cv[data-method='{name}'][data-nearest='']")
        rows = [r for r in table["rows"] if r["method"] == name]
        best = max(sum(right(table, row, skill).count("1") for skill in LEARNED) for row in rows)
        assert int(stage.get_attribute(".cv", "data-total")) == best


# How many frames it takes until the stage shows another setting, for each move of a drag.
_FRAMES = """async () => {
  const plot = document.querySelector("#curve-plot");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const { left, top, width, height } = plot.getBoundingClientRect();
  plot.setPointerCapture = plot.hasPointerCapture = () => true;
  const send = (type, x) => plot.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, buttons: 1, bubbles: true, clientX: left + x, clientY: top + height / 2 }));
  const at = (selector) => document.querySelector(selector);
  const said = () => [plot.getAttribute("aria-valuetext"), at(".cv").dataset.total,
    at(".cv-agent").dataset.epsilon, at("#epsilon-line").textContent].join();
  send("pointerdown", 60);
  await frame();
  const found = [];
  for (let i = 0; i < 20; i += 1) {
    const before = said();
    send("pointermove", 60 + ((i + 1) % 2) * 0.4 * width + i * 5);
    let frames = 0;
    do { await frame(); frames += 1; } while (said() === before && frames < 9);
    found.push(frames);
  }
  return found;
}"""


def test_the_stage_follows_a_drag_within_a_frame(stage) -> None:
    # The callback asked for after a move runs in its frame, behind the stage's own.
    assert stage.evaluate(_FRAMES) == [1] * 20


def test_a_prompt_that_just_broke_comes_forward(stage, table) -> None:
    stage.focus("#epsilon-line")
    before, falls, own_falls = stage.evaluate(_SHOWN), 0, 0
    for _ in range(26):
        stage.keyboard.press("ArrowRight")
        stage.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
        now = stage.evaluate(_SHOWN)
        for card, last in zip(now, before, strict=True):
            if int(card["solved"]) < int(last["solved"]):
                falls += 1
                assert card["answers"]["merge"][0] == "0", card
                # One that the agent solves comes first; the others broke, too.
                own_falls += card["answers"]["agent"][0] == "1"
        before = now
    assert falls > 5
    assert own_falls >= falls - 1


# How a verdict is colored; three damaged skills of three are as bad as a broken merge.
TONES = {"good": ["good"], "damaged": ["part", "bad"], "broken": ["bad"], "nothing": ["bad"]}
_CASES = json.loads(Path(__file__).parents[1].joinpath("stage_verdicts.json").read_text("utf-8"))

# The stage a frame after its settings were said, as a link or a recipe says them.
_SAID = """async (text) => {
  RAM.update(text);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())));
  const verdict = document.querySelector("[data-part=verdict]");
  const cards = [...document.querySelectorAll(".cv-card")];
  const scores = cards.map((card) => Number(card.dataset.solved));
  const { verdict: key, tone } = verdict.dataset;
  return { key, tone, said: verdict.innerText.replace(/\\s+/g, " "), scores,
    tested: document.querySelector(".cv").dataset.tested };
}"""


@pytest.mark.parametrize("name", ["dense", "shared-style"])
def test_each_verdict_is_said_on_the_page(stage, name: str) -> None:
    mount_stage(stage, name)
    for case in [case for case in _CASES if case["set"] == name]:
        own = dict(case["settings"])
        places = {"average": {"scale": 1 / 3}, "sum": {"scale": 1}}
        method = "task-arithmetic" if case["rule"] in places else case["rule"]
        epsilon = own.pop("epsilon", 1e-5)
        usual = {"r": 0.1, "alpha": 2, "scale": 1, **places.get(case["rule"], {})}
        settings = {"method": method, "point": snap(epsilon), **usual, **own}
        found = stage.evaluate(_SAID, json.dumps(settings))
        assert (found["key"], found["scores"]) == (case["key"], case["scores"]), case["name"]
        assert found["tested"] == "here", case["name"]
        assert f"{case['lead']} {case['rest']}" in found["said"].replace("\u00a0", " ")
        numbers = [sum(case["scores"]), *(case["scores"] if case["key"] != "nothing" else ())]
        assert all(str(number) in found["said"] for number in numbers), case["name"]
        assert found["tone"] in TONES[case["key"]], case["name"]


_WIDER = "() => document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def _touched(browser) -> Iterator[Any]:
    context = browser.new_context(
        has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}
    )
    page = context.new_page()
    open_modules(page)
    yield page
    context.close()


@pytest.fixture
def phone(_touched) -> Any:
    """A page for a finger with the stage alone, at the paper's setting of the default set."""
    mount_stage(_touched, "shared-style")
    return _touched


def test_a_dot_is_picked_by_touch_and_by_key(phone, table) -> None:
    rows = {"base": row_of(table, "base"), "merge": row_of(table, "ram+", epsilon=1e-5, r=0.1)}
    dots = phone.locator(".cv-dots").nth(2)
    dots.scroll_into_view_if_needed()
    before = check_shown(phone, table, rows)
    box = dots.bounding_box()
    phone.touchscreen.tap(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    settle(phone)
    touched = check_shown(phone, table, rows)
    assert (touched[:2], touched[2] != before[2]) == (before[:2], True)
    # By key from there: one question on, to the last one, and let go again.
    dots.focus()
    for key in ("ArrowRight", "End", "Escape"):
        phone.keyboard.press(key)
        settle(phone)
        picked = check_shown(phone, table, rows)
        assert (picked[2] == before[2]) == (key == "Escape"), key
    assert phone.evaluate(_WIDER) <= 0


def test_two_fingers_may_zoom_over_a_plot(phone) -> None:
    for plot in (".cv-dots >> nth=0", "#curve-plot"):
        said = phone.locator(plot).evaluate("(node) => getComputedStyle(node).touchAction")
        assert said == "pan-y pinch-zoom"


def test_a_ramp_is_dragged_and_reset_by_touch(phone) -> None:
    phone.click(".cv-more")
    phone.click("#open-weights")
    plot = phone.locator(".cv-weights .cv-plot")
    plot.scroll_into_view_if_needed()
    settle(phone)
    finger = phone.context.new_cdp_session(phone)
    box = plot.bounding_box()
    x, y = box["x"] + box["width"] - 40, box["y"] + 0.47 * box["height"]  # layer 0

    def touch(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": place[0], "y": place[1]} for place in places]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", (x, y))
    for step in range(1, 6):
        touch("touchMove", (x - 10 * step, y))
    touch("touchEnd")
    weighs = "(wanted) => JSON.stringify(store.state.settings.weights) === wanted"
    phone.wait_for_function(weighs, arg='{"coding":[0,1]}')
    # One tap does nothing, two reset.
    phone.touchscreen.tap(x, y)
    phone.wait_for_timeout(700)
    assert phone.evaluate(weighs, '{"coding":[0,1]}')
    for _ in range(2):
        phone.touchscreen.tap(x, y)
    phone.wait_for_function(weighs, arg="null")
    assert phone.evaluate(_WIDER) <= 0
