"""Every row of docs/sources.md is run as it is printed, on what torch's own trainers save."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from trainers import WAYS

from ram_studio.cli import main
from ram_studio.evals.sandbox import is_sealed
from ram_studio.resources import asset_path

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"
ROWS = re.findall(r"^\| (.+) \| `(ram-studio .+)` \|$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.fixture
def places(saved, tmp_path) -> dict[str, str]:
    """What the names in the table stand for."""
    base, agent = asset_path("independent", "base"), asset_path("independent", "coding")
    verl = saved / "verl"
    return {
        "BASE": str(base),
        "FOLDER": str(agent),
        "ADAPTER": str(tmp_path / "coding.safetensors"),
        "global_step_7": str(verl / "global_step_7"),
        "dist_ckpt": str(saved / WAYS["Megatron"]),
        "checkpoint-7": str(verl / "checkpoint-7"),
        "DCP": str(saved / WAYS["DCP"]),
        "TWO": str(verl / "two"),
        "iter_0000007": str(saved / WAYS["Megatron"]),
        "RANKS": str(saved / WAYS["ShardedTensor"]),
        "PICKLE": str(saved / WAYS["pickle"]),
        "OUT": str(tmp_path / "OUT"),
    }


def run(monkeypatch, command: str) -> int:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.skipif(not is_sealed(), reason="this machine cannot seal a process")
def test_every_row_does_what_it_says(places, tmp_path, monkeypatch, capsys):
    assert len(ROWS) == 13
    delta = f"ram-studio delta make {places['BASE']} {places['FOLDER']} --out {places['ADAPTER']}"
    assert run(monkeypatch, delta) == 0
    for number, (what, row) in enumerate(ROWS):
        out = str(tmp_path / f"out-{number}")
        if what == "what you converted":
            places["OUT"] = places["FOLDER"]  # of the base, which what torch saved here is not
        else:
            places["OUT"] = out
        names = "|".join(sorted(places, key=len, reverse=True))
        command = re.sub(rf"(?<![\w/-])({names})(?![\w/-])", lambda m: places[m[1]], row)
        assert run(monkeypatch, command) == 0, (command, capsys.readouterr().err)
        if "convert" in command:
            assert (tmp_path / f"out-{number}" / "model.safetensors").is_file(), command
