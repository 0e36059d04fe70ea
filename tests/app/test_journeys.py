"""What a user does, in a real browser, at the real app. Every visit must be silent."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from color_rules import stray_colors
from preview import large_profile
from saved_figures import save_every_figure

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID, snap
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.numbers import epsilon_text
from ram_studio.app.session.sets import load_set, set_profile
from ram_studio.checkpoints.record.recipe import recipe_yaml
from ram_studio.resources import asset_path

pytestmark = pytest.mark.browser

PHONE = (390, 844)


def _assert_cards(cards: dict, point: int, rule: str, r: float, alpha: float) -> None:
    expected = load_set("shared-style").analysis.preview(point, rule, r, alpha)
    assert set(cards) == set(expected["agents"])
    for name, numbers in expected["agents"].items():
        assert float(cards[name]["epsilon"]) == expected["epsilon"]
        assert float(cards[name]["lambda"]) == pytest.approx(numbers["lambda"], rel=1e-12)
        rho = float("inf") if numbers["rho"] is None else numbers["rho"]
        assert float(cards[name]["rho"]) == pytest.approx(rho, rel=1e-12)


def _wait_for_lambda(page, agent: str, value: float) -> None:
    page.wait_for_function(
        "([agent, value]) => Math.abs(document.querySelector(`[data-agent='${agent}']`)"
        ".dataset.lambda - value) < 1e-9",
        arg=[agent, value],
    )


def _recorded(page) -> dict:
    """Return the value of record, which Merge and links read."""
    return json.loads(page.input_value("#settings :is(textarea, input)"))


def _is_at(page, values: dict[str, float]) -> None:
    """Return once the value of record has followed."""
    page.wait_for_function(
        "(wanted) => { const { value } = document.querySelector('#settings :is(textarea, input)');"
        " const said = JSON.parse(value || '{}');"
        " return Object.entries(wanted).every(([k, v]) => Math.abs(said[k] - v) < 1e-9); }",
        arg=values,
    )


_CUT = """() => {
  const found = [];
  if (document.documentElement.scrollHeight > innerHeight) found.push("the page");
  for (const part of document.querySelectorAll(".cv > section, .cv-card, .cv-agents:not(.many)")) {
    if (!part.checkVisibility() || part.matches(".cv-answers.many")) continue;
    if (part.scrollHeight > part.clientHeight + 2) found.push(part.className);
  }
  return found;
}"""
SIZES = [(1280, 800), (1280, 680)]


def _assert_all_is_seen(it, what: str) -> None:
    """Fail where a column of the canvas, or the page, has more than it shows."""
    for size in SIZES:
        it.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        for method in ("ram+", "ties"):
            it.page.click(f"[data-choose='{method}']")
            it.settle()
            assert it.page.evaluate(_CUT) == [], (what, size, method)
        it.page.click("[data-choose='ram+']")


def test_live_sliders_ask_the_server_nothing(example) -> None:
    it, page = example, example.page
    assert page.is_visible("#dial-epsilon")
    first = page.text_content(".cv-big")
    _assert_cards(it.cards(), DEFAULT_INDEX, "ram+", 0.1, 2.0)
    assert page.get_attribute("[data-part=verdict]", "data-tone") == "good"

    # Sixty fast moves end on the last value.
    it.settle()
    before = len(it.requests)
    box = page.locator("#curve-plot").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 60, middle)
    page.mouse.down()
    for i in range(60):
        page.mouse.move(box["x"] + 60 + (i * 37) % 250, middle)
    page.mouse.up()
    page.wait_for_function(f"() => document.querySelector('.cv-big').textContent !== '{first}'")
    point = int(page.get_attribute("#epsilon-line", "aria-valuenow"))
    _is_at(page, {"point": point, "r": 0.1, "alpha": 2})
    _assert_cards(it.cards(), point, "ram+", 0.1, 2.0)
    # The microscope, which asks after a pause, is closed.
    page.click("#dial-r")
    page.focus("#curve-plot")
    page.keyboard.press("End")
    _is_at(page, {"r": 1})
    page.wait_for_timeout(1000)
    it.settle()
    assert it.requests[before:] == []
    assert "epsilon=" in page.url

    # All of it is seen at once, also far from what the paper tried, where most is said.
    page.click("#dial-alpha")
    page.fill("#dial-number", "10")
    page.press("#dial-number", "Tab")
    page.click("[data-act=pin]")
    _assert_all_is_seen(it, "shared-style")
    for layers, agents in ((4, 1), (4, 8), (80, 8)):
        profile = json.dumps(large_profile(layers, agents))
        page.evaluate("(text) => RAM.setProfile(JSON.parse(text))", profile)
        page.wait_for_function(
            "(n) => document.querySelectorAll('[data-agent]').length === n", arg=agents
        )
        _assert_all_is_seen(it, f"{layers} layers, {agents} agents")
    page.evaluate("(text) => RAM.setProfile(JSON.parse(text))", set_profile("shared-style"))


def _tab_to(page, selector: str) -> None:
    """Press Tab until an element has the focus, as somebody without a pointer does."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
    pytest.fail(f"{selector} is not reached with Tab")


@pytest.mark.slow
def test_the_whole_way_is_walked_by_keyboard(visit) -> None:
    it = visit(reduced_motion="no-preference")
    page, keys = it.page, it.page.keyboard
    it.open()
    _tab_to(page, "[data-opens=shared-style]")
    keys.press("Enter")
    page.wait_for_selector("[data-agent]", state="visible")
    it.settle()
    # Share, method, the line of epsilon, then a layer's weights and back.
    _tab_to(page, "#share")
    keys.press("Enter")
    page.wait_for_selector("#copy-link:focus")
    keys.press("Escape")
    page.wait_for_selector("#share:focus")
    _tab_to(page, ".cv-more")
    keys.press("Enter")
    page.wait_for_selector("[id='method-ram+s']:focus")
    keys.press("Enter")
    # A question of one skill, then the curve, which is the slider.
    _tab_to(page, ".cv-dots")
    item = page.get_attribute(".cv-card", "data-item")
    keys.press("ArrowRight")
    page.wait_for_function(f"() => document.querySelector('.cv-card').dataset.item !== '{item}'")
    assert "Right answer: " in page.get_attribute(".cv-dots", "aria-valuetext")
    _tab_to(page, "#curve-plot")
    keys.press("Shift+ArrowRight")
    _tab_to(page, "#epsilon-line")
    for _ in range(2):
        keys.press("ArrowRight")
    expected = load_set("shared-style").analysis.preview(DEFAULT_INDEX + 3, "ram+s")
    _wait_for_lambda(page, "coding", expected["agents"]["coding"]["lambda"])
    _assert_cards(it.cards(), DEFAULT_INDEX + 3, "ram+s", 0.1, 2.0)
    page.focus(".cv-rows")
    keys.press("ArrowDown")
    keys.press("Enter")
    page.wait_for_selector(".scope-cell[aria-selected]")
    # Of the settings of now, however soon after a move.
    moved = epsilon_text(EPSILON_GRID[DEFAULT_INDEX + 3])
    page.wait_for_selector(f".scope .facts:has-text('more than {moved} ')")
    keys.press("Escape")
    page.wait_for_selector(".cv-rows:focus")
    page.focus(".cv-more")
    _tab_to(page, "#reset")
    keys.press("Enter")
    reset = load_set("shared-style").analysis.preview()["agents"]["coding"]["lambda"]
    _wait_for_lambda(page, "coding", reset)
    page.focus("#share")
    _tab_to(page, "#step-tune .next")
    keys.press("Enter")
    page.wait_for_selector("#plan .plan")
    it.settle()
    _tab_to(page, "#merge")
    keys.press("Enter")
    page.wait_for_selector("#merge-result .result")
    it.settle()
    _tab_to(page, "#step-merge .next")
    keys.press("Enter")
    page.wait_for_selector("#to-check[aria-current=step]")
    it.settle()
    _tab_to(page, "#limit input[type=range]")
    keys.press("Home")
    page.wait_for_function("() => document.querySelector('#limit input[type=number]').value == 50")
    _tab_to(page, "#evaluate")
    keys.press("Enter")
    page.wait_for_selector("#scores table", state="attached")
    assert "n 50" in page.text_content("#scores table")


def test_a_link_opens_tune_and_a_recipe_fills_the_form(visit, tmp_path) -> None:
    it = visit()
    page = it.page
    # The former Look step is Tune now; alpha is clamped.
    tensor = "model.layers.2.mlp.up_proj.weight"
    view = f"pin=ram~epsilon=0.001&dial=alpha&tensor={tensor}&element=129"
    it.open(f"?step=tune&set=shared-style&epsilon=1e-4&r=0.25&alpha=99&rule=ram%2B&{view}")
    page.wait_for_selector("[data-agent]", state="visible")
    assert page.get_attribute("#to-tune", "aria-current") == "step"
    assert page.locator("#stepper button").count() == 4
    point = EPSILON_GRID.index(min(EPSILON_GRID, key=lambda e: abs(e - 1e-4)))
    expected = load_set("shared-style").analysis.preview(point, "ram+", 0.25, 10.0)
    _wait_for_lambda(page, "coding", expected["agents"]["coding"]["lambda"])
    _assert_cards(it.cards(), point, "ram+", 0.25, 10.0)
    assert page.get_attribute("#dial-alpha", "aria-checked") == "true"
    assert page.text_content("[data-answer=a] .cv-who") == "ARAM"
    page.wait_for_selector("#link-note .callout:has-text('The nearest value is used.')")
    it.check_access("a note", "#link-note")
    # What the server reads has followed the link whole.
    _is_at(page, {"point": point, "r": 0.25, "alpha": 10})
    assert _recorded(page)["method"] == "ram+"
    page.wait_for_selector(".scope-cell[data-element='1'][aria-selected]")
    assert page.text_content(".scope-detail h3") == "Weight 129"
    assert page.text_content(".scope-tensor") == tensor
    # The address says the same again, and follows what is looked at.
    page.focus(".scope-cell[aria-selected]")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**element=130**")
    query = parse_qs(urlsplit(page.url).query)
    assert query["pin"] == [f"ram~epsilon={EPSILON_GRID[snap(0.001)]}"]
    assert (query["dial"], query["tensor"]) == (["alpha"], [tensor])
    page.keyboard.press("Escape")
    page.wait_for_function("() => !/tensor|element/.test(location.search)")
    # Nobody asked this setting before: its skills are those of another one until it is asked here.
    page.wait_for_selector(".cv[data-tested=nearest]:not([data-nearest=''])")
    assert "was not measured. Shown: the nearest" in page.text_content("[data-part=verdict]")
    page.click("#measure")
    page.wait_for_selector(".cv[data-tested=here][data-nearest='']")
    assert "Measured: code" in page.text_content("[data-part=verdict]")
    assert page.is_hidden("#measure")

    page.click("#to-merge")
    page.click("#merge-more > button")
    it.choose("#method", "DARE + TIES")
    page.wait_for_selector("#density input")
    assert page.is_visible("#drop-rate input")
    assert page.is_hidden("#from-tune")
    recipe = tmp_path / "mine.yaml"
    loaded = load_set("shared-style")
    recipe.write_text(
        recipe_yaml(recipe_from(loaded, "ram+", {"epsilon": EPSILON_GRID[20], "r": 0.35}, seed=11))
    )
    page.set_input_files("input[type=file]", str(recipe))
    page.wait_for_selector("#recipe-status .callout[data-tone=good]")
    page.wait_for_selector("#from-tune", state="visible")
    assert "r 0.35" in page.text_content("#from-tune")
    assert page.locator("#density input").count() == 0
    assert page.input_value("#method input") == "RAM+"
    assert page.input_value("#seed input") == "11"
    page.click("#to-tune")
    expected = loaded.analysis.preview(20, "ram+", 0.35, 2.0)
    _wait_for_lambda(page, "coding", expected["agents"]["coding"]["lambda"])


def _write_large_model(folder: Path, elements: int, change: int) -> None:
    """Write a bfloat16 checkpoint of eight equal matrices, quickly and without torch."""
    folder.mkdir()
    each = elements // 8
    rng = np.random.default_rng(1)
    block = rng.integers(0x3C00, 0x3F00, each, dtype=np.uint16)
    block[::change] ^= 1
    header, at = {}, 0
    # A tower and experts, so that there is something to draw of them.
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(4)]
    names += [f"model.layers.{i}.mlp.experts.7.w1.weight" for i in (0, 1)]
    names += ["model.layers.1.mlp.gate.weight", "visual.blocks.0.attn.qkv.weight"]
    for name in names:
        shape = {"dtype": "BF16", "shape": [1024, each // 1024]}
        header[name] = {**shape, "data_offsets": [at, at + 2 * each]}
        at += 2 * each
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(8):
            file.write(block.tobytes())
    (folder / "config.json").write_text('{"model_type": "qwen2"}')


def test_own_folders_from_a_wrong_path_to_a_stopped_merge(
    visit, page_faults, tmp_path: Path
) -> None:
    for name, change in (("base", 10**9), ("one", 7), ("two", 11)):
        _write_large_model(tmp_path / name, 8 << 20, change)
    it = visit()
    page = it.page
    it.open()
    page.click("#own-models > button")
    # The form is mounted when it opens; what is typed into a half-mounted box is lost.
    it.settle()
    it.write("base", "/nowhere/at/all")
    it.write("agent-source-1", tmp_path / "one")
    it.write("agent-source-2", tmp_path / "two")
    page.click("#analyze")
    page.wait_for_selector("#load-status .callout[data-tone=bad]")
    assert "/nowhere/at/all" in page.text_content("#load-status")

    it.write("base", tmp_path / "base")
    page.click("#check-fit")
    page.wait_for_selector("#load-status table")
    assert "The models are compatible" in page.text_content("#load-status")
    page.click("#analyze")
    page.wait_for_selector("#to-tune[aria-current=step]")
    save_every_figure(it)
    page.click("#to-merge")
    # Hundreds of steps for each matrix: minutes, unless it is stopped.
    it.choose("#method", "WUDI")
    page.click("#merge")
    page.wait_for_selector("#merge-status .progress")
    assert page_faults(page, "#step-merge") == [], "a job that runs, with its Stop"
    it.stop("#stop", "#merge-status", after="#merge-status .progress")
    page.wait_for_selector("#merge:not([disabled])")
    assert page.locator("#merge-result .result").count() == 0
    page.click("#push-box > button")
    it.settle()
    it.write("push-name", "me/merged")
    page.click("#push")
    page.wait_for_selector("#pushed .callout[data-tone=bad]")
    assert "There is no merge yet" in page.text_content("#pushed")

    # An analysis alone opens Tune; what needs models says so.
    page.click("#to-load")
    it.write("analysis-source", asset_path("dense", "analysis.safetensors"))
    page.click("#open-analysis")
    page.wait_for_selector("#to-tune[aria-current=step]")
    assert "need the models themselves" in page.text_content("#analysis-status")
    page.click("#to-merge")
    page.click("#merge")
    page.wait_for_selector("#merge-status .callout[data-tone=warn]")
    assert "Only an analysis is loaded" in page.text_content("#merge-status")


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(visit) -> None:
    it = visit(PHONE, color_scheme="light")
    page = it.page
    it.open()
    it.check_width()
    page.click("#own-models > button")
    it.settle()
    it.check_width()
    it.check_access("load", forced=True)
    it.check_targets("#step-load")
    it.use_example()
    assert page.is_visible("#ram-strip")
    assert "ε 10⁻⁵" in page.text_content("#ram-strip")
    for step in ("check", "merge", "tune"):
        it.go(step)
        it.check_width(step)
        it.check_access(step, forced=True)
        it.check_targets(f"#step-{step}")
    page.click("#open-details")
    page.wait_for_selector("[data-part=rounding-chart] path:visible")
    page.wait_for_selector("[data-part=relations-chart] rect.bar")
    page.wait_for_selector(".cv-details #chart-map .js-plotly-plot", state="visible")
    it.check_access("details", forced=True)
    it.check_targets(".cv-details")
    page.keyboard.press("Escape")
    it.open_layer()
    it.check_access("microscope", forced=True)
    it.check_targets("#microscope")
    page.focus(".scope-cell[aria-selected]")
    it.check_width()
    sizes = page.evaluate(
        "() => [...document.querySelectorAll('.scope-cell')]"
        ".map((e) => Math.round(e.getBoundingClientRect().width))"
    )
    assert min(sizes) >= 20  # still to be hit by a finger
    assert not page.evaluate("() => document.body.classList.contains('dark')")
    page.keyboard.press("Escape")
    # At full width there is more to see.
    page.set_viewport_size({"width": 1280, "height": 800})
    for step in ("check", "merge", "tune"):
        page.click(f"#to-{step}")
        it.check_access(f"{step}, wide", forced=True)
        if step != "tune":
            page.locator(f"#step-{step} button.primary:visible").first.hover()
        it.settle()
        assert stray_colors(page) == [], step
    # With a rival beside it.
    page.click("[data-act=pin]")
    page.click("[data-choose=average]")
    it.check_access("tune, beside A", forced=True)
    page.click("[data-act=pin]")
    page.click("#share")
    it.check_access("share", forced=True)
    page.keyboard.press("Escape")
    page.click("#present")
    page.wait_for_selector(".cv-leave", state="visible")
    page.set_viewport_size({"width": 1440, "height": 900})
    for key, part in enumerate(("answers", "curve", "map", "weights", "parts"), 1):
        page.keyboard.press(str(key))
        page.wait_for_selector(f"[data-part={part}]", state="visible")
        assert page.locator(".cv > section:visible").count() == 2, "the verdict and one panel"
        it.settle()
        it.check_text_size()
        assert page.evaluate(_CUT) == [], part
        it.check_access(f"presentation, {part}", forced=True)
    page.keyboard.press("Escape")
    page.wait_for_selector("#top", state="visible")
    page.click("#open-history")
    page.wait_for_selector("#open-history[data-current]")
    it.check_access("history", forced=True)
