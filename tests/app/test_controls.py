"""Controls drawn from the methods' settings, and recipes put into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ram_studio.algorithm.ladder import DEFAULT_INDEX, LADDER
from ram_studio.algorithm.methods import METHODS, make_settings
from ram_studio.app.load.examples import load_example
from ram_studio.app.merge import controls, merging, recipes
from ram_studio.app.merge import panel as merge
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings
from ram_studio.app.workspace import Workspace
from ram_studio.checkpoints.record.recipe import recipe_yaml

AFTER_TUNE = 6
"""Position of the first control's update among those of ``recipes.take``."""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = Workspace(Settings(work_dir=tmp_path / "work")).session("t")
    session.load(load_example("1"))
    return session


@pytest.mark.parametrize("method", controls.OFFERED)
def test_every_setting_of_every_offered_method_has_one_control(method: str) -> None:
    mine = [c.name for c in controls.CONTROLS if method in c.methods]
    mine += controls.tuned_by(method)
    assert sorted(mine) == sorted(METHODS[method].settings.model_fields)


@pytest.mark.parametrize("method", controls.OFFERED)
def test_untouched_controls_give_the_methods_defaults(method: str) -> None:
    built = [control.build(visible=True) for control in controls.CONTROLS]
    own = controls.own_settings(method, [component.value for component in built])
    form = merging.MergeForm(method, DEFAULT_INDEX, 0.1, 2.0, own)
    settings = merging.recipe_of(form, load_example("1")).settings
    assert settings == make_settings(method, {}).model_dump()


def test_limits_and_help_come_from_the_model() -> None:
    density = next(c for c in controls.CONTROLS if c.name == "density")
    number = density.build(visible=True)
    assert (number.minimum, number.maximum, number.value) == (0, 1, 0.2)
    assert number.info.startswith("Share of each task vector that is kept")
    assert number.info.endswith("More than 0 to 1.")
    assert density.methods == ("ties", "dare-ties")
    drop = next(c for c in controls.CONTROLS if c.name == "drop_rate")
    assert drop.help.endswith("From 0 to less than 1.")
    scale = next(c for c in controls.CONTROLS if c.methods == ("task-arithmetic",))
    number = scale.build(visible=True)
    assert (number.minimum, number.maximum, number.value) == (-10, 10, None)
    assert number.placeholder == "1/N"


def test_methods_that_cannot_run_from_the_form_are_not_offered() -> None:
    assert "fisher" not in controls.OFFERED
    assert "region" not in controls.OFFERED
    assert {"ties", "dare-ta", "dare-ties", "wudi"} <= set(controls.OFFERED)


# ---------------------------------------------------------------------------- recipes


def _saved(tmp_path: Path, method: str, **settings: object) -> Path:
    recipe = merging.recipe_from(load_example("1"), method, settings, dtype="float32", seed=7)
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_yaml(recipe))
    return path


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ram+", {"epsilon": LADDER[20], "r": 0.35, "alpha": 1.5, "shared": "ties"}),
        ("ties", {"density": 0.4, "scale": 0.5, "scope": "tensor"}),
        ("dare-ta", {"drop_rate": 0.3, "scale": None}),
        ("wudi", {"solver": "closed", "others": "sum"}),
    ],
)
def test_a_loaded_recipe_gives_the_same_merge_again(
    session: Session, tmp_path: Path, method: str, settings: dict
) -> None:
    status, name, point, r, alpha, _, *rest = recipes.take(
        str(_saved(tmp_path, method, **settings)), session
    )
    assert 'data-tone="good"' in status
    count = len(controls.CONTROLS)
    own = [update.get("value") for update in rest[:count]]
    tuned = (point, r, alpha) if method == "ram+" else (0, 0.1, 2.0)
    dtype, rounding, seed = rest[count:]
    form = merge.read_form((name, *tuned, *own, dtype, rounding, seed, "auto", ""))
    again = merging.recipe_of(form, session.loaded)
    assert again.method == method
    assert again.settings == make_settings(method, settings).model_dump()
    assert (again.dtype, again.seed) == ("float32", 7)


def test_what_the_sliders_cannot_show_is_said(session: Session, tmp_path: Path) -> None:
    status, _, point, r, *_ = recipes.take(
        str(_saved(tmp_path, "ram+", epsilon=3.21e-6, r=7.0)), session
    )
    assert "r 7 is not on the slider" in status
    assert "ε 3.21e-06" in status
    assert r == 1.0
    assert LADDER[point] == pytest.approx(3.21e-6, rel=0.3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no recipe"),
        ("base: b\nagents: {x: y}\n", "merges x; loaded here: coding, tool, memory"),
        ("base: b\nagents: {coding: a, tool: b, memory: c}\nmethod: fisher\n", "command line"),
        ("base: b\nagents: {coding: a}\nsettings: {temperature: 1}\n", "temperature"),
        ("a: [1", "not valid YAML"),
        ("base: b\nagents: {coding: &x a, tool: *x}\n", "aliases"),
        ("x" * 1_000_001, "larger than"),
    ],
)
def test_a_wrong_recipe_is_named_and_changes_nothing(
    session: Session, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "their <b>.yaml"
    path.write_text(text)
    status, *updates = recipes.take(str(path), session)
    assert said in status
    assert "<b>" not in status
    assert str(tmp_path) not in status
    assert all(set(update) == {"__type__"} for update in updates)
