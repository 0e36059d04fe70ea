"""The microscope in the Tune step: what the server sends, and what a user sees of it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import gradio as gr
import numpy as np
import pytest
from app_parts import built, tuned

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app.load.work import open_loaded
from ram_studio.app.session.jobs import NEED_LOAD
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.shared import PageContext, TuneSettings
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.app.tune import microscope_data, microscope_panel
from ram_studio.app.tune.microscope_data import ScopeForm
from ram_studio.app.tune.microscope_panel import ScopePanel
from ram_studio.engine.microscope import view as scope

MATRIX = "model.layers.0.mlp.up_proj.weight"
WIDTH = 128
"""Columns of the example's matrices."""

TUNED = TuneSettings()


def make(shared: PageContext) -> ScopePanel:
    shared.seed = gr.Number()
    return ScopePanel(shared)


@pytest.fixture(scope="module")
def panel(tmp_path_factory) -> ScopePanel:
    return built(make, Workspace(Settings(work_dir=tmp_path_factory.mktemp("page"))))


@pytest.fixture
def show(panel: ScopePanel) -> Callable[..., dict]:
    """Return what shows the example's weights; the updates are keyed by the components' names."""
    names = {box: name for name, box in vars(panel).items() if isinstance(box, gr.blocks.Block)}

    def shown(
        tensor: str = MATRIX, *, jumps: bool = False, tuned: TuneSettings = TUNED, **form
    ) -> dict:
        given = ScopeForm(tuned, tensor=tensor, **form)
        updates = panel.show(load_set("shared-style"), given, jumps=jumps)
        return {names[box]: update for box, update in updates.items()}

    return shown


def library_view(method: str, settings: dict, **how) -> scope.View:
    """Return what the library says of the weights that tests show."""
    loaded, count = load_set("shared-style"), microscope_data.COUNT
    how |= {"methods": {method: settings}, "analysis": loaded.analysis}
    return scope.microscope(loaded.base, loaded.agents, MATRIX, start=40, count=count, **how)


def value_of(text: str) -> float:
    return float(text.replace("−", "-"))


def test_the_panel_shows_the_library_s_numbers_as_text(show) -> None:
    tuned = TUNED._replace(point=DEFAULT_INDEX + 2, r=0.5)
    shown = show(start=40, tuned=tuned, rounding="stochastic")
    message, data = shown["status"], shown["view"]
    assert message == ""
    epsilon = EPSILON_GRID[DEFAULT_INDEX + 2]
    view = library_view("ram+", {"r": 0.5}, epsilon=epsilon, rounding="stochastic")
    (mine,) = (m for m in data["methods"] if m["method"] == "ram+")
    seen = view.methods["ram+"]
    assert [value_of(x) for x in mine["stored"]] == pytest.approx(seen.stored, rel=1e-5)
    assert mine["formula"] == [w.expression for w in seen.worked]
    assert [e["changed"] for e in data["elements"]] == [
        np.flatnonzero(column).tolist() for column in view.changed.T
    ]
    assert [i for _, places in data["rows"] for i in places] == list(range(microscope_data.COUNT))
    assert len(json.dumps(data)) < 200_000
    assert {name for name, _ in data["hidden"]} == {
        *("Fisher", "WUDI", "TSV-M", "Iso-C"),
        *("Slerp", "WARP", "Model Stock", "SCE", "ResMerge", "Project (SAR)"),
    }


@pytest.mark.parametrize(
    ("method", "own", "label"),
    [
        ("ties", {"density": 0.5, "scale": 0.8}, "ties"),
        ("task-arithmetic", {"scale": 0.7}, "task-arithmetic"),
        ("task-arithmetic", {"scale": 1 / 3}, "average"),
        ("task-arithmetic", {}, "average"),
        ("task-arithmetic", {"scale": 1.0}, "sum"),
    ],
)
def test_the_method_that_tune_shows_has_its_settings(show, method, own, label) -> None:
    data = show(start=40, tuned=TuneSettings(method, own=own))["view"]
    assert data["rule"] == label
    view = library_view(method, own)
    (mine,) = (m for m in data["methods"] if m["label"] == label)
    stored = [value_of(x) for x in mine["stored"]]
    assert stored == pytest.approx(view.methods[method].stored, rel=1e-5)


def test_settings_that_no_page_sends_are_refused_in_words(show) -> None:
    shown = show(tuned=TuneSettings("task-arithmetic", own={"scale": "large"}))
    assert "scale" in shown["status"]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_formula_comes_to_its_result(show, rounding: str) -> None:
    tuned = TUNED._replace(r=0.7)
    data = show("model.layers.1.self_attn.v_proj.weight", rounding=rounding, tuned=tuned)["view"]
    seen = 0
    for method in data["methods"]:
        for text, result in zip(method["formula"], method["result"], strict=True):
            plain = text.replace("−", "-").replace("×", "*").replace("÷", "/")
            assert re.fullmatch(r"[-+*/(). 0-9e]+", plain)
            if result:
                # Factors show 4 digits.
                assert eval(plain) == pytest.approx(value_of(result), rel=1e-4)
                seen += 1
    assert seen > 100


def test_it_begins_at_a_change_and_goes_where_it_is_sent(show) -> None:
    shown = show("")
    assert (shown["layer"]["value"], shown["module"]["value"]) == ("", "")
    assert shown["tensor"]["value"] in shown["tensor"]["choices"]
    data = shown["view"]
    counts = [len(e["changed"]) for e in data["elements"]]
    assert 1 in counts
    assert max(counts) > 1
    assert counts[data["focus"]] == 1
    assert shown["start"]["maximum"] > microscope_data.COUNT
    # Layer and module narrow the tensors.
    tensor = show(MATRIX, layer="2")["tensor"]
    assert tensor["choices"]
    assert all(".layers.2." in name for name in tensor["choices"])
    assert tensor["value"] in tensor["choices"]
    tensor = show(MATRIX, layer="2", module="q_proj")["tensor"]
    assert tensor["choices"] == ["model.layers.2.self_attn.q_proj.weight"]
    # The embedding has no q_proj: the module gives way.
    shown = show(MATRIX, layer="embedding", module="q_proj")
    assert shown["module"]["value"] == ""
    assert shown["tensor"]["choices"] == ["model.embed_tokens.weight"]


def test_jumping_finds_the_next_one_and_says_when_there_is_none(show) -> None:
    start, found = 0, []
    for _ in range(3):
        shown = show(jumps=True, target="unique:tool", start=start)
        assert shown["status"] == ""
        data = shown["view"]
        assert data["elements"][data["focus"]]["changed"] == [1]
        start = shown["start"]["value"]
        found.append(start + data["focus"])
    assert found == sorted(set(found))
    last = show()["start"]["maximum"]
    shown = show(jumps=True, target="shared", start=last)
    assert microscope_panel.NOT_FOUND in shown["status"]
    assert shown["view"]["elements"]


def test_a_window_has_the_matrix_s_rows(show) -> None:
    data = show(layout="window", start=128 * 5 + 120)["view"]
    assert [head for head, _ in data["rows"]] == [f"row {r}" for r in range(5, 11)]
    assert [len(places) for _, places in data["rows"]] == [8] * 6  # cut off at column 128
    assert data["elements"][8]["place"] == "row 6, column 120"
    data = show("model.layers.0.self_attn.q_proj.bias", layout="window", start=3)["view"]
    assert [len(places) for _, places in data["rows"]] == [10]


def test_what_cannot_be_shown_is_said(show, panel: ScopePanel) -> None:
    shown = panel.show(None, ScopeForm(TUNED))
    assert NEED_LOAD in shown[panel.status]
    assert shown[panel.view] == {}
    shown = show(dtype="int8")
    assert "dtype: should be" in shown["status"]
    assert shown["view"] == {}


def test_an_earlier_request_does_not_replace_a_later_answer(
    panel: ScopePanel, session, monkeypatch
) -> None:
    """A busy server answers a jump before the renewal that was under way when it was pressed."""
    session.client = "page"
    form = {**tuned(panel.shared), panel.shared.seed: 0, panel.dtype: "", panel.rounding: "nearest"}
    form |= {panel.layer: "", panel.module: "", panel.tensor: MATRIX, panel.start: 0}
    form |= {panel.layout: "run", panel.target: "unique:tool", panel.place: ""}

    def ask(number: int, *, jumps: bool = False) -> dict:
        return panel.answer({**form, panel.number: number}, session, jumps=jumps)

    jumped, draw = [], microscope_data.panel_data

    def draw_while_it_is_jumped(*given):
        if not jumped:
            jumped.append(None)
            jumped[0] = ask(2, jumps=True)
        return draw(*given)

    monkeypatch.setattr(microscope_data, "panel_data", draw_while_it_is_jumped)
    nothing = gr.skip()
    assert ask(1) == nothing
    assert jumped[0][panel.view]["elements"]
    assert jumped[0][panel.start]["value"] > 0
    assert ask(1) == nothing, "nor where it is begun after the jump"
    assert ask(3)[panel.view]["elements"]
    # A reloaded page counts anew.
    session.client = "reloaded"
    assert ask(1)[panel.view]["elements"]


def test_changed_files_are_read_anew(tmp_path) -> None:
    set_name = load_set("shared-style")
    folders = {}
    for name, folder in {"base": set_name.base, **set_name.agents}.items():
        folders[name] = str(shutil.copytree(folder, tmp_path / name))
    base = folders.pop("base")
    loaded = replace(set_name, base=base, agents=folders)
    first = open_loaded(loaded)
    assert open_loaded(loaded) is first
    shutil.copyfile(f"{base}/model.safetensors", f"{folders['tool']}/model.safetensors")
    second = open_loaded(loaded)
    assert second is not first
    assert second.agents[1].fingerprint != first.agents[1].fingerprint


_IS_SEEN = """() => {
  const title = document.querySelector(".scope h3");
  const { x, y, height } = title.getBoundingClientRect();
  return document.elementFromPoint(x + 5, y + height / 2) === title;
}"""


@pytest.mark.browser
def test_the_microscope_takes_the_focus_and_gives_it_back(example) -> None:
    page = example.page
    example.open_layer()
    assert page.evaluate(_IS_SEEN), "nothing lies above its head"
    page.keyboard.press("ArrowRight")
    label = page.get_attribute(".scope-cell:focus", "aria-label")
    at, who, made = label.split(", ")
    assert at == page.inner_text(".scope-detail h3")
    assert made.startswith("stays ") or " becomes " in made
    assert page.text_content("#scope [role=status]") == "", who
    page.keyboard.press("Escape")
    page.wait_for_selector(".cv-rows:focus")
    example.open_layer()  # the same weights again
    page.keyboard.press("Escape")


@pytest.mark.browser
@pytest.mark.slow
def test_a_user_looks_at_single_weights(example) -> None:
    it, page = example, example.page
    it.open_layer()
    assert ".layers.1." in page.inner_text(".scope-tensor")
    page.click("#scope-where > button")
    # Settings moved a moment before: the weights are asked for again after the jump, and it stays.
    page.evaluate(
        """() => {
          const refresh = document.querySelector("#scope-refresh");
          refresh.addEventListener("click", () => { document.body.dataset.renewed = "yes"; });
          document.querySelector("#dial-r").click();
          const typed = document.querySelector("#dial-number");
          typed.value = 0.3;
          typed.dispatchEvent(new Event("change", { bubbles: true }));
          setTimeout(() => document.querySelector("#scope-jump").click(), 250);
        }"""
    )
    page.wait_for_selector(".scope-detail .scope-who .item:nth-of-type(2)")
    page.wait_for_selector("body[data-renewed]")
    it.settle()
    assert page.is_visible(".scope-detail .scope-who .item:nth-of-type(2)")
    page.focus(".scope-cell[aria-selected]")
    before = page.inner_text(".scope-detail h3")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    after = page.inner_text(".scope-detail h3")
    number = [int(re.sub(r"\D", "", text)) for text in (before, after)]
    assert number[1] - number[0] == 1 + WIDTH
    # A cell says in words what its color and markers say.
    label = page.get_attribute(".scope-cell[aria-selected]", "aria-label")
    assert label.startswith(after)
    assert any(word in label for word in ("shared by", "unique to", "moved too", "by nobody"))
    # Which weights count follows the line at once, without the server.
    many = page.locator(".scope-cell:not([data-count='0'])").count()
    page.focus("#epsilon-line")
    page.keyboard.press("End")
    page.wait_for_function(
        "(n) => document.querySelectorAll('.scope-cell:not([data-count=\"0\"])').length < n",
        arg=many,
    )
    page.click("#reset")
    page.wait_for_function(
        "(n) => document.querySelectorAll('.scope-cell:not([data-count=\"0\"])').length === n",
        arg=many,
    )
    # Tune's settings are the panel's: after a pause the same weights come with the new lambda.
    alone = page.locator(".scope-cell[data-count='1']").first
    alone.click()
    shown = page.inner_text("[data-part=formula]")
    weight = page.inner_text(".scope-detail h3")
    page.click("#dial-r")
    page.focus("#curve-plot")
    page.keyboard.press("End")
    page.wait_for_function(
        "(old) => document.querySelector('[data-part=formula]')?.innerText !== old", arg=shown
    )
    cards = it.cards().values()
    factors = {f"{float(card['lambda']):.4g}" for card in cards}
    page.locator(".scope-cell[data-count='1']").first.click()
    assert page.inner_text(".scope-detail h3") == weight
    page.wait_for_function(
        """(ends) => {
          const text = document.querySelector("[data-part=formula]").innerText;
          return ends.some((x) => text.includes(x));
        }""",
        arg=[f"{x} ×" for x in factors],
    )
    page.get_by_label("Run").check()
    page.wait_for_selector(".scope-head:not(:has-text('row'))")
    page.focus(".scope-cell[aria-selected]")
    page.keyboard.press("Escape")
    assert page.is_hidden("#microscope")
    assert page.evaluate("() => document.activeElement.className") == "cv-rows"
