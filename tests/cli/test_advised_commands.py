"""Commands that messages, help and model cards name are run, and so is what runs print."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file

import ram_studio
from ram_studio.cli.main import commands
from ram_studio.evals.sandbox import is_sealed
from ram_studio.resources import asset_path

MERGES = """
merge --base BASE --agent a=CODER --method task-arithmetic --set scale=1 --out one
verify one
delta make BASE CODER --out coder.safetensors
delta apply BASE coder.safetensors --out applied
analyze --base BASE --agent a=CODER --agent b=TOOL --analysis all.analysis
preview all.analysis
preview all.analysis --json
analysis compact all.analysis --out compact.analysis
recipe one/ram_studio.json --out recipe.yaml
merge recipe.yaml --out merged
plan recipe.yaml --parts 2 --max-shard-size 500KB --out plan.json
analyze --plan plan.json --part 1 --analysis part-1.analysis
analyze --plan plan.json --part 2 --analysis part-2.analysis
analysis add part-1.analysis part-2.analysis --out sum.analysis
merge --plan plan.json --part 1 --analysis sum.analysis --out parts
merge --plan plan.json --part 2 --analysis sum.analysis --out parts
finish plan.json --out parts
verify parts
verify merged --sources --full
"""
"""Commands of messages, in an order in which each finds what it needs."""

MODELS = """
fisher --agent a=CODER --agent b=TOOL --prompts prompts.txt --examples 1 --out fisher
merge --base BASE --agent a=CODER --agent b=TOOL --method fisher --set files=fisher --out merged
analyze --base BASE --agent a=CODER --agent b=TOOL --analysis all.analysis
evaluate merged --suite demo --limit 1
history
history 1
sweep --base BASE --agent coding=CODER --over r=0:1:2 --limit 1 --held-out 1 --json
push merged me/merged --public --scores --analysis all.analysis
verify merged
preview all.analysis
suites
"""
"""Those that ask models, or tell others of them."""

CONVERSION = "convert pickled converted"

NAMES = set(typer.main.get_command(commands).commands)


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text of the package that may be shown, X for what is filled in, and its file."""
    root = Path(ram_studio.__file__).parent
    for path in sorted(root.rglob("*.j2")):
        yield re.sub(r"{{.*?}}", "X", path.read_text(encoding="utf-8")), path.name
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text if "ram-studio " in text else "")
        module = tree.body[0].value if tree.body and isinstance(tree.body[0], ast.Expr) else None
        nodes = list(ast.walk(tree))
        joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
        parts = {id(part) for node in joined for part in node.values}
        for node in nodes:
            pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
            said = [str(p.value) if isinstance(p, ast.Constant) else "X" for p in pieces]
            if node is not module and id(node) not in parts:
                yield "".join(said), path.name


def named_in(text: str) -> list[list[str]]:
    """Return the words of each command that a text names."""
    text = text.replace("...", "")
    found = re.findall(r"ram-studio ((?:(?!\.(?:\s|$))[^`;:,)\n#<])+)", text)
    words = [command.split() for command in found]
    return [w for w in words if w and w[0] in NAMES and not w[-1].isdigit()]  # "delta 1": a format


def is_run(named: list[str], lines: str) -> bool:
    """Return whether a line runs a command: has its words in their order, whatever the places."""
    fixed = [word for word in named if not re.search(r"[A-Z{/]|\bi\b", word)]
    for line in lines.strip().splitlines():
        rest = iter(line.split())
        if next(rest, "") == named[0] and all(word in rest for word in fixed[1:]):
            return True
    return False


def test_every_command_in_a_message_is_one_that_is_run():
    named = [(words, file) for text, file in texts() for words in named_in(text)]
    assert len(named) > 40
    lines = MERGES + MODELS + CONVERSION
    assert [(words, file) for words, file in named if not is_run(words, lines)] == []
    assert not is_run(["merge", "--plan", "PLAN", "--fast"], lines)


@pytest.fixture
def run(cli, tmp_path, monkeypatch):
    """Run lines in one folder; what a line says to run next must be among them too."""
    monkeypatch.chdir(tmp_path)
    kept = {"BASE": "base", "CODER": "coding", "TOOL": "tool"}
    places = {name: str(asset_path("independent", kept[name])) for name in kept}

    def run(lines: str) -> None:
        for line in lines.strip().splitlines():
            words = [re.sub(r"\b[A-Z]+$", lambda m: places[m[0]], word) for word in line.split()]
            code, told, err = cli(*words)
            assert code == 0, (line, err)
            told = told.replace(f"{tmp_path}/", "")
            for named in named_in(told.partition("Next")[2]):
                assert is_run(named, lines), (line, named)

    return run


def test_commands_of_messages_run_as_they_are_told(run):
    run(MERGES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")
def test_commands_of_messages_that_ask_models_run(run, hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    Path("prompts.txt").write_text("sort a list\n")
    run(MODELS)
    assert "me/merged" in hub.repositories


@pytest.mark.skipif(not is_sealed(), reason="this machine cannot seal a process")
def test_the_command_for_pickles_runs_as_it_is_told(run, tmp_path):
    (tmp_path / "pickled").mkdir()
    tensors = load_file(asset_path("independent", "base") / "model.safetensors")
    torch.save(tensors, tmp_path / "pickled" / "pytorch_model.bin")
    run(CONVERSION)
    written = load_file(tmp_path / "converted" / "model.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in tensors.items())
