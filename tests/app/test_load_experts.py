"""A LoRA on stacked experts in Load: refused with both norms, then read as is answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from app_parts import built
from loopback_hub import LoopbackHub
from peft_experts import EXPERTS, train_experts
from transformers import Qwen3MoeConfig

from ram_studio.app.load.panel import LoadPanel
from ram_studio.app.session.session import Session
from ram_studio.app.session.workspace import Workspace
from ram_studio.app.settings import Settings

# peft asks transformers by a name that goes with its next major version.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
]
NORM = r"by “(peft|Unsloth before September 2026)” it has norm (\S+) and leaves (\d) of 4 experts"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    train_experts(folder, Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=8, num_experts=4))
    return folder


@pytest.mark.parametrize("is_space", [False, True])
def test_the_order_of_expert_columns_is_asked_in_load(
    trained: Path, hub: LoopbackHub, tmp_path: Path, is_space: bool
) -> None:
    workspace = Workspace(Settings(work_dir=tmp_path, is_space=is_space))
    panel = built(LoadPanel, workspace)
    session = Session("key", tmp_path)
    labels = [box.label for row in panel.rows for box in (row.name, row.source)]
    assert len(set(labels)) == len(labels)
    if is_space:
        hub.add("lab/base", trained / "base")
        hub.add("lab/adapter", trained / "adapter")
    at = "lab" if is_space else str(trained)
    blank = {part: "" for row in panel.rows for part in (row.name, row.source)}
    data = blank | {box: box.value for box in panel.options.values()}
    data |= {panel.base: f"{at}/base", panel.rows[0].source: f"{at}/adapter"}
    found = panel._check_fit(data, session)
    said = str(found[panel.job.status])
    (peft, norm, _), (other, other_norm, _) = re.findall(NORM, said)
    assert (peft, other) == ("peft", "Unsloth before September 2026")
    assert float(norm) != float(other_norm)
    assert "choose “peft” or “Unsloth before September 2026” under “When tensors do" in said
    assert "For agents of both, use the command line: experts_packing: {adapter:" in said
    assert not re.search("rank-major|expert-major|this agent alone", said)
    assert found[panel.mismatches]["open"]
    asked = panel.options["experts_packing"]
    assert asked.value == "ask"
    for answer in {*dict(asked.choices).values()} - {"ask"}:
        found = panel._check_fit({**data, asked: answer}, session)
        assert "The models are compatible" in str(found[panel.job.status])
        assert panel.mismatches not in found
    *_, last = panel._run({**data, panel.download: False}, session)
    assert last[panel.mismatches]["open"]
    assert session.loaded is None
