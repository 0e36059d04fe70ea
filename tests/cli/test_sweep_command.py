"""`ram-studio sweep` as a user meets it."""

from __future__ import annotations

import csv
import json
import signal

import pytest

from ram_studio.checkpoints.record.provenance import read_provenance
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")
BASE = asset_path("independent", "base")
SOURCES = [str(BASE), *(f"-a{name}={asset_path('independent', name)}" for name in AGENTS)]
ANALYSIS = ("--analysis", asset_path("independent", "analysis.safetensors"))
COMMON = (*ANALYSIS, "--device", "cpu")


def test_a_sweep_prints_a_table_writes_csv_and_gives_json(cli, tmp_path):
    store = ("--store", tmp_path / "a.sqlite3")
    what = ("sweep", *SOURCES, "--over", "r=0,0.4", "--over", "rule=ram+,ram+s", "--limit", "4")
    code, out, err = cli(*what, *COMMON, *store, "--csv", tmp_path / "a.csv")
    assert (code, err) == (0, "")
    assert "demo, 12 questions" in out
    assert "same as ram+ (r 0)" in out
    assert "As the best of 4 this score is optimistic." in out
    assert "held-out questions" in out
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0]["label"] == "ram+ (r 0.1)"
    code, out, err = cli(*what, *COMMON, *store, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["settings"] == 4
    assert result["ending"] == "done"
    assert {row["label"] for row in result["rows"]} == {row["label"] for row in rows}
    assert result["recheck"]["winner"]["n"] == result["held_out"]


def test_a_sweeps_winner_is_merged_with_agents_of_the_same_names(cli, tmp_path):
    over = ("--over", "weight.tool=0.5", "--over", "ramp.memory=0.25,0.5", "--limit", "1")
    code, out, _ = cli("sweep", *SOURCES, *over, *COMMON, "--no-store", "--json")
    assert code == 0
    found = json.loads(out)
    winner = next(row for row in found["rows"] if not row["is_start"])
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(found | {"winner": winner["label"]}))
    sibling = [f"--agent={name}={asset_path('shared-style', name)}" for name in AGENTS]
    asked = ("merge", "--base", BASE, "--from-sweep", file, "--device=cpu")
    code, _, err = cli(*asked, *sibling, "--out", tmp_path / "out")
    assert code == 0, err
    assert "did not check its winner on held-out questions" in err
    made = read_provenance(tmp_path / "out").recipe
    assert (made.method, made.settings) == (winner["method"], winner["settings"])
    assert made.model_dump(mode="json")["weights"] == winner["weights"] != {}
    told = cli(*asked, *sibling[:2], "--out", tmp_path / "no")
    assert (told[0], told[2].strip()) == (
        2,
        "ram-studio: The sweep merged coding, tool, memory; the agents here are coding, tool. "
        "Give each its name in the sweep.",
    )
    rows = [{**winner, "method": ["ram"]}, {**winner, "merged_agents": [["tool"], *AGENTS]}]
    for text in ("{}", *(json.dumps({**found, "rows": [r], "winner": r["label"]}) for r in rows)):
        file.write_text(text)
        told = cli(*asked, *sibling, "--out", tmp_path / "no")
        assert told[0] == 2
        assert "is not the result of a sweep; expected what" in told[2]


def test_a_search_says_that_its_settings_were_proposed(cli):
    what = ("sweep", "--base", BASE, *SOURCES[1:], "--over", "r=0:0.5", "--limit", "1")
    code, out, _ = cli(*what, *COMMON, "--no-store", "--search", "optuna", "--trials", "1")
    assert code == 0
    assert "As the best of 2 this score is optimistic." in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name what to vary"),
        (["--over", "r=0:1:3", "--base", "b"], 2, "given twice"),
        (["--over", "r=0:1:3", "--search", "luck"], 2, "'luck' is not one of 'grid', 'optuna'"),
        (["--over", "r=0:1:3", "--set", "gamma=1"], 2, "has no setting 'gamma'"),
        (["--over", "gamma=0:1:3"], 2, "No method has a setting 'gamma'"),
        (["--over", "r=0:1:3", "--suite", "health"], 2, "'health' cannot be asked here"),
        (["--over", "r=0:1:100", "--max-settings", "9"], 2, "100 settings, the budget is 9"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(cli, arguments, code, message):
    found, out, err = cli("sweep", *SOURCES, *arguments, "--no-store")
    assert (found, out) == (code, "")
    assert message in " ".join(err.replace("│", " ").split())
    if "Usage:" not in err:
        assert err.count("\n") == 1


def test_ctrl_c_keeps_what_is_finished_and_exits_with_130(cli, tmp_path, monkeypatch):
    path, record, batches = tmp_path / "a.sqlite3", AnswerStore.record, []

    def counted(self, run, answers):
        record(self, run, answers)
        batches.append(run)
        # Of 12 questions each, one setting is finished, the last is not.
        if len(batches) == 14:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(AnswerStore, "record", counted)
    what = ("sweep", *SOURCES, "--over", "r=0:0.5:3", "--limit", "4", *COMMON)
    code, out, err = cli(*what, "--batch-size", "4", "--store", path)
    assert code == 130, err
    assert "finished answers are stored" in err
    assert "ram+ (r 0)" in out
    assert "not finished" in out
    with AnswerStore(path) as store:
        assert sum(len(store.answers(run.id)) for run in store.runs()) >= 12
