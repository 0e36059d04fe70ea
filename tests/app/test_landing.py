"""The landing page: its figures are the shipped set's, and the app comes after the first paint."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
from app_parts import run
from safetensors.torch import load_file

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.app.landing.figure import landing_html, scenes_of
from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.session.deep_link import AVERAGE, SUM
from ram_studio.app.session.sets import REAL, TITLES, load_set, set_profile, shipped_table
from ram_studio.app.session.shared import TuneSettings
from ram_studio.resources import asset_path


def _solved(row: dict[str, Any], n: int, domains: int = 3) -> list[int]:
    return [row["right"][d * n : (d + 1) * n].count("1") for d in range(domains)]


def test_scenes_show_measured_scores_and_answers() -> None:
    table = shipped_table("shared-style")
    wanted = (
        ("task-arithmetic", {"scale": None}),
        ("task-arithmetic", {"scale": 1.0}),
        ("ram+", {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}),
    )
    prompts, scenes = scenes_of(outcomes_of("shared-style"))
    assert [p.skill for p in prompts] == ["code", "tool", "memory"]
    for scene, (method, settings) in zip(scenes, wanted, strict=True):
        (row,) = (r for r in table["rows"] if (r["method"], r["settings"]) == (method, settings))
        assert list(scene.outcome.solved) == _solved(row, table["n"])
        for prompt, answer in zip(prompts, scene.answers, strict=True):
            given = {
                (texts[row["answers"][i]].strip(" ."), row["right"][i] == "1")
                for i, texts in enumerate(table["answers"])
                if table["gold"][i] == prompt.right and texts
            }
            assert (answer.text, answer.is_right) in given
    # What the captions claim.
    average, added, ram = (scene.outcome.total for scene in scenes)
    base = sum(_solved(table["rows"][0], table["n"]))
    agents = sum(max(_solved(r, table["n"])[d] for r in table["rows"][1:4]) for d in range(3))
    assert average < 0.8 * agents
    assert added < base
    assert ram > 0.95 * agents
    assert all(answer.is_right for answer in scenes[-1].answers)
    assert not any(answer.is_right for scene in scenes[:2] for answer in scene.answers)


def test_parts_applied_are_those_of_real_merges() -> None:
    loaded = load_set("shared-style")
    base, *agents = (
        load_file(f"{folder}/model.safetensors")
        for folder in (loaded.base, *loaded.agents.values())
    )
    names = [tensor.name for tensor in loaded.analysis.tensors]

    def flat(model: dict[str, Any]) -> np.ndarray:
        return np.concatenate([model[name].double().numpy().ravel() for name in names])

    start = flat(base)
    taus = np.stack([flat(agent) - start for agent in agents])
    active = np.abs(taus) > EPSILON_GRID[DEFAULT_INDEX]
    count, n = active.sum(0), len(agents)
    lambdas = [a["lambda"] for a in loaded.analysis.preview()["agents"].values()]
    factors = np.where(count == 1, np.array(lambdas)[:, None], 1 / np.maximum(count, 1))
    merges = (taus.sum(0) / n, taus.sum(0), (factors * taus * active).sum(0))
    _, scenes = scenes_of(outcomes_of("shared-style"))
    for scene, merge in zip(scenes, merges, strict=True):
        for part, own in ((0, count == 1), (1, count > 1)):
            found = [
                float(merge[own & active[t]] @ taus[t][own & active[t]])
                / float(taus[t][own & active[t]] @ taus[t][own & active[t]])
                for t in range(n)
            ]
            assert scene.applied[part] == pytest.approx(np.mean(found), abs=1e-4)


def test_what_was_measured_stands_with_its_interval() -> None:
    text = re.sub(r"\s+", " ", landing_html().striptags())
    assert "21 of 180 solved95 %: 14 to 31" in text


def test_a_broken_installation_still_has_a_landing_page(monkeypatch) -> None:
    from ram_studio.app.landing import figure
    from ram_studio.errors import CheckpointError

    def missing(name: str) -> None:
        raise CheckpointError(name)

    monkeypatch.setattr(figure, "outcomes_of", missing)
    text = figure.landing_html.__wrapped__()
    assert "Start the 5-minute lesson" in text
    assert "movie" not in text


@pytest.mark.parametrize("name", TITLES)
def test_rows_without_epsilon_are_found_by_method(name: str) -> None:
    found, table = outcomes_of(name), shipped_table(name)
    third = 1 / 3
    for rule, scale in ((AVERAGE, third), (SUM, 1.0)):
        row = table["rows"][found.find(rule).number]
        # No scale is one divided by the number of agents.
        own = third if row["settings"]["scale"] is None else row["settings"]["scale"]
        assert (row["method"], own) == ("task-arithmetic", scale)
        assert found.find(rule).settings == ""
    with pytest.raises(KeyError):
        found.find("none")
    with pytest.raises(IndexError):
        found.outcome(len(table["rows"]))


@pytest.mark.parametrize(
    ("rule", "given", "wanted"),
    [
        ("ties", {"density": 0.52, "scale": 1.0}, {"density": 0.5, "scale": 1.0}),
        ("ties", {}, {"density": 0.2, "scale": 1.0}),
        ("task-arithmetic", {"scale": 0.61}, {"scale": 0.6}),
        ("task-arithmetic", {}, {"scale": None}),
        ("dare-ties", {"drop_rate": 0.1, "density": 1.0, "scale": 0.7}, None),
        ("tsv-m", {"scale": 1.0}, None),
        ("wudi", {}, None),
    ],
)
def test_other_methods_show_the_row_nearest_by_settings(
    rule: str, given: dict[str, float], wanted: dict[str, Any] | None
) -> None:
    found = outcomes_of("shared-style")
    nearest = found.nearest(TuneSettings(rule, own=given))
    row = found.table["rows"][nearest.number]
    assert row["method"] == rule
    assert nearest.title != rule, "a name for people"
    if wanted is not None:
        assert row["settings"] == wanted
        assert nearest.is_exact == (given in ({}, wanted))
    with pytest.raises(KeyError):
        found.nearest(TuneSettings("fisher"))


_NEAREST = """async (modules, profile, table, settings) => {
  const [{ outcomeOf }, { nearestRow }, { skillsOf }] =
    await Promise.all(modules.map((module) => import(module)));
  profile.skills = skillsOf(table, profile);
  const numberOf = (row) => row.id ?? table.rows.findIndex((r) => r.right === row.right
    && r.k === row.k && r.method === row.method
    && JSON.stringify(r.settings) === JSON.stringify(row.settings));
  return settings.map((s) => {
    const { row, isExact } = nearestRow(profile, { ...s, ...outcomeOf(profile, s) });
    return [numberOf(row), isExact];
  });
}"""


def _exporting(name: str) -> str:
    """Return the canvas module that exports a name, wherever it lies."""
    root = asset_path("canvas")
    (found,) = (p for p in root.rglob("*.js") if f"export const {name} =" in p.read_text("utf-8"))
    return f"./canvas/{found.relative_to(root).as_posix()}"


_QUICK = ("shared-style", "real")


@pytest.mark.browser
@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TITLES]
)
def test_the_nearest_measured_row_is_the_canvas_own(page: Any, name: str) -> None:
    grid = list(
        itertools.product(("ram", "ram+", "ram+s"), (0, 5, 22, 23, 36, 47, 57), (0.1, 0.37))
    )
    given = [TuneSettings(rule, point, r, 2.0) for rule, point, r in grid]
    # Between measured settings, at a scale that is the base, and of a method measured in two ways.
    scales, densities = (0.0, 0.15, 0.45, 0.85, 1.0), (0.05, 0.15, 0.4, 0.9)
    given += [TuneSettings("task-arithmetic", own={"scale": scale}) for scale in scales]
    given += [
        TuneSettings(rule, own={"drop_rate": 0.4, "density": density, "scale": scale})
        for rule in ("ties", "dare-ties")
        for density, scale in itertools.product(densities, scales[1:])
    ]
    given += [TuneSettings("wudi")] if name != REAL else []
    usual = {"scale": 1.0, "density": 0.2, "drop_rate": 0.5}
    settings = [
        {"method": s.method, "point": s.point, "r": s.r, "alpha": s.alpha, **usual, **s.own}
        for s in given
    ]
    profile, found = json.loads(set_profile(name)), outcomes_of(name)
    modules = [_exporting(wanted) for wanted in ("outcomeOf", "nearestRow", "skillsOf")]
    rows = run(page, _NEAREST, modules, profile, shipped_table(name), settings)
    for setting, (number, is_exact) in zip(given, rows, strict=True):
        nearest = found.nearest(setting)
        assert (nearest.number, nearest.is_exact) == (number, is_exact), setting


def test_the_document_is_packed_and_shows_the_page_at_once(app_url: str) -> None:
    with httpx.stream("GET", app_url, headers={"accept-encoding": "gzip"}) as answer:
        packed = sum(map(len, answer.iter_raw()))
        assert answer.headers["content-encoding"] == "gzip"
    assert packed < 100_000
    text = httpx.get(app_url, headers={"accept-encoding": "identity"}).text
    assert len(text) > 3 * packed
    body = text[text.index("<body") :]
    assert body.index('id="landing"') < body.index("<gradio-app")
    # Gradio's scripts wait for somebody to act.
    assert re.search(r'window\.RAM_APP = "\./assets/[\w.-]+\.js"', text)
    assert not re.search(r'<script type="module"[^>]*src="\./assets', text)
    assert "<script>window.gradio_" not in text


def test_no_panel_needs_gradios_heavy_components(app_url: str) -> None:
    # Each page fetches the code of every kind, shown or not: these two weigh 171 kB.
    kinds = {one["type"] for one in httpx.get(f"{app_url}config", timeout=60).json()["components"]}
    assert "textbox" in kinds
    assert not {"code", "markdown"} & kinds


_COUNT_FRAMES = """
window.frames_asked = 0;
const frame = window.requestAnimationFrame;
window.requestAnimationFrame = (step) => { window.frames_asked += 1; return frame(step); };
"""

# Whether a third of a second passes, of seven, in which no frame is asked for.
_COMES_TO_REST = """async () => {
  for (let i = 0; i < 20; i += 1) {
    const asked = window.frames_asked;
    await new Promise((done) => setTimeout(done, 333));
    if (asked && window.frames_asked === asked) return true;
  }
  return false;
}"""


_IS_ABOVE_LOADER = """() => {
  const loader = document.createElement("div");
  loader.style = "position: fixed; inset: 0; z-index: 30";
  document.querySelector("gradio-app").append(loader);
  const isAbove = Boolean(document.elementFromPoint(700, 400).closest("#first-view"));
  loader.remove();
  return isAbove;
}"""
# A scene's clock is the bar below its name.
_FILL_THE_BAR = """() => document.getAnimations()
  .find((one) => one.animationName === "movie-time").finish()"""


@pytest.mark.browser
def test_the_app_waits_for_a_pointer_and_comes_without_one(visit: Any) -> None:
    it = visit(reduced_motion="no-preference")
    page = it.page
    page.add_init_script(_COUNT_FRAMES)
    page.goto(it.url)
    # It plays by itself, a scene until its bar is full, and stops at a press.
    page.wait_for_selector(".movie.playing[data-scene='0']")
    page.evaluate(_FILL_THE_BAR)
    page.wait_for_function(
        """() => {
          const scene = document.querySelector(".movie").dataset.scene;
          const every = [...document.querySelectorAll("[data-of]")];
          const shown = every.filter((e) => e.checkVisibility());
          return scene > 0 && shown.length > 3 && shown.every((e) => e.dataset.of === scene);
        }"""
    )
    assert not [url for url in it.requests if "/assets/" in url and url.endswith(".js")]
    assert len(it.requests) <= 25
    page.evaluate("() => document.querySelector('.movie-pause').click()")
    assert page.text_content(".movie-pause") == "Play"
    stopped = page.get_attribute(".movie", "data-scene")
    # A pointer that comes near brings the app; the page moves into it.
    page.mouse.move(300, 300)
    page.wait_for_selector("#hero #landing", state="attached")
    page.wait_for_selector("#to-load[aria-current=step]")
    assert page.locator("#first-view").count() == 0
    assert page.get_attribute(".movie", "data-scene") == stopped
    assert not [url for url in it.requests if "/ram/canvas/" in url]
    page.click("[data-opens=shared-style]")
    page.wait_for_selector("[data-agent]", state="visible")
    assert page.title() == "Tune · RAM Studio"
    page.click("#to-load")
    assert page.title() == "RAM Studio"
    assert page.evaluate("() => document.activeElement.id") == "landing-title"
    # A page at rest is drawn by nobody: Gradio's loader, which is gone, counts no seconds.
    assert page.evaluate(_COMES_TO_REST)
    # The first stop of a keyboard leads past head and steps.
    page.click("#to-tune")
    page.focus(".skip")
    page.keyboard.press("Enter")
    page.wait_for_selector("#step-tune h2:focus")
    # Where nobody acts it is fetched when the figure has played: its 9 seconds pass in one here.
    page.add_init_script("const wait = setTimeout; window.setTimeout = (f, ms) => wait(f, ms / 9);")
    page.evaluate("() => sessionStorage.clear()")
    with page.expect_request("**/assets/*.js"):
        # Looked at before all is loaded: on a slow machine the app may have come by then.
        page.goto(it.url, wait_until="domcontentloaded")
        assert page.is_visible("#first-view")
        assert page.evaluate(_IS_ABOVE_LOADER), "Gradio's loader shows through"


# The places of a few things in every frame, where they differ from the first ones.
_WATCH_PLACES = """() => {
  const places = () => ["#landing-title", ".landing-main", ".landing-go .link", ".movie"]
    .map((one) => document.querySelector(one).getBoundingClientRect())
    .flatMap(({ x, y }) => [x + scrollX, y + scrollY]);
  const first = places();
  window.jumps = [];
  const look = () => {
    const now = places();
    if (now.some((place, i) => Math.abs(place - first[i]) > 1)) jumps.push(now);
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.mark.browser
@pytest.mark.parametrize(
    "size", [pytest.param((1280, 800), marks=pytest.mark.slow), (390, 844)], ids=str
)
def test_the_landing_page_is_for_everybody(visit: Any, size: tuple[int, int]) -> None:
    it = visit(size=size)
    page = it.page
    page.goto(it.url)
    # Little motion is wanted: it stands on the last scene.
    page.wait_for_selector(".movie[data-scene='2']:not(.playing)")
    it.check_width()
    it.check_access("first view", forced=True)
    page.evaluate(_WATCH_PLACES)
    page.click(".movie-tabs button >> nth=0")
    page.wait_for_selector(".movie[data-scene='0']")
    page.wait_for_selector("#hero #landing")
    page.wait_for_selector("#to-load[aria-current=step]")
    assert page.evaluate("jumps") == [], "nothing jumps"
    it.check_access("landing page", forced=True)
    it.check_targets("#landing")
    it.check_width()
    page.click("[data-caveats]")
    page.wait_for_selector(".caveats[open]")
    assert "hindsight" in page.text_content(".caveats")
    it.check_access("caveats", ".caveats", forced=True)
    page.keyboard.press("Escape")
    page.click("[data-own]")
    page.wait_for_selector("#base", state="visible")
