"""The stage without the app: keys, what a screen reader is told, and the box at the pointer."""

from __future__ import annotations

from typing import Any

import pytest
from app_parts import run
from stage_page import settle, shipped

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID

pytestmark = pytest.mark.browser

_SHOWN = """() => import("./canvas/model/methods.js").then(({ settingsText }) =>
  settingsText(store.state.settings, store.state.profile))"""


def choose(page: Any, **settings: Any) -> None:
    """Choose settings on the stage, and wait until they are drawn."""
    run(page, "(settings) => store.choose(settings, 'method')", settings)
    settle(page)


def setting(page: Any, name: str) -> Any:
    """Return one of the settings that the stage shows, after a frame."""
    settle(page)
    return run(page, "(name) => store.state.settings[name]", name)


def test_a_typed_number_shows_the_value_that_is_used(stage) -> None:
    stage.click("#dial-r")
    settle(stage)
    stage.fill("#dial-number", "5")
    stage.press("#dial-number", "Enter")
    assert setting(stage, "r") == 1
    assert stage.input_value("#dial-number") == "1"


def test_arrows_go_on_from_the_method_that_is_checked(stage) -> None:
    # Between average and sum the nearer one is checked.
    choose(stage, method="task-arithmetic", scale=0.8)
    assert stage.get_attribute("[data-choose=sum]", "aria-checked") == "true"
    stage.focus("[data-choose=sum]")
    stage.keyboard.press("ArrowRight")
    assert setting(stage, "method") == "ties"
    assert stage.get_attribute("[data-choose=ties]:focus", "aria-checked") == "true"


def test_arrows_enter_the_methods_from_either_end(stage) -> None:
    choose(stage, method="ram+s")  # one of those behind More
    stage.focus("[data-choose='ram+']")
    stage.keyboard.press("ArrowLeft")
    assert setting(stage, "method") == "dare-ties"


def test_one_agent_has_a_sum_and_no_average(stage) -> None:
    profile, _ = shipped("shared-style")
    alone = {
        **{key: profile[key] for key in ("epsilon_grid", "default_index", "defaults", "layers")},
        **{key: profile[key] for key in ("total", "layer_total", "dtypes")},
        "agents": ["coding"],
        "overlap": [[[sum(counts)] for counts in agents[:1]] for agents in profile["overlap"]],
        "layer_active": [[row[:1] for row in rows] for rows in profile["layer_active"]],
        "layer_count": [[[row[0], sum(row[1:])] for row in k] for k in profile["layer_count"]],
    }
    run(stage, "(profile) => canvas.setCanvasProfile(profile)", alone)
    choose(stage, method="ram")
    assert stage.is_hidden("[data-choose=average]")
    stage.focus("[data-choose=ram]")
    stage.keyboard.press("ArrowRight")
    settle(stage)
    assert stage.get_attribute("[data-choose=sum]:focus", "aria-checked") == "true"
    assert stage.inner_text(".cv-parts .cv-note") == "Every change is added in full."
    stage.keyboard.press("ArrowRight")
    assert setting(stage, "method") == "ties"
    # No line of scales is drawn, so none is spoken of.
    assert "dashed line" not in stage.inner_text(".cv-map")


def test_a_method_without_a_dial_leaves_no_slider(stage) -> None:
    stage.focus("#curve-plot")
    choose(stage, method="wudi")
    curve = stage.locator("#curve-plot")
    assert curve.get_attribute("role") == "img"
    assert curve.get_attribute("aria-label").startswith("No dial: one setting")
    assert [curve.get_attribute(f"aria-value{key}") for key in ("now", "text")] == [None, None]
    assert curve.get_attribute("tabindex") == "-1"
    choose(stage, method="ram+")
    assert curve.get_attribute("role") == "slider"
    assert curve.get_attribute("aria-valuetext").startswith("epsilon ")
    assert curve.get_attribute("tabindex") == "0"


def test_the_epsilon_line_moves_a_step_from_beyond_its_axis(stage) -> None:
    steps = stage.evaluate("() => store.state.profile.axis.steps")
    last = len(EPSILON_GRID) - 1
    assert steps[-1] < last
    choose(stage, point=last)
    stage.click("#dial-r")
    line = stage.locator("#epsilon-line")
    assert line.get_attribute("aria-valuenow") == line.get_attribute("aria-valuemax")
    line.press("ArrowLeft")
    assert setting(stage, "point") == steps[-2]
    assert stage.get_attribute("#dial-epsilon", "aria-checked") == "true"


def test_a_press_on_the_epsilon_line_takes_its_dial_in_hand(stage) -> None:
    stage.click("#dial-r")
    stage.click("#epsilon-line")
    assert setting(stage, "point") == DEFAULT_INDEX, "pressed, not moved"
    assert stage.get_attribute("#dial-epsilon", "aria-checked") == "true"


def test_a_drag_from_elsewhere_moves_no_dial(stage) -> None:
    stage.hover("[data-part=verdict-text]")
    stage.mouse.down()  # such as to select the sentence
    stage.hover("#curve-plot")
    stage.mouse.up()
    assert setting(stage, "point") == DEFAULT_INDEX


def test_questions_are_read_on_while_weights_are_untested(stage) -> None:
    card = stage.locator(".cv-card").first
    prompt, score = card.locator(".cv-prompt").first, card.locator(".cv-score")
    solved = score.inner_text()
    choose(stage, weights={"coding": 0.55})
    assert score.inner_text() == "not tested"
    before = prompt.inner_text()
    card.locator("[aria-label^=next]").click()
    settle(stage)
    assert prompt.inner_text() != before
    dots = card.locator(".cv-dots")
    said = dots.get_attribute("aria-valuetext")
    assert "Right answer: " in said
    assert said.endswith("This merge was not tested.")
    assert card.locator("[data-answer=merge]").is_hidden()
    assert card.locator("[data-answer=base]").is_visible()
    item = int(card.get_attribute("data-item"))
    _, table = shipped("shared-style")
    base = next(row for row in table["rows"] if row["method"] == "base")
    assert card.locator("[data-answer=base]").get_attribute("data-right") == base["right"][item]
    choose(stage, weights=None)
    assert score.inner_text() == solved
    assert card.locator("[data-answer=merge]").is_visible()
    choose(stage, r=0.77)
    assert "Nearest merge: " in dots.get_attribute("aria-valuetext")


def test_a_method_that_was_never_measured_is_shown(stage) -> None:
    complaints: list[str] = []
    stage.on("pageerror", lambda error: complaints.append(str(error)))
    _, table = shipped("shared-style")
    rows = [row for row in table["rows"] if row["kind"] == "source" or row["method"] == "ram+"]
    few = {**table, "rows": rows}
    run(stage, "(few) => canvas.setTable(store.state.profile, few)", few)
    choose(stage, method="iso-c")
    assert stage.get_attribute("[data-part=verdict]", "data-verdict") == "untested"
    assert stage.inner_text(".cv-card .cv-score >> nth=0") == "not tested"
    assert "No formula" in stage.inner_text("#curve-plot")
    assert stage.get_attribute("#curve-plot", "aria-valuetext") == "scale 1: not tested"
    assert complaints == []


def test_methods_say_nothing_of_what_earlier_models_solved(stage) -> None:
    ties = stage.locator("[data-choose=ties]")
    assert "settings measured; best " in ties.get_attribute("title")
    run(stage, "(profile) => canvas.setCanvasProfile(profile)", shipped("dense")[0])
    settle(stage)
    assert ties.get_attribute("title").startswith("Trim each agent")
    assert "measured" not in ties.get_attribute("title")


def test_both_delete_keys_reset_a_layer_s_weight(stage) -> None:
    stage.evaluate("() => store.weigh(0)")
    for key in ("Delete", "Backspace"):
        stage.focus(".cv-rows")
        for step in ("ArrowDown", "ArrowDown", "ArrowRight"):
            stage.keyboard.press(step)
        assert setting(stage, "weights") is not None
        stage.keyboard.press(key)
        assert setting(stage, "weights") is None, key


def test_the_box_at_the_pointer_is_of_the_models_shown(stage) -> None:
    def point() -> str:
        box = stage.locator(".cv-rows").bounding_box()
        stage.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.6 * box["height"])
        return stage.inner_text(".cv-tip")

    assert "coding changed" in point()
    stage.mouse.move(2, 2)
    profile, _ = shipped("independent")
    other = {**profile, "agents": [f"other-{name}" for name in profile["agents"]]}
    run(stage, "(profile) => canvas.setCanvasProfile(profile)", other)
    settle(stage)
    assert setting(stage, "point") == DEFAULT_INDEX, "the same layer at the same epsilon"
    assert "other-coding changed" in point()


def test_escape_ends_a_presentation_from_a_slider(stage) -> None:
    stage.evaluate("() => store.weigh(0)")
    stage.evaluate("() => canvas.present(true)")
    stage.click("[data-panel=parts]")
    settle(stage)
    stage.focus("[data-weigh=coding]")
    stage.keyboard.press("Escape")
    assert not stage.evaluate("() => canvas.isPresenting()")


def test_escape_closes_a_menu_before_a_presentation(stage) -> None:
    stage.evaluate("() => canvas.present(true)")
    stage.click(".cv-more")
    for is_on in (True, False):
        stage.keyboard.press("Escape")
        assert stage.is_hidden(".cv-menu >> nth=0")
        assert stage.evaluate("() => canvas.isPresenting()") == is_on


def test_answers_that_come_leave_the_focus_where_it_is(stage) -> None:
    dots = stage.locator(".cv-dots").nth(1)
    dots.press("ArrowRight")
    settle(stage)
    said = dots.get_attribute("aria-valuetext")
    run(stage, "(t) => canvas.setTable(store.state.profile, t)", shipped("shared-style")[1])
    settle(stage)
    assert dots.evaluate("(node) => node === document.activeElement")
    assert dots.get_attribute("aria-valuetext") == said


def test_weights_that_stay_with_other_models_are_in_sight(stage) -> None:
    choose(stage, weights={"coding": 0.5, "tool": 0.7})
    run(stage, "(profile) => canvas.setCanvasProfile(profile)", shipped("independent")[0])
    assert setting(stage, "weights") == {"coding": 0.5, "tool": 0.7}
    assert stage.is_visible("#weights-off")


def test_a_presentation_that_a_link_opens_takes_the_focus(stage) -> None:
    stage.evaluate("() => { document.getElementById('live').hidden = true; }")
    stage.evaluate("() => canvas.present(true)")
    stage.evaluate("() => { document.getElementById('live').hidden = false; }")
    run(stage, "() => import('./tune.js').then(({ show }) => show())")
    stage.keyboard.press("3")
    assert stage.evaluate("() => document.documentElement.dataset.panel") == "map"
    stage.evaluate("() => canvas.present(false)")


def test_letters_act_only_while_the_stage_has_the_focus(stage) -> None:
    def pressed(keys: str) -> tuple[str, bool, str | None]:
        for key in keys:
            stage.keyboard.press(key)
        settle(stage)
        found = "() => [store.state.pin !== null, document.documentElement.dataset.panel ?? null]"
        return (setting(stage, "method"), *stage.evaluate(found))

    stage.evaluate("() => { document.body.append(document.createElement('summary')); }")
    stage.evaluate("() => { document.querySelector('body > summary').tabIndex = 0; }")
    stage.focus("body > summary")
    assert pressed("mp") == ("ram+", False, None)
    stage.click(".cv-map h2")  # which takes no focus itself
    assert pressed("mp") == ("ram", True, None)
    # A presentation begins with the focus on its panel's button, and ends where it was begun.
    stage.focus("body > summary")
    stage.evaluate("() => canvas.present(true)")
    assert pressed("2") == ("ram", True, "curve")
    stage.focus("body > summary")
    assert pressed("3") == ("ram", True, "curve")
    stage.keyboard.press("PageDown")
    assert pressed("") == ("ram", True, "map")
    stage.keyboard.press("Escape")
    assert stage.evaluate("() => document.activeElement.tagName") == "SUMMARY"


def test_the_map_is_walked_and_chosen_from_by_keys(stage) -> None:
    plot = stage.locator(".cv-map .cv-plot")
    assert plot.get_attribute("role") == "slider"
    stage.focus(".cv-map .cv-plot")
    shown, best = (int(plot.get_attribute(f"aria-value{key}") or 0) for key in ("now", "max"))
    assert stage.inner_text(".cv-map .cv-note").startswith(f"{best} merges")
    assert plot.get_attribute("aria-valuetext").endswith(
        "solved: RAM+ epsilon 10⁻⁵, r 0.1, alpha 2"
    )
    stage.keyboard.press("ArrowLeft")
    assert int(plot.get_attribute("aria-valuenow")) == shown - 1
    stage.keyboard.press("End")
    said = plot.get_attribute("aria-valuetext")
    assert stage.inner_text(".cv-tip") == said.replace(" solved:", "")
    stage.keyboard.press("Enter")
    settle(stage)
    assert said.startswith(f"{stage.get_attribute('.cv', 'data-total')} of ")
    assert run(stage, _SHOWN) == said.partition(" solved: ")[2]
    stage.keyboard.press("Home")
    assert plot.get_attribute("aria-valuenow") == "1"
    stage.focus("#reset")
    assert stage.is_hidden(".cv-tip")
    assert int(plot.get_attribute("aria-valuenow")) == best, "the merge that is shown"
    # Where nothing was measured there is nothing to walk.
    run(stage, "(profile) => canvas.setCanvasProfile(profile)", shipped("dense")[0])
    settle(stage)
    said = [plot.get_attribute(name) for name in ("role", "tabindex", "aria-valuenow")]
    assert said == ["img", "-1", None]
    assert stage.get_by_role("region", name="Position of this merge").count() == 1
    assert stage.get_by_role("region", name="Change applied, along the active dial").count() == 1


def test_layers_are_said_as_keys_walk_them(stage) -> None:
    rows = stage.locator(".cv-rows")
    stage.focus(".cv-rows")
    assert rows.get_attribute("role") == "slider"
    for name in ("Embedding", "Layer 0"):
        stage.keyboard.press("ArrowDown")
        settle(stage)
        assert rows.get_attribute("aria-valuetext").startswith(f"{name}: ")
    assert rows.get_attribute("aria-valuenow") == "2"


def test_a_late_table_of_earlier_models_changes_nothing(stage) -> None:
    found = run(
        stage,
        """async (profile, table) => {
          const { fetchTable, tableOf } = await import("./measured.js");
          const real = window.fetch;
          const waiting = [];
          window.fetch = () => new Promise((done) => waiting.push(done));
          const come = (i) => {
            waiting[i]({ json: async () => table });
            return new Promise((done) => setTimeout(done, 20));
          };
          const [before, after] = ["a", "b"].map((at) => ({ ...profile, skills_at: at }));
          fetchTable(before);
          canvas.setCanvasProfile(after);
          fetchTable(after);
          window.fetch = real;
          await come(1);
          await come(0);
          return tableOf(after)?.rows.length ?? null;
        }""",
        *shipped("shared-style"),
    )
    assert found == len(shipped("shared-style")[1]["rows"])


# ---------------------------------------------------------------------------- the microscope

_SCOPE = """async (data) => {
  const box = document.body.appendChild(document.createElement("div"));
  box.innerHTML = "<div class=scope></div><p role=status></p>";
  const { mountScope, openScope } = await import("./microscope.js");
  const props = { value: null };
  mountScope(box, props, (_, read) => { window.sent = read; });
  openScope("0");
  props.value = data;
  sent();
  window.heard = [];
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const live = target.parentElement?.closest("[aria-live], [role=status]") ?? target;
      if (live.matches("[aria-live], [role=status]")) heard.push(live.textContent);
    }
  }).observe(box, { childList: true, subtree: true, characterData: true });
}"""


def _scope_data(agents: list[str], sizes: list[float]) -> dict[str, Any]:
    """Return what the server sends of weights that the first agent changed by these sizes."""
    empty = [""] * len(sizes)
    same = ["0"] * len(agents)
    elements = [
        {
            "index": i, "at": f"Weight {i}", "place": "", "base": "0.5", "values": same,
            "taus": same, "sizes": [size, 0, 0], "changed": [0], "moved": [0],
        }
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    stored = [str(0.5 + size) for size in sizes]
    rule = {
        "label": "ram+", "name": "RAM+", "formula": empty, "result": empty, "note": empty,
        "stored": stored, "requested": empty, "effective": empty, "dtype": "float32",
        "is_drawn": False,
    }  # fmt: skip
    return {
        "tensor": "w", "layer": "0", "facts": "", "agents": agents, "focus": 0, "rule": "ram+",
        "rows": [["row 0", list(range(len(sizes)))]], "elements": elements, "methods": [rule],
        "hidden": [],
    }  # fmt: skip


def test_the_microscope_says_one_sentence_and_no_table(stage) -> None:
    agents = stage.evaluate("() => store.state.profile.agents")
    run(stage, _SCOPE, _scope_data(agents, [0.25, 0.125, 0.25]))
    stage.keyboard.press("ArrowRight")
    settle(stage)
    focused = stage.locator(".scope-cell:focus")
    assert focused.get_attribute("aria-label") == "Weight 1, unique to coding, 0.5 becomes 0.625"
    assert stage.inner_text(".scope-detail h3") == "Weight 1"
    assert stage.evaluate("() => heard") == [], "the cell that has the focus says it"
    # What changes while the focus is elsewhere is said: here epsilon rises over it.
    choose(stage, point=len(EPSILON_GRID) - 1)
    assert stage.evaluate("() => heard") == ["Weight 1, moved too little to count"]
    stage.evaluate("() => document.body.classList.remove('scope-open')")


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
    lesson.focus("[data-part=lesson-predict]")
    lesson.keyboard.press("m")
    assert setting(lesson, "method") == before
    lesson.click("[data-part=lesson-predict]")
    lesson.wait_for_selector(".ls[data-phase=drag]")
    lesson.keyboard.press("m")
    assert setting(lesson, "method") != before


def test_a_guess_that_is_changed_scrolls_no_phone(lesson) -> None:
    lesson.set_viewport_size({"width": 390, "height": 844})
    lesson.click("[data-part=lesson-predict]")
    lesson.wait_for_selector(".ls[data-phase=drag]")
    settle(lesson)
    scrolled = """() => { window.scrolls = 0;
      Element.prototype.scrollIntoView = () => { window.scrolls += 1; }; }"""
    lesson.evaluate(scrolled)
    lesson.focus(".ls-guess input")
    lesson.keyboard.press("ArrowRight")
    settle(lesson)
    assert lesson.inner_text(".ls-guess b") == "51 %"
    assert lesson.evaluate("() => window.scrolls") == 0


def test_who_leaves_the_lesson_sees_none_of_its_marks(lesson) -> None:
    lesson.click("[data-part=lesson-predict]")
    lesson.wait_for_selector(".ls-target")
    lesson.click(".ls-leave")
    settle(lesson)
    assert lesson.locator(".ls, .ls-target, [inert]").count() == 0
