"""The browser's arithmetic is the library's: same profile, same rho and lambda to 1e-12."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from app_parts import run
from random_analyses import make_analysis
from verdict_table import analysis_of, cases

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.rounding_meter import (
    DTYPES,
    PRECISION,
    curve_from_dict,
    estimate,
    rounding_advice,
    stochastic_error,
)
from ram_studio.algorithm.scaling import MAGNITUDE_RULE, RULES
from ram_studio.app.experiment.work import CHOICES
from ram_studio.app.session.deep_link import PLACES, method_title
from ram_studio.app.session.sets import build_profile
from ram_studio.app.templates import render
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.engine.analyze import analyze
from ram_studio.evals.report.canvas_page import SHOWN
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path

pytestmark = pytest.mark.browser

SETTINGS = [(0.0, 0.0), (1.0, 10.0), (0.37, 0.613)]


@pytest.mark.parametrize("n_agents", [1, 3, 7])
def test_the_browser_computes_what_python_computes(page, n_agents: int) -> None:
    analysis = make_analysis(n_agents, seed=n_agents)
    rules = [rule for rule in RULES if rule != MAGNITUDE_RULE]
    # Counts follow the point alone, and factors the counts: not every setting at every point.
    cases = [[point, rule, 0.1, 2.0] for point in range(len(EPSILON_GRID)) for rule in rules]
    cases += [[k, rule, *how] for k in (0, 9, 40) for rule in rules for how in SETTINGS]
    answers = run(
        page,
        """(profile, cases) => {
          const plain = (x) => (x === Infinity ? "Infinity" : x);
          return cases.map(([point, rule, r, alpha]) => {
            const result = RAM.outcomeOf(profile, { method: rule, point, r, alpha });
            return {byCount: result.byCount,
              agents: result.agents.map((a) => ({...a, rho: plain(a.rho)}))};
          });
        }""",
        build_profile(analysis),
        cases,
    )
    unbounded = 0
    for (point, rule, r, alpha), answer in zip(cases, answers, strict=True):
        expected = analysis.preview(point, rule, r, alpha)
        assert answer["byCount"] == analysis.model.by_count[0, point, 1:].tolist()
        elsewhere = analysis.dialects(point) if point < 10 else {}
        for place, mine in enumerate(answer["agents"]):
            theirs = expected["agents"][mine["name"]]
            told = {**mine["dialects"], "authors-script": mine["dialects"]["script"]}
            for name, factors in elsewhere.items():
                assert told[name] == pytest.approx(factors[place], rel=1e-12)
            rho = math.inf if theirs["rho"] is None else theirs["rho"]
            unbounded += math.isinf(rho)
            assert float(mine["rho"]) == pytest.approx(rho, rel=1e-12, abs=0)
            assert mine["lambda"] == pytest.approx(theirs["lambda"], rel=1e-12, abs=0)
    # The random analyses make agent 0 unbounded wherever it is not alone.
    assert unbounded or n_agents == 1


@pytest.fixture(scope="module")
def real_analysis():
    """An analysis with everything that a pass finds: the example's, counted now."""
    folders = {name: asset_path("independent", name) for name in ("coding", "tool", "memory")}
    return analyze(asset_path("independent", "base"), folders, device="cpu")


def test_the_rule_by_size_of_change_is_that_of_python(page, real_analysis) -> None:
    points = range(len(EPSILON_GRID))
    answers = run(
        page,
        """(profile, points) => points.map((point) => RAM
          .outcomeOf(profile, { method: "ram+m", point, r: 0.3, alpha: 1.25 })
          .agents.map((a) => [a.rhoM === Infinity ? null : a.rhoM, a.lambda]))""",
        build_profile(real_analysis),
        list(points),
    )
    differs = 0
    for k, answer in zip(points, answers, strict=True):
        expected = real_analysis.preview(k, "ram+m", 0.3, 1.25)["agents"].values()
        for (rho, factor), agent in zip(answer, expected, strict=True):
            assert rho == (agent["rho_m"] and pytest.approx(agent["rho_m"], rel=1e-12))
            assert factor == pytest.approx(agent["lambda"], rel=1e-12)
            differs += agent["rho_m"] != agent["rho"]
    assert differs > len(EPSILON_GRID)


def random_curve(rng: np.random.Generator) -> dict:
    """Return a curve as in the profile: steps of a half to 16 places, shares that sum to one."""
    deltas = rng.choice(np.arange(1, 33), size=int(rng.integers(0, 20)), replace=False) / 2
    shares = rng.dirichlet(np.ones(len(deltas) + 1)).tolist()
    noise = rng.random(len(deltas)) * 1e-6
    cells = zip(deltas.tolist(), shares[1:], noise.tolist(), strict=True)
    own = {"spread": float(rng.random() * 0.02), "noise": float(rng.random() * 1e-5)}
    return {"cells": [list(cell) for cell in cells], "loose": shares[0], **own}


def test_what_rounding_keeps_is_estimated_as_in_python(page) -> None:
    rng = np.random.default_rng(11)
    # Half-way cases among them: 1.1 of 5 places, 1.25 of 2, 1.5 of 1; and beyond the exact range.
    factors = [1.0, 1.001, 1.05, 1.1, 1.2, 1.25, 1.5, 1 + 1 / 3, 2.0, 2.01, 4.0]
    factors += rng.uniform(1, 2.5, 20).tolist()
    curves = [random_curve(rng) for _ in range(60)]
    dtypes = [DTYPES[i % 3] for i in range(len(curves))]
    answers = run(
        page,
        """async (curves, precisions, factors) => {
          const { retainedToNearest, stochasticError } = await import("./canvas/model/rounding.js");
          return curves.map((curve, i) => factors.map((x) => {
            const kept = retainedToNearest(curve, x, precisions[i]);
            return [kept.value, kept.low, kept.high, stochasticError(curve, x)];
          }));
        }""",
        curves,
        [PRECISION[d] for d in dtypes],
        factors,
    )
    for data, dtype, row in zip(curves, dtypes, answers, strict=True):
        curve = curve_from_dict(data, dtype)
        for factor, numbers in zip(factors, row, strict=True):
            expected = [*estimate(curve, factor), stochastic_error(curve, factor)]
            assert numbers == pytest.approx(expected, rel=1e-12, abs=1e-15)


def mount(page, profile: dict, *, point: int, r: float = 0.1, rule: str = "ram+") -> None:
    """Show a profile in the Tune panel with its details open."""
    show = """(html, profile, settings) => {
          document.body.innerHTML = "<div id=live></div>";
          const live = document.getElementById("live");
          live.innerHTML = html;
          RAM.mount(live, { value: profile }, () => {});
          document.getElementById("open-details").click();
          RAM.update(JSON.stringify(settings));
        }"""
    said = {"method": rule, "point": point, "r": r, "alpha": 2}
    run(page, show, render("tune/canvas.html.j2"), profile, said)
    page.wait_for_function(
        "(e) => document.querySelector('[data-agent]')?.dataset.epsilon === String(e)",
        arg=EPSILON_GRID[point],
    )


def text_of(page, part: str) -> str:
    return page.inner_text(f"[data-part={part}]")


def test_rounding_signs_and_sizes_are_told(page, real_analysis) -> None:
    profile = build_profile(real_analysis)
    mount(page, profile, point=DEFAULT_INDEX)
    factors = [a["lambda"] for a in real_analysis.preview()["agents"].values()]
    rows = text_of(page, "retained").splitlines()
    assert rows[0].split("\t")[1:] == [f"{x:.3f}" for x in factors]
    for t, (name, factor) in enumerate(zip(real_analysis.agents, factors, strict=True)):
        for d, dtype in enumerate(DTYPES):
            sent = profile["rounding"]["agents"][t][d]
            curve = curve_from_dict(sent["curves"][sent["points"][DEFAULT_INDEX]], dtype)
            retained, low, high = estimate(curve, factor)
            full = real_analysis.steps.curve(t, DEFAULT_INDEX, dtype)
            assert low <= estimate(full, factor).value <= high
            told = rows[1 + 2 * d].split("\t")[1 + t]
            assert told.startswith(f"{retained:.3f}"), (name, dtype)
            assert rows[2 + 2 * d].split("\t")[1 + t].startswith(f"{factor:.3f}")
            # The example's agents changed by many steps: little is lost.
            assert retained - 1 >= 0.9 * (factor - 1)
    assert "expected to retain at least 90 %" in text_of(page, "rounding-line")
    dots = page.locator("[data-part=rounding-chart] path:visible").count()
    assert dots == sum(c is not None for layer in profile["rounding"]["layers"] for c, *_ in layer)

    # Signs and sizes, of the same page.
    relations = profile["relations"]
    conflict = relations["conflict"][DEFAULT_INDEX] / relations["shared"][DEFAULT_INDEX]
    cancelled = relations["cancelled"][DEFAULT_INDEX]
    mass = 2 * sum(cancelled) / sum(relations["shared_magnitude"][DEFAULT_INDEX])
    line = text_of(page, "relations-line")
    assert f"{100 * conflict:.1f} %" in line
    assert f"{100 * mass:.1f} %" in line
    rows = [row.split("\t") for row in text_of(page, "agree-agents").splitlines()]
    for row, agent in zip(rows, real_analysis.preview()["agents"].values(), strict=True):
        assert float(row[1]) == pytest.approx(agent["rho"], rel=1e-2)
        assert float(row[2]) == pytest.approx(agent["rho_m"], rel=1e-2)
    assert len(text_of(page, "pairs").splitlines()) >= 3
    cosines = [row.split("\t")[1:] for row in text_of(page, "cosine").splitlines()]
    assert cosines[0][1] == f"{relations['cosine'][0][1]:.3f}".replace("-", "−")
    assert page.locator("[data-part=relations-chart] rect.bar").count() == len(profile["layers"])
    chart = page.locator("[data-part=relations-chart] svg")
    assert "opposite signs" in chart.get_attribute("aria-label")
    page.click("[data-measure=cancelled]")
    page.wait_for_function("document.querySelector('[data-measure=cancelled][aria-pressed=true]')")
    assert "cancels out" in chart.get_attribute("aria-label")


def test_the_chart_of_rounding_names_the_format_it_shows(page) -> None:
    labels = run(
        page,
        """async () => {
          const { agentDots } = await import("./bars.js");
          const box = document.body.appendChild(document.createElement("div"));
          const chart = { labels: ["0", "1"], agents: 1, value: () => 1 };
          return ["bfloat16", "float16"].map((aria) => {
            agentDots(box, { ...chart, aria });
            return box.querySelector("svg").getAttribute("aria-label");
          });
        }""",
    )
    assert labels == ["bfloat16", "float16"]


def test_advice_is_python_s_sentence(page, real_analysis) -> None:
    profile = json.loads(json.dumps(build_profile(real_analysis)))
    # As RL leaves it: every change one step of bfloat16, so that 1.2 steps round back to one.
    one_step = {"cells": [[1.0, 1.0, 0.0]], "loose": 0.0, "spread": 0.0, "noise": 0.0}
    for agent in profile["rounding"]["agents"][:2]:
        agent[0]["curves"] = [one_step] * len(agent[0]["curves"])
    mount(page, profile, point=DEFAULT_INDEX)
    preview = real_analysis.preview()["agents"]
    lost = {name: (preview[name]["lambda"], 1.0) for name in real_analysis.agents[:2]}
    assert text_of(page, "rounding-line") == rounding_advice("bfloat16", lost)
    assert page.get_attribute("[data-part=rounding-line]", "data-tone") == "note"
    mount(page, profile, point=DEFAULT_INDEX, r=0.0)
    assert "Nothing is rescaled" in text_of(page, "rounding-line")


def test_an_agent_that_changed_nothing_breaks_no_picture(page, tmp_path) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    (case,) = (case for case in cases() if case["name"] == "two agents are the base")
    analysis = analysis_of(case, tmp_path)
    mount(page, build_profile(analysis), point=DEFAULT_INDEX)
    python = analysis.preview()["agents"]
    for name, numbers in python.items():
        assert float(page.get_attribute(f"[data-agent={name}]", "data-rho")) == numbers["rho"]
    assert page.get_attribute("[data-part=verdict]", "data-verdict") == "untested"
    assert text_of(page, "verdict-text") == "Not tested yet."
    assert complaints == []


def test_old_analyses_say_what_to_do(page) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    profile = build_profile(make_analysis(2))
    assert profile["relations"] is profile["rounding"] is None
    mount(page, profile, point=DEFAULT_INDEX, rule="ram+m")
    for part in ("rounding", "relations"):
        assert "Analyze the models again" in text_of(page, f"{part}-line")
        assert not page.is_visible(f"[data-part={part}-more]")
    row = page.locator("[data-agent]").first
    assert row.locator(".cv-lambda").inner_text() == "λ –"
    assert "analyze again" in text_of(page, "parts")
    assert row.get_attribute("data-own") == ""
    assert complaints == []


def test_a_link_is_copied_over_plain_http(page) -> None:
    assert page.evaluate("() => navigator.clipboard === undefined")
    mount(page, build_profile(make_analysis(2)), point=DEFAULT_INDEX)
    page.click("dialog [aria-label=Close]")
    page.click("#share")
    page.click("#copy-link")
    page.wait_for_selector("[data-part=link]:has-text('Link copied.')")
    assert page.inner_text(":focus") == "Share"


def test_a_method_has_one_name_on_every_screen(page) -> None:
    names = page.evaluate(
        "() => import('./canvas/model/methods.js').then(({ METHODS, MAIN, MORE, nameTitle }) =>"
        " Object.fromEntries([...Object.keys(METHODS), ...MAIN, ...MORE]"
        ".map((name) => [name, nameTitle(name)])))"
    )
    assert names.keys() == {*SHOWN, *PLACES}
    assert names == {name: method_title(name) for name in names}
    # Compare's form says the same, and which take long.
    for name, choice in CHOICES.items():
        assert choice.title.removesuffix(" (slow)") == method_title(name)


def test_names_from_elsewhere_stay_text(page) -> None:
    profile = build_profile(make_analysis(2))
    profile["agents"][0] = "<img src=x onerror=window.hacked=1>"
    mount(page, profile, point=DEFAULT_INDEX)
    assert "<img" in page.inner_text("[data-agent] >> nth=0")
    assert page.locator("img").count() == 0
    assert page.evaluate("() => window.hacked === undefined")


_OWN_MODELS = """async (profile, tables) => {
  const canvas = await import("./canvas/canvas.js");
  const frames = async () => {
    for (let i = 0; i < 3; i += 1) await new Promise(requestAnimationFrame);
  };
  document.body.innerHTML = "<div style='width:1200px;height:760px'></div>";
  const root = document.body.firstChild;
  canvas.mountCanvas(root, { openLayer: null, buttons: [] });
  canvas.setCanvasProfile(profile);
  await frames();
  const at = (selector) => root.querySelector(selector);
  const seen = () => ({
    points: root.querySelectorAll(".cv-point").length, total: root.dataset.total,
    item: at(".cv-card")?.dataset.item, tested: root.dataset.tested,
    note: at(".cv-map .cv-note").textContent,
  });
  const found = [{ ...seen(), expected: at("[data-part=expected]").innerText }];
  for (const table of tables) {
    canvas.setTable(profile, table);
    await frames();
    found.push(seen());
    if (found.length > 2) continue;
    const dots = at(".cv-dots");
    for (const key of ["End", "ArrowLeft"]) {
      dots.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    }
    await frames();
    found.push(seen());
  }
  return found;
}"""


def test_measured_points_appear_and_a_picked_prompt_stays(page) -> None:
    table = load_table(asset_path("shared-style", "skills.json.gz"))
    sources = [row for row in table["rows"] if row["kind"] == "source"]
    usual = {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}
    settings = [{**usual, "epsilon": EPSILON_GRID[k]} for k in (DEFAULT_INDEX, 30, 40, 46)]
    curve = [next(r for r in table["rows"] if r["settings"] == own) for own in settings]
    tables = [{**table, "rows": [*sources, *curve[:count]]} for count in (1, 2, 4)]
    analysis = load_analysis(asset_path("shared-style", "analysis.safetensors"))
    empty, one, picked, two, four = run(page, _OWN_MODELS, build_profile(analysis), tables)
    assert (empty["points"], empty["total"], empty["tested"]) == (0, "", "none")
    assert "Try RAM+ first." in empty["expected"]
    assert "yours may differ" in empty["expected"]
    total = curve[0]["right"][: 3 * table["n"]].count("1")
    assert [step["total"] for step in (one, two, four)] == [str(total)] * 3
    # The end of the dial is the base, which is known without a merge.
    assert [step["points"] for step in (one, two, four)] == [2, 3, 5]
    assert [step["note"].split()[0] for step in (one, two, four)] == ["1", "2", "4"]
    # What was picked by hand is there when more has come.
    assert picked["item"] not in (None, one["item"])
    assert [two["item"], four["item"]] == [picked["item"]] * 2
