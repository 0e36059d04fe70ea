"""Check, the chat and History as a user meets them, in a real browser at the real app."""

from __future__ import annotations

import csv
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

PHONE = (390, 844)
_ALL_DONE = """(count) => {
  const cards = [...document.querySelectorAll("#chat-answers article")];
  return cards.length === count && cards.every((card) => card.dataset.state === "done");
}"""


def _rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def _untick(page, *names: str) -> None:
    for name in names:
        page.uncheck(f"#check-models label:has-text('{name}') input")


def test_merge_download_check_ask_and_compare_with_the_past(example) -> None:
    it, page = example, example.page
    assert page.locator("#stepper .done").count() == 1
    page.click("#step-tune .next")
    page.wait_for_selector("#plan .plan")
    assert "bfloat16" in page.text_content("#plan")
    page.click("#merge-more > button")
    it.write("merge-name", "mine")
    page.click("#merge")
    page.wait_for_selector("#merge-result h3:text-is('mine')")
    assert "Effective λ" in page.text_content("#merge-result")
    with zipfile.ZipFile(it.download("#download")) as archive:
        names = {Path(name).name for name in archive.namelist()}
        assert {"model.safetensors", "config.json", "README.md", "ram_studio.json"} <= names
        assert archive.testzip() is None
    page.click("#to-check")

    # Stop after the first answers; what is in stays.
    it.write("limit", 300)
    page.click("#evaluate")
    page.wait_for_selector("#check-status .progress")
    assert page.is_hidden("#scores .empty-state"), "the progress says it"
    answered = ".progress-grid i:not([style='width:0']):not([style='width:0.0%'])"
    it.stop("#stop-evaluate", "#check-status", after=answered)
    page.wait_for_selector("#check-status:has-text('answers stored')")
    said = page.text_content("#check-status")
    kept = int(re.search(r"([\d,]+) answers", said)[1].replace(",", ""))
    assert kept > 0
    _untick(page, "tool", "memory")
    it.write("limit", 50)
    page.click("#evaluate")
    page.wait_for_selector("#verdicts .cv-dot")
    page.wait_for_selector("#to-check.done")
    assert page.locator("#stepper .done").count() == 4
    # Tune's own dumbbells: a dot a question, filled where the merge is right.
    assert page.locator(".verdict .cv-skill[data-verdict]").count() == 3
    for row in page.locator(".verdict .cv-skill").all():
        right = row.locator(".cv-skill-name span").text_content()
        dots = row.locator(".cv-dot").count()
        assert right == f"{row.locator('.cv-dot.right').count()}/{dots}"
    assert re.search(r"retains -?\d+ % of coding's gain", page.text_content(".verdict"))
    assert "3 verdicts were made and corrected together" in page.text_content("#verdicts")
    it.check_access("check with its verdicts", "#step-check", forced=True)
    page.click("#check-details > summary")
    said = page.text_content("#check-status")
    reused = int(re.search(r"([\d,]+) reused", said)[1].replace(",", ""))
    assert reused > 0

    # The table: value, sign against the base, interval and number of questions.
    assert page.locator("#scores table.heat tbody tr:not(.chance)").count() == 3
    cell = page.locator("#scores table.heat tr:has-text('mine') td").first.text_content()
    assert re.search(r"\d %▲ \+\d+\.\d\d+–\d+ · n 50", cell)
    assert "coding" in page.text_content(".statements")
    assert re.search(r"\d+ gained, \d+ lost of 50", page.text_content(".statements"))
    page.click("#scores .fold summary >> nth=-1")
    assert "adjusted p" in page.text_content("#scores table.pairs")

    # Item by item: what the base gets wrong and the merge right.
    page.wait_for_selector("#item .prompt")
    it.choose("#item-filter", "Base wrong, a merge right")
    page.wait_for_selector("#item .answer-card:has-text('base'):has-text('wrong')")
    assert "right" in page.text_content("#item .answer-card:has-text('mine')")
    page.click("#item-next")
    page.wait_for_selector("#item-position:has-text('2 of')")

    # One question to three of them, chosen anew.
    _untick(page, "tool", "memory")
    page.click("#chat > button")
    page.wait_for_selector("#chat-question textarea", state="visible")
    page.click("#chat-ask")
    page.wait_for_selector("#chat-status:has-text('There is no question yet')")
    page.click("#chat-examples input")
    page.click("[role=option]:has-text('Tool')")
    page.wait_for_function(
        "() => document.querySelector('#chat-question textarea').value.startsWith('tool:')"
    )
    page.click("#chat-ask")
    page.wait_for_function(_ALL_DONE, arg=3)
    assert "Ended by itself." in page.text_content("#chat-answers [data-model=mine]")
    assert "tokens/s" in page.text_content("#chat-answers [data-model=mine]")

    # A page that is loaded anew shows it all again.
    # Leaving in the middle of an answer of the server is an error on the console.
    it.settle()
    page.goto(it.url + "?step=history")
    page.wait_for_selector("#step-history", state="visible")
    page.click("#to-check")
    page.wait_for_selector("#scores table", state="attached")
    page.wait_for_selector("#verdicts .cv-dot")
    page.click("#to-merge")
    page.wait_for_selector("#merge-result .result")

    # The past: the same merge and check, beside the base, by keyboard and by link.
    page.click("#open-history")
    page.wait_for_selector("#history-list tr[data-kind=merge]:has-text('mine')")
    row = page.locator("#history-list tr[data-kind=merge]:has-text('mine')").first
    assert "The example's skills" in row.text_content()
    assert "set=shared-style" in row.locator("a").get_attribute("href")
    row.locator("input").focus()
    page.keyboard.press("Space")
    page.check("#history-list tr:not([data-kind=merge]):has-text('base') input")
    page.click("#history-compare")
    page.wait_for_selector("#history-result table.heat")
    it.check_access("history", "#step-history", forced=True)
    assert page.locator("#history-list input:checked").count() == 2
    assert "▲" in page.text_content("#history-result table.heat tr:has-text('mine')")
    assert "10⁻⁵" in page.text_content("#history-result table.past-settings")
    assert {row["model"] for row in _rows(it.download("#history-csv"))} == {"base", "mine"}
    assert "mine" in json.loads(it.download("#history-json").read_text())["merges"]
    page.click("#history-open")
    page.wait_for_selector("#to-check[aria-current=step]")
    page.wait_for_selector("#scores table.heat tbody tr >> nth=1", state="attached")
    assert page.locator("#scores table.heat tbody tr:not(.chance)").count() == 2


def test_a_phone_shows_suites_chat_and_history_in_its_width(visit) -> None:
    it = visit(PHONE, color_scheme="dark")
    page = it.page
    it.open("?set=shared-style")
    page.wait_for_selector("[data-agent]", state="visible")
    it.check_width()
    is_dark = "() => document.body.classList.contains('dark')"
    assert page.evaluate(is_dark)
    page.click("#theme")
    assert not page.evaluate(is_dark)
    page.evaluate("() => localStorage.clear()")
    it.go("merge")
    it.check_width()
    page.click("#to-check")
    page.click("#check-kind label:has-text('General suites')")
    page.wait_for_selector("#suites", state="visible")
    assert page.is_hidden("#limit")
    assert page.is_hidden("#lengths")
    # The example's context is too short for every suite of questions.
    page.wait_for_selector("#suites-too-long:has-text('Tool use: its shortest question takes')")
    assert page.locator("#suites input").count() == 1
    assert page.locator(".grayed input:disabled").count() >= 4
    # What has no effect on greedy answers comes with a temperature.
    page.click("#eval-settings > button")
    page.wait_for_selector("#eval-temperature", state="visible")
    assert page.is_hidden("#eval-samples")
    it.write("eval-temperature", 1)
    page.wait_for_selector("#eval-samples", state="visible")
    page.click("#chat > button")
    page.wait_for_selector("#chat-ask", state="visible")
    it.check_width()
    page.click("#open-history")
    page.wait_for_selector("#step-history", state="visible")
    it.check_width()
    assert "step=history" in page.url
    page.wait_for_selector("#history-list table, #history-list .empty-state")
    it.settle()
    # Nothing to compare: no button.
    assert page.is_visible("#history-compare") == page.is_visible("#history-list table")
    page.click("#to-tune")
    page.wait_for_selector("[data-agent]", state="visible")
    page.wait_for_function("() => !window.location.search.includes('step=')")


@pytest.mark.slow
def test_a_sweep_is_watched_and_its_winner_goes_to_tune(example) -> None:
    it, page = example, example.page
    page.click("#to-check")
    # Only suites that are ticked say how many questions of them.
    page.click("#check-kind label:has-text('General suites')")
    page.wait_for_selector("#suites", state="visible")
    page.wait_for_selector("#items-tool", state="hidden")
    assert page.locator("[id^=items-]:visible").count() == 0
    page.click("#check-kind label:has-text('The example')")
    page.wait_for_selector("#general-suites", state="hidden")
    page.click("#sweep-panel > button")
    # What cannot be asked stands grayed before anything is started, as in Check; and how to ask.
    page.wait_for_selector("#sweep-suites-too-long:has-text('Tool use: its shortest question')")
    page.click("#sweep-eval-settings > button")
    page.wait_for_selector("#sweep-eval-temperature", state="visible")
    page.locator("#sweep-methods").get_by_label("RAM+s").uncheck()
    it.write("sweep-items", 10)
    page.wait_for_selector("#sweep-count:has-text('6 settings, up to 30 questions each: up to')")
    page.click("#sweep-start")
    page.wait_for_selector("#sweep-chart .js-plotly-plot")
    page.wait_for_selector("#sweep-use", state="visible")
    found = page.inner_text("#sweep-found")
    assert "6 settings were compared" in found
    assert "held-out questions" in found
    rows = _rows(it.download("#sweep-csv"))
    chosen = page.locator("#sweep-pick input").input_value()
    winner = next(row for row in rows if row["label"] == chosen)
    page.click("#sweep-use")
    page.wait_for_selector("#to-tune[aria-current=step]")
    page.wait_for_function(
        "value => Math.abs(document.querySelector(\"[data-agent='tool']\").dataset.lambda - value)"
        " < 1e-9",
        arg=float(winner["lambda_tool"]),
    )
    settings = json.loads(page.input_value("#settings :is(textarea, input)"))
    assert settings["r"] == pytest.approx(float(winner["r"]))


@pytest.mark.slow
def test_methods_are_compared_and_the_table_is_taken_home(example, tmp_path: Path) -> None:
    it, page = example, example.page
    page.click("#to-check")
    assert page.is_hidden("#compare")
    page.click("#compare-methods > button")
    page.wait_for_selector("#compare", state="visible")
    it.settle()
    for name in ("average", "ties", "dare-ta", "ram+s"):
        page.click(f"#compare-choice label:has(input[name='{name}'])")
    it.set_slider("compare-limit", 10)
    page.click("#compare")
    # The rows stand there one by one; the files come with the last.
    page.wait_for_selector("#compare-csv", state="visible")
    page.wait_for_selector("#compare-chart .js-plotly-plot")

    def column(place: int) -> list[str]:
        cells = page.locator(f"#compare-table [data-testid^=cell-][data-testid$='-{place}']")
        return [text.strip() for text in cells.all_text_contents()]

    agents = ["coding", "tool", "memory"]
    chance = "chance level"
    merges = ["sum", "ram", "ram+"]
    *told, control, last = column(0)
    assert (told, last) == (["base", *agents, *merges], chance)
    assert control.startswith("norm-matched ")
    assert column(5)[6] == "reference"
    page.hover("#compare-table th:has-text('Average')")
    page.click("#compare-table th:has-text('Average') button")
    page.click("text=Sort descending")
    names = "#compare-table [data-testid^=cell-][data-testid$='-0']"
    # The base stood first; the chance level has no average and stays the last.
    page.wait_for_selector(f":nth-match({names}, 1):has-text('ram')")
    averages = [float(text.split(" ")[0]) for text in column(4)[:8]]
    assert averages == sorted(averages, reverse=True)
    assert "Not significantly different from" in page.text_content("#comparison .statement")
    assert page.locator("#compare-chart .scatterlayer .trace").count() == 5
    kinds = [row["kind"] for row in _rows(it.download("#compare-csv"))]
    assert kinds == ["base", *["agent"] * 3, *["merge"] * 4]
    with page.expect_download() as download:
        page.click("#comparison [data-save=svg]")
    assert "<svg" in Path(download.value.path()).read_text(encoding="utf-8")
    report, asked = page.context.new_page(), []
    report.on("request", lambda request: asked.append(request.url))
    shutil.copy(it.download("#compare-report"), tmp_path / "report.html")
    report.goto((tmp_path / "report.html").as_uri())
    assert report.locator("table").first.locator("tbody tr").count() == 9
    assert len(asked) == 1
    report.close()

    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    it.check_width()
    it.settle()
    it.choose("#compare-preset", "Strength of the rescaling")
    page.wait_for_selector("#compare-about:has-text('0.15 and 0.2')")
    assert page.is_hidden("#compare-choice")
    # More questions than the table above has answers to: those would come at once.
    it.set_slider("compare-limit", 100)
    page.click("#compare")
    it.stop("#stop-compare", "#compare-status")
    page.wait_for_selector("#compare:not([disabled])")
