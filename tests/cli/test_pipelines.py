"""What scripts rely on: exit codes, errors as JSON, progress as lines, the same merge again."""

from __future__ import annotations

import json
import logging
import re
import subprocess

import pytest

from ram_studio import errors
from ram_studio._version import find_commit
from ram_studio.cli import progress
from ram_studio.engine import merge as merge_module
from ram_studio.resources import asset_path

SHORT = ("--limit", "1", "--no-store", "--device", "cpu")
CODES = {2, 65, 69, 75, 130}


def all_errors(kind: type = errors.RamStudioError) -> list[type]:
    return [kind, *(one for child in kind.__subclasses__() for one in all_errors(child))]


def test_every_error_has_a_code_and_says_whether_to_retry():
    for kind in all_errors():
        assert kind.exit_code in CODES
        assert (kind.exit_code in (69, 75, 130)) == kind.can_retry
    assert errors.BusyError("x").to_dict() == {
        "code": "busy_error",
        "message": "x",
        "retry": True,
        "part": None,
    }


@pytest.mark.parametrize(
    ("extra", "code", "name"),
    [
        (("--dtype", "int8"), 2, "settings_error"),
        (("--agent", "x=./nowhere/at/all"), 65, "checkpoint_error"),
        (("--analysis", "nothing.safetensors"), 65, "analysis_error"),
    ],
)
def test_a_failure_is_one_json_object_and_a_code(cli, example, tmp_path, extra, code, name):
    found, out, err = cli("merge", *example, "--out", tmp_path / "m", *extra, "--json")
    assert found == code
    told = json.loads(out)["error"]
    assert (told["code"], told["retry"], told["part"]) == (name, False, None)
    assert err == f"ram-studio: {told['message']}\n"


@pytest.mark.parametrize("kind", [errors.HubError, errors.SourceChangedError, errors.Stopped])
def test_what_may_be_run_again_is_told(cli, example, tmp_path, monkeypatch, kind):
    def fail(*arguments, **named):
        raise kind("so it is")

    monkeypatch.setattr(merge_module, "load_sources", fail)
    code, out, _ = cli("merge", *example, "--out", tmp_path / "m", "--json")
    assert code == kind.exit_code
    assert json.loads(out)["error"]["retry"] is True


def test_usage_errors_and_faults_of_ours_are_json_too(cli, example, tmp_path, monkeypatch, capsys):
    for words, told in (
        (("merge", "--dtipe", "x"), "--dtipe"),
        (("merge", *example), "name a folder to create"),
    ):
        code, out, err = cli(*words, "--json")
        error = json.loads(out)["error"]
        assert (code, error["code"], error["retry"]) == (2, "usage_error", False)
        assert told in error["message"]
        assert told in err
    assert cli("merge", "--help", "--json")[:1] == (0,)

    def fail(*arguments, **named):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(merge_module, "load_sources", fail)
    with pytest.raises(ZeroDivisionError):
        cli("merge", *example, "--out", tmp_path / "m", "--json")
    told = json.loads(capsys.readouterr().out)["error"]
    assert (told["code"], told["message"]) == ("internal_error", "ZeroDivisionError: of ours")


def test_a_part_that_fails_is_told_by_number(cli, recipe, tmp_path):
    plan = tmp_path / "plan.json"
    assert cli("plan", recipe(), "--parts", "2", "--max-shard-size", "1MB", "--out", plan)[0] == 0
    merging = ("merge", "--plan", plan, "--part", "2", "--out", tmp_path / "out", "--json")
    code, out, _ = cli(*merging)
    assert (code, json.loads(out)["error"]["part"]) == (65, 2)


def test_without_a_terminal_lines_tell_that_it_goes_on(cli, example, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "JSON_SECONDS", 0.0)
    monkeypatch.setattr(progress, "form", "auto")
    code, out, err = cli("merge", *example, "--out", tmp_path / "a", "--json")
    assert code == 0
    assert json.loads(out)["method"] == "ram+"
    assert "ram-studio: merge 100% of 0.01 GB" in err
    code, out, err = cli("--progress", "json", "merge", *example, "--out", tmp_path / "b")
    assert code == 0
    lines = [json.loads(line)["progress"] for line in err.splitlines() if line.startswith("{")]
    assert {"count", "merge"} <= {line["stage"] for line in lines}
    assert lines[-1].keys() == {"stage", "done_bytes", "total_bytes", "what", "seconds"}
    code, out, err = cli("--progress", "json", "sweep", *example, "--over", "r=0,0.4", *SHORT)
    assert code == 0
    lines = [json.loads(line)["progress"] for line in err.splitlines() if line.startswith("{")]
    assert any(re.fullmatch(r"ram\+ .*: \d+ of \d+", line["text"]) for line in lines)
    code, _, err = cli("--progress", "loud", "suites")
    assert code == 2
    assert "expected auto or json" in " ".join(err.split())


def test_deltas_and_fisher_files_tell_how_far_they_are(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "form", "auto")
    base, coder = (asset_path("independent", name) for name in ("base", "coding"))
    delta, prompts = tmp_path / "coder.safetensors", tmp_path / "prompts.txt"
    prompts.write_text("sort a list\nadd two numbers\n")
    fisher = ("fisher", "--agent", f"a={coder}", "--prompts", prompts, "--out", tmp_path / "f")
    for words, stages in (
        (("delta", "make", base, coder, "--out", delta), ("count 100%", "write 100%")),
        (("delta", "apply", base, delta, "--out", tmp_path / "again"), ("write 100%",)),
        (fisher, ("a: 2 of 2 answers sampled", "a: 2 of 2 gradients added")),
    ):
        code, _, err = cli(*words)
        assert code == 0, err
        for stage in stages:
            assert f"ram-studio: {stage}" in err


def test_messages_below_the_log_level_are_left_out(cli):
    log = logging.getLogger("ram_studio.engine")
    for level, told in (("info", "ram-studio: a\nram-studio: b\n"), ("error", "ram-studio: b\n")):
        assert cli("--log-level", level, "suites")[0] == 0
        log.info("a")
        log.error("b")
        assert cli("suites")[2] == told
    assert cli("--log-level", "loud", "suites")[0] == 2


def test_a_shell_completes_commands(cli, monkeypatch):
    """As bash asks, which `ram-studio --install-completion` tells it to."""
    monkeypatch.setenv("_RAM_STUDIO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "ram-studio mer")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert cli()[1].split() == ["merge"]


def test_the_commit_of_the_code_is_found(tmp_path):
    package = tmp_path / "ram_studio"
    package.mkdir()
    assert find_commit(package) is None  # an installation from a wheel without one
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (package / "code.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert find_commit(package) == head.stdout[:12]
    (package / "code.py").write_text("2")
    assert find_commit(package) == f"{head.stdout[:12]}-dirty"
    (package / "_commit.txt").write_text("0123456789ab\n")
    assert find_commit(package) == "0123456789ab"
    (package / "_commit.txt").write_text("anything else\n")
    assert find_commit(package) is None


def test_the_same_merge_again_is_done_at_once(cli, example, tmp_path):
    out = tmp_path / "merged"
    assert cli("merge", *example, "--out", out)[0] == 0
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    code, text, _ = cli("merge", *example, "--out", out)
    assert code == 0
    assert "already holds this merge; nothing was written" in " ".join(text.split())
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    code, _, err = cli("merge", *example, "--out", out, "--method", "ties")
    assert code == 65
    assert "exists and is not empty" in err
    shard = out / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    code, _, err = cli("merge", *example, "--out", out)
    assert code == 65
    assert "exists and is not empty" in err
