"""Controls drawn from the methods' settings, and recipes put into them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.methods import METHODS, make_settings
from ram_studio.app.boxes import number_box, slider, unchecked
from ram_studio.app.check import work as scoring
from ram_studio.app.history import view as past_view
from ram_studio.app.history import work as past
from ram_studio.app.history.work import PastModel
from ram_studio.app.landing.preview import unknown_parts
from ram_studio.app.merge import controls, recipes
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.deep_link import read_link
from ram_studio.app.session.jobs import Work
from ram_studio.app.session.session import LoadedModels
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.weights import read_weights, usable_weights, weights_text
from ram_studio.checkpoints.record.filters import Filter
from ram_studio.checkpoints.record.recipe import recipe_yaml
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge_log import PastMerge
from ram_studio.errors import SettingsError
from ram_studio.evals.report.colors import SHAPE_PATHS
from ram_studio.evals.settings import EvalSettings
from ram_studio.resources import asset_text


@pytest.fixture
def loaded() -> LoadedModels:
    return load_set("shared-style")


@pytest.mark.parametrize("method", controls.OFFERED)
def test_every_setting_has_one_control_with_its_default(method: str) -> None:
    mine = [c.name for c in controls.CONTROLS if method in c.methods]
    mine += controls.tuned_by(method)
    assert sorted(mine) == sorted(METHODS[method].settings.model_fields)
    built = [control.build(visible=True) for control in controls.CONTROLS]
    own = controls.own_settings(method, [component.value for component in built])
    tuned = {"epsilon": EPSILON_GRID[DEFAULT_INDEX], "r": 0.1, "alpha": 2.0}
    settings = {**controls.tuned_settings(method, tuned), **own}
    assert make_settings(method, settings) == make_settings(method, {})


def test_limits_and_help_come_from_the_model() -> None:
    density = next(c for c in controls.CONTROLS if c.name == "density")
    number = density.build(visible=True)
    assert (number.minimum, number.maximum, number.value) == (0, 1, 0.2)
    assert number.info.startswith("Share of each task vector that is retained")
    assert number.info.endswith("More than 0 to 1.")
    assert density.methods == ("ties", "dare-ties")
    drop = next(c for c in controls.CONTROLS if c.name == "drop_rate")
    assert drop.help.endswith("From 0 to less than 1.")
    scale = next(c for c in controls.CONTROLS if c.methods == ("task-arithmetic",))
    number = scale.build(visible=True)
    assert (number.minimum, number.maximum, number.value) == (-10, 10, None)
    assert number.placeholder == "1/N"
    # Methods that cannot run from the form are not offered.
    assert not {"fisher", "region"} & set(controls.OFFERED)
    assert {"ties", "dare-ta", "dare-ties", "wudi"} <= set(controls.OFFERED)


def _saved(tmp_path: Path, method: str, **settings: object) -> Path:
    recipe = recipes.recipe_from(
        load_set("shared-style"), method, settings, dtype="float32", seed=7
    )
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_yaml(recipe))
    return path


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ram+", {"epsilon": EPSILON_GRID[20], "r": 0.35, "alpha": 1.5, "shared": "ties"}),
        ("ties", {"density": 0.4, "scale": 0.5, "scope": "tensor"}),
        ("dare-ta", {"drop_rate": 0.3, "scale": None}),
        ("wudi", {"solver": "closed", "others": "sum"}),
    ],
)
def test_a_loaded_recipe_gives_the_same_merge_again(loaded, tmp_path, method, settings) -> None:
    taken = recipes.read_upload(str(_saved(tmp_path, method, **settings)), loaded)
    assert taken.notes == []
    recipe = taken.recipe
    boxes = range(len(controls.CONTROLS))
    filled = controls.show_controls(recipe.method, boxes, recipe.settings)
    own = controls.own_settings(recipe.method, [filled[box].get("value") for box in boxes])
    if method == "ram+":
        tuned = taken.tuned
        own |= {name: tuned[name] for name in ("r", "alpha")}
        own["epsilon"] = EPSILON_GRID[tuned["point"]]
    again = recipes.recipe_from(
        loaded, recipe.method, own, dtype=recipe.dtype, rounding=recipe.rounding, seed=recipe.seed
    )
    assert again == recipe.model_copy(update={"base": again.base, "agents": again.agents})
    assert again.settings == make_settings(method, settings).model_dump()
    assert (again.dtype, again.seed) == ("float32", 7)


def test_what_the_sliders_cannot_show_is_said(loaded: LoadedModels, tmp_path: Path) -> None:
    taken = recipes.read_upload(str(_saved(tmp_path, "ram+", epsilon=3.21e-6, r=7.0)), loaded)
    said = " ".join(taken.notes)
    assert "r 7 is not on the slider" in said
    assert "epsilon 3.21e-06" in said
    assert taken.tuned["r"] == 1.0
    assert EPSILON_GRID[taken.tuned["point"]] == pytest.approx(3.21e-6, rel=0.3)


THREE = "{coding: a, tool: b, memory: c}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no recipe"),
        ("base: b\nagents: {x: y}\n", "merges x; loaded here: coding, tool, memory"),
        (f"base: b\nagents: {THREE}\nmethod: fisher\n", "command line"),
        ("base: b\nagents: {coding: a}\nsettings: {temperature: 1}\n", "temperature"),
        ("a: [1", "not valid YAML"),
        ("base: b\nagents: {coding: &x a, tool: *x}\n", "aliases"),
        ("x" * 1_000_001, "larger than"),
    ],
)
def test_a_wrong_recipe_is_named(
    loaded: LoadedModels, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        recipes.read_upload(str(path), loaded)
    assert said in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_long_weights_are_read_whole_or_refused() -> None:
    ramps = {f"agent-{n}": [0.7512] * 126 for n in range(8)}
    assert usable_weights(weights_text(ramps)) == ramps
    line = "coding=" + "0.7512 " * 3000
    with pytest.raises(SettingsError, match="have 21,007 characters; the limit is 16,384"):
        read_weights(line)
    assert read_link({"weights": line}).settings == {}
    (told,) = unknown_parts({"weights": line})
    assert "have 21,007 characters" in told


def test_the_forms_weights_reach_the_recipe_and_come_back(loaded, tmp_path):
    first, second, *_ = loaded.agents
    line = f"{first}=0.7, {second}=0.2 0.8"
    recipe = recipes.recipe_from(loaded, "ram+", {}, weights=read_weights(line))
    assert recipe.weights == {first: 0.7, second: (0.2, 0.8)}
    assert weights_text(recipe.weights) == line
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_yaml(recipe))
    assert weights_text(recipes.read_upload(str(path), loaded).recipe.weights) == line
    for wrong, said in (("0.7", "write each agent once"), (f"{first}=much", "weights")):
        with pytest.raises(SettingsError, match=said):
            recipes.recipe_from(loaded, "ram+", {}, weights=read_weights(wrong))
    own = {"match": "embeddings", "keep": "base"}
    path.write_text(recipe_yaml(recipe.model_copy(update={"filters": (Filter(**own),)})))
    assert any("filters" in note for note in recipes.read_upload(str(path), loaded).notes)


def test_an_update_leaves_a_choice_unchecked() -> None:
    box = unchecked(gr.CheckboxGroup(["tool", "health"]))
    # As Gradio does with an update: an event sent before it may bring a choice that has gone.
    updated = box.__class__(**{**box.constructor_args, "choices": ["health"]})
    for one in (box, updated):
        assert one.preprocess(["tool"]) == ["tool"]
        assert one.get_block_name() == "checkboxgroup"


def test_numbers_out_of_range_reach_the_handlers() -> None:
    box = number_box(0, "Seed", precision=0, minimum=0)
    assert [box.preprocess(typed) for typed in (-5, 2.6, None)] == [-5, 3, None]
    ends = slider("Questions per skill", (10, 300), 100, 10)
    assert [ends.preprocess(typed) for typed in (None, 1, 12, 120, 1200)] == [10, 10, 12, 120, 300]


def test_history_gives_agents_the_markers_they_had(session, workspace) -> None:
    def done(work: Work) -> None:
        work(lambda event: None, CancelToken())

    done(merge_work(recipes.recipe_from(session.models, "ram", {}), session, workspace.settings))
    for names in (["ram", "tool"], ["memory"]):
        asked = EvalSettings(limit=2)
        done(scoring.score_work(scoring.choose_models(names, session), asked, session, workspace))
    ids = {model.name: model.id for model in past.past_models(session, workspace)}

    def page(*names: str) -> str:
        chosen = [ids[name] for name in names]
        return past_view.side_by_side_html(
            past.side_by_side(chosen, "demo", None, session, workspace)
        )

    beside = page("ram", "tool")
    assert f'{SHAPE_PATHS[1]}" style="fill:var(--ram-agent-1)"/></svg>tool' in beside
    assert SHAPE_PATHS[0] not in beside
    assert 'class="marker"' not in page("memory", "tool"), "of which merge is not known"


@pytest.mark.browser
def test_boxes_of_history_stand_in_its_frame_on_a_phone(browser) -> None:
    made = PastMerge("1", "", "ram+", "", None, "", "f", "ram+", {})
    html = past_view.list_html([PastModel("m1", "ram+", "", made, ())], True)
    page = browser.new_page(viewport={"width": 390, "height": 844})
    styles = f"<style>{asset_text('app.css', 'check.css')}</style>"
    page.set_content(f'{styles}<div class="gradio-container">{html}</div>')
    # A box is painted where its element begins, whatever its padding.
    edges = page.evaluate("""() => ["input[type=checkbox]", "tbody tr"]
        .map((one) => document.querySelector(one).getBoundingClientRect().left)""")
    page.close()
    assert edges[0] >= edges[1]


def test_history_shows_weights_densities_and_filters() -> None:
    settings = {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}
    made = PastMerge("1", "", "ram+", "", None, "", "f", "ram+", {"settings": settings})
    plain = PastModel("m1", "ram+", "", made, ())
    weights = {"coding": 0.5, "memory": [0.2, 0.8]}
    filters = [
        {"match": ["norms"], "keep": "base"},
        {"layers": [0, 1], "weights": {"tool": 2.0}, "settings": {"r": 0}},
    ]
    own = {"weights": weights, "densities": {"tool": 0.3}, "filters": filters}

    def changed(**recipe: object) -> PastModel:
        return replace(plain, merge=replace(plain.merge, recipe={**plain.merge.recipe, **recipe}))

    assert past_view.settings_text(changed(**own).merge) == (
        "RAM+ · epsilon 10⁻⁵ · r 0.1 · alpha 2 · weights coding=0.5, memory=0.2 0.8 · "
        "densities tool=0.3 · filters norms: keep base; layers 0 to 1: weights tool=2, r 0"
    )
    rows = dict(past_view._settings([plain.merge, changed(**own).merge]))
    assert rows["weights"] == ["–", "coding=0.5, memory=0.2 0.8"]
    assert rows["filters"] == ["–", "norms: keep base; layers 0 to 1: weights tool=2, r 0"]
    # Tune shows weights; what it cannot show gets no link.
    for recipe, shown in (({"weights": weights}, 1), ({"filters": filters}, 0), (own, 0)):
        html = past_view.list_html([changed(**recipe)], True)
        assert html.count("Settings in Tune") == shown
    # Nor do settings without a dial: rho tensor by tensor, WUDI's other solver.
    for method, own, shown in (
        ("ram+", {**settings, "scope": "global", "shared": "mean"}, 1),
        ("ram+", {**settings, "scope": "tensor", "shared": "mean"}, 0),
        ("wudi", {"solver": "closed", "others": "mean"}, 1),
        ("wudi", {"solver": "adam", "others": "mean"}, 0),
    ):
        merge = replace(plain.merge, method=method, recipe={"settings": own})
        html = past_view.list_html([replace(plain, merge=merge)], True)
        assert html.count("Settings in Tune") == shown
    assert "recipe cannot be read" in past_view.settings_text(changed(filters=[{}]).merge)
