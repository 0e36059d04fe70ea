"""Axes, grids, proposals and the questions of a sweep, without any model."""

import math
from statistics import fmean

import numpy as np
import pytest

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.errors import EvaluationError, SettingsError
from ram_studio.evals.experiment.plan import ComparePlan, SweepPlan, by_stage, draw_items
from ram_studio.evals.experiment.result import ExperimentResult, Row
from ram_studio.evals.experiment.run import sweep
from ram_studio.evals.experiment.search import OptunaSearch, SlimSearch, Surrogate, lattice
from ram_studio.evals.experiment.space import Space, parse_axes
from ram_studio.evals.report.score import Average, DomainScore
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import SuiteSettings


def recipe(method: str = "ram+", weights: dict | None = None, **settings):
    values = {"base": "b", "agents": {"one": "1", "two": "2"}, "method": method}
    return make_recipe({**values, "settings": settings, "weights": weights or {}})


def agents_of(names: str):
    return make_recipe({"base": "b", "agents": {name: name for name in names}})


def space(*texts: str, **more) -> Space:
    return Space(recipe(**more), parse_axes(texts))


def labels(made: Space) -> list[str]:
    return [candidate.label for candidate in made.grid()]


def test_a_grid_has_every_combination_that_a_method_knows():
    made = space("rule=ram,ram+,ram+s", "r=0:0.4:3", "alpha=1,2")
    assert labels(made) == [
        "ram",
        *(f"ram+ (r {r}, alpha {a})" for r in ("0", "0.2", "0.4") for a in (1, 2)),
        *(f"ram+s (r {r})" for r in ("0", "0.2", "0.4")),
    ]


def test_an_axis_of_one_method_replaces_the_one_for_all():
    made = space("method=ties,task-arithmetic", "scale=0.5,1", "ties.scale=0.7")
    assert labels(made) == [
        "ties (scale 0.7)",
        "task-arithmetic (scale 0.5)",
        "task-arithmetic (scale 1)",
    ]


def test_ranges_are_round_and_thresholds_lie_on_the_grid():
    (linear, ratio) = parse_axes(["r=0:0.3:4", "epsilon=1e-6:1e-4:3:log"])
    assert linear.values == (0.0, 0.1, 0.2, 0.3)
    assert set(ratio.values) <= set(EPSILON_GRID)
    assert ratio.values[1] == 1e-5
    assert parse_axes({"r": [0.1, 0.2]})[0].values == (0.1, 0.2)
    assert parse_axes({"r": 0.1})[0].values == (0.1,)


def test_what_is_not_varied_keeps_the_recipes_value():
    made = space("rule=ram+,ram+s", "r=0.3", epsilon=1e-4, alpha=5.0)
    plus, soft = (candidate.recipe.settings for candidate in made.grid())
    assert (plus["epsilon"], plus["alpha"], plus["r"]) == (1e-4, 5.0, 0.3)
    assert (soft["epsilon"], soft["r"]) == (1e-4, 0.3)
    assert made.start().label == "ram+ (r 0.1)"


def test_another_method_keeps_its_own_defaults():
    made = space("method=task-arithmetic,ties", "ties.density=0.3", method="task-arithmetic")
    sums, ties = (candidate.recipe.settings for candidate in made.grid())
    assert (sums["scale"], ties) == (None, {"density": 0.3})


def test_a_scale_that_was_left_out_reads_as_one_by_n():
    start = space("scale=0.2,0.4", "weight=0,1", method="task-arithmetic").start()
    assert start.label == "task-arithmetic (scale 1/N, one x 1, two x 1)"
    assert start.values["scale"] is None


def test_weights_and_ramps_are_axes_an_agents_own_first():
    made = space("weight=0,1", "ramp.two=0.5,1", "rule=ram,region", weights={"two": (0.2, 0.8)})
    found = {c.label: c.recipe.weights for c in made.grid()}
    assert found == {
        "ram (one x 0, two x 0.5)": {"one": 0, "two": 0.5},
        "ram (one x 0, two x 0.5 to 1)": {"one": 0, "two": (0.5, 1)},
        "ram (one x 0, two x 1 to 0.5)": {"one": 0, "two": (1, 0.5)},
        "ram (one x 0, two x 1)": {"one": 0, "two": 1},
        "ram (one x 1, two x 0.5)": {"one": 1, "two": 0.5},
        "ram (one x 1, two x 0.5 to 1)": {"one": 1, "two": (0.5, 1)},
        "ram (one x 1, two x 1 to 0.5)": {"one": 1, "two": (1, 0.5)},
        "ram (one x 1, two x 1)": {"one": 1, "two": 1},
        "region": {},
    }
    assert (made.start().label, len(found)) == ("ram+", made.grid_size())
    start = space("ramp=0:1", weights={"two": (0.2, 0.8)}).start()
    assert start.label == "ram+ (one x 1, two x 0.2 to 0.8)"
    assert start.recipe.weights == {"two": (0.2, 0.8)}


def test_slim_fits_any_quadratic_and_proposes_its_best():
    made = SlimSearch(Space(agents_of("abcd"), parse_axes(["weight=0:2"])))
    rng = np.random.default_rng(3)
    quadratic, linear = rng.normal(size=(4, 4)), rng.normal(size=4)
    shares, scores = [], []
    while (candidate := made.propose()) is not None:
        weights = np.array([candidate.values[f"weight.{name}"] for name in "abcd"])
        assert weights.max() == 2
        shares.append(weights / weights.sum())
        scores.append(float(shares[-1] @ quadratic @ shares[-1] + linear @ shares[-1]))
        made.report_score(scores[-1], is_dropped=False, stage=1)
    assert len(scores) == made.trials == 4 + 6 + 1
    surrogate = made.surrogate
    for mixture in rng.dirichlet(np.ones(4), size=20):
        true = mixture @ quadratic @ mixture + linear @ mixture
        assert surrogate.predict(mixture) == pytest.approx(true, abs=1e-12)
    sampled = rng.dirichlet(np.full(4, 0.5), size=20_000)
    best = ((sampled @ quadratic) * sampled).sum(1) + sampled @ linear
    assert surrogate.predict(surrogate.best()) >= best.max() - 5e-3
    assert scores[-1] == pytest.approx(max(scores), abs=1e-3)
    assert surrogate.shares_of({"a": 2, "b": 2, "c": 0, "d": 0}) == (0.5, 0.5, 0, 0)
    assert surrogate.shares_of({"a": (0.5, 1)}) is None


def test_slim_says_nothing_before_it_has_predicted():
    surrogate = Surrogate(("a", "b"), (0.5, 0.6), (0.7,), (0.0, 0.0), (0.5, 0.5))
    # Weights of 1 are beyond the range, so the start has no shares.
    start = Row("start", is_start=True, domains={"d": DomainScore(4, 2)},
                average=Average.over([DomainScore(4, 2)]))  # fmt: skip
    result = ExperimentResult(
        "sweep", "demo", 1, search="slim", surrogate=surrogate, rows=(start,), winner="start"
    )
    assert not [line for line in result.statements if "SLIM" in line]


def test_a_race_stopped_in_a_stage_says_by_what_it_chose():
    """It named the questions of the winner, of which others had answered a part."""

    def row(label, n, right, status):
        score = DomainScore(n, right)
        return Row(label, domains={"d": score}, average=Average.over([score]), status=status)

    rows = (row("a", 90, 83, "partial"), row("b", 30, 29, "unfinished"), row("c", 9, 1, "dropped"))
    result = ExperimentResult("sweep", "demo", 1, rows=rows, winner="a", ending="stopped")
    said = " ".join(result.statements)
    assert "Best on the 30 questions that all open settings have answered: a, 0.922 [" in said
    assert "] on its 90. As the best of" in said
    result = ExperimentResult("sweep", "demo", 1, rows=rows[::2], winner="a", ending="stopped")
    assert "Best on the 90 questions it was chosen by: a, 0.922 [" in " ".join(result.statements)


def test_a_lattice_has_every_share_and_a_missing_optuna_is_named(monkeypatch):
    found = list(lattice(3, 4))
    assert len(set(found)) == len(found) == math.comb(6, 2)
    assert all(sum(x) == 1 and min(x) >= 0 for x in found)
    monkeypatch.setattr(f"{OptunaSearch.__module__}.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"ram-studio\[search\]"):
        SweepPlan(recipe(), axes=parse_axes(["r=0:1"]), search="optuna").candidates()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "Nothing to sweep over"),
        (["r"], "'r' is not an axis"),
        (["r=0:1:2", "r=3"], "given twice"),
        (["r=1:0:3"], "from 1 to 0; the first end must be the lower"),
        (["r=0:1:3:log"], "above 0"),
        (["r=0:1:1"], "has 1 values"),
        (["r=0:1:x"], "is not a range"),
        (["r=0:inf:3"], "is not a range"),
        (["r=,"], "empty value"),
        (["rule=ram++"], "must be one of"),
        (["gamma=1,2"], "No method has a setting 'gamma'"),
        (["ties.r=1,2"], "for ties"),
        (["scale=1,2"], "None of the methods ram\\+ has a setting 'scale'"),
        (["r=-1,0"], "r is -1"),
        (["r=0:1"], "write r=0:1:6"),
        ([f"r={','.join(map(str, range(1001)))}"], "too many values; expected 1 to 1000"),
        (["weight.three=0,1"], "no agent 'three' whose weight to vary; the agents are one, two"),
        (["weight=a,b"], "has the weight 'a'; expected numbers from -100 to 100"),
        (["ramp.one=0:1000:3"], "has the weight 500.0"),
        (["weight.one=0,1", "ramp.one=0,1"], "Both weight.one and ramp.one are varied"),
        (["weight=0,1", "ramp=0,1"], "Both weight and ramp are varied"),
        (["method=region", "weight=0,1"], "None of the methods region has a setting 'weight.one'"),
    ],
)
def test_an_axis_that_cannot_be_says_what_is_wrong(texts, message):
    with pytest.raises(SettingsError, match=message):
        space(*texts).grid()


def test_a_grid_is_counted_before_it_is_made():
    axes = dict.fromkeys(("r", "alpha", "epsilon"), "0:1:1000")
    plan = SweepPlan(recipe(), axes=parse_axes(axes))
    with pytest.raises(SettingsError, match=r"has \d{8,} settings, the budget is 200"):
        plan.candidates()
    texts = ["rule=ram+,ram+s,ties", "r=0:1:3", "ties.density=0.1,0.2", "scale=1,2"]
    assert space(*texts).grid_size() == len(space(*texts).grid()) == 3 + 3 + 4


@pytest.mark.parametrize("values", [range(10**9), [[1]], [{"a": 1}]])
def test_values_that_no_axis_has_are_refused(values):
    with pytest.raises(SettingsError, match="The axis 'r' has"):
        parse_axes({"r": values})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"suites": "health"}, EvaluationError, "'health' cannot be asked here"),
        ({"limit": {"demo": 5}}, SettingsError, "one limit for all suites"),
        ({"engine": "vllm"}, SettingsError, "need the engine 'transformers'"),
        ({"held_out": -1}, SettingsError, "held-out questions is -1"),
        ({"minutes": 0}, SettingsError, "0 minutes"),
        ({"search": "luck"}, SettingsError, "must be grid, optuna or slim"),
        ({"search": "slim"}, SettingsError, "It cannot vary r"),
        (
            {"search": "optuna", "trials": 201},
            SettingsError,
            "201 settings, the budget is 200. Try",
        ),
        ({"max_settings": 2}, SettingsError, "The grid has 3 settings, the budget is 2"),
        ({"suites": "math", "ci_width": 10, "search": "optuna"}, SettingsError, "cannot ask until"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_any_work(changes, error, message):
    fields = {name: value for name, value in changes.items() if name in EvalSettings.model_fields}
    rest = {name: value for name, value in changes.items() if name not in fields}
    axes = parse_axes(["r=0:1:3"])
    with pytest.raises(error, match=message):
        SweepPlan(recipe(), EvalSettings(**fields), axes=axes, **rest).candidates()
    # Settings given whole do not hide what is given beside them.
    with pytest.raises(error, match=message):
        sweep(recipe(), {"r": "0:1:3"}, settings=EvalSettings(), **changes)
    if not rest.keys() & {"held_out", "search", "max_settings"}:
        with pytest.raises(error, match=message):
            ComparePlan.of({"ram+": recipe()}, EvalSettings(**fields), **rest).candidates()


@pytest.mark.parametrize("suite", ["demo", "math", "instructions", "memory"])
def test_held_out_questions_are_others_and_always_the_same(suite):
    def draw():
        return draw_items([suite], SuiteSettings(len, 9, seed=3, lengths=(1000,)), 7)

    drawn = draw()
    chosen, held = drawn.chosen_by[suite], drawn.held_out[suite]
    skills = 3 if suite == "demo" else 1
    assert len(chosen) == 9 * skills
    assert len(held) > 4 * skills
    assert not {q.digest for q in chosen} & {q.digest for q in held}
    assert not {q.id for q in chosen} & {q.id for q in held}
    assert draw() == drawn
    if suite == "demo":
        assert {q.domain for q in held} - {q.domain for q in chosen} == {"follow"}


def test_a_fixed_suite_keeps_a_third_of_its_questions_to_check():
    drawn = draw_items(["instructions"], SuiteSettings(len, 64), 64)
    chosen, held = (len(own["instructions"]) for own in (drawn.chosen_by, drawn.held_out))
    assert held == pytest.approx(chosen / 2, abs=1)
    questions = draw_items(["demo"], SuiteSettings(len, 10), 0).chosen_by["demo"]
    stages = by_stage(questions, (0.25, 0.5, 1.0))
    assert [len(stage) for stage in stages] == [9, 6, 15]
    assert sorted(q.id for stage in stages for q in stage) == sorted(q.id for q in questions)


def test_a_search_stays_in_the_ranges_and_learns_from_scores():
    made = space("rule=ram+,ram+s", "r=0:0.5", "alpha=0.5:4", "epsilon=1e-6:1e-3:log")

    def propose(trials: int) -> list:
        search = OptunaSearch(made, seed=5, trials=trials)
        found = []
        for number in range(trials):
            found.append(search.propose().values)
            search.report_score(1 - abs(found[-1]["r"] - 0.4), is_dropped=number % 5 == 4, stage=1)
        return found

    found = propose(40)
    assert propose(40) == found
    for values in found:
        assert 0 <= values["r"] <= 0.5
        assert values["epsilon"] in EPSILON_GRID
        assert ("alpha" in values) == (values["method"] == "ram+")
    misses = [abs(values["r"] - 0.4) for values in found]
    assert fmean(misses[-15:]) < fmean(misses[:10])
