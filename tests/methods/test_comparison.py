"""Experiments as recipes, and the table that scores them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re

import numpy as np
import pytest
import torch
from engine_zoo import read_folder, run_command
from random_zoo import AGENTS, random_elements, write_zoo

from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, make_settings
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.merge import merge
from ram_studio.errors import EvaluationError, SettingsError, Stopped
from ram_studio.evals.experiment.answers import Answers
from ram_studio.evals.experiment.presets import (
    EXPERIMENTS,
    experiment_recipes,
    label_of,
    rows_of,
    with_method,
)
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.report.score import as_json
from ram_studio.evals.run import evaluate
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path

EXAMPLE = asset_path("independent")


def example_recipe(*names: str, **fields):
    agents = {name: str(EXAMPLE / name) for name in names or ("coding", "tool", "memory")}
    return make_recipe({"base": str(EXAMPLE / "base"), "agents": agents, **fields})


@pytest.mark.parametrize("part", ["unique", "shared", "whole"])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_a_region_holds_one_agents_elements_alone(part, scale) -> None:
    base, agents = random_elements(5, 200)
    values = {"agent": "tool", "part": part, "scale": scale, "epsilon": 2e-5}
    facts = Facts(AGENTS, 0, ("w",))
    rule = METHODS["region"].prepare(make_settings("region", values), facts)
    block = BlockInput(torch.from_numpy(base), torch.from_numpy(agents), 0, "w", 0)
    merged = METHODS["region"].merge(block, rule)
    got, active = merged.values, merged.active
    for i in range(200):
        changed = [abs(np.float32(y[i]) - np.float32(base[i])) > np.float32(2e-5) for y in agents]
        alone = sum(changed) == 1
        kept = changed[1] and {"unique": alone, "shared": not alone, "whole": True}[part]
        tau = float(agents[1][i]) - float(base[i])
        want = float(base[i]) + scale * tau if kept else float(base[i])
        assert got[i].item() == pytest.approx(want, rel=1e-12, abs=1e-18)
        assert active[i].item() == (2 if kept else 0)


def test_unique_and_shared_regions_make_the_whole(tmp_path) -> None:
    zoo = write_zoo(tmp_path / "zoo", 1)
    found = {}
    for part in ("unique", "shared", "whole"):
        values = {"agent": "tool", "part": part}
        merge(zoo.recipe(method="region", settings=values), tmp_path / part)
        found[part] = read_folder(tmp_path / part)
    for name, x in zoo.base.items():
        moved = {part: (values[name] != x) for part, values in found.items()}
        assert torch.equal(moved["unique"] | moved["shared"], moved["whole"])
        assert not (moved["unique"] & moved["shared"]).any()
    with pytest.raises(SettingsError, match="of agent 'search'"):
        merge(zoo.recipe(method="region", settings={"agent": "search"}), tmp_path / "out")


def test_the_mechanism_goes_from_ram_to_what_sum_and_average_do(tmp_path) -> None:
    zoo, n = write_zoo(tmp_path / "zoo", 1), len(AGENTS)
    rows = experiment_recipes("mechanism", zoo.recipe(dtype="float32"))
    start, overshoot, dilution = rows["RAM"], rows["shared x 3"], rows["unique x 0.3333"]
    ram, total, mean = (
        with_method(start, method, values)
        for method, values in (
            ("ram", {}),
            ("task-arithmetic", {"scale": 1.0}),
            ("task-arithmetic", {"scale": 1 / n}),
        )
    )
    found = []
    for number, recipe in enumerate((start, ram, overshoot, total, dilution, mean)):
        merge(recipe, tmp_path / str(number))
        found.append(read_folder(tmp_path / str(number)))
    for name, x in zoo.base.items():
        taus = torch.stack([y[name].double() - x.double() for y in zoo.agents.values()])
        changed = taus.abs() > 1e-5
        # Sum and average have no epsilon: only where no change lies below it are they the same.
        clear = ((taus == 0) | changed).all(0)
        by_all, alone = clear & (changed.sum(0) == n), clear & (changed.sum(0) == 1)
        start, ram, overshoot, total, dilution, mean = (merged[name] for merged in found)
        assert torch.equal(start, ram)
        torch.testing.assert_close(overshoot[by_all], total[by_all])
        assert torch.equal(overshoot[alone], ram[alone])
        torch.testing.assert_close(dilution[alone], mean[alone])
        assert torch.equal(dilution[by_all], ram[by_all])


@pytest.mark.parametrize("name", list(EXPERIMENTS))
@pytest.mark.parametrize("agents", [("coding", "tool"), ("coding", "tool", "memory")])
def test_every_experiment_gives_valid_recipes(name, agents) -> None:
    recipe = example_recipe(*agents, seed=3, dtype="float32")
    rows = experiment_recipes(name, recipe)
    assert rows
    for row in rows.values():
        make_settings(row.method, row.settings)
        assert (row.base, row.seed, row.dtype) == (recipe.base, 3, "float32")
        assert set(row.agents) <= set(agents)


def test_how_many_rows_an_experiment_has() -> None:
    recipe = example_recipe()
    counts = {"standard": 15, "unique-region": 9, "leave-one-out": 4, "mechanism": 7, "pairwise": 3}
    assert counts == {name: len(experiment_recipes(name, recipe)) for name in counts}


SCALES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@pytest.mark.parametrize(
    ("name", "varied"),
    [
        ("r-ablation", {"r": (0.0, 0.05, 0.1, 0.15, 0.2)}),
        ("task-arithmetic-grid", {"scale": SCALES}),
        ("fisher-grid", {"scale": SCALES, "examples": (256, 512, 1024, 2048)}),
        ("ties-grid", {"scale": SCALES, "density": (0.1, 0.2, 0.3)}),
        ("dare-grid", {"drop_rate": tuple(i / 10 for i in range(1, 10))}),
    ],
)
def test_grids_are_the_papers_tables(name, varied) -> None:
    rows = experiment_recipes(name, example_recipe()).values()
    found = {tuple(row.settings[key] for key in varied) for row in rows}
    assert found == set(itertools.product(*varied.values()))
    assert len(found) == len(rows)


def test_experiments_refuse_what_they_cannot_do() -> None:
    with pytest.raises(SettingsError, match="must be one of standard"):
        experiment_recipes("sweep", example_recipe())
    with pytest.raises(SettingsError, match="at least two agents"):
        experiment_recipes("pairwise", example_recipe("coding"))


def test_labels_name_what_differs_from_the_defaults() -> None:
    assert label_of("ties", {"density": 0.2, "scale": 1 / 3}) == "ties (scale 0.3333)"
    assert label_of("ram+", {}) == "ram+"


def test_rows_alike_in_four_digits_are_all_there() -> None:
    rows = [("ram+", {"r": 0.10001}), ("ram+", {"r": 0.1}), ("ram+", {"r": 1 / 3})]
    found = rows_of(example_recipe(), [*rows, rows[0]])
    assert {label: row.settings["r"] for label, row in found.items()} == {
        "ram+ (r 0.10001)": 0.10001,
        "ram+ (r 0.1)": 0.1,
        "ram+ (r 0.3333)": 1 / 3,
    }


def test_rows_of_one_method_name_what_they_differ_in() -> None:
    three = [("ram+", {}), ("ties", {}), ("ties", {"density": "0.5", "scale": 1})]
    assert list(rows_of(example_recipe(), three)) == [
        "ram+",
        "ties (density 0.2)",
        "ties (density 0.5)",
    ]
    scaled = [("task-arithmetic", {}), ("task-arithmetic", {"scale": 1.0}), ("ties", {})]
    assert list(rows_of(example_recipe("coding", "tool"), scaled)) == [
        "task-arithmetic (scale 1/2)",
        "task-arithmetic (scale 1)",
        "ties",
    ]


FEW = {"limit": 1, "max_tokens": 2}
"""Settings where answers are of no interest."""


@pytest.fixture(scope="module")
def table():
    recipe = example_recipe("coding", "tool")
    rows = {
        "ram+": recipe,
        "average": with_method(recipe, "task-arithmetic", {}),
        "sum": with_method(recipe, "task-arithmetic", {"scale": 1}),
    }
    return rows, compare_methods(rows, limit=24)


def test_rows_score_as_written_checkpoints_do(table, tmp_path) -> None:
    rows, found = table
    merge(rows["average"], tmp_path / "average")
    paths = {"average": tmp_path / "average", "coding": EXAMPLE / "coding"}
    written = evaluate(paths, limit=24)
    for name in paths:
        ours, theirs = found.report.models[name], written.models[name]
        assert ours.answers.keys() == theirs.answers.keys()
        for domain, answers in theirs.answers.items():
            texts = [answer.text for answer in ours.answers[domain]]
            assert texts == [answer.text for answer in answers]


def test_the_table_says_what_differs_beyond_noise(table) -> None:
    _, found = table
    assert found.reference == "ram+"
    assert found.row("average").versus.outcome == "worse"
    assert found.row("sum").versus.outcome == "inconclusive"
    assert found.statements == (
        "Worse than ram+ on all skill questions: coding (the best single agent), average, "
        "norm-matched coding.",
        "Not significantly different from ram+ on all skill questions: sum.",
        "At default settings, not tuned: ram+, average.",
    )


def test_the_control_lies_as_far_from_the_base_as_the_merge(table, tmp_path) -> None:
    rows, found = table
    merge(rows["ram+"], tmp_path / "ram+")
    base, merged, coding = map(
        read_folder, (EXAMPLE / "base", tmp_path / "ram+", EXAMPLE / "coding")
    )
    moved, alone = (
        sum((other[n].double() - x.double()).square().sum().item() for n, x in base.items())
        for other in (merged, coding)
    )
    control = found.row("norm-matched coding")
    assert control.weights == {"coding": pytest.approx((moved / alone) ** 0.5, rel=1e-9)}
    assert control.merged_agents == ("coding",)
    assert found.best_agent.label == "coding"
    # Rows are compared on three skills; what all could do before stands beside them.
    assert [found.questions, *(row.n for row in found.rows)] == [72] * (1 + len(found.rows))
    assert found.settings * 4 * 24 == found.total_answers == found.answers


def test_a_control_that_does_not_merge_costs_no_row(monkeypatch) -> None:
    ask = Answers.ask

    def asked(self, entry, questions):
        if entry.label.startswith("norm-matched"):
            raise SettingsError("Beyond float16.")
        return ask(self, entry, questions)

    monkeypatch.setattr(Answers, "ask", asked)
    rows = rows_of(example_recipe("coding", "tool"), [("ram+", {})])
    found = compare_methods(rows, **FEW, device="cpu")
    assert [row.status for row in found.rows] == [*["finished"] * 4, "failed"]
    assert found.statements[-1] == f"No score for {found.rows[-1].label}: Beyond float16."


def test_the_table_as_json_and_csv(table) -> None:
    _, found = table
    described = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert described["reproducibility"]["models"]["base"]["template"] == "none"
    assert [row["label"] for row in described["rows"]] == [
        *("base", "coding", "tool"),
        *("ram+", "average", "sum", "norm-matched coding"),
    ]
    kinds = [row["kind"] for row in described["rows"]]
    assert kinds == ["base", *["agent"] * 2, *["merge"] * 4]
    average = described["rows"][4]
    assert average["agents"]["tool"]["lambda"] == 0.5
    assert average["agents"]["tool"]["effective_lambda"] == pytest.approx(0.5, abs=0.05)
    lines = list(csv.DictReader(io.StringIO(found.to_frame().to_csv(index=False))))
    assert len(lines) == 7
    assert float(lines[4]["average"]) == pytest.approx(average["average"]["score"])
    assert json.loads(lines[5]["settings"])["scale"] == 1
    assert lines[3]["versus_reference"] == ""
    assert lines[5]["versus_reference"] == "inconclusive"


def changed(**fields):
    return example_recipe("coding", "tool").model_copy(update=fields)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({}, {}, "No row"),
        ({"ram+": changed()}, {"reference": "ties"}, "reference row is 'ties'"),
        ({"coding": changed()}, {}, "called 'coding'"),
        (
            {"a": changed(), "b": changed(agents={"coding": "elsewhere"})},
            {},
            "elsewhere as agent 'coding'",
        ),
        ({"a": changed(), "b": changed(base="elsewhere")}, {}, "has the base elsewhere"),
        ({"a": changed(method="ties", settings={"density": 0})}, {}, "density is 0"),
    ],
)
def test_wrong_tables_are_refused_before_any_work(rows, options, message) -> None:
    with pytest.raises((EvaluationError, SettingsError), match=message):
        compare_methods(rows, **options)


def test_a_repeat_of_a_stopped_comparison_goes_on(tmp_path, monkeypatch) -> None:
    rows = {
        "ram+": changed(),
        "ram at r 0": changed(settings={"r": 0.0}),
        "ram": changed(method="ram", settings={}),
    }
    whole = compare_methods(rows, **FEW)
    with AnswerStore(tmp_path / "s") as store:

        def asked() -> int:
            return sum(run.answered for run in store.runs())

        with pytest.raises(Stopped, match="before a merge was scored"):
            compare_methods(rows, **FEW, store=store, should_stop=lambda: True)
        # Four rows are asked: base, two agents, ram+; then it is stopped.
        done = [0]
        part = compare_methods(
            rows,
            **FEW,
            store=store,
            on_update=lambda found: done.append(sum(r.status == "finished" for r in found.rows)),
            should_stop=lambda: done[-1] >= 4,
        )
        assert part.ending == "stopped"
        assert list(part.report.models) == ["base", "coding", "tool", "ram+"]
        assert list(part.unfinished) == ["ram at r 0", "ram"]
        assert "No score for ram at r 0, ram: the comparison was stopped" in part.statements[-1]
        assert asked() == 16
        full = compare_methods(rows, **FEW, store=store)
        # Two rows of equal weights are asked once; the last one is the control.
        assert asked() == 24
        monkeypatch.setattr(
            "ram_studio.evals.answering.local.load_model", lambda *_: pytest.fail("loaded")
        )
        again = compare_methods(rows, **FEW, store=store)
        runs = {run.model: run for run in store.runs()}
    described = [as_json(table) for table in (whole, full, again)]
    for table in described:
        table.pop("seconds")
        for row in table["rows"]:
            row.pop("seconds")
            row.pop("merge_seconds")
    assert described[0] == described[1] == described[2]
    # History: every row, with the settings that made it.
    assert runs["ram+"].merge["recipe"]["settings"]["r"] == 0.1
    assert runs["ram+"].merge["agents"]["tool"] == described[0]["rows"][3]["agents"]["tool"]
    assert runs["ram+"].merge["seconds"] > 0
    assert runs["coding"].merge is None
    assert runs["coding"].path == str(EXAMPLE / "coding")


def test_an_agents_row_shares_answers_with_its_evaluation(tmp_path) -> None:
    with AnswerStore(tmp_path / "s") as store:
        evaluate({"mine": EXAMPLE / "coding"}, **FEW, store=store)
        compare_methods({"ram+": example_recipe("coding", "tool")}, **FEW, store=store)
        found = {run.model for run in store.runs() if not run.model.startswith("norm-matched")}
        assert found == {"base", "coding", "ram+", "tool"}


def test_a_row_that_cannot_be_merged_is_left_out_with_its_reason(monkeypatch) -> None:
    nobody = changed(method="region", settings={"agent": "search"})
    table = compare_methods({"ram+": changed(), "nobody": nobody}, sources=False, **FEW)
    assert list(table.report.models) == ["ram+"]
    assert "of agent 'search'" in table.unfinished["nobody"]
    with pytest.raises(SettingsError, match="of agent 'search'"):
        compare_methods({"nobody": nobody}, sources=False, **FEW)


def test_the_command_prints_the_table_and_writes_csv(tmp_path) -> None:
    agents = [f"--agent={name}={EXAMPLE / name}" for name in ("coding", "tool")]
    asked = ["compare", f"--base={EXAMPLE / 'base'}", *agents, "--row", "ram+", "--limit", "1"]
    asked += [
        "--max-tokens",
        "2",
        "--row",
        "ties:density=0.5,scope=tensor",
        "--csv",
        tmp_path / "t.csv",
    ]
    asked += ["--store", tmp_path / "answers"]
    described = json.loads(run_command(*asked, "--json"))
    assert [row["label"] for row in described["rows"]][-3:-1] == [
        "ram+",
        "ties (density 0.5, scope tensor)",
    ]
    assert (
        (tmp_path / "t.csv")
        .read_text()
        .startswith("label,kind,method,status,same_as,settings,weights,n,")
    )
    shown = run_command(*asked, "--no-sources")
    assert "vs ram+" in shown
    assert re.search(r"ram\+ +coding +1\.\d+ +1\.\d+", shown)
    assert not re.search(r"ties .* coding +1\.000", shown), "it has no lambda"
    assert "At default settings, not tuned: ram+." in shown
    assert "no significant difference · +" in shown
    assert "Not significantly different from ram+ on all" in shown
    with pytest.raises(SettingsError, match="density is '2'"):
        run_command(*asked, "--row", "ties:density=2")


def test_the_fisher_command_makes_what_merge_takes(tmp_path) -> None:
    (tmp_path / "prompts.txt").write_text("say hi .\n\nsay fig and kiwi .\n")
    asked = ["fisher", f"--agent=coding={EXAMPLE / 'coding'}", "--out", tmp_path / "f"]
    run_command(*asked, "--prompts", tmp_path / "prompts.txt")
    recipe = example_recipe("coding", method="fisher", settings={"files": str(tmp_path / "f")})
    merge(recipe, tmp_path / "out")
    # One agent's weighted mean is that agent.
    merged, agent = read_folder(tmp_path / "out"), read_folder(EXAMPLE / "coding")
    assert all(torch.equal(tensor, agent[name]) for name, tensor in merged.items())
