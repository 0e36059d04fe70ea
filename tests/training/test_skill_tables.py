"""The shipped skill tables, and the command that measures them."""

from __future__ import annotations

from itertools import islice

import pytest

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.skill_table import MeasuredRow, load_table, save_table, skill_table
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path
from training.shipped.analyses import ANALYSIS_FILE, SETS
from training.shipped.skill_tables import (
    TABLE_FILE,
    ask,
    build,
    differing,
    distinct_points,
    known_rows,
    settings_of,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_twenty_random_entries_come_out_again(name):
    # A few of each entry's prompts, for speed; `--again 20` asks all of them.
    wrong, of = differing(name, 20, items=4)
    sources = 1 + len(load_analysis(asset_path(name, ANALYSIS_FILE)).agents)
    assert of == (sources + 20) * 4 * 4
    # Other batches and machines round sums differently, and an answer on the edge may then flip.
    assert wrong <= of // 100


def test_a_setting_that_draws_is_one_row_of_one_draw():
    _, found = ask("dense", [(("dare-ta", {"drop_rate": 0.5}), None)], sources=False, items=1)
    assert [(row.kind, row.method) for row in found] == [("merge", "dare-ta")]


@pytest.mark.parametrize("name", SETS)
def test_shipped_tables_are_small_and_hold_different_weights(name):
    assert (asset_path(name) / TABLE_FILE).stat().st_size < 300_000
    table = load_table(asset_path(name, TABLE_FILE))
    assert table["n"] >= 60
    seen = {(r["method"], str(r["settings"])) for r in table["rows"]}
    assert len(seen) == len(table["rows"])
    assert sum(row["kind"] == "merge" for row in table["rows"]) >= 1000


def test_settings_of_equal_counts_and_lambdas_are_measured_once():
    analysis = load_analysis(asset_path("dense", ANALYSIS_FILE))
    points = distinct_points(analysis)
    assert points[0] == DEFAULT_INDEX
    shared = analysis.counts.shared
    assert len({shared[:, k].tobytes() for k in points}) == len(points)
    # That there are a thousand is what the shipped tables say.
    found = [setting for setting, _ in islice(settings_of(analysis), 120)]
    assert len(set(map(str, found))) == 120
    assert found[0] == ("ram+", {"epsilon": EPSILON_GRID[DEFAULT_INDEX], "r": 0.1, "alpha": 2.0})


@pytest.mark.slow
def test_a_resumed_table_has_the_same_bytes(tmp_path, monkeypatch):
    store = AnswerStore(tmp_path / "answers.sqlite3")
    path = tmp_path / "skills.json.gz"
    build("dense", path, store=store, limit=1)
    first = load_table(path)
    assert [row["kind"] for row in first["rows"]] == ["source"] * 4 + ["merge"]
    # What is in the table is not asked again, without a store either.
    asked = []
    monkeypatch.setattr(
        "training.shipped.skill_tables.ask",
        lambda name, settings, **options: asked.append(settings) or ask(name, settings, **options),
    )
    build("dense", path, limit=2)
    assert [len(settings) for settings in asked] == [1, 1]
    longer = path.read_bytes()
    assert load_table(path)["rows"][:5] == first["rows"]
    build("dense", path, limit=2)
    assert [len(settings) for settings in asked] == [1, 1, 1]
    assert path.read_bytes() == longer


def test_unusable_tables_say_what_to_do(tmp_path):
    with pytest.raises(EvaluationError, match=r"no\.gz does not exist; make it with"):
        load_table(tmp_path / "no.gz")
    (tmp_path / "bad.gz").write_bytes(b"nothing")
    with pytest.raises(EvaluationError, match="damaged"):
        load_table(tmp_path / "bad.gz")
    save_table(skill_table([], []) | {"format": 9}, tmp_path / "new.gz")
    with pytest.raises(EvaluationError, match="format 9"):
        load_table(tmp_path / "new.gz")


def test_rows_of_a_set_with_one_agent_more_are_asked_again(tmp_path):
    questions = [Question("a", "code", "code", "p", "g", None, 1)]
    answers = {"a": Answer("g", True)}
    rows = [MeasuredRow("source", name, {}, None, answers) for name in ("base", "one", "two")]
    merge = MeasuredRow("merge", "ram", {"epsilon": 0.0}, 0, answers)
    path = save_table(skill_table(questions, [*rows, merge]), tmp_path / "skills.json.gz")
    assert len(known_rows(path, questions, rows)) == 4
    assert known_rows(path, questions, rows[:2]) == {}
