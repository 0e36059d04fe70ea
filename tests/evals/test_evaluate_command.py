"""`ram-studio evaluate` and `history` with suites, endpoints, stores and exports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from loopback_endpoint import serve
from loopback_hub import Repository
from typer.testing import CliRunner

from ram_studio.cli.main import commands
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.answering import endpoint
from ram_studio.resources import asset_path

BASE, CODING = str(asset_path("independent", "base")), str(asset_path("independent", "coding"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command with a store of its own; returns (exit code, output, error)."""
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))

    def call(*arguments: str):
        result = CliRunner().invoke(commands, list(map(str, arguments)))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            assert isinstance(result.exception, RamStudioError), result.exception
        return result.exit_code, result.output, result.exception

    return call


def test_evaluate_compares_exports_and_history_shows_it_again(run, tmp_path):
    files = [tmp_path / f"r{ending}" for ending in (".html", ".csv", ".json")]
    code, out, error = run(
        "evaluate", BASE, f"coder={CODING}", "--limit", 20, "--base", "base",
        "--specialist", "code=coder", *(x for f in files for x in ("--export", f)),
    )  # fmt: skip
    assert code == 0, error
    assert "coder is better than base on code" in out
    assert "4 comparisons were made and corrected together (Holm, 5 %)." in out
    assert all(file.stat().st_size for file in files)
    code, out, _ = run("history", "--json")
    assert [entry["answered"] for entry in json.loads(out)] == [80, 80]
    code, out, _ = run("history")
    assert "demo v2" in out
    code, out, _ = run("history", 1, 2, "--base", "base", "--json")
    report = json.loads(out)
    assert report["models"]["coder"]["domains"]["code"]["n"] == 20
    assert len(report["comparisons"]) == 4
    assert run("history", 7)[0] == 1
    assert run("history", "--export", tmp_path / "x.json")[0] == 2
    asked = (
        "evaluate", BASE, f"coder={CODING}", f"merge={CODING}", f"same={BASE}", "--limit", 20,
        "--base", "base", "--specialist", "code=coder", "--margin", 20,
    )  # fmt: skip
    _, told, _ = run(*asked)
    first, second, note = told.splitlines()[:3]
    assert first.startswith("merge on code: survived; retains 100 % of coder's gain (")
    assert second.startswith("same on code: damaged; retains 0 % of coder's gain (")
    assert note == "2 verdicts were made and corrected together (Holm, 5 %)."
    _, told, _ = run(*asked, "--json")
    survived, damaged = json.loads(told)["verdicts"]
    assert (survived["verdict"], damaged["verdict"]) == ("survived", "damaged")
    assert damaged["p"] < damaged["p_adjusted"] == 2 * damaged["p"]
    # An interval has a width where all is retained: the bootstrap had none.
    assert survived["retained_gain"]["low"] < 1 < survived["retained_gain"]["high"]
    assert "margin is 0 points" in str(run("evaluate", BASE, "--margin", 0)[2])


def test_a_hub_id_is_refused_with_the_command_that_fetches_it(run, hub, tmp_path):
    files = {file.name: file.read_bytes() for file in Path(BASE).iterdir()}
    hub.repositories["lab/base"] = repository = Repository({}, {})
    repository.commit(files, "main")
    *_, error = run("evaluate", "lab/base")
    advised = str(error).partition("download the model first: ")[2].rstrip(".")
    words = advised.replace("OWNER/NAME", "lab/base").replace("FOLDER", str(tmp_path / "base"))
    program, *arguments = words.split()
    subprocess.run([Path(sys.executable).with_name(program), *arguments], check=True)
    assert run("evaluate", tmp_path / "base", "--limit", 1)[0] == 0


def test_one_folder_given_twice_is_said(run):
    _, told, _ = run("evaluate", BASE, BASE, "--limit", 1, "--json")
    assert "note: independent/base is the same folder as base." in told


def test_an_evaluation_says_what_is_stored_already(run, caplog):
    with serve(lambda body: "4") as server, caplog.at_level("INFO", logger="ram_studio"):
        asked = ("evaluate", "one", "--endpoint", server.url, "--suite", "math", "--limit")
        assert run(*asked, 3)[0] == run(*asked, 5)[0] == run(*asked, 5)[0] == 0
    told = [r.getMessage() for r in caplog.records if r.name == "ram_studio.evals.run"]
    assert told == ['Model "one": 3 of 5 answers to math are stored; asking the other 2']


def test_an_endpoint_is_evaluated_and_categories_are_shown(run, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "tok-123")
    with serve(lambda body: "two words") as server:
        options = ("--endpoint", server.url, "--suite", "instructions", "--limit", "4")
        code, out, error = run("evaluate", "one", *options, "--token-env", "MY_TOKEN")
        assert code == 0, error
        assert "instructions: length" in out
        assert "1/1" in out
        assert server.requests[0][1]["Authorization"] == "Bearer tok-123"
        assert "tok-123" not in out
        code, out, _ = run("evaluate", "one", *options, "--json")
        assert len(server.requests) == 4
        assert (
            json.loads(out)["models"]["one"]["domains"]["instructions"]["outcomes"]["failed"] == 0
        )
        run("evaluate", "one", *options, "--rerun")
        assert len(server.requests) == 8
        run("evaluate", "one", *options, "--no-store")
        assert len(server.requests) == 12
        assert run("evaluate", "one", *options, "--token-env", "NO_SUCH")[0] == 2


def test_failed_replies_and_accuracies_are_shown(run, monkeypatch):
    monkeypatch.setattr(endpoint, "PAUSE_SECONDS", 0.001)
    with serve(lambda body: (503, b"busy")) as server:
        asked = ("evaluate", "one", "--endpoint", server.url, "--limit", 2)
        code, out, error = run(*asked, "--suite", "math")
        assert "of 2 questions 2 got no answer" in out
        assert (code, "No question was answered. one, math: of 2" in str(error)) == (1, True)
        assert "The first: failed: the server answered with status 503: busy" in str(error)
    with serve(lambda body: "all small letters") as server:
        _, out, _ = run("evaluate", "one", "--endpoint", server.url, "--suite", "instructions")
        assert "instructions: prompt_strict" in out
        assert "instructions: instruction_loose" in out


def test_health_is_shown_for_folders(run):
    code, out, error = run("evaluate", BASE, CODING, "--suite", "health", "--base", "base")
    assert code == 0, error
    for label in ("Perplexity", "KL to the base (nats/token)", "4-grams repeated"):
        assert label in out


BAD = """--chat maybe | --code perhaps | --specialist nonsense | --engine magic |
--specialist code=nobody | --export report.xlsx | --engine lm-eval | --tasks gsm8k |
--include-path tasks | --engine vllm --endpoint http://127.0.0.1:1/v1"""
WRONG = """--suite nope | --suite , | --suite demo,math | --limit 0 | --limit math=1 | --lengths 0 |
--suite memory --lengths 10 | --device nope | --prompts nope | --shots 99 | --margin 0 |
--difficulty 9 | --base nope | --specialist nope=base"""
NAMELESS = (f"={BASE}", f" ={BASE}", "one=")


@pytest.mark.parametrize(("words", "kind"), [
    *(((BASE, *options.split()), SystemExit) for options in BAD.split("|")),
    *(((model,), SystemExit) for model in NAMELESS),
    # They exited with 65, where every other command has 2.
    *(((BASE, *options.split()), SettingsError) for options in WRONG.split("|")),
])  # fmt: skip
def test_what_cannot_be_chosen_is_wrong_usage(run, words, kind):
    code, _, error = run("evaluate", *words, "--limit", "1")
    assert isinstance(error, kind), error
    assert (code if kind is SystemExit else error.exit_code) == 2


def test_a_setting_out_of_range_is_one_line(run):
    code, _, error = run("evaluate", BASE, "--lengths", "many", "--top-p", "0")
    assert code == 1
    assert str(error) == (
        "lengths is 'many'; choose lengths in tokens, such as 1k,4k. "
        "top_p is 0.0; choose more than 0 and at most 1."
    )


def test_one_command_limits_each_suite_by_itself(run):
    with serve(lambda body: "Answer: 61") as server:
        asked = ("--suite", "math,instructions", "--limit", "math=2", "--limit", "instructions=1")
        code, out, error = run("evaluate", "one", "--endpoint", server.url, *asked, "--json")
    assert code == 0, error
    scores = json.loads(out)["models"]["one"]["domains"]
    assert {name: score["n"] for name, score in scores.items()} == {"math": 2, "instructions": 1}
