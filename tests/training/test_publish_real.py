"""A merge of the real set made ready to push: its card says what was measured."""

from __future__ import annotations

import json

import pytest
from huggingface_hub import ModelCard
from real_set_folder import COUNTS, run

import ram_studio as rs
from training.real_set import publish
from training.real_set.tasks import SKILLS


def test_card_states_license_scores_and_base_and_verifies(folder, capsys):
    (folder / "base" / "README.md").write_text("---\nlicense: apache-2.0\n---\nA base.\n")
    run(publish, folder)
    said = capsys.readouterr().out
    out = folder / "merged" / "ram-plus"
    assert f"ram-studio push {out} OWNER/NAME --analysis" in said
    assert rs.verify(out).shards == 1
    card = ModelCard.load(out / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.base_model == "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    assert "not evaluated by the tool" not in card.text
    assert str(folder) not in str(card)
    lines = [json.loads(x) for x in (folder / "measure" / "answers.jsonl").read_text().splitlines()]
    own = [x for x in lines if (x["model"], x["split"]) == ("ram+", "test")]
    cells = [
        f"{sum(x['right'] for x in own if x['skill'] == skill) / COUNTS['test']:.2f}"
        for skill in SKILLS
    ]
    assert f"| **ram+ (this model)** | {' | '.join(cells)} |" in card.text
    assert "| base | " in card.text
    agent = ModelCard.load(folder / "agents" / "math" / "README.md")
    assert agent.data.license == "apache-2.0"
    assert "It solves 100.0% of its skill's test questions" in agent.text


def test_an_unknown_merge_is_refused(folder):
    with pytest.raises(SystemExit, match="There is no merge 'best'"):
        run(publish, folder, "--merge", "best")
