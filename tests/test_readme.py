"""The README and docs/: every command and session runs, links lead somewhere, pages are true."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import cli_reference
import pytest
from typer.testing import CliRunner

import ram_studio
from ram_studio.checkpoints.record.provenance import Provenance
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.cli.main import commands
from ram_studio.resources import asset_path

ROOT = Path(__file__).parents[1]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _text(page), flags=re.S)


def _cli_lines() -> list[str]:
    (block,) = _blocks("docs/usage.md", "sh")
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    for line in "".join(_blocks("README.md", "sh")).splitlines():
        assert line in lines or not line.startswith("ram-studio")
    return lines


FEW = {
    "evaluate": ["--limit", "1"],
    "compare": ["--limit", "1"],
    "sweep": ["--limit", "1", "--held-out", "1"],
}
"""Questions enough to run a line."""


def test_every_command_line_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {
        "BASE": asset_path("independent", "base"),
        "CODER": asset_path("independent", "coding"),
        "MEMORIZER": asset_path("independent", "memory"),
    }
    lines = _cli_lines()
    assert len(lines) == 10
    for line in lines:
        words = [
            re.sub(r"(^|=)(BASE|CODER|MEMORIZER)$", lambda m: f"{m[1]}{places[m[2]]}", word)
            for word in shlex.split(line)
        ]
        assert words[0] == "ram-studio"
        words += FEW.get(words[1], [])
        done = CliRunner().invoke(commands, words[1:])
        assert done.exit_code == 0, (line, done.output)
        assert done.stdout.strip(), line
    assert (tmp_path / "merged" / "ram_studio.json").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/usage.md"])
def test_the_python_session_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    session = "\n".join(_blocks(page, "python"))
    exec(compile(session, page, "exec"), {})
    first = capsys.readouterr().out.splitlines()[0]
    assert first == re.search(r'\["lambda"\]\)  # (\S+)', session)[1]
    assert (tmp_path / "merged" / "model.safetensors").exists() == ("rs.merge(" in session)


def test_every_make_target_that_is_named_exists():
    makefile = _text("Makefile")
    named = {
        target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text())
    }
    named |= set(re.findall(r"^make (\w+)", "\n".join(_blocks("README.md", "sh")), re.M))
    assert {"app", "test", "docs"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, section = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        titles = re.findall(
            r"^#+ (.*)$", target.read_text(encoding="utf-8") if section else "", re.M
        )
        assert not section or section in {_anchor(title) for title in titles}, link


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_the_readme_is_short():
    assert len(_text("README.md").split()) <= 800
    assert len(_text("CHANGELOG.md").splitlines()) <= 120


@pytest.mark.parametrize(
    "name", sorted({p.name for p in (ROOT / "docs").glob("*.md")} - {"cli.md"})
)
def test_a_page_of_the_docs_is_short(name):
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", _text(f"docs/{name}"), flags=re.S)
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 1500


def test_the_command_line_reference_is_what_the_commands_say():
    assert cli_reference.reference() == _text("docs/cli.md"), "run `make docs`"


def test_the_package_exports_exactly_what_it_lists():
    assert dir(ram_studio) == sorted(ram_studio.__all__)  # notebooks complete what dir() tells
    for name in ram_studio.__all__:
        assert getattr(ram_studio, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ram_studio.nonsense


def test_every_key_of_json_output_is_described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base, coder = (str(asset_path("independent", name)) for name in ("base", "coding"))
    sources = ["--base", base, "--agent", f"coding={coder}"]
    store = ["--store", "answers.sqlite"]
    for command in (
        ["inspect", *sources],
        ["analyze", *sources, "--analysis", "analysis.safetensors"],
        ["preview", "analysis.safetensors"],
        ["merge", *sources, "--out", "merged"],
        ["diff", base, coder],
        ["verify", "merged", "--sources"],
        ["evaluate", base, *FEW["evaluate"], *store],
        ["compare", *sources, "--row", "ram+", *FEW["compare"], *store],
        ["sweep", base, "-a", f"coding={coder}", "--over", "r=0,1", *FEW["sweep"], *store],
        ["history", *store],
    ):
        done = CliRunner().invoke(commands, [*command, "--json"])
        assert done.exit_code == 0, (command, done.output)
        printed = json.loads(done.stdout)
        for record in printed if isinstance(printed, list) else [printed]:
            section = _section_about(command[0])
            agents = record.get("agents") or record.get("models") or {}
            for keys in (record, *agents.values()):
                missing = {key for key in keys if not re.search(rf"\b{key}\b", section)}
                assert not missing, (command[0], missing)


@pytest.mark.parametrize("record", [Recipe, Provenance])
def test_every_field_of_recipes_and_provenances_is_described(record):
    page = _text("docs/formats.md")
    assert not {name for name in record.model_fields if f"`{name}`" not in page}


def _section_about(command: str) -> str:
    sections = re.split(r"^### ", _text("docs/formats.md"), flags=re.M)
    return next(text for text in sections if command in text.splitlines()[0])


def test_every_path_that_the_architecture_page_names_exists():
    named = re.findall(r"`([\w/]+(?:/|\.py))`", _text("docs/architecture.md"))
    assert len(named) > 30
    for name in named:
        assert any((ROOT / part / name).exists() for part in ("", "ram_studio", *_LAYERS)), name


def test_tasks_for_newcomers_name_files_that_answer_them():
    guide = _text("CONTRIBUTING.md").split("## Set-up")[0]
    rows = [row.strip("|").split("|") for row in re.findall(r"^\|.*\|$", guide, re.M)][2:]
    assert len(rows) == 10
    for task, names, files in rows:
        paths = [ROOT / name for name in re.findall(r"`([^`]+)`", files)]
        assert 1 <= len(paths) <= 3, task
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", text), (task, name)


_LAYERS = tuple(f"ram_studio/{layer}" for layer in ("checkpoints", "evals", "app"))
