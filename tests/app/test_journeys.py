"""What a visitor does, in a real browser, at the real app. Every visit must be silent."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER, snap
from ram_studio.app.load.examples import load_example
from ram_studio.app.load.watch import watch_html
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.checkpoints.record.recipe import recipe_yaml
from ram_studio.resources import asset_path

pytestmark = pytest.mark.browser

PHONE = (390, 844)


def _assert_cards(cards: dict, point: int, rule: str, r: float, alpha: float) -> None:
    expected = load_example("1").sketch.preview(point, rule, r, alpha)
    assert set(cards) == set(expected["agents"])
    for name, numbers in expected["agents"].items():
        assert float(cards[name]["epsilon"]) == expected["epsilon"]
        assert float(cards[name]["lambda"]) == pytest.approx(numbers["lambda"], rel=1e-12)
        rho = float("inf") if numbers["rho"] is None else numbers["rho"]
        assert float(cards[name]["rho"]) == pytest.approx(rho, rel=1e-12)


def _set_slider(page, name: str, value: float) -> None:
    page.evaluate(
        """([id, value]) => {
          const input = document.querySelector(`#${id} input[type=range]`);
          Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")
            .set.call(input, value);
          input.dispatchEvent(new Event("input", {bubbles: true}));
        }""",
        [name, value],
    )


def _wait_for_lambda(page, agent: str, value: float) -> None:
    page.wait_for_function(
        "([agent, value]) => Math.abs(document.querySelector(`[data-agent='${agent}']`)"
        ".dataset.lambda - value) < 1e-9",
        arg=[agent, value],
    )


def test_one_press_gives_live_sliders_with_the_library_s_numbers(visit) -> None:
    it = visit()
    it.open()
    it.use_example()
    assert it.page.is_visible("#dial-epsilon")
    _assert_cards(it.cards(), DEFAULT_INDEX, "ram+", 0.1, 2.0)
    assert it.page.get_attribute("[data-part=verdict]", "data-tone") == "good"


def test_sixty_fast_moves_end_on_the_last_value_without_a_request(visit) -> None:
    it = visit()
    it.open()
    it.use_example()
    it.settle()
    before = len(it.requests)
    it.page.evaluate(
        """async () => {
          const wait = (ms) => new Promise((done) => setTimeout(done, ms));
          for (let i = 0; i < 60; i += 1) {
            for (const [id, value] of [["epsilon", i % 40], ["r", (i % 50) / 50],
                                       ["alpha", (i % 20) / 2]]) {
              const input = document.getElementById(`dial-${id}`);
              input.value = value;
              input.dispatchEvent(new Event("input", {bubbles: true}));
            }
            await wait(16);
          }
        }"""
    )
    expected = load_example("1").sketch.preview(59 % 40, "ram+", (59 % 50) / 50, (59 % 20) / 2)
    _wait_for_lambda(it.page, "tool", expected["agents"]["tool"]["lambda"])
    it.page.wait_for_timeout(400)
    it.settle()
    _assert_cards(it.cards(), 59 % 40, "ram+", (59 % 50) / 50, (59 % 20) / 2)
    # The sliders of record, which Merge and links read, have followed.
    for name, value in (("epsilon", 59 % 40), ("r", (59 % 50) / 50), ("alpha", (59 % 20) / 2)):
        assert float(it.page.input_value(f"#{name} input[type=range]")) == pytest.approx(value)
    assert it.requests[before:] == []
    assert "epsilon=" in it.page.url


def test_arrow_keys_and_the_methods_drive_the_canvas(visit) -> None:
    it = visit()
    it.open()
    it.use_example()
    it.page.focus("#epsilon-line")
    for _ in range(3):
        it.page.keyboard.press("ArrowRight")
    it.page.focus("[data-method='ram+']")
    it.page.keyboard.press("ArrowDown")
    expected = load_example("1").sketch.preview(DEFAULT_INDEX + 3, "ram+s")
    _wait_for_lambda(it.page, "coding", expected["agents"]["coding"]["lambda"])
    _assert_cards(it.cards(), DEFAULT_INDEX + 3, "ram+s", 0.1, 2.0)
    it.page.click("#reset")
    reset = load_example("1").sketch.preview()["agents"]["coding"]["lambda"]
    _wait_for_lambda(it.page, "coding", reset)
    _assert_cards(it.cards(), DEFAULT_INDEX, "ram+", 0.1, 2.0)


def test_a_link_opens_tune_in_that_state_and_is_clamped(visit) -> None:
    it = visit()
    tensor = "model.layers.2.mlp.up_proj.weight"
    view = f"pin=ram_0.001_0.2_1&focus=tool&tensor={tensor}&element=129"
    it.open(f"?example=1&epsilon=1e-4&r=0.25&alpha=99&rule=ram%2B&{view}")
    it.page.wait_for_selector("[data-agent]", state="visible")
    point = LADDER.index(min(LADDER, key=lambda e: abs(e - 1e-4)))
    expected = load_example("1").sketch.preview(point, "ram+", 0.25, 10.0)
    _wait_for_lambda(it.page, "coding", expected["agents"]["coding"]["lambda"])
    _assert_cards(it.cards(), point, "ram+", 0.25, 10.0)
    assert "RAM ε 9.98 · 10⁻⁴" in it.page.text_content(".cv-pinned")
    assert it.page.get_attribute("[data-agent=tool]", "aria-pressed") == "true"
    it.page.wait_for_selector(".scope-cell[data-element='1'][aria-selected]")
    assert it.page.text_content(".scope-detail h3") == "Weight 129"
    assert it.page.text_content(".scope-tensor") == tensor
    # The address says the same again, and follows what is looked at.
    it.page.focus(".scope-cell[aria-selected]")
    it.page.keyboard.press("ArrowRight")
    it.page.wait_for_url("**element=130**")
    query = parse_qs(urlsplit(it.page.url).query)
    assert query["pin"] == [f"ram_{LADDER[snap(0.001)]}_0.2_1"]
    assert (query["focus"], query["tensor"]) == (["tool"], [tensor])
    it.page.keyboard.press("Escape")
    it.page.click("[data-agent=tool]")
    it.page.wait_for_function("() => !/focus|tensor|element/.test(location.search)")
    # Nobody asked this setting before: its skills are those of another one until it is asked here.
    it.page.wait_for_selector("[data-part=skills][data-measured=nearest]")
    assert it.page.text_content("[data-part=verdict]").endswith("nearest measured setting.")
    it.page.click("#measure")
    it.page.wait_for_selector("[data-part=skills][data-measured=here]")
    assert "Measured: code" in it.page.text_content("[data-part=verdict]")
    assert it.page.is_hidden("#measure")


def test_a_link_to_the_former_look_step_lands_in_tune(visit) -> None:
    it = visit()
    it.open("?step=look&example=1")
    it.page.wait_for_selector("[data-agent]", state="visible")
    assert it.page.get_attribute("#to-tune", "aria-current") == "step"
    assert it.page.locator("#stepper button").count() == 4


def test_the_dense_lesson_says_that_ram_cannot_help(visit) -> None:
    it = visit()
    it.open("?example=dense")
    it.page.wait_for_selector("[data-agent]", state="visible")
    assert it.page.get_attribute("[data-part=verdict]", "data-tone") == "warn"
    assert "task arithmetic" in it.page.text_content("[data-part=verdict]")
    said = it.page.text_content("#watch").split()
    assert said == watch_html("dense").striptags().replace("&#39;", "'").split()
    it.open("?example=house")
    it.page.wait_for_selector("#watch >> text=house style")
    # Kept counts own parts only: what the others do alike is said beside it.
    it.page.wait_for_selector("[data-part=along] >> text=of every update")
    # TIES has no sums: it is merged when it is looked at.
    it.page.click("[data-method=ties]")
    it.page.wait_for_selector("[data-agent=tool]:not([data-kept=''])")
    assert "trimmed" in it.page.text_content(".cv-legend")
    it.page.click("[data-method='ram+']")
    it.page.wait_for_selector("[data-agent=tool][data-lambda^='1']")
    assert it.page.get_attribute("[data-part=verdict]", "data-tone") == "good"


def test_merge_download_check_and_reload(visit, tmp_path: Path) -> None:
    it = visit()
    page = it.page
    it.open()
    it.use_example()
    page.click("#open-details")
    page.wait_for_selector(".cv-details #chart-map .js-plotly-plot", state="visible")
    page.wait_for_selector(".cv-details #chart-patterns .js-plotly-plot", state="visible")
    assert "stored" in page.text_content("#details-stored")
    page.keyboard.press("Escape")
    page.click("#step-tune .next")
    page.wait_for_selector("#plan .plan")
    assert "bfloat16" in page.text_content("#plan")
    page.click("#merge")
    page.wait_for_selector("#merge-result .result")
    assert "λ stored" in page.text_content("#merge-result")
    with page.expect_download() as download:
        page.click("#download")
    target = tmp_path / "merge.zip"
    download.value.save_as(target)
    with zipfile.ZipFile(target) as archive:
        names = {Path(name).name for name in archive.namelist()}
        assert {"model.safetensors", "config.json", "README.md", "ram_studio.json"} <= names
        assert archive.testzip() is None

    page.click("#to-check")
    _set_slider(page, "limit", 50)
    page.click("#evaluate")
    page.wait_for_selector("#scores table", state="attached")
    rows = page.locator("#scores table.heat tbody tr:not(.floor)").all_text_contents()
    assert len(rows) == 5
    assert "coding" in page.text_content(".statements")
    assert re.search(r"\d+ gained, \d+ lost of 50", page.text_content(".statements"))
    assert page.is_visible("#item .prompt")

    page.reload()
    page.wait_for_selector("#to-check[aria-current=step]")
    page.wait_for_selector("#scores table", state="attached")
    page.click("#to-merge")
    page.wait_for_selector("#merge-result .result")


def test_a_downloaded_recipe_fills_the_form_again(visit, tmp_path: Path) -> None:
    it = visit()
    page = it.page
    it.open("?example=1")
    page.wait_for_selector("[data-agent]", state="visible")
    page.click("#to-merge")
    it.choose("#method", "DARE + TIES")
    page.wait_for_selector("#density input")
    assert page.is_visible("#drop-rate input")
    assert page.is_hidden("#from-tune")
    recipe = tmp_path / "mine.yaml"
    loaded = load_example("1")
    recipe.write_text(
        recipe_yaml(recipe_from(loaded, "ram+", {"epsilon": LADDER[20], "r": 0.35}, seed=11))
    )
    page.set_input_files("input[type=file]", str(recipe))
    page.wait_for_selector("#recipe-status .callout[data-tone=good]")
    page.wait_for_selector("#from-tune", state="visible")
    assert "r 0.35" in page.text_content("#from-tune")
    assert page.locator("#density input").count() == 0
    assert page.input_value("#method input") == "RAM+"
    assert page.input_value("#seed input") == "11"
    page.click("#to-tune")
    expected = loaded.sketch.preview(20, "ram+", 0.35, 2.0)
    _wait_for_lambda(page, "coding", expected["agents"]["coding"]["lambda"])


def test_methods_are_compared_and_the_table_is_taken_home(visit, tmp_path: Path) -> None:
    it = visit()
    page = it.page
    it.open("?example=1")
    page.wait_for_selector("[data-agent]", state="visible")
    page.click("#to-check")
    assert page.is_hidden("#compare")
    page.click("#compare-methods > button")
    page.wait_for_selector("#compare", state="visible")
    it.settle()
    for name in ("task-arithmetic-mean", "ties", "dare-ta", "ram+s"):
        page.click(f"#compare-choice label:has(input[name='{name}'])")
    _set_slider(page, "compare-limit", 10)
    page.click("#compare")
    page.wait_for_selector("#comparison table")

    def column(place: int) -> list[str]:
        cells = page.locator(f"#compare-table [data-testid^=cell-][data-testid$='-{place}']")
        return [text.strip() for text in cells.all_text_contents()]

    agents = ["coding", "tool", "memory"]
    assert column(1) == ["base", *agents, "task-arithmetic (scale 1)", "ram", "ram+"]
    assert column(6)[-1] == "reference"
    page.hover("#compare-table th:has-text('Average')")
    page.click("#compare-table th:has-text('Average') button")
    page.click("text=Sort descending")
    names = "#compare-table [data-testid^=cell-][data-testid$='-1']"
    page.wait_for_selector(f":nth-match({names}, 7):has-text('base')")
    averages = [float(text.split(" ")[0]) for text in column(5)]
    assert averages == sorted(averages, reverse=True)
    assert "within noise" in page.text_content("#comparison .statement")
    assert page.locator("#comparison .drawing-900 circle").count() == 3
    page.wait_for_selector("#compare-csv", state="visible")
    with page.expect_download() as download:
        page.click("#compare-csv")
    download.value.save_as(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["base", *["agent"] * 3, *["merge"] * 3]
    with page.expect_download() as download:
        page.click("#compare-report")
    download.value.save_as(tmp_path / "report.html")
    with page.expect_download() as download:
        page.click("#compare-figure")
    download.value.save_as(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8").count("<circle") == 3
    report = it.context.new_page()
    asked = []
    report.on("request", lambda request: asked.append(request.url))
    report.goto((tmp_path / "report.html").as_uri())
    assert report.locator("table").first.locator("tbody tr").count() == 7
    assert len(asked) == 1
    report.close()

    page.reload()
    page.wait_for_selector("#to-check[aria-current=step]")
    page.click("#compare-methods > button")
    page.wait_for_selector("#comparison table", state="visible")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth") <= 0
    it.settle()
    it.choose("#compare-preset", "How strong")
    page.wait_for_selector("#compare-about:has-text('0.15 and 0.2')")
    assert page.is_hidden("#compare-choice")
    # More questions than the table above has answers to: those would come at once.
    _set_slider(page, "compare-limit", 100)
    page.click("#compare")
    it.stop("#stop-compare", "#compare-status")
    page.wait_for_selector("#compare:not([disabled])")


def _write_large_model(folder: Path, elements: int, change: int) -> None:
    """Write a bfloat16 checkpoint of eight equal matrices, quickly and without torch."""
    folder.mkdir()
    each = elements // 8
    rng = np.random.default_rng(1)
    block = rng.integers(0x3C00, 0x3F00, each, dtype=np.uint16)
    block[::change] ^= 1
    header, at = {}, 0
    for i in range(8):
        header[f"model.layers.{i}.mlp.up_proj.weight"] = {
            "dtype": "BF16",
            "shape": [1024, each // 1024],
            "data_offsets": [at, at + 2 * each],
        }
        at += 2 * each
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(8):
            file.write(block.tobytes())
    (folder / "config.json").write_text('{"model_type": "qwen2"}')


def test_own_folders_from_a_wrong_path_to_a_stopped_merge(visit, tmp_path: Path) -> None:
    for name, change in (("base", 10**9), ("one", 7), ("two", 11)):
        _write_large_model(tmp_path / name, 8 << 20, change)
    it = visit()
    page = it.page
    it.open()
    page.click("#own-models > button")
    # The form is mounted when it opens; what is typed into a half-mounted box is lost.
    it.settle()
    page.fill("#base input, #base textarea", "/nowhere/at/all")
    page.fill("#agent-source-1 input, #agent-source-1 textarea", str(tmp_path / "one"))
    page.fill("#agent-source-2 input, #agent-source-2 textarea", str(tmp_path / "two"))
    page.click("#analyze")
    page.wait_for_selector("#load-status .callout[data-tone=bad]")
    assert "/nowhere/at/all" in page.text_content("#load-status")
    assert page.is_disabled("#to-tune")

    page.fill("#base input, #base textarea", str(tmp_path / "base"))
    page.click("#check-fit")
    page.wait_for_selector("#load-status table")
    assert "They fit together" in page.text_content("#load-status")
    page.click("#analyze")
    page.wait_for_selector("#to-tune[aria-current=step]")
    page.click("#to-merge")
    # Hundreds of steps for each matrix: minutes, unless it is stopped.
    it.choose("#method", "WUDI")
    page.click("#merge")
    it.stop("#stop", "#merge-status", after="#merge-status .progress")
    page.wait_for_selector("#merge:not([disabled])")
    assert page.locator("#merge-result .result").count() == 0

    # A sketch alone opens Tune; what needs models says so.
    page.click("#to-load")
    file = str(asset_path("dense", "sketch.safetensors"))
    page.fill("#sketch-source input, #sketch-source textarea", file)
    page.click("#open-sketch")
    page.wait_for_selector("#to-tune[aria-current=step]")
    assert "need the models themselves" in page.text_content("#sketch-status")
    page.click("#to-merge")
    page.click("#merge")
    page.wait_for_selector("#merge-status .callout[data-tone=warn]")
    assert "Only a sketch is loaded" in page.text_content("#merge-status")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(visit, scheme: str) -> None:
    it = visit(PHONE, color_scheme=scheme)
    page = it.page
    it.open()
    wide = "() => document.documentElement.scrollWidth - window.innerWidth"
    assert page.evaluate(wide) <= 0
    page.click("#own-models > button")
    it.settle()
    assert page.evaluate(wide) <= 0
    it.use_example()
    assert page.is_visible("#ram-strip")
    assert "ε 10⁻⁵" in page.text_content("#ram-strip")
    for step in ("tune", "merge", "check"):
        page.click(f"#to-{step}")
        page.wait_for_selector(f"#to-{step}[aria-current=step]")
        it.settle()
        assert page.evaluate(wide) <= 0, step
    dark = page.evaluate("() => document.body.classList.contains('dark')")
    assert dark == (scheme == "dark")
    page.click("#theme")
    assert page.evaluate("() => document.body.classList.contains('dark')") != dark


def test_a_stopped_evaluation_leaves_the_page_ready(visit) -> None:
    it = visit()
    page = it.page
    it.open("?example=dense")
    page.wait_for_selector("[data-agent]", state="visible")
    page.click("#to-check")
    # Many enough to be stopped before the last is answered, however quick the machine.
    page.fill("#limit input[type=number]", "300")
    page.press("#limit input[type=number]", "Tab")
    page.click("#evaluate")
    it.stop("#stop-evaluate", "#check-status")
    page.wait_for_selector("#evaluate:not([disabled])")
