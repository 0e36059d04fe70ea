"""A sweep in a real browser: started, watched, and its winner taken to Tune."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser


def test_a_sweep_is_watched_and_its_winner_goes_to_tune(visit, tmp_path: Path) -> None:
    it = visit()
    page = it.page
    it.open("?example=1")
    page.click("#to-check")
    page.click("#sweep-panel > button")
    page.locator("#sweep-methods").get_by_label("RAM+s").uncheck()
    page.locator("#sweep-items input[type=number]").fill("10")
    page.locator("#sweep-items input[type=number]").press("Enter")
    page.wait_for_selector("#sweep-count:has-text('6 settings, 30 questions each at most.')")
    page.click("#sweep-start")
    page.wait_for_selector("#sweep-chart .js-plotly-plot", timeout=120_000)
    page.wait_for_selector("#sweep-use", state="visible", timeout=120_000)
    found = page.inner_text("#sweep-found")
    assert "6 settings were compared" in found
    assert "held-out items" in found
    with page.expect_download() as download:
        page.click("#sweep-csv")
    path = tmp_path / "sweep.csv"
    download.value.save_as(path)
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    chosen = page.locator("#sweep-pick input").input_value()
    winner = next(row for row in rows if row["setting"] == chosen)
    page.click("#sweep-use")
    page.wait_for_selector("#to-tune[aria-current=step]")
    page.wait_for_function(
        "value => Math.abs(document.querySelector(\"[data-agent='tool']\").dataset.lambda - value)"
        " < 1e-9",
        arg=float(winner["lambda_tool"]),
    )
    assert page.locator("#r input[type=range]").input_value() == f"{float(winner['r']):g}"
