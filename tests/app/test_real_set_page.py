"""The set of a real model, which has no weights: what it shows, and what it says instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from app_parts import built, root_of

from ram_studio.app.api.arguments import Client
from ram_studio.app.check.panel import CheckPanel
from ram_studio.app.check.work import candidates
from ram_studio.app.landing import figure
from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.landing.picture import Pictures
from ram_studio.app.landing.preview import preview_of, unknown_parts
from ram_studio.app.load.watch import watch_html
from ram_studio.app.load.work import open_loaded
from ram_studio.app.merge.panel import MergePanel
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session import sets
from ram_studio.app.session.deep_link import read_link
from ram_studio.app.session.jobs import missing_text
from ram_studio.app.session.shared import PageContext
from ram_studio.app.tune.measured import measure_work, measured_rows
from ram_studio.engine.events import CancelToken
from ram_studio.errors import SettingsError
from ram_studio.evals.report.canvas_page import export_canvas

COMMAND = "python -m training.real_set.train"


def test_what_needs_weights_says_how_to_get_them(session: Any, workspace: Any) -> None:
    loaded = sets.load_set("real")
    session.load(loaded)
    assert COMMAND in missing_text(loaded)
    assert "clone" in missing_text(loaded)
    assert not loaded.is_example
    assert candidates(session) == {}
    assert measured_rows(session, workspace) is None
    for work in (
        lambda: open_loaded(loaded),
        lambda: measure_work(None, session, workspace),
        lambda: Client(workspace)._find_models("real", session),
    ):
        with pytest.raises(SettingsError, match=COMMAND):
            work()
    assert Client(workspace)._find_loaded("real", session) is loaded


def panel_alone(panel: type, workspace: Any) -> Any:
    """Return a panel with what it needs of others."""

    def make(shared: PageContext) -> Any:
        shared.steps = {"merge": gr.Button()}
        shared.seed = gr.Number()
        return panel(shared)

    return built(make, workspace)


def test_check_comes_next_once_something_was_merged(session: Any, workspace: Any) -> None:
    panel = panel_alone(MergePanel, workspace)
    assert panel._show(session)[panel.next]["visible"] is False
    work = merge_work(recipe_from(session.loaded, "ram", {}), session, workspace.settings)
    work(lambda event: None, CancelToken())
    assert panel._show(session)[panel.next]["visible"] is True
    # The plan is told anew: of the disk that is left, and of the time that it took.
    page = root_of(panel.plan)
    [merge] = [e for e in page.fns.values() if e.fn and (panel.job.start._id, "click") in e.targets]
    assert any(e.trigger_after == merge._id and panel.plan in e.outputs for e in page.fns.values())


@pytest.mark.parametrize(("panel", "button"), [(MergePanel, "Merge"), (CheckPanel, "Evaluate")])
def test_no_button_is_named_that_needs_weights(panel, button, session, workspace) -> None:
    shared = panel_alone(panel, workspace).shared
    for name, said in (("real", False), ("shared-style", True)):
        session.load(sets.load_set(name))
        shown = [str(update) for update in shared.loaded.updates(session).values()]
        assert any("yet." in text for text in shown)
        assert any(f"press {button}" in text for text in shown) is said


def test_landing_page_links_and_previews_know_it() -> None:
    assert 'data-opens="real">A real 0.5B model</a>' in figure.landing_html()
    query = {"set": "real", "rule": "average"}
    assert unknown_parts(query) == []
    assert read_link(query).set_name == "real"
    preview = preview_of(query)
    average = outcomes_of("real").find("average")
    assert preview.title.startswith(f"Average solves {average.total} of {average.prompts}")
    assert "math" in preview.description
    assert preview.picture is not None
    assert Pictures().picture(*preview.picture).startswith(b"\x89PNG")


def test_description_is_honest_about_how_it_was_made() -> None:
    text = watch_html("real")
    record = sets.record_of("real")
    steps = [
        f"{own['steps']} steps of {'SFT' if name in record['others'] else 'GRPO'}"
        for name, own in record["training"].items()
        if "-seed" not in name
    ]
    again = [str(record["training"][f"{name}-seed1"]["steps"]) for name in record["agents"]]
    steps.append(f"with seed 1 ({', '.join(again)} steps of GRPO)")
    for fact in ("GGUF", *steps, *record["not_done"], "greedy", COMMAND, "seeds: 0, 1"):
        assert fact in text, fact
    right = {model: n for model, (n, _) in record["other_suites"]["humaneval"].items()}
    assert f"humaneval, to see what was forgotten: base {right['base']}, " in text
    assert f"ram+ {right['ram+']} of 40." in text


def test_its_canvas_is_exported_with_every_answer(tmp_path: Path) -> None:
    page = export_canvas("real", tmp_path / "real.html").read_text(encoding="utf-8")
    assert "How many" in page
    assert "training.real_set" not in page


@pytest.mark.browser
@pytest.mark.parametrize(
    "size", [pytest.param((1280, 800), marks=pytest.mark.slow), (390, 844)], ids=str
)
def test_stage_reads_well_and_steps_say_what_is_missing(visit: Any, size: tuple[int, int]) -> None:
    it = visit(size)
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
    assert "steps of GRPO) and merged: average " in page.text_content("#real-facts")
    it.check_width()
    page.keyboard.press("Escape")
    page.focus(".cv-rows")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#scope-status:has-text('{COMMAND}')")
    page.wait_for_selector(".scope .facts:empty", state="attached")
    page.wait_for_selector("#close-microscope:focus")
    page.keyboard.press("Escape")
    it.go("merge")
    page.wait_for_selector(f"#plan:has-text('{COMMAND}')")
    page.click("#merge")
    page.wait_for_selector(f"#merge-status:has-text('{COMMAND}')")
    it.go("check")
    page.wait_for_selector(f"#step-check:has-text('{COMMAND}')")
    page.click("#compare-methods > button")
    page.wait_for_selector("#compare-suites label:has-text('Mathematics') input:checked")
    it.check_width()

    # Nothing of this is said of models that are there.
    it.go("load")
    it.use_example()
    page.wait_for_selector("#watch >> text=Drag to see why")
    it.go("check")
    page.click("#compare-methods > button")
    page.wait_for_selector("#compare-suites label:has-text('The example') input:checked")
    for step in ("merge", "check"):
        assert COMMAND not in page.text_content(f"#step-{step}")
