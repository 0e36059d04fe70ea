"""The cases that hold the verdict in Python and in JavaScript, as checkpoints and analyses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import snap
from ram_studio.engine.analyze import analyze

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def cases() -> list[dict[str, Any]]:
    """Return the table.

    A case has the models' dtypes (the base first, then the agents), elements as [how many, the
    base's value, what each agent adds to it], the settings, and the verdict.
    """
    return json.loads(Path(__file__).with_name("verdict_cases.json").read_text(encoding="utf-8"))


def analysis_of(case: dict[str, Any], folder: Path, *, relations: bool = True) -> Analysis:
    """Return the analysis of a case's models, written to a folder and counted."""
    base, *agents = case["dtypes"]
    values = {name: [] for name in case["dtypes"]}
    for count, start, changes in case["elements"]:
        values[base] += [start] * count
        for agent, change in zip(agents, changes, strict=True):
            values[agent] += [start + change] * count
    for name, dtype in case["dtypes"].items():
        (folder / name).mkdir(parents=True)
        tensor = torch.tensor(values[name], dtype=torch.float64).to(DTYPES[dtype])
        save_file({"model.weight": tensor}, folder / name / "model.safetensors")
    return analyze(
        folder / base, {a: folder / a for a in agents}, device="cpu", relations=relations
    )


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's settings as ``verdict`` and ``Analysis.preview`` take them."""
    own = dict(case["settings"])
    return {"point": snap(own.pop("epsilon")), **own}
