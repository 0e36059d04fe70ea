"""Handlers without a server: what they read, refuse, compute and write."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from random_analyses import make_analysis

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID, snap
from ram_studio.app import launch, numbers
from ram_studio.app.check.progress_grid import Cell, Scoring, grid_html, progress_html
from ram_studio.app.load import view as load_view
from ram_studio.app.load.sources import MAX_AGENTS, Sources, find_models, name_from, read_sources
from ram_studio.app.merge import view, work
from ram_studio.app.merge.controls import OFFERED, tuned_settings
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.session.deep_link import Link, read_link
from ram_studio.app.session.session import LoadedModels, MergedModel
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.shared import TuneSettings, read_tune_settings
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.hub.presets import presets
from ram_studio.checkpoints.read.checkpoint import split_hub_id
from ram_studio.engine.events import CancelToken, Progress
from ram_studio.engine.merge_log import past_merges
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.report.canvas_page import RANGES

LOCAL = Settings()
SPACE = Settings(is_space=True)


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "in use"), ("no.such.invalid", ""), (f"{'a' * 64}.invalid", "")]
)
def test_an_address_that_is_taken_or_unknown_is_told(host, why):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"cannot listen on {host}, port {port}: .*{why}.*Choose another --host or --port"
        with pytest.raises(SettingsError, match=said):
            launch(Settings(host=host, port=port), prevent_thread_lock=True)


def test_flags_win_over_the_environment_and_errors_are_named(tmp_path: Path) -> None:
    env = {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": "9000", "SPACE_ID": "a/b"}
    settings = Settings.from_environment(environ=env)
    assert (settings.host, settings.port, settings.is_space) == ("0.0.0.0", 9000, True)
    settings = Settings.from_environment(host="::1", port=80, models_dir=tmp_path, environ=env)
    assert (settings.host, settings.port, settings.models_dir) == ("::1", 80, tmp_path)
    for port in ("no", "0", "70000", "-1"):
        with pytest.raises(SettingsError, match=port):
            Settings.from_environment(environ={"GRADIO_SERVER_PORT": port})
    with pytest.raises(SettingsError, match="nowhere"):
        Settings.from_environment(models_dir=tmp_path / "nowhere", environ={})


def test_a_link_is_read_and_clamped() -> None:
    link = read_link(
        {"set": "shared-style", "epsilon": "1e-5", "r": "7", "alpha": "-3", "rule": "ram+"}
    )
    said = {"method": "ram+", "point": DEFAULT_INDEX, "r": 1.0, "alpha": 0.0}
    assert link == Link("shared-style", said)
    # An unquoted plus arrives as a space.
    assert read_link({"rule": "ram "}).settings == {"method": "ram+"}
    assert read_link({"epsilon": "inf"}).settings == {"point": len(EPSILON_GRID) - 1}
    # One name a method: of a scale two places have one.
    assert read_link({"rule": "average"}).settings == {"method": "task-arithmetic"}
    assert read_link({"rule": "sum"}).settings == {"method": "task-arithmetic", "scale": 1.0}
    rival = read_link({"rule": "ties", "density": "0.5", "scale": "99"}).settings
    assert rival == {"method": "ties", "density": 0.5, "scale": 10.0}
    weighed = read_link({"weights": "coding=0.7, memory=0.2 0.8, tool=1e999"}).settings
    assert weighed == {"weights": {"coding": 0.7, "memory": [0.2, 0.8]}}
    assert read_link({"weights": "coding"}) == Link()


def test_what_tune_shows_is_read_and_clamped() -> None:
    assert (
        read_tune_settings("")
        == read_tune_settings("no JSON")
        == read_tune_settings("[1]")
        == TuneSettings()
    )
    said = read_tune_settings(
        '{"method": "ties", "point": 999, "r": -1, "alpha": "x", "density": 0.5}'
    )
    assert said == TuneSettings("ties", len(EPSILON_GRID) - 1, 0.0, 2.0, {"density": 0.5})
    assert said.settings == {"density": 0.5}
    wrong = '"b": "x", "c": [], "d": {"e": 1}, "f": 1e9'
    weighed = read_tune_settings(f'{{"weights": {{"a": [0, 1], {wrong}}}}}')
    assert weighed.weights == {"a": [0.0, 1.0]}
    assert read_tune_settings('{"method": "<b>"}').method == "ram+"
    huge = "9" * 400  # beyond what a float holds
    assert read_tune_settings(
        f'{{"alpha": {huge}, "weights": {{"a": {huge}, "b": [{huge}]}}}}'
    ) == (TuneSettings(alpha=RANGES["alpha"]))
    assert set(TuneSettings().settings) == {"epsilon", "r", "alpha"}
    for set_name in ("shared-style", "independent", "dense"):
        assert read_link({"set": set_name}).set_name == set_name


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"set": "../etc"},
        {"epsilon": "x", "r": "nan", "alpha": "", "rule": "<b>"},
        {"step": "<b>", "lesson": "-1", "element": "9" * 5000},
        {"lesson": "0", "pin": "what~epsilon=1e-5", "dial": "<b>"},
        {"lesson": "²", "pin": "~r=1", "scale": "x"},
    ],
)
def test_a_senseless_link_is_ignored(query: dict[str, str]) -> None:
    assert read_link(query) == Link()


TENSOR = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({}, {}),
        ({"step": "tune", "lesson": "3"}, {"step": "tune", "lesson": "3"}),
        ({"lesson": "ram", "present": "1"}, {"lesson": "ram", "present": True}),
        (
            {"pin": "ram+s~epsilon=1e-5~r=0.25~alpha=77~x"},
            {"pin": {"point": DEFAULT_INDEX, "r": 0.25, "alpha": 10.0, "method": "ram+s"}},
        ),
        ({"pin": "average", "dial": "r"}, {"pin": {"method": "task-arithmetic"}, "dial": "r"}),
        ({"tensor": TENSOR, "element": "7"}, {"tensor": TENSOR, "element": 7}),
        ({"tensor": TENSOR, "element": "9" * 17}, {"tensor": TENSOR, "element": "last"}),
        ({"tensor": "../../etc/passwd", "element": "0"}, {}),
    ],
)
def test_a_link_shows_what_there_is(query: dict[str, str], shown: dict) -> None:
    nothing = {"step": None, "lesson": None, "pin": None, "dial": None, "tensor": None}
    nothing["present"] = False
    view = read_link(query).view(load_set("shared-style"))
    if shown.get("element") == "last":
        shown = {**shown, "element": 128 * 384 - 1}
    assert view == {**nothing, "element": 0, **shown}
    # Before anything is loaded there is nothing to point at.
    empty = read_link(query).view(None)
    assert empty["tensor"] is None


def test_rows_without_a_source_are_left_out_and_names_are_made() -> None:
    sources = read_sources(
        " base ", ["coder", "", ""], ["./a/", None, "owner/My Model@main"], LOCAL
    )
    assert sources == Sources("base", {"coder": "./a/", "My-Model": "owner/My Model@main"})
    assert [name_from(source) for source in ("/my agents/a b/", "o/name@v1", "///")] == [
        *("a-b", "name", "")
    ]


@pytest.mark.parametrize(
    ("base", "names", "sources", "text"),
    [
        ("", ["a"], ["x"], "No base"),
        ("b", [""], [""], "No agent"),
        ("b", ["a", "a"], ["x", "y"], "Two agents are called a"),
        ("b", ["base"], ["x"], '^The agent\'s name is "base": this name is reserved for the base'),
        ("b", ["<img>"], ["x"], "<img>"),
    ],
)
def test_a_wrong_form_says_what_to_enter(base, names, sources, text) -> None:
    with pytest.raises(SettingsError, match=text):
        read_sources(base, names, sources, LOCAL)


@pytest.mark.parametrize("source", ["/etc", "./models", "../x/y", "C:\\models", "a", "~/x"])
def test_a_space_takes_hub_ids_only(source: str) -> None:
    with pytest.raises(SettingsError, match="not a Hub id"):
        read_sources("owner/name", ["a"], [source], SPACE)
    with pytest.raises(SettingsError, match="not a Hub id"):
        read_sources(source, ["a"], ["owner/name"], SPACE)


def test_every_preset_fits_the_form() -> None:
    for preset in presets().values():
        assert len(preset.agents) <= MAX_AGENTS
        names, given = zip(*((agent.name, agent.source) for agent in preset.agents), strict=True)
        sources = read_sources(preset.base.source, names, given, SPACE)
        assert all(split_hub_id(s) for s in (sources.base, *sources.agents.values()))


def test_model_folders_are_found_three_levels_deep(tmp_path: Path) -> None:
    for place in ("a/b/c", "a/b/c/d/e", ".cache"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.safetensors").touch()
    assert find_models(tmp_path) == [str(tmp_path / "a/b/c")]
    assert find_models(None) == []


def _loaded(title: str = "x") -> LoadedModels:
    return LoadedModels(title, None, "base", {"agent0": "a", "agent1": "b"}, make_analysis(2))


def test_sessions_are_apart_and_a_key_finds_its_session_again(tmp_path: Path) -> None:
    workspace = Workspace(Settings(work_dir=tmp_path))
    one, two = workspace.session("tab-1"), workspace.session("tab-2")
    assert one is workspace.session("tab-1")
    assert one.folder != two.folder
    assert workspace.session("reloaded", key=one.key) is one
    assert workspace.session("new tab", key="0" * 32).key == "0" * 32
    assert workspace.session("strange", key="../../etc").key not in (one.key, two.key)
    workspace.close()
    assert list(tmp_path.iterdir()) == []


def test_loading_others_drops_the_merges_of_these(tmp_path: Path) -> None:
    session = Workspace(Settings(work_dir=tmp_path)).session("t")
    session.load(_loaded())
    folder = tmp_path / "m"
    folder.mkdir()
    session.merges["m"] = MergedModel("m", folder, "ram", {}, "")
    assert session.free_name("m") == "m (2)"
    assert session.free_name("agent0") == "agent0 (2)"
    session.load(_loaded("other"))
    assert not folder.exists()
    assert session.merges == {}


def test_a_merge_of_other_models_is_not_entered(tmp_path: Path) -> None:
    settings = Settings(work_dir=tmp_path, is_space=True)
    session = Workspace(settings).session("t")
    session.load(load_set("shared-style"))
    made = work.merge_work(recipe_from(session.models, "ram+", {}), session, settings)
    # Its last report comes before it is entered; nothing asks whether to stop after that.
    with pytest.raises(Stopped, match="other models were loaded"):
        made(lambda event: session.load(load_set("dense")), CancelToken())
    assert session.merges == {}
    assert list(session.folder.glob("merges/*")) == []
    assert past_merges(session.folder) == []


def test_a_form_becomes_settings_and_a_wrong_seed_is_refused() -> None:
    tuned = {"epsilon": 1e-4, "r": 0.3, "alpha": 1.5}
    assert tuned_settings("ram+", tuned) == tuned
    assert tuned_settings("ram+s", {"r": 0.3, "alpha": 1.5}) == {"r": 0.3}
    assert tuned_settings("task-arithmetic", tuned) == {}
    for seed in (float("nan"), float("inf"), -1):
        with pytest.raises(SettingsError, match="seed"):
            recipe_from(_loaded(), "ram", {}, seed=seed)
    names = {"ram+": "ram-plus", "../../etc/passwd": "etc-passwd", "<ε>": "merge"}
    assert {name: work.slug(name) for name in names} == names, "names of folders"


def test_the_plan_names_sizes_and_the_rounding_caution(tmp_path: Path) -> None:
    recipe = recipe_from(_loaded(), "ram+", {})
    plan = view.plan_merge(_loaded(), recipe, tmp_path / "not" / "there")
    html = view.plan_html(plan, "ram+")
    assert "bfloat16" in html
    assert "rounding to nearest" in html
    exact = recipe.model_copy(update={"dtype": "float32"})
    # How long it takes is told where it was measured: by the analysis, better by a merge alike.
    assert " in about " not in html
    measured = replace(_loaded(), read_rate=1e3)
    timed = view.plan_html(view.plan_merge(measured, recipe, tmp_path), "ram+")
    assert " in about " in timed
    made = MergedModel("m", tmp_path, "ram+", {"bytes_written": 1, "seconds": 7.0}, "")
    once = view.plan_merge(measured, exact, tmp_path, [made])
    assert once.seconds == 7.0 * once.needed
    wudi = recipe_from(_loaded(), "wudi", {})
    assert view.plan_merge(measured, wudi, tmp_path, [made]).seconds is None
    assert not view.plan_merge(_loaded(), exact, tmp_path).caution


@pytest.mark.parametrize("method", OFFERED)
def test_the_plan_says_what_every_offered_method_does(method, tmp_path):
    recipe = recipe_from(_loaded(), method, {})
    html = view.plan_html(view.plan_merge(_loaded(), recipe, tmp_path), method)
    said = html.partition('<p class="plan">')[2].partition("<span")[0].strip()
    assert len(said) > 20
    assert said.endswith(".")
    assert ("whole matrices" in said) == (method in work.SLOW)


_RESULT = {"agents": {}, "bytes_read": 10, "bytes_written": 10, "seconds": 0.1}


def test_a_result_tells_rounding_loss_and_hides_paths_on_a_space(tmp_path: Path) -> None:
    numbers = {"rho": None, "lambda": 1.2, "effective_lambda": 1.04}
    result = {**_RESULT, "agents": {"<b>a</b>": numbers}}
    merged = MergedModel("<i>m</i>", tmp_path / "secret", "ram+", result, "")
    html = view.result_html(merged, SPACE)
    assert "1.040 instead of 1.200" in html
    assert "∞" in html
    assert not any(text in html for text in ("secret", "<b>a</b>", "<i>m</i>"))
    assert "secret" in view.result_html(merged, LOCAL)
    assert "due to rounding" not in html
    made = {"unseen": -0.0004, "less": -0.02, "more": 0.003}
    agents = {
        name: {**numbers, "retained": {"total": 0.5, "rounding": share}}
        for name, share in made.items()
    }
    html = view.result_html(replace(merged, result={**_RESULT, "agents": agents}), LOCAL)
    assert "Interference" not in html
    said = " ".join(html.partition("due to rounding:")[2].partition("</p>")[0].split())
    assert said == "less −2.0 %; more +0.3 %."


def test_numbers_are_worded() -> None:
    worded = {0.0: "0", 1e-5: "10⁻⁵", 2.0e-12: "2·10⁻¹²", 0.02: "2·10⁻²", 2.34e-5: "2.34·10⁻⁵"}
    worded |= {EPSILON_GRID[1]: "10⁻⁸", EPSILON_GRID[-1]: "10⁰", EPSILON_GRID[snap(7e-4)]: "7·10⁻⁴"}
    assert {epsilon: numbers.epsilon_text(epsilon) for epsilon in worded} == worded
    points = [numbers.epsilon_text(epsilon).partition("·") for epsilon in EPSILON_GRID]
    assert {head for head, dot, _ in points if dot} == {"1.5", "2", "3", "4", "5", "7"}
    assert numbers.size_text(1_700_000) == "1.7 MB"
    assert numbers.duration_text(75) == "1 min 15 s"


def test_progress_is_worded_from_events() -> None:
    def told(stage: str, seconds: float) -> str:
        event = Progress(stage, "t", 3, 50, 100, 200, seconds)
        return load_view.progress_html(event, "Starting")

    for said in ("Merging tensor 3 of 50", "50 bytes/s", "about 2.0 s left"):
        assert said in told("merge", 2.0)
    assert "estimating the time" in told("merge", 0.9)
    assert " left" not in told("merge", 0.9)
    assert "2.0 s left of this pass" in told("count", 2.0)
    cells = {("base", "code"): Cell(800, 800, 20), ("<x>", "code"): Cell(200, 800, 0)}
    html = progress_html(Scoring(("base", "<x>"), cells, ("<x>", "code"), 123.4))
    for said in ("&lt;x&gt; on code", "1,000 of 1,600 answers", "20 reused", "123 tokens/s"):
        assert said in html
    assert "<svg" not in html


def test_the_mosaic_of_questions_fills_while_they_are_answered() -> None:
    marks = {("base", "code"): "11.0x" + 30 * "1"}
    html = grid_html(
        Scoring(("base",), {("base", "code"): Cell(4, 5, 0)}, ("base", "code"), None, marks)
    )
    # Two squares side by side are one line; what is open is not drawn; 30 make a row.
    assert '<path class="right" d="M0 2.5h10M25 2.5h125M0 7.5h25"/>' in html
    assert '<path class="wrong" d="M15 2.5h5"/><path class="unasked" d="M20 2.5h5"/>' in html
    assert 'width="150" height="10"' in html
    assert "32 right so far" in html
