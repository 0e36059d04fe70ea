"""The stage in the app: all of it can be seen, and what is set in it reaches link and Merge."""

from __future__ import annotations

import itertools
import json

import pytest
from stage_page import LEARNED, row_of, shipped

from ram_studio.app.session.sets import set_profile

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def table() -> dict:
    return shipped("shared-style")[1]


# How many frames it takes until the agents' rows show a weight: by slider, mute, a layer's keys.
_WEIGHED = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const agents = [...document.querySelectorAll(".cv-agent")];
  const applied = () => agents.map((row) => [row.dataset.own, row.dataset.shared]).join();
  const slider = document.querySelector("[data-weigh=coding]");
  const rows = document.querySelector(".cv-rows");
  const moves = [0.5, 1.5].map((weight) => () => {
    slider.value = weight;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  });
  const key = (name) => () =>
    rows.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const mute = () => document.querySelector("[data-mute=coding]").click();
  moves.push(mute, mute);
  for (const name of ["ArrowDown", "ArrowDown"]) key(name)();
  moves.push(key("ArrowLeft"), key("ArrowLeft"), key("Delete"));
  const found = [];
  for (const move of moves) {
    const before = applied();
    move();
    let frames = 0;
    do { await frame(); frames += 1; } while (applied() === before && frames < 9);
    found.push(frames);
  }
  return found;
}"""


def test_weights_follow_within_a_frame_and_reach_link_and_merge(example) -> None:
    page = example.page
    page.click("[data-choose='ram+']")
    page.click(".cv-more")
    page.click("#open-weights")
    example.settle()
    asked = len(example.requests)
    assert page.evaluate(_WEIGHED) == [1] * 7
    assert len(example.requests) == asked, "no move asks the server"
    # The first layer was bent, and reset to 1.
    page.wait_for_function("() => /weights=coding%3D1[+]1.5(&|$)/.test(location.search)")
    assert page.get_attribute(".cv", "data-tested") == "none"
    assert "Not tested with these weights" in page.inner_text("[data-part=verdict-text]")
    example.settle()
    page.click(".cv-main.next")
    page.click("#merge-more > button")
    page.wait_for_function(
        "() => document.querySelector('#weights :is(input, textarea)')?.value === 'coding=1 1.5'"
    )
    page.evaluate("() => window.RAM.open('tune')")
    page.click("#weights-off")
    page.wait_for_selector(".cv[data-tested=here]")
    example.settle()


def test_an_epsilon_that_leaves_nothing_is_told_and_put_to_0(example) -> None:
    page = example.page
    # Of 20 M weights one agent changed some, all too little: a table that came would speak first.
    said = "Epsilon 1e-5 leaves nothing of tool: it changed 20.9 M weights (3.3 %). Use epsilon 0."
    profile = json.loads(set_profile("shared-style"))
    own = {**profile, "skills_at": None, "lost": [None] * 8 + [said] * 50}
    page.evaluate("(text) => RAM.setProfile(JSON.parse(text))", json.dumps(own))
    page.wait_for_selector(".cv[data-tested=none]")
    assert said in page.inner_text("[data-part=verdict]").replace("\u00a0", " ")
    page.click("[data-part=epsilon-0]")
    page.wait_for_selector("[data-part=epsilon-0]", state="hidden")
    assert page.get_attribute("#epsilon-line", "aria-valuenow") == "0"
    # In Merge it is said of what is loaded there.
    page.focus("#epsilon-line")
    page.keyboard.press("End")
    page.wait_for_selector("[data-part=epsilon-0]")
    page.click(".cv-main.next")
    told = "#plan .callout[data-tone=bad]:has-text('leaves nothing of coding, tool and memory')"
    page.wait_for_selector(told)
    page.click("#use-epsilon-0")
    page.wait_for_selector(told, state="detached")
    page.wait_for_selector("#use-epsilon-0", state="hidden")
    example.go("tune")
    page.wait_for_selector("#epsilon-line[aria-valuenow='0']")
    page.evaluate("(text) => RAM.setProfile(JSON.parse(text))", set_profile("shared-style"))
    page.wait_for_selector(".cv[data-tested]:not([data-tested=none])")


def test_a_wide_card_shows_where_merge_and_agent_differ(example, table) -> None:
    page = example.page
    page.set_viewport_size({"width": 1920, "height": 1080})
    try:
        page.wait_for_selector("[data-part=second]", state="visible")
        row = row_of(table, "ram+", epsilon=1e-5, r=0.1)
        for skill in LEARNED:
            own = row_of(table, {"code": "coding"}.get(skill, skill))
            second = page.locator(f".cv-card[data-skill={skill}] [data-part=second]")
            item = int(second.get_attribute("data-item"))
            assert own["right"][item] != row["right"][item]
            for who, of in (("agent", own), ("merge", row)):
                line = second.locator(f"[data-answer={who}]")
                assert line.get_attribute("data-right") == of["right"][item]
        # Nothing is cut off for it.
        cut = "(cards) => cards.some((card) => card.scrollHeight > card.clientHeight)"
        assert not page.eval_on_selector_all(".cv-card", cut)
    finally:
        page.set_viewport_size({"width": 1280, "height": 800})


# Skills with a question that is cut off, or whose right answer nothing shows, with how many.
_CUT = """async () => {
  const cards = [...document.querySelectorAll(".cv-card")];
  const asked = Math.max(...cards.map((card) => Number(card.dataset.asked)));
  const press = (key) => cards.forEach((card) => card.querySelector(".cv-dots")
    .dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })));
  const isRight = (line) => line.dataset.right === "1" || line.dataset.part === "right-answer";
  const found = {};
  for (let i = 0; i < asked; i += 1) {
    press(i ? "ArrowRight" : "Home");
    await new Promise((done) => requestAnimationFrame(() => done()));
    for (const card of cards) {
      const prompt = card.querySelector(".cv-prompt");
      const lines = [...card.querySelectorAll(":scope > .cv-answer-list > *")];
      const isCut = prompt.scrollHeight > prompt.clientHeight + 1;
      const isAnswered = lines.some((line) => line.checkVisibility() && isRight(line));
      if (!isCut && isAnswered) continue;
      const [cut, unanswered] = found[card.dataset.skill] ?? [0, 0];
      found[card.dataset.skill] = [cut + isCut, unanswered + !isAnswered];
    }
  }
  press("Escape");
  return found;
}"""


def test_every_question_is_whole_beside_its_right_answer(example, table) -> None:
    page = example.page
    assert page.evaluate(_CUT) == {}
    # One that neither its agent nor the merge solves: the right answer has a line of its own.
    row = row_of(table, "ram+", epsilon=1e-5, r=0.1)
    own = row_of(table, "memory")
    at = table["domains"].index("memory") * table["n"]
    items = range(at, at + table["n"])
    missed = [i for i in items if own["right"][i] == row["right"][i] == "0"]
    page.focus(".cv-card[data-skill=memory] .cv-dots")
    page.keyboard.press("End")
    example.settle()
    card = page.locator(".cv-card[data-skill=memory]")
    assert int(card.get_attribute("data-item")) in missed
    gold = table["gold"][int(card.get_attribute("data-item"))]
    assert card.locator("[data-part=right-answer]").inner_text().split() == [
        *["right", "answer"],
        *gold.split(),
    ]
    page.keyboard.press("Escape")
    # With A beside the merge there is a line more.
    page.click("[data-choose=average]")
    page.click("[data-act=pin]")
    page.click("[data-choose='ram+']")
    example.settle()
    try:
        assert page.evaluate(_CUT) == {}
    finally:
        page.click("[data-act=pin]")


def test_three_dials_and_a_number_have_their_place(example) -> None:
    page = example.page
    page.click("[data-choose=dare-ties]")
    try:
        for width in (1280, 1024):
            page.set_viewport_size({"width": width, "height": 800})
            page.click("#dial-drop")
            example.settle()
            boxes = [
                one.bounding_box()
                for one in page.locator(".cv-curve .cv-top > h2, .cv-dials button, #dial-number")
                .or_(page.locator("#reset"))
                .all()
            ]
            for before, after in itertools.pairwise(boxes):
                assert before["x"] + before["width"] <= after["x"] + 0.5, width
            panel = page.locator(".cv-curve").bounding_box()
            assert boxes[-1]["x"] + boxes[-1]["width"] <= panel["x"] + panel["width"], width
    finally:
        page.set_viewport_size({"width": 1280, "height": 800})


# The color that ink has for what is drawn on canvases.
_DRAWN_INK = """() => {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = "var(--ram-ink)";
  const found = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  return found;
}"""


def test_what_is_drawn_has_the_colors_that_the_system_forces(example) -> None:
    page = example.page
    try:
        for scheme, ink in (("light", [0, 0, 0]), ("dark", [255, 255, 255])):
            page.emulate_media(forced_colors="active", color_scheme=scheme)
            assert page.evaluate(_DRAWN_INK) == ink
    finally:
        page.emulate_media(forced_colors="none", color_scheme="light")


# Other settings arrive while the page is still about to take those that the stage gave it.
_OVERTAKEN = """(point) => {
  const give = RAM.giveSettings;
  RAM.giveSettings = () => {
    const text = give();
    RAM.giveSettings = give;
    queueMicrotask(() => RAM.update(JSON.stringify({ point })));
    return text;
  };
  RAM.update(JSON.stringify({ point: point + 10 }));
}"""


def test_a_late_echo_does_not_take_settings_back(example) -> None:
    page = example.page
    page.evaluate(_OVERTAKEN, 20)
    page.wait_for_function(
        "() => JSON.parse(document.querySelector('#settings textarea').value).point === 20",
        timeout=20_000,
    )
    assert json.loads(page.evaluate("() => RAM.giveSettings()"))["point"] == 20
