"""The set that ships: table, analysis and record as the app reads them, of what was measured."""

from __future__ import annotations

import json
import shutil
from operator import itemgetter

import numpy as np
import pytest
from real_set_folder import COUNTS, make_agents, run
from safetensors.torch import load_file

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.app.landing.outcomes import Outcomes
from ram_studio.app.session.deep_link import AVERAGE
from ram_studio.app.session.shared import TuneSettings
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.skill_table import load_table
from training.real_set import restore, ship
from training.real_set.merges import merges
from training.real_set.tasks import SKILLS, draw
from training.shipped.table_factors import has_formula

N = COUNTS["test"]
UNCHANGED = ("scores", "merges", "evaluation", "rival", "agents")
"""What a record says of the set itself, whatever was measured beside it."""


@pytest.fixture(scope="module")
def shipped(folder):
    """The set made of it."""
    options = ("--note", "Nothing else.", "--processes", "1")
    run(ship, folder, "--out", str(folder / "real"), *options)
    return folder / "real"


@pytest.fixture
def again(folder, tmp_path):
    """A copy of what was measured and logged; the set made of it goes to `real` beside these."""
    for part in ("measure", "log"):
        shutil.copytree(folder / part, tmp_path / part)
    return tmp_path


def ship_again(again):
    """Make the set of a changed copy, without factors; return its record and table."""
    out = again / "real"
    run(ship, again, "--out", str(out), "--no-factors")
    return json.loads((out / "record.json").read_text()), load_table(out / "skills.json.gz")


def test_table_holds_every_answer_beside_its_question(folder, shipped):
    table = load_table(shipped / "skills.json.gz")
    assert (table["domains"], table["n"]) == (list(SKILLS), N)
    questions = [q for skill in SKILLS for q in draw(skill, "test", N)]
    assert table["prompts"] == [q.prompt for q in questions]
    assert table["gold"] == [q.solution for q in questions]
    labels = ["base", *SKILLS, *(merge.label for merge in merges())]
    assert len(table["rows"]) == len(labels)
    lines = map(json.loads, (folder / "measure" / "answers.jsonl").read_text().splitlines())
    for line in (line for line in lines if line["split"] == "test"):
        row = table["rows"][labels.index(line["model"])]
        i = SKILLS.index(line["skill"]) * N + line["question"]
        assert table["answers"][i][row["answers"][i]] == line["answer"]
        assert row["right"][i] == str(int(line["right"]))


def test_measuring_goes_on_from_what_is_shipped(base, folder, shipped, tmp_path, monkeypatch):
    lines = (folder / "measure" / "answers.jsonl").read_text().splitlines()
    asked = [json.loads(line) for line in lines]
    again = make_agents(base, tmp_path / "again")
    run(restore, again, "--out", str(shipped))
    found = map(json.loads, (again / "measure" / "answers.jsonl").read_text().splitlines())
    key = itemgetter("model", "skill", "question")
    assert sorted(found, key=key) == sorted(
        (line for line in asked if line["split"] == "test"), key=key
    )
    with pytest.raises(SystemExit, match="continues from it"):
        run(restore, again, "--out", str(shipped))
    run(ship, again, "--out", str(tmp_path / "new"), "--no-factors")
    old, new = (load_table(place / "skills.json.gz") for place in (shipped, tmp_path / "new"))
    assert old["rows"] == new["rows"]
    monkeypatch.setattr(restore, "draw", lambda skill, split, n: draw(skill, "train", n))
    (again / "measure" / "answers.jsonl").unlink()
    with pytest.raises(SystemExit, match="other questions"):
        run(restore, again, "--out", str(shipped))
    assert not (again / "measure" / "answers.jsonl").exists()
    others = make_agents(base, tmp_path / "others")
    for file in (others / "agents" / "tool").glob("*.safetensors"):
        shutil.copy(file, others / "agents" / "math")
    with pytest.raises(SystemExit, match="answers differ"):
        run(restore, others, "--out", str(shipped))


def test_rows_are_found_where_tune_looks_for_them(shipped):
    table = load_table(shipped / "skills.json.gz")
    found = Outcomes(table, load_analysis(shipped / "analysis.safetensors"))
    assert [(s.name, s.agent) for s in found.skills] == [(s, i) for i, s in enumerate(SKILLS)]
    rows = {merge.label: row for merge, row in zip(merges(), table["rows"][4:], strict=True)}
    plus = rows["ram+"]
    assert plus["settings"] == {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}
    assert plus["k"] == DEFAULT_INDEX
    assert table["rows"][found.nearest(TuneSettings()).number] is plus
    assert found.find(AVERAGE).number == table["rows"].index(rows["task-arithmetic scale=0.3333"])
    # What Tune has no dial for is no point of it.
    assert rows["ram+ rounding=stochastic"]["k"] is None
    assert rows["ram+ scope=tensor"]["k"] is None


def test_factors_are_those_of_the_merge_and_measured_once(folder, shipped):
    table = load_table(shipped / "skills.json.gz")
    shown = [r for r in table["rows"] if not has_formula(r) and not r["method"].startswith("ram")]
    assert {row["method"] for row in shown} >= {"ties", "dare-ta", "iso-c"}
    assert all(row["factors"] for row in shown)
    assert all(row["factors"] is None for row in table["rows"] if row not in shown)
    # TIES that trims nothing, of agents that all moved up: the mean of those that moved an element.
    row = next(r for r in shown if r["method"] == "ties" and r["settings"].get("density") == 1.0)
    paths = [folder / "base", *(folder / "agents" / skill for skill in SKILLS)]
    tensors = [load_file(path / "model.safetensors") for path in paths]
    base, *agents = (
        np.concatenate([t[name].float().reshape(-1).numpy() for name in sorted(tensors[0])])
        for t in tensors
    )
    tau = np.stack(agents) - base
    moved = (tau > 1e-5).sum(0)
    merged = tau.sum(0) / np.maximum(moved, 1)
    for t, own in enumerate(tau):
        part = (own > 1e-5) & (moved > 1)
        expected = (merged * own)[part].sum() / (own * own)[part].sum()
        assert row["factors"]["own"][t] == pytest.approx(1.0, rel=1e-4)
        assert row["factors"]["shared"][t] == pytest.approx(expected, rel=1e-4)

    file, before = folder / "measure" / "factors.jsonl", (shipped / "skills.json.gz").read_bytes()
    lines = file.read_text()
    run(ship, folder, "--out", str(folder / "again"), "--processes", "1")
    assert file.read_text() == lines
    assert (folder / "again" / "skills.json.gz").read_bytes() == before


def test_record_says_how_it_was_made_and_what_was_not(shipped):
    record = json.loads((shipped / "record.json").read_text())
    assert record["base"]["name"] == "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    assert record["evaluation"]["asked"] == dict.fromkeys(SKILLS, N)
    assert record["evaluation"]["merges"] == len(merges())
    assert record["scores"]["math"]["math"] == 1.0
    assert record["training"]["math"]["steps"] == 1
    assert record["training"]["math"]["minutes"] == 1
    assert record["evaluation"]["texts"]["math"] == N
    assert record["evaluation"]["texts"]["memory"] < N
    assert record["not_done"][-1] == "Nothing else."
    assert "second seed" in record["not_done"][0]
    assert record["other_suites"] == {"humaneval": {"base": [3, 4], "ram+": [3, 4]}}
    assert not [text for text in record["not_done"] if "forgetting" in text]


def test_agents_by_sft_are_recorded_beside_the_set(shipped, again):
    shutil.copy(again / "log" / "math.jsonl", again / "log" / "math-sft.jsonl")
    file = again / "measure" / "answers.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    own = [x for x in lines if json.loads(x)["model"] == "math"]
    file.write_text("".join([*lines, *(x.replace('"math"', '"math-sft"', 1) for x in own)]))
    after, table = ship_again(again)
    before = json.loads((shipped / "record.json").read_text())
    assert after["others"] == {"math-sft": before["scores"]["math"]}
    assert after["training"]["math-sft"] == before["training"]["math"]
    assert [text for text in before["not_done"] if "SFT" in text]
    assert not [text for text in after["not_done"] if "SFT" in text]
    assert {key: after[key] for key in UNCHANGED} == {key: before[key] for key in UNCHANGED}
    rows = load_table(shipped / "skills.json.gz")["rows"]
    assert [row["right"] for row in rows] == [row["right"] for row in table["rows"]]


def test_agents_of_another_seed_are_recorded_beside_the_set(shipped, again):
    shutil.copytree(again / "measure", again / "measure-seed1")
    after, first = ship_again(again)
    before = json.loads((shipped / "record.json").read_text())
    parts = ("agents", "scores", "others", "merges")
    assert after["other_seeds"] == {"1": {part: after[part] for part in parts}}
    second = load_table(ship.table_file(again / "real", 1))
    assert [row["answers"] for row in second["rows"]] == [row["answers"] for row in first["rows"]]
    assert [text for text in before["not_done"] if "second seed" in text]
    assert not [text for text in after["not_done"] if "second seed" in text]
    assert {key: after[key] for key in UNCHANGED} == {key: before[key] for key in UNCHANGED}


def test_skills_that_were_asked_more_give_their_first_questions(again):
    file = again / "measure" / "answers.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    few = [x for x in lines if (o := json.loads(x))["skill"] != "memory" or o["question"] < 5]
    # A merge that was stopped in the middle is left out.
    few = [x for x in few if (o := json.loads(x))["model"] != "ram" or o["question"] < 2]
    file.write_text("".join(few))
    record, table = ship_again(again)
    assert (table["n"], len(table["prompts"])) == (5, 15)
    assert len(table["rows"]) == 4 + len(merges()) - 1
    assert record["evaluation"]["asked"] == {"math": N, "tool": N, "memory": 5}


def test_answers_to_other_questions_are_refused(again):
    file = again / "measure" / "answers.jsonl"
    file.write_text(file.read_text().replace('"right": true', '"right": false', 1))
    with pytest.raises(SystemExit, match="judged otherwise"):
        ship_again(again)


def test_the_rival_is_chosen_on_validation_questions():
    validation = {
        "base": {"math": 1.0},
        "math": {"math": 1.0},
        "ram+": {"math": 0.9},
        "ties": {"math": 0.6},
        "dare-ta": {"math": 0.6},
        "iso-c": {"math": 0.5},
    }
    assert ship.tuned_rival(validation, ["math"]) == "ties"
    assert ship.tuned_rival({}, ["math"]) is None
