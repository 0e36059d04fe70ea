"""Values at and beyond the edge of what can be: each is one line, and costs nothing done before."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest

from ram_studio.checkpoints.write import output_folder
from ram_studio.resources import asset_path

BASE, CODING = (str(asset_path("independent", name)) for name in ("base", "coding"))
SOURCES = ("--base", BASE, "--agent", f"coding={CODING}")
NO_MODELS = ("--base", "none", "--agent", "a=none")
HARNESS = ("--engine", "lm-eval", "--tasks", "x")
FISHER = ("fisher", "--agent", f"coding={CODING}", "--out", "f", "--prompts", "p.txt")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("evaluate", BASE, "--limit", "1", "--device", "tpu"), 2, "Device 'tpu'"),
        (
            (
                "evaluate",
                BASE,
                "--engine",
                "lm-eval",
                "--tasks",
                "x",
                "--ci-width",
                "3",
                "--suite",
                "math",
            ),
            *(2, "each task says how it is answered. Leave out the interval width."),
        ),
        (
            ("evaluate", BASE, "--suite", "gsm8k", "--prompts", "lm-eval", "--limit", "gsm8k=5"),
            *(2, "each task says how it is answered. Leave out limits by suite."),
        ),
        (
            ("evaluate", BASE, "--tasks", "x", "--temperature", "1", "--samples", "2"),
            *(2, "how it is answered. Leave out the temperature and the samples."),
        ),
        (
            ("compare", *SOURCES, "--batch-size", "0", "--limit", "1"),
            2,
            "batch_size is 0; choose at least 1",
        ),
        ((*FISHER, "--examples", "-1"), 2, "give at least 1"),
        (("fisher", *FISHER[1:-1], "."), 2, ". cannot be read: Is a directory."),
        (("preview", "."), 65, "The analysis . is a folder; give a file written by analyze."),
        (("preview", "p.txt"), 65, "p.txt is damaged or is not an analysis; analyze the"),
        (("recipe", "."), 2, ". is a folder; give a recipe's file, or the ram_studio.json of"),
        (("evaluate", "none"), 65, "none is not a folder. Expected a local model folder"),
        (("merge", *SOURCES, "--dtype", "fp16", "--out", "m"), 2, "or 'float32', not 'fp16'"),
        (("merge", *SOURCES, "--seed", "-1", "--out", "m"), 2, "or equal to 0, not -1"),
        (("merge", *SOURCES, "--out", ""), 65, "The output is an empty path; give"),
        (("preview", "p.txt", "--by", "place"), 2, "is not one of 'model', 'layer', 'module',"),
        # Before a byte is read: there are no such models.
        (("diff", "none", "none", "--by", "place"), 2, "is not one of 'module', 'layer',"),
        (("analyze", *NO_MODELS, "--analysis", "."), 65, "is a folder; name a file in it."),
        (("analyze", *NO_MODELS, "--analysis", "p.txt/x"), 65, "p.txt is not a folder; choose"),
        (("merge", *SOURCES, "--out", "p.txt/x"), 65, "p.txt is not a folder; choose"),
        (("delta", "make", BASE, CODING, "--out", "delta"), 65, "not end in .safetensors"),
        (("delta", "make", "no", "no", "--out", "p.txt/x.safetensors"), 65, "txt is not a folder"),
        (("plan", "none", "--parts", "2", "--out", "p.txt/x"), 65, "p.txt is not a folder"),
        (("compare", *SOURCES, "--limit", "1", "--csv", "p.txt/x"), 65, "p.txt is not a folder"),
        (("evaluate", BASE, "--limit", "1", "--export", "no/x.csv"), 65, "/no is not a folder"),
        (("evaluate", BASE, "--limit", "1", "--export", "inspect=no/x"), 65, "/no is not a folder"),
    ],
)
def test_what_cannot_be_is_refused(cli, tmp_path, monkeypatch, arguments, code, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("say hi .\nsay fig .\n")
    found, out, err = cli(*arguments)
    assert (found, out) == (code, "")
    assert told in " ".join(err.replace("│", " ").split())
    assert "None" not in err
    assert {path.name for path in tmp_path.iterdir()} <= {"p.txt", "home"}


def test_a_specialist_of_no_domain_is_refused_after_the_answers(cli):
    asked = ("evaluate", BASE, "--limit", "1", "--no-store", "--specialist", "poetry=base")
    code, out, err = cli(*asked, "--json")
    assert code == 2
    assert json.loads(out)["models"]["base"]["domains"]["code"]["n"] == 1
    assert "A specialist is named for 'poetry'" in err


LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("merge", *SOURCES, "--out", LONG), 65),
        (("merge", LONG, "--out", "m"), 2),
        (("merge", *SOURCES, "--method", "fisher", "--set", f"files={LONG}", "--out", "m"), 2),
        (("verify", LONG), 65),
        (("evaluate", LONG), 2),
        (("evaluate", BASE, "--prompts", LONG), 2),
        (("delta", "make", BASE, CODING, "--out", f"{LONG}.safetensors"), 2),
    ],
)
def test_a_name_that_is_too_long_is_told_in_a_line(cli, tmp_path, monkeypatch, arguments, code):
    """They ended in a traceback."""
    monkeypatch.chdir(tmp_path)
    found, out, err = cli(*arguments)
    assert (found, out) == (code, "")
    assert err.count("\n") == 1


def test_an_empty_name_is_no_file(cli, tmp_path, monkeypatch, recipe):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("plan", recipe(), "--parts", "2", "--out", "")
    assert (code, err.count("\n"), "is a folder; name a file" in err) == (65, 1, True)


def test_a_tilde_after_an_equals_sign_is_the_users_folder(cli, tmp_path, monkeypatch, recipe):
    """The shell leaves it as it is; some commands made a folder of that name."""
    user, here = tmp_path / "user", tmp_path / "here"
    for folder in (user, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.chdir(here)
    for arguments in (
        ("recipe", recipe(), "--out=~/r.yaml"),
        ("plan", "~/r.yaml", "--parts=1", "--out=~/plan"),
        ("analyze", "--plan=~/plan", "--part=1", "--analysis=~/part"),
        ("analysis", "add", "~/part", "--out=~/whole"),
        ("merge", "--plan=~/plan", "--part=1", "--analysis=~/whole", "--out=~/merged"),
        ("finish", "~/plan", "--out=~/merged"),
        ("verify", "~/merged"),
        ("analysis", "compact", "~/whole", "--out=~/small"),
        ("preview", "~/small"),
        ("export-canvas", "~/small", "--out=~/canvas.html"),
        ("evaluate", BASE, "--limit=1", "--suite=demo", "--export=~/report.json"),
        ("evaluate", BASE, "--limit=1", "--suite=demo", "--export=inspect=~/logs"),
    ):
        code, _, err = cli(*arguments)
        assert code == 0, (arguments, err)
    assert {path.name for path in user.iterdir()} >= {"canvas.html", "report.json", "logs"}
    assert not any(here.iterdir())


@pytest.mark.parametrize("parent", ["file", "nowhere"])
def test_a_parent_that_is_no_folder_is_named(cli, tmp_path, monkeypatch, recipe, parent):
    """It was told as "File exists"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("not there")
    for arguments in (
        ("plan", recipe(), "--parts=2"),
        ("recipe", recipe()),
        ("export-canvas", "shared-style"),
        ("merge", *SOURCES),
    ):
        code, _, err = cli(*arguments, f"--out={parent}/x.html")
        assert (code, err.count("\n")) == (65, 1)
        assert f"{tmp_path / parent} is not a folder" in err


def test_a_full_disk_is_told_with_what_helps(cli, tmp_path, monkeypatch):
    """The advice was to check that the folder is writable."""
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(output_folder.os, "replace", Mock(side_effect=full))
    code, _, err = cli("export-canvas", "shared-style", "--out", tmp_path / "x.html")
    assert code == 65
    assert err.endswith("x.html: No space left on device; free some space.\n")
    assert not (tmp_path / "x.html").exists()


def test_names_of_files_may_be_any_bytes(tmp_path):
    """What printed them, or made a fingerprint of them, failed."""
    model = tmp_path / os.fsdecode(b"m\xe9")
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        to = os.fsdecode(b"w\xe9.safetensors") if name.startswith("model") else name
        shutil.copy(asset_path("independent", "coding", name), model / to)
    asked = [BASE, "--agent", f"coding={model}", "--analysis", model / "a.analysis"]
    done = subprocess.run(
        [sys.executable, "-m", "ram_studio", "analyze", "--base", *asked],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert b"m\\udce9" in done.stdout
