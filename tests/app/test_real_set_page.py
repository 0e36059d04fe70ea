"""The set of a real model, which has no weights: what it shows, and what it says instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_process import running_app
from real_set_folder import COUNTS, make_set

from ram_studio import resources
from ram_studio.app.api.arguments import Client
from ram_studio.app.check.work import candidates
from ram_studio.app.landing import figure
from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.landing.picture import Pictures
from ram_studio.app.landing.preview import preview_of, unknown_parts
from ram_studio.app.load.watch import watch_html
from ram_studio.app.load.work import open_loaded
from ram_studio.app.session import sets
from ram_studio.app.session.deep_link import read_link
from ram_studio.app.session.jobs import lack
from ram_studio.app.tune.measured import measure_work, measured_rows
from ram_studio.errors import SettingsError
from ram_studio.evals.report.canvas_page import export_canvas

COMMAND = "python -m training.real_set.train"
PER_SET = (
    *(sets._analysis_of, sets.load_set, sets.shipped_table, sets.record_of, sets.set_profile),
    *(outcomes_of, watch_html, figure.landing_html),
)
"""What is remembered of a set, or of all of them."""


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the set `real`, made of a random model and made-up answers."""
    folder = tmp_path_factory.mktemp("real")
    make_set(folder, folder / "assets")
    return folder / "assets"


@pytest.fixture
def real(assets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation that has it."""
    monkeypatch.setattr(resources, "ROOTS", (assets, *resources.ROOTS))
    monkeypatch.setitem(sets.TITLES, sets.REAL, "the agents of a real 0.5B model")
    for known in PER_SET:
        known.cache_clear()
    yield
    for known in PER_SET:
        known.cache_clear()


@pytest.mark.usefixtures("real")
def test_what_needs_weights_says_how_to_get_them(session: Any, workspace: Any) -> None:
    loaded = sets.load_set("real")
    session.load(loaded)
    assert COMMAND in lack(loaded)
    assert "clone" in lack(loaded)
    assert not loaded.is_example
    assert candidates(session) == {}
    assert measured_rows(session, workspace) is None
    for work in (
        lambda: open_loaded(loaded),
        lambda: measure_work(None, session, workspace),
        lambda: Client(workspace)._models("real", session),
    ):
        with pytest.raises(SettingsError, match=COMMAND):
            work()
    assert Client(workspace)._loaded("real", session) is loaded


@pytest.mark.usefixtures("real")
def test_landing_page_links_and_previews_know_it() -> None:
    assert 'data-opens="real">A real 0.5B model</a>' in figure.landing_html()
    query = {"set": "real", "rule": "average"}
    assert unknown_parts(query) == []
    assert read_link(query).set_name == "real"
    preview = preview_of(query)
    total = outcomes_of("real").find("average").total
    assert preview.title.startswith(f"Average solves {total} of {3 * COUNTS['test']}")
    assert "math" in preview.description
    assert preview.picture is not None
    assert Pictures().picture(*preview.picture).startswith(b"\x89PNG")


@pytest.mark.usefixtures("real")
def test_description_is_honest_about_how_it_was_made() -> None:
    text = watch_html("real")
    for fact in ("GGUF", "1 steps of GRPO", "second seed", "SFT", "greedy", COMMAND, "seed: 0"):
        assert fact in text, fact
    assert "humaneval, to see what was forgotten: base 3, ram+ 3 of 4." in text


@pytest.mark.usefixtures("real")
def test_its_canvas_is_exported_with_every_answer(tmp_path: Path) -> None:
    page = export_canvas("real", tmp_path / "real.html").read_text(encoding="utf-8")
    assert "How many" in page
    assert "training.real_set" not in page


def test_without_its_folder_nothing_offers_it() -> None:
    if sets.shipped_file("real", "skills.json.gz") is not None:
        pytest.skip("this installation has the set")
    assert 'data-opens="real"' not in figure.landing_html()
    assert read_link({"set": "real"}).set_name is None
    assert "'real'" in unknown_parts({"set": "real"})[0]


_APP = """
import pathlib, sys
import ram_studio.resources as resources
resources.ROOTS = (pathlib.Path(sys.argv[1]), *resources.ROOTS)
from ram_studio.app import Settings, launch
launch(Settings.from_environment())
"""


@pytest.fixture(scope="module")
def real_url(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that has the set."""
    folder = tmp_path_factory.mktemp("real-app")
    root = str(Path(__file__).resolve().parents[2])
    more = {"TMPDIR": str(folder), "GRADIO_TEMP_DIR": str(folder / "gradio"), "PYTHONPATH": root}
    command = [sys.executable, "-c", _APP, str(assets)]
    with running_app(command, folder, {**os.environ, "HF_HUB_OFFLINE": "1", **more}) as url:
        yield url


@pytest.mark.browser
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_stage_reads_well_and_steps_say_what_is_missing(
    visit_at: Any, real_url: str, size: tuple[int, int]
) -> None:
    it = visit_at(real_url, size)
    page = it.page
    it.open()
    page.click("[data-opens=real]")
    page.wait_for_selector("[data-skill=memory] .cv-prompt", state="visible")
    it.settle()
    shown = page.text_content("[data-skill=memory] .cv-prompt")
    assert shown.startswith("… Where does ")
    it.check_width()
    page.click("[data-skill=memory] .cv-read")
    page.wait_for_selector("#cv-whole-2:popover-open")
    whole = page.text_content("#cv-whole-2")
    assert whole.count(" works in the ") >= 5
    assert "right answer" in whole
    it.check_access("whole question", "#cv-whole-2")
    it.check_targets("#cv-whole-2")
    page.keyboard.press("Escape")
    page.click("#watch [popovertarget=real-facts]")
    page.wait_for_selector("#real-facts:popover-open")
    it.check_access("facts", "#real-facts")
    it.check_width()
    page.keyboard.press("Escape")
    it.go("merge")
    page.wait_for_selector(f"#plan:has-text('{COMMAND}')")
    page.click("#merge")
    page.wait_for_selector(f"#merge-status:has-text('{COMMAND}')")
    it.go("check")
    page.wait_for_selector(f"#step-check:has-text('{COMMAND}')")
    it.check_width()
