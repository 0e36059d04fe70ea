"""The browser's arithmetic is the library's: same profile, same rho and lambda to 1e-12."""

from __future__ import annotations

import json
import math

import pytest
from random_sketches import make_sketch

from ram_studio.algorithm.ladder import LADDER
from ram_studio.algorithm.scaling import RULES
from ram_studio.app.profile import build_profile
from ram_studio.app.shell import SCRIPTS
from ram_studio.resources import asset_path

pytestmark = pytest.mark.browser

SETTINGS = [(0.1, 2.0), (0.0, 0.0), (1.0, 10.0), (0.37, 0.613)]


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page()
    page.set_content("<html><body></body></html>")
    for script in SCRIPTS:
        page.add_script_tag(path=str(asset_path(script)))
    yield page
    page.close()


@pytest.mark.parametrize("n_agents", [1, 2, 3, 5, 7])
def test_the_browser_computes_what_python_computes(page, n_agents: int) -> None:
    sketch = make_sketch(n_agents, seed=n_agents)
    cases = [
        [point, rule, r, alpha]
        for point in range(len(LADDER))
        for rule in RULES
        for r, alpha in SETTINGS
    ]
    answers = page.evaluate(
        """([profile, cases]) => {
          const plain = (x) => (x === Infinity ? "Infinity" : x);
          return cases.map(([point, rule, r, alpha]) => {
            const result = RAM.compute(profile, point, rule, r, alpha);
            return {epsilon: result.epsilon, byCount: result.byCount,
              agents: result.agents.map((a) => ({...a, rho: plain(a.rho)}))};
          });
        }""",
        [json.loads(json.dumps(build_profile(sketch))), cases],
    )
    unbounded = 0
    for (point, rule, r, alpha), answer in zip(cases, answers, strict=True):
        expected = sketch.preview(point, rule, r, alpha)
        assert answer["epsilon"] == expected["epsilon"]
        assert answer["byCount"] == sketch.model.by_count[0, point, 1:].tolist()
        for mine in answer["agents"]:
            theirs = expected["agents"][mine["name"]]
            for key in ("total", "active", "unique", "shared"):
                assert mine[key] == theirs[key]
            rho = math.inf if theirs["rho"] is None else theirs["rho"]
            unbounded += math.isinf(rho)
            assert float(mine["rho"]) == pytest.approx(rho, rel=1e-12, abs=0)
            assert mine["lambda"] == pytest.approx(theirs["lambda"], rel=1e-12, abs=0)
            assert mine["density"] == pytest.approx(theirs["density"], rel=1e-12, abs=0)
    # The random sketches make agent 0 unbounded wherever it is not alone.
    assert unbounded or n_agents == 1


def test_other_implementations_factors_are_those_of_python(page) -> None:
    sketch = make_sketch(3, seed=9)
    answer = page.evaluate(
        "([profile, k]) => RAM.compute(profile, k, 'ram', 0, 0).agents.map(a => a.dialects)",
        [build_profile(sketch), 5],
    )
    paper, script, mergekit = sketch.dialects(5)
    for t, dialects in enumerate(answer):
        assert dialects["paper"] == pytest.approx(paper.factors[t], rel=1e-12)
        assert dialects["script"] == pytest.approx(script.factors[t], rel=1e-12)
        assert dialects["mergekit"] == pytest.approx(mergekit.factors[t], rel=1e-12)


def test_numbers_are_worded_as_in_python(page) -> None:
    from ram_studio.app.markup import epsilon_text

    assert page.evaluate("(xs) => xs.map(RAM.epsilon)", list(LADDER)) == [
        epsilon_text(x) for x in LADDER
    ]
    texts = page.evaluate(
        "() => [RAM.count(999999), RAM.count(4.22e6), RAM.count(7e9), RAM.percent(0.00001),"
        " RAM.percent(0.5), RAM.ratio(Infinity)]"
    )
    assert texts == ["999 999", "4.22 M", "7.00 B", "< 0.01 %", "50.0 %", "∞"]
