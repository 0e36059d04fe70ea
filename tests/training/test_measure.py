"""What the real set's merges answer: asked once, stored line by line, told in tables."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import product

import pytest
import torch
from real_set_folder import first_merges, make_agents, make_other_seed, run
from safetensors.torch import load_file, save_file

from ram_studio.evals.report.skill_table import load_table
from training.real_set import grpo, measure, report, search, ship
from training.real_set.measure import AnswerFile, Job, ask_all, side_by_side
from training.real_set.merges import Merge, merges
from training.real_set.tasks import SKILLS, draw

COUNTS = {"test": 3, "validation": 2}
FEW = 2


def ask_little(patch: pytest.MonkeyPatch) -> None:
    """Ask few questions, of which each is answered in three tokens."""
    patch.setattr(measure, "QUESTIONS", COUNTS)
    patch.setattr(grpo, "MAX_NEW_TOKENS", dict.fromkeys(SKILLS, 3))


@pytest.fixture(scope="module")
def measured(base, tmp_path_factory):
    """A folder whose agents of two seeds were measured, and which agent each of seed 1 is.

    Beside seed 0 is an agent that no merge takes, the same as `tool`.
    """
    folder = make_agents(base, tmp_path_factory.mktemp("measured") / "all")
    turned = make_other_seed(folder)
    for end in ("", "-float32"):
        shutil.copytree(folder / "agents" / f"tool{end}", folder / "agents" / f"math-sft{end}")
    with pytest.MonkeyPatch.context() as patch:
        ask_little(patch)
        for seed in "01":
            run(measure, folder, *first_merges(FEW), "--processes", "1", "--seed", seed)
    return folder, turned


@pytest.fixture
def copied(measured, tmp_path, monkeypatch):
    """A copy of that folder, of which few questions are asked."""
    ask_little(monkeypatch)
    return shutil.copytree(measured[0], tmp_path / "all")


def test_merges_are_many_and_labels_differ():
    found = merges()
    assert len({merge.label for merge in found}) == len(found) >= 60
    assert Merge("ties", {"density": 0.2, "scale": 1.0}).label == "ties density=0.2 scale=1"


def test_a_torn_file_is_completed_and_nothing_is_asked_twice(copied, capsys):
    file = copied / "measure" / "answers.jsonl"
    whole = file.read_bytes()
    lines = [json.loads(line) for line in whole.splitlines()]
    keys = [(x["model"], x["split"], x["skill"], x["question"]) for x in lines]
    models = {"base", *SKILLS, "math-sft", *(merge.label for merge in merges()[:FEW])}
    wanted = {
        (m, s, k, i) for m in models for s in COUNTS for k in SKILLS for i in range(COUNTS[s])
    }
    assert set(keys) == wanted
    assert len(keys) == len(wanted)

    run(measure, copied, *first_merges(FEW), "--processes", "1")
    assert file.read_bytes() == whole
    # Torn in the middle of a line, and of a skill's answers.
    file.write_bytes(whole[: len(whole) * 2 // 5])
    for split in COUNTS:
        run(measure, copied, *first_merges(FEW), "--split", split, "--processes", "1")
    again = {json.dumps(json.loads(line)) for line in file.read_bytes().splitlines()}
    assert again == {json.dumps(line) for line in lines}

    capsys.readouterr()
    run(report, copied)
    assert "| ram+ |" in capsys.readouterr().out
    results = json.loads((copied / "measure" / "results.json").read_text())
    assert {row["model"] for row in results["rows"]} == models


def test_agents_that_no_merge_takes_are_asked_too(measured):
    lines = map(json.loads, (measured[0] / "measure" / "answers.jsonl").read_text().splitlines())
    found = {"tool": [], "math": [], "math-sft": []}
    for line in lines:
        if line["model"] in found:
            found[line["model"]].append((line["skill"], line["question"], line["answer"]))
    assert found["math-sft"] == found["tool"] != found["math"]


def test_agents_of_another_seed_are_measured_beside_the_first(measured, monkeypatch):
    ask_little(monkeypatch)
    folder, turned = measured
    first, second = (
        AnswerFile(folder / name / "answers.jsonl") for name in ("measure", "measure-seed1")
    )
    labels = [merge.label for merge in merges()[:FEW]]
    assert first.models("test") == ["base", *SKILLS, "math-sft", *labels]
    assert second.models("test") == ["base", *SKILLS, *labels]
    densities = [
        {name: own["density"] for name, own in told["bfloat16"]["0"]["agents"].items()}
        for name in ("measure", "measure-seed1")
        for told in [json.loads((folder / name / "updates.json").read_text())]
    ]
    assert densities[1] == {skill: densities[0][other] for skill, other in turned.items()}


def test_a_question_is_one_cluster_over_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "QUESTIONS", COUNTS)
    monkeypatch.setattr(measure, "is_right", lambda question, answer: answer == "right")
    for name in ("measure", "measure-seed1"):
        (tmp_path / name).mkdir()
        store = AnswerFile(tmp_path / name / "answers.jsonl")
        for model, skill in product(("ram", "ram+"), SKILLS):
            said = "right" if (model, skill) == ("ram+", "math") else "wrong"
            store.add(model, "test", skill, draw(skill, "test", 3), [said] * 3)
    # Three questions that RAM+ alone answers, each twice: two of the eight ways to turn them round.
    assert report.storing_tables(tmp_path) == ["ram+ against ram, seeds: 2: 6 : 0, p 0.25"]


def test_a_search_of_weights_goes_on_and_asks_its_best(copied, capsys):
    run(search, copied, "--trials", "2")
    told = capsys.readouterr().out
    file = copied / "measure" / "searched.jsonl"
    whole = file.read_bytes()
    lines = [json.loads(line) for line in whole.splitlines()]
    best = {line["model"] for line in lines if line["split"] == "test"}
    assert len({line["model"] for line in lines}) == 2
    assert [f"Best: {name};" in told for name in best] == [True]
    # Torn, it proposes the same again.
    file.write_bytes(whole[: len(whole) // 2])
    run(search, copied, "--trials", "2")
    assert file.read_bytes() == whole
    assert capsys.readouterr().out == told


@pytest.mark.slow
def test_two_processes_answer_as_one(base, tmp_path):
    folder = make_agents(base, tmp_path)
    sources = measure.Sources(folder / "base", folder / "agents")
    asked = [("base", None), ("math", None), ("ram+", Merge("ram+"))]
    jobs = [Job(name, merge, "test", {"math": 2, "tool": 1}) for name, merge in asked]
    found = [
        {job.name: texts for job, _, texts in ask_all(sources, "float32", jobs, processes)}
        for processes in (1, 2)
    ]
    assert found[0] == found[1]
    assert set(found[0]) == {"base", "math", "ram+"}


def test_a_process_that_dies_ends_in_an_error():
    with pytest.raises(BrokenProcessPool):
        list(side_by_side(partial, (os._exit,), [1], processes=2))


def test_rows_come_out_again_and_those_of_other_weights_do_not(copied, tmp_path):
    out = tmp_path / "real"
    run(ship, copied, "--out", str(out), "--no-factors")
    tables = [load_table(ship.table_file(out, seed)) for seed in (0, 1)]
    assert tables[0]["answers"] != tables[1]["answers"]
    for seed in (0, 1):
        assert ship.differing(copied, out, 9, seed) == (0, (4 + FEW) * 3 * 3)
    weights = load_file(copied / "base" / "model.safetensors")
    torch.manual_seed(1)
    other = {name: torch.randn_like(value) for name, value in weights.items()}
    save_file(other, copied / "base" / "model.safetensors", {"format": "pt"})
    wrong, _ = ship.differing(copied, out, 9)
    assert wrong > 0


def test_updates_tell_density_and_what_rounding_keeps(measured):
    folder, _ = measured
    found = json.loads((folder / "measure" / "updates.json").read_text())
    agents = found["bfloat16"]["0"]["agents"]
    assert agents["math"]["density"] == pytest.approx(1 / 5, abs=0.01)
    assert agents["memory"]["density"] == pytest.approx(1 / 3, abs=0.01)
    assert found["bfloat16"]["1e-05"]["agents"]["math"]["density"] == agents["math"]["density"]
    stored = found["bfloat16"]["0"]["stored_lambda"]["bfloat16"]["math"]
    assert 1.0 <= stored["nearest"] <= stored["stochastic"] == agents["math"]["lambda"]
    assert (folder / "measure" / "bfloat16-compact.analysis").stat().st_size < 1_000_000


def test_tables_count_pairs_and_choose_by_validation(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "QUESTIONS", {"test": 10, "validation": 10})
    right = {  # model: how many of ten on validation, on test
        "ram+": (5, 6),
        "ties density=0.2": (4, 9),
        "ties density=0.8": (8, 3),
    }
    lines = [
        {"model": m, "split": s, "skill": k, "question": i, "right": i < counts[n], "answer": ""}
        for m, counts in right.items()
        for n, s in enumerate(("validation", "test"))
        for k in SKILLS
        for i in range(10)
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answers = AnswerFile(path)
    assert report.best_of_each(answers) == {"ram+": "ram+", "ties": "ties density=0.8"}
    rows = {row["model"]: row for row in report.table(answers)}
    assert "against" not in rows["ram+"]
    better, worse = rows["ties density=0.2"]["against"], rows["ties density=0.8"]["against"]
    assert (better["wins"], better["losses"], better["ties"]) == (9, 0, 21)
    assert (worse["wins"], worse["losses"], worse["ties"]) == (0, 9, 21)
    # Six questions of their own and one text with three, all won; doubled by Holm for two tests.
    assert better["p_adjusted"] == pytest.approx(2 * 2 / 2**7)
    low, high = rows["ram+"]["intervals"]["math"]
    assert low < 0.6 < high
    assert rows["ram+"]["intervals"]["memory"][0] < low, "ten answers about one text tell less"


def test_curves_have_a_point_at_each_check(tmp_path):
    points = [
        {"settings": {"validation": 40}},
        {"step": 1, "reward": 0.1},
        {"step": 6, "validation": 0.5, "density": 0.1, "density_1e-5": 0.05},
        {"step": 12, "validation": 0.8, "density": 0.2, "density_1e-5": 0.1},
    ]
    log = tmp_path / "tool.jsonl"
    log.write_text("".join(json.dumps(point) + "\n" for point in points))
    lines = report.curves_of(tmp_path).data
    assert [list(line.x) for line in lines] == [[6, 12]] * 3
    assert [list(line.y) for line in lines] == [[0.5, 0.8], [0.1, 0.2], [0.05, 0.1]]
