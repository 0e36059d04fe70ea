"""Every command and the Python session of the README do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ram_studio
from ram_studio.resources import asset_path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def _cli_lines() -> list[str]:
    (block,) = [b for b in _blocks("sh") if "ram-studio analyze" in b]
    return [line.split("#")[0].strip() for line in block.splitlines()]


def test_every_command_line_of_the_readme_runs_in_order(tmp_path):
    places = {
        "BASE": asset_path("example", "base"),
        "CODER": asset_path("example", "coding"),
        "MEMORIZER": asset_path("example", "memory"),
    }
    lines = _cli_lines()
    assert len(lines) == 10
    for line in lines:
        words = [
            re.sub(r"(^|=)(BASE|CODER|MEMORIZER)$", lambda m: f"{m[1]}{places[m[2]]}", word)
            for word in shlex.split(line)
        ]
        assert words[0] == "ram-studio"
        if words[1] in ("evaluate", "compare"):
            words += ["--limit", "5"]
        if words[1] == "sweep":
            words += ["--items", "3"]
        done = subprocess.run(
            [sys.executable, "-m", "ram_studio", *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout.strip(), line
    assert (tmp_path / "merged" / "ram_studio.json").exists()


def test_the_python_session_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    session = "\n".join(_blocks("python"))
    exec(compile(session, "README.md", "exec"), {})
    first = capsys.readouterr().out.splitlines()[0]
    assert first == re.search(r'\["lambda"\]\)  # (\S+)', session)[1]
    assert (tmp_path / "merged" / "model.safetensors").exists()


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", "\n".join(_blocks("sh")), re.M))
def test_every_make_target_of_the_readme_exists(target):
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, flags=re.M)


def test_every_local_link_of_the_readme_leads_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in link:
            assert (Path(__file__).parents[1] / link).exists(), link


def test_the_package_exports_exactly_what_it_lists():
    for name in ram_studio.__all__:
        assert getattr(ram_studio, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ram_studio.nonsense
