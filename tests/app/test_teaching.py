"""The lesson for a class: on a projector, from a stick without a network, and on paper."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from ram_studio.app.lesson.kit import kit_html, lesson_file
from ram_studio.app.lesson.scene_answers import scene_answers

SCENES = 7

PARTS = ".cv > :is(.ls, .cv-verdict, .cv-answers, .cv-curve, .cv-map, .cv-weights, .cv-parts)"
SHOWN = """(all) => all.filter((one) => one.checkVisibility())
  .map((one) => [...one.classList].find((name) => name !== "cv-panel"))"""


def test_the_answers_to_print_are_those_of_the_scenes() -> None:
    text = re.sub(r"\s+", " ", kit_html().striptags())
    found = scene_answers()
    assert [one.scene for one in found] == [*map(str, range(1, SCENES)), "+"]
    for one in found:
        assert one.answer in text.replace("&#39;", "'")
    # A worksheet gives nothing away.
    sheet = kit_html().split('id="answers"')[0]
    assert not re.search(r"\b(123|176|171|107|2\.3)\b", sheet)


def test_kit_and_file_are_served(app_url: str) -> None:
    kit = httpx.get(f"{app_url}ram/kit.html", timeout=60)
    assert "Print the worksheet" in kit.text
    assert 'href="lesson.html"' in kit.text
    file = httpx.get(f"{app_url}ram/lesson.html", timeout=60)
    assert 'filename="ram-lesson.html"' in file.headers["content-disposition"]
    assert len(file.content) < 1_000_000
    assert file.text == lesson_file()


def _panel(it: Any) -> list[str]:
    """Return what is shown, which has to be readable from the last row."""
    it.page.wait_for_function("() => !document.documentElement.matches('.cv-moving')")
    it.check_text_size()
    overflow = "() => document.documentElement.scrollHeight - innerHeight"
    assert it.page.evaluate(overflow) <= 0
    shown: list[str] = it.page.eval_on_selector_all(PARTS, SHOWN)
    return shown


@pytest.mark.browser
@pytest.mark.slow
def test_a_projector_shows_one_panel_at_a_time_without_a_network(
    browser: Any, visit_at: Any, page_faults: Any, tmp_path: Path
) -> None:
    page_file = tmp_path / "ram-lesson.html"
    page_file.write_text(lesson_file(), encoding="utf-8")
    it = visit_at(page_file.as_uri(), (1440, 900))
    page = it.page
    page.context.set_offline(True)
    try:
        page.goto(it.url)
        page.wait_for_selector(".ls[data-phase=predict]")
        it.check_access("the lesson's file", forced=True)
        page.click("[data-act=present]")
        for scene in range(SCENES):
            page.wait_for_selector(f".ls[data-scene='{scene}'][data-phase=predict]")
            assert _panel(it) == ["ls"]
            page.keyboard.press("PageDown")
            page.wait_for_selector(f".cv[data-panel=figure] .ls[data-scene='{scene}']")
            shown = _panel(it)
            assert len(shown) == 2, "the figure, and below it what to do"
            agents = page.locator(f".{shown[1]}").inner_text()
            if shown[1] != "cv-curve":
                for name in ("code", "tool", "memory"):
                    assert name in agents.replace("coding", "code"), "names are kept"
            page.keyboard.press("PageDown")
            page.wait_for_selector(f".ls[data-scene='{scene}'][data-phase=answer]")
            assert _panel(it) == shown
            if scene == 3:
                assert page_faults(page, "html") == [], "a figure on a projector"
            page.keyboard.press("PageDown")
            page.wait_for_selector(".cv[data-panel=answer]")
            assert _panel(it) == ["ls"]
            assert "Measured: " in page.inner_text(".ls-answer")
            if scene == 0:
                page.keyboard.press("PageUp")
                page.wait_for_selector(".cv[data-panel=figure]")
                page.keyboard.press(" ")
                page.wait_for_selector(".cv[data-panel=answer]")
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(".ls[data-phase=end]")
        assert _panel(it) == ["ls"]
        page.keyboard.press("Escape")
        page.wait_for_selector("html:not(.cv-present)")
        page.wait_for_selector(".ls-copy", state="visible")
        _copy_answers(it)
        _print_sheets(it, page_faults)
        assert page_faults(page, "html") == [], "the lesson's file"
    finally:
        page.context.set_offline(False)


@pytest.mark.browser
def test_a_presented_page_keeps_its_heading(visit: Any) -> None:
    it = visit((1440, 900))
    page = it.page
    page.goto(f"{it.url}?set=shared-style&present=1")
    for begins in (lambda: None, lambda: page.click("#present")):
        begins()
        page.wait_for_selector("html.cv-present .cv-card[data-item]")
        it.settle()
        assert _panel(it) == ["cv-verdict", "cv-answers"]
        assert page.get_by_role("heading", level=1).all_inner_texts() == ["RAM Studio"]
        # Unseen, and nothing to press in it.
        assert page.locator("#top :is(a, button) >> visible=true").count() == 0
        assert page.locator("#top").bounding_box()["width"] <= 1
        page.keyboard.press("Escape")
        page.wait_for_selector("html:not(.cv-present)")


def _copy_answers(it: Any) -> None:
    page = it.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.fill(".ls-copy input", '=Ada "A"')
    page.click("[data-copy=csv]")
    page.wait_for_selector(".ls-copy [role=status]:has-text('Copied')")
    table = page.evaluate("() => navigator.clipboard.readText()")
    head, *rows = csv.reader(io.StringIO(table))
    assert head == ["name", "scene", "title", "guess", "measured"]
    assert len(rows) == SCENES
    assert {row[0] for row in rows} == {'\'=Ada "A"'}, "a text, no formula"
    assert rows[1][4] == "68 %"
    # A page over plain http has no clipboard: what is selected is copied.
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    page.click("[data-copy=text]")
    page.wait_for_selector(".ls-copy [role=status]:has-text('Copied as text')")
    text = page.evaluate("() => navigator.clipboard.readText()")
    assert "2. Average them: I said nothing; measured 68 %." in text


def _print_sheets(it: Any, page_faults: Any) -> None:
    """The kit takes the stage's place; each of its sheets is a page of paper."""
    page = it.page
    page.click(".ls-kit")
    page.wait_for_selector("#worksheet", state="visible")
    assert not page.is_visible(".ex-page")
    assert page_faults(page, "html") == [], "the kit"
    for where, pages in (("kit", 2), ("worksheet", 1), ("answers", 1)):
        page.evaluate("(where) => { location.hash = where; }", where)
        paper = page.pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", paper)) == pages, where
    page.click("text=Back to the lesson")
    page.wait_for_selector(".ls", state="visible")
