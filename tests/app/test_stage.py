"""The stage: what it says of measured merges is the table's, and it follows a drag at once."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Visit

from ram_studio.algorithm.epsilon_grid import snap
from ram_studio.app.session.sets import SKILLS, set_profile, shipped_file

pytestmark = pytest.mark.browser

LEARNED = ("code", "tool", "memory")


@pytest.fixture(scope="module")
def table() -> dict:
    return json.loads(gzip.decompress(shipped_file("shared-style", SKILLS).read_bytes()))


def row_of(table: dict, method: str, **settings: float | None) -> dict:
    """Return the first measured row of a method with these settings."""
    rows = (row for row in table["rows"] if row["method"] == method)
    return next(row for row in rows if settings.items() <= row["settings"].items())


def right(table: dict, row: dict, skill: str) -> str:
    at = table["domains"].index(skill) * table["n"]
    return row["right"][at : at + table["n"]]


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


def test_ten_random_prompts_are_the_table_s(example, table) -> None:
    page = example.page
    rows = {"base": row_of(table, "base"), "merge": row_of(table, "ram+", epsilon=1e-5, r=0.1)}
    draw = random.Random(7)
    seen: set[int] = set()
    while len(seen) < 10:
        dots = page.locator(".cv-dots").nth(draw.randrange(3))
        box = dots.bounding_box()
        x = draw.uniform(0, box["width"] - 1)
        dots.click(position={"x": x, "y": box["height"] / 2})
        example.settle()
        seen |= set(check_shown(page, table, rows))
    # Beside it, A: the average, on questions picked before.
    page.click("[data-choose=average]")
    page.click("[data-act=pin]")
    page.click("[data-choose='ram+']")
    example.settle()
    check_shown(page, table, {**rows, "a": row_of(table, "task-arithmetic", scale=None)})
    page.click("[data-act=pin]")


def test_hooks_say_what_is_shown(example, table) -> None:
    page = example.page
    parts = ("verdict", "answers", "curve", "map", "weights", "parts")
    assert all(page.is_visible(f"[data-part={part}]") for part in parts)
    for name, row in (
        ("ram+", row_of(table, "ram+", epsilon=1e-5, r=0.1, alpha=2.0)),
        ("ram", row_of(table, "ram", epsilon=1e-5)),
        ("average", row_of(table, "task-arithmetic", scale=None)),
        ("sum", row_of(table, "task-arithmetic", scale=1.0)),
    ):
        page.click(f"[data-choose='{name}']")
        page.wait_for_selector(f".cv[data-method='{name}']")
        stage = page.evaluate("() => ({...document.querySelector('.cv').dataset})")
        total = sum(right(table, row, skill).count("1") for skill in LEARNED)
        assert (int(stage["total"]), stage["nearest"]) == (total, "")
        assert stage["dial"] == ("scale" if name in ("average", "sum") else "point")
    # Every other method that was measured, at its best.
    for name in ("ties", "dare-ties"):
        page.click(f"[data-choose='{name}']")
        page.wait_for_selector(f".cv[data-method='{name}'][data-nearest='']")
        rows = [r for r in table["rows"] if r["method"] == name]
        best = max(sum(right(table, row, skill).count("1") for skill in LEARNED) for row in rows)
        assert int(page.get_attribute(".cv", "data-total")) == best


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


def test_the_stage_follows_a_drag_within_a_frame(example) -> None:
    # The callback asked for after a move runs in its frame, behind the stage's own.
    assert example.page.evaluate(_FRAMES) == [1] * 20


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


def test_a_newcomer_s_three_questions_are_answered_on_screen(example, table) -> None:
    page = example.page
    stage = " ".join(page.inner_text(".cv").split())
    # What is merged: agents by name, each with what it was asked and answers.
    for agent in ("coding agent", "tool agent", "memory agent", "this merge"):
        assert agent in stage
    # What does RAM+ do: whose change is kept, and whose averaged; and what came of it.
    assert "Changed by one agent: kept, times λ. Changed by several: averaged." in stage
    assert "No skill is shown to be damaged." in stage
    # Why not average: one press, the reason and what is lost.
    page.click("[data-choose=average]")
    page.wait_for_selector("[data-part=verdict]:not(:has-text('No skill'))")
    scores = [
        right(table, row_of(table, "task-arithmetic", scale=None), s).count("1") for s in LEARNED
    ]
    said = " ".join(page.inner_text("[data-part=verdict]").split())
    assert all(str(score) in said for score in (*scores, sum(scores)))
    assert "Every change is added and divided by the 3 agents." in page.inner_text(".cv")
    # What comes forward by itself is kept by RAM as by RAM+: the scores say what each loses.
    for rule in ("ram", "ram+"):
        page.click(f"[data-choose='{rule}']")
        page.wait_for_selector(f"[data-choose='{rule}'][aria-checked=true]")
        example.settle()
        assert page.locator("[data-answer=merge][data-right='1']").count() == 3, rule


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
  const found = {};
  for (const card of document.querySelectorAll(".cv-card")) {
    const dots = card.querySelector(".cv-dots");
    const press = (key) => dots.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const prompt = card.querySelector(".cv-prompt");
    let [cut, unanswered] = [0, 0];
    for (let i = 0; i < Number(card.dataset.asked); i += 1) {
      press(i ? "ArrowRight" : "Home");
      await new Promise((done) => requestAnimationFrame(() => done()));
      const lines = [...card.querySelectorAll(":scope > .cv-answer-list > *")];
      const isRight = (line) => line.dataset.right === "1" || line.dataset.part === "right-answer";
      if (prompt.scrollHeight > prompt.clientHeight + 1) cut += 1;
      if (!lines.some((line) => line.checkVisibility() && isRight(line))) unanswered += 1;
    }
    press("Escape");
    if (cut || unanswered) found[card.dataset.skill] = [cut, unanswered];
  }
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


@pytest.fixture(scope="module")
def _touched(browser, app_url) -> Iterator[Visit]:
    context = browser.new_context(has_touch=True, is_mobile=True)
    it = Visit(context, app_url, (390, 844))
    it.open("?set=shared-style&rule=ram%2B")
    it.page.wait_for_selector(".cv-card[data-item]", state="visible")
    yield it
    context.close()


@pytest.fixture
def phone(_touched) -> Visit:
    """A visit by finger at Tune with the example and its first settings: one page, opened once."""
    _touched.page.click("#reset")
    _touched.settle()
    return _touched


def test_a_dot_is_picked_by_touch_and_by_key(phone, table) -> None:
    it, page = phone, phone.page
    rows = {"base": row_of(table, "base"), "merge": row_of(table, "ram+", epsilon=1e-5, r=0.1)}
    dots = page.locator(".cv-dots").nth(2)
    dots.scroll_into_view_if_needed()
    before = check_shown(page, table, rows)
    box = dots.bounding_box()
    page.touchscreen.tap(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    it.settle()
    touched = check_shown(page, table, rows)
    assert (touched[:2], touched[2] != before[2]) == (before[:2], True)
    # By key from there: one question on, to the last one, and let go again.
    dots.focus()
    for key in ("ArrowRight", "End", "Escape"):
        page.keyboard.press(key)
        it.settle()
        picked = check_shown(page, table, rows)
        assert (picked[2] == before[2]) == (key == "Escape"), key
    it.check_width("Tune on a phone")


def test_two_fingers_may_zoom_over_a_plot(phone) -> None:
    for plot in (".cv-dots >> nth=0", "#curve-plot"):
        said = phone.page.locator(plot).evaluate("(node) => getComputedStyle(node).touchAction")
        assert said == "pan-y pinch-zoom"


def test_a_ramp_is_dragged_and_reset_by_touch(phone) -> None:
    it, page = phone, phone.page
    page.click(".cv-more")
    page.click("#open-weights")
    plot = page.locator(".cv-weights .cv-plot")
    plot.scroll_into_view_if_needed()
    it.settle()
    finger = page.context.new_cdp_session(page)
    box = plot.bounding_box()
    x, y = box["x"] + box["width"] - 40, box["y"] + 0.47 * box["height"]  # layer 0

    def touch(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": place[0], "y": place[1]} for place in places]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", (x, y))
    for step in range(1, 6):
        touch("touchMove", (x - 10 * step, y))
    touch("touchEnd")
    weighs = (
        "(wanted) => JSON.stringify(JSON.parse(document.querySelector("
        "'#settings :is(textarea, input)').value).weights) === wanted"
    )
    page.wait_for_function(weighs, arg='{"coding":[0,1]}')
    # One tap does nothing, two reset.
    page.touchscreen.tap(x, y)
    page.wait_for_timeout(700)
    assert page.evaluate(weighs, '{"coding":[0,1]}')
    for _ in range(2):
        page.touchscreen.tap(x, y)
    page.wait_for_function(weighs, arg="null")
    it.check_width("Tune on a phone")


@pytest.mark.slow
def test_every_step_can_be_read_in_colors_that_the_system_forces(example) -> None:
    page = example.page
    page.click("[data-act=pin]")
    page.click("[data-choose=sum]")
    try:
        for scheme in ("light", "dark"):
            page.emulate_media(forced_colors="active", color_scheme=scheme, reduced_motion="reduce")
            for step in ("load", "tune", "merge", "check", "history"):
                page.click("#open-history" if step == "history" else f"#to-{step}")
                page.wait_for_selector(f"#step-{step}", state="visible")
                example.check_access(f"{step}, forced colors, {scheme}")
            # What is drawn follows the system, too: the dots of right answers and the scores' text.
            ink = [0, 0, 0] if scheme == "light" else [255, 255, 255]
            assert page.evaluate(_DRAWN_INK) == ink
    finally:
        page.emulate_media(forced_colors="none", color_scheme="light", reduced_motion="reduce")
    page.click("#to-tune")
    page.click("[data-act=pin]")


# The color that ink has for what is drawn on canvases.
_DRAWN_INK = """() => {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = "var(--ram-ink)";
  const found = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  return found;
}"""


_CASES = json.loads(Path(__file__).parents[1].joinpath("stage_verdicts.json").read_text("utf-8"))

# The stage a frame after its settings were said, as a link or a recipe says them.
_SAID = """async (text) => {
  RAM.update(text);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())));
  const verdict = document.querySelector("[data-part=verdict]");
  const cards = [...document.querySelectorAll(".cv-card")];
  const scores = cards.map((card) => Number(card.dataset.solved));
  return { key: verdict.dataset.verdict, said: verdict.innerText.replace(/\\s+/g, " "), scores,
    tested: document.querySelector(".cv").dataset.tested };
}"""


def test_each_verdict_is_said_on_the_page(example) -> None:
    page = example.page
    for name in ("dense", "shared-style"):
        if name == "dense":
            page.click("#to-load")
            page.click("[data-opens=dense]")
            page.wait_for_selector("[data-part=verdict][data-verdict=damaged]", state="visible")
        else:
            page.click("#to-load")
            example.use_example()
        example.settle()
        for case in [case for case in _CASES if case["set"] == name]:
            own = dict(case["settings"])
            places = {"average": {"scale": 1 / 3}, "sum": {"scale": 1}}
            method = "task-arithmetic" if case["rule"] in places else case["rule"]
            epsilon = own.pop("epsilon", 1e-5)
            usual = {"r": 0.1, "alpha": 2, "scale": 1, **places.get(case["rule"], {})}
            settings = {"method": method, "point": snap(epsilon), **usual, **own}
            found = page.evaluate(_SAID, json.dumps(settings))
            assert (found["key"], found["scores"]) == (case["key"], case["scores"]), case["name"]
            assert found["tested"] == "here", case["name"]
            assert f"{case['lead']} {case['rest']}" in found["said"].replace("\u00a0", " ")
            assert str(sum(case["scores"])) in found["said"]


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


def test_a_prompt_that_just_broke_comes_forward(example, table) -> None:
    page = example.page
    page.focus("#epsilon-line")
    before, falls, own_falls = page.evaluate(_SHOWN), 0, 0
    for _ in range(26):
        page.keyboard.press("ArrowRight")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
        now = page.evaluate(_SHOWN)
        for card, last in zip(now, before, strict=True):
            if int(card["solved"]) < int(last["solved"]):
                falls += 1
                assert card["answers"]["merge"][0] == "0", card
                # One that the agent solves comes first; the others broke, too.
                own_falls += card["answers"]["agent"][0] == "1"
        before = now
    assert falls > 5
    assert own_falls >= falls - 1
