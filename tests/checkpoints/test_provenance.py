"""Provenance files and model cards: complete, deterministic, safe to publish."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from checkpoint_zoo import make, refused, small_tensors
from pydantic import ValidationError

from ram_studio.checkpoints.fit.licenses import License
from ram_studio.checkpoints.record.card import model_card
from ram_studio.checkpoints.record.provenance import (
    AgentRecord,
    Provenance,
    ShardRecord,
    SourceRecord,
    agent_record,
    read_provenance,
    source_record,
)
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.errors import VerificationError

HUB_BASE = "Qwen/Qwen2.5-7B-Instruct"


CODER, PLACE = "Gen-Verse/ReasonFlux-Coder-7B@main", "/home/me/mem"
SOURCE = {"fingerprint": "f" * 64, "nbytes": 1}
NUMBERS = {"rho": 0.4, "scaling_factor": 1.04, "effective_scaling_factor": 1.0123}
NUMBERS |= {"total": 1_000_000, "changed": 70_000, "unique": 50_000, "shared": 20_000}
NUMBERS |= {"overlap": (50_000, 20_000)}
ALONE = {**NUMBERS, "rho": math.inf, "unique": 0, "effective_scaling_factor": None}
SETTINGS = {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}


def provenance(**changes: Any) -> Provenance:
    agents = {"coding": CODER, "memory": PLACE}
    values = {
        "ram_studio_version": "0.1.0",
        "recipe": make_recipe({"base": HUB_BASE, "agents": agents, "settings": SETTINGS}),
        "base": SourceRecord(source=HUB_BASE, revision="a" * 40, **SOURCE),
        "agents": {
            "coding": AgentRecord(source=CODER, revision="b" * 40, **SOURCE, **NUMBERS),
            "memory": AgentRecord(source=PLACE, **SOURCE, **ALONE),
        },
        "dtype": "BF16",
        "rounding": "nearest",
        "seed": 0,
        "arithmetic": "float32",
        "elements": 1_000_000,
        "shards": {"model.safetensors": ShardRecord(nbytes=2_000_100, blake3="0" * 64)},
    }
    return Provenance(**{**values, **changes})


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n")[1])


def test_provenance_is_read_back_with_the_same_bytes(tmp_path):
    written = provenance().with_checksum({})
    (tmp_path / "ram_studio.json").write_bytes(written.to_json())
    read = read_provenance(tmp_path)
    assert read.to_json() == written.to_json() == provenance().with_checksum({}).to_json()
    assert list(read.agents) == ["coding", "memory"]
    agents = json.loads(written.to_json())["agents"]
    # An unbounded rho is null in JSON.
    assert (agents["memory"]["rho"], agents["coding"]["rho"]) == (None, 0.4)
    told = "source folder revision fingerprint nbytes files license rho rho_m is_rho_m_infinite"
    told += " scaling_factor effective_scaling_factor effective_interval"
    told += " total changed unique shared overlap"
    told += " retained interference interference_rounding"
    assert list(agents["coding"]) == told.split()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"format": 2}', b'{"format": 1, "more": 1}']
)
def test_a_damaged_or_missing_provenance_is_an_error_of_one_line(tmp_path, content):
    refused(lambda: read_provenance(tmp_path), "has no ram_studio.json", kind=VerificationError)
    (tmp_path / "ram_studio.json").write_bytes(content)
    refused(lambda: read_provenance(tmp_path), "is damaged", kind=VerificationError)


def test_records_are_made_from_checkpoints(tmp_path):
    checkpoint = make(tmp_path, "coder", small_tensors())
    record = agent_record(checkpoint, rho=math.inf, scaling_factor=1.2, total=3)
    assert record.fingerprint == source_record(checkpoint).fingerprint == checkpoint.fingerprint
    assert (record.rho, record.scaling_factor, record.total) == (None, 1.2, 3)
    with pytest.raises(ValidationError):
        agent_record(checkpoint, rhoo=1)


def test_the_card_is_what_the_hub_expects():
    apache, written = License(id="apache-2.0"), provenance()
    card = model_card(
        provenance(
            base=written.base.model_copy(update={"license": apache}),
            agents={
                name: agent.model_copy(update={"license": apache})
                for name, agent in written.agents.items()
            },
        )
    )
    assert front_matter(card) == {
        "base_model": [HUB_BASE, "Gen-Verse/ReasonFlux-Coder-7B"],
        "base_model_relation": "merge",
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["merge", "ram", "reinforced-agent-merging", "ram-studio", "arxiv:2601.13572"],
    }
    from huggingface_hub import ModelCard

    assert ModelCard(card).data.base_model[0] == HUB_BASE


def test_the_card_shows_formula_numbers_and_how_to_reproduce():
    card = model_card(provenance())
    assert front_matter(card)["license"] == "unknown"
    assert r"\mathrm{clip}(\rho_t, 0, \alpha)" in card
    [row, _] = [line for line in card.splitlines() if line.startswith("| coding")]
    for cell in ("0.0700", "50,000", "20,000", "0.4000", "1.0400", "1.0123"):
        assert f"| {cell} " in row
    [row, _] = [line for line in card.splitlines() if line.startswith("| memory")]
    assert "| ∞ |" in row
    assert "arXiv" in card
    assert "2601.13572" in card
    assert "https://aclanthology.org/2026.acl-long.1524/" in card
    recipe = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert recipe["base"] == f"{HUB_BASE}@{'a' * 40}"
    assert recipe["agents"]["coding"] == f"Gen-Verse/ReasonFlux-Coder-7B@{'b' * 40}"
    headings = [line[3:] for line in card.splitlines() if line.startswith("## ")]
    about = ["Agents", "Method", "Settings", "Reproduce and verify", "License", "Limitations"]
    assert headings == ["Use", *about, "Citation"]
    assert 'from_pretrained(path, dtype="bfloat16")' in card
    assert "ram-studio verify merged --sources --full" in card
    assert "| alpha | 2.0 |" in card
    # coding: asked 1.04, kept 1.0123; memory has nothing of its own.
    assert "stored only part of the rescaling of coding:" in card
    assert "of memory is unique to it" in card
    # Local paths are not given away.
    assert "/home/me" not in card
    assert "mem (local)" in card
    assert recipe["agents"]["memory"] == "./mem"
    settings = {"files": "/home/me/fisher"}
    asked = {"base": HUB_BASE, "agents": {"coding": CODER, "memory": PLACE}, "method": "fisher"}
    card = model_card(provenance(recipe=make_recipe({**asked, "settings": settings})))
    assert "/home/me" not in card
    assert "| files | ./fisher |" in card


@pytest.mark.parametrize(
    ("numbers", "cell", "said"),
    [
        ({}, "1.0123", "stored only part of the rescaling of coding:"),
        ({"effective_scaling_factor": 1.06}, "1.0600", "overshot the rescaling of coding:"),
        ({"effective_scaling_factor": 1.041}, "1.0410", None),
        # A few large weights make most of the sums, and of what is stored.
        (
            {"effective_scaling_factor": 1.041, "effective_interval": (0.98, 1.1)},
            "1.0410 (0.9800 to 1.1000)",
            "That of coding has a range (95 %)",
        ),
        ({"effective_scaling_factor": 1.04, "effective_interval": (1.039, 1.041)}, "1.0400", None),
    ],
)
def test_the_card_tells_what_rounding_did_to_lambda(numbers, cell, said):
    made = provenance()
    coding = made.agents["coding"].model_copy(update=numbers)
    card = model_card(provenance(agents={**made.agents, "coding": coding}))
    assert f"| {cell} |" in next(line for line in card.splitlines() if line.startswith("| coding"))
    every = ("stored only part of the", "overshot the", "has a range")
    assert [words for words in every if words in card] == [w for w in every if w in (said or "")]


def test_a_merge_of_local_folders_names_no_base_model():
    source = SourceRecord(source="models/base", **SOURCE)
    agent = AgentRecord(source="models/a", **SOURCE)
    recipe = make_recipe({"base": "models/base", "agents": {"a": "models/a"}, "method": "ties"})
    card = model_card(provenance(base=source, agents={"a": agent}, recipe=recipe))
    assert "base_model" not in front_matter(card)
    assert front_matter(card)["tags"] == ["merge", "ram-studio"]
    assert "## Citation" not in card  # the paper is about another method
    assert "**TIES** ([arXiv 2306.01708](https://arxiv.org/abs/2306.01708))" in card
    assert "trimmed tau" in card
    assert "rho" not in card.split("## Agents")[1].split("## Method")[0]


def test_untrusted_text_cannot_break_the_card():
    evil = "<script>alert(1)</script>|`*_[x](javascript:1)`$\n---\nlicense: mit\n```"
    # A provenance file may come from anywhere: its recipe is not made here.
    recipe = Recipe(base=evil, agents={"a": evil}, settings={evil: evil, "shared": evil})
    license = License(id="other", name=evil, link="javascript:alert(1)")
    source = {"source": evil, "license": license, **SOURCE}
    card = model_card(
        provenance(
            base=SourceRecord(**source),
            agents={"a": AgentRecord(**source)},
            recipe=recipe,
            warnings=(evil,),
            libraries={evil: evil},
        )
    )
    assert front_matter(card)["license"] == "other"
    prose = "".join(part for i, part in enumerate(card.split("```")) if i % 2 == 0)
    assert "<script>" not in prose
    assert "[x](javascript" not in prose
    assert card.count("```") == 2 * 4  # how to load, recipe, commands, citation
    rows = [line for line in card.splitlines() if line.startswith("| a ")]
    assert [row.replace(r"\|", "").count("|") for row in rows] == [3, 4]


QWEN = License(id="other", name="qwen-research", link="https://hf.co/Qwen/x/LICENSE")


@pytest.mark.parametrize(
    ("base", "matter", "sentence"),
    [
        (License(id="mit"), "mit and qwen-research", "The sources state different licenses."),
        (QWEN, "qwen-research", "All sources state [qwen-research](https://hf.co/Qwen/x/LICENSE)."),
        (License(), None, "Not every source states a license"),
    ],
)
def test_the_card_names_every_license(base, matter, sentence):
    card = model_card(
        provenance(
            base=SourceRecord(source=HUB_BASE, license=base, **SOURCE),
            agents={"a": AgentRecord(source="x/a", license=QWEN, **SOURCE)},
            recipe=make_recipe({"base": HUB_BASE, "agents": {"a": "x/a"}}),
        )
    )
    found = front_matter(card)
    assert (found["license"], found.get("license_name")) == (
        "other" if matter else "unknown",
        matter,
    )
    license = card.split("## License")[1].split("## Limitations")[0]
    assert f"| {base.shown if base != QWEN else '[qwen-research]'}" in license
    assert "| [qwen-research](https://hf.co/Qwen/x/LICENSE) |" in license
    assert sentence in license


def test_a_checksum_covers_every_number_and_every_file(tmp_path):
    covered = provenance().with_checksum({"config.json": b"{}", "README.md": b"x"})
    assert list(covered.files) == ["README.md", "config.json"]
    assert covered.files["config.json"].nbytes == 2
    path = tmp_path / "ram_studio.json"
    path.write_bytes(covered.to_json())
    assert read_provenance(tmp_path) == covered
    stored = json.loads(covered.to_json())
    path.write_text(json.dumps(stored))  # other spaces say the same
    assert read_provenance(tmp_path) == covered
    for change in (
        {"elements": 7},
        {"seed": 1},
        {"warnings": ["x"]},
        {"files": {}},
        {"agents": {**stored["agents"], "coding": {**stored["agents"]["coding"], "rho": 0.41}}},
        {"checksum": "0" * 64},
    ):
        path.write_text(json.dumps({**stored, **change}))
        refused(
            lambda: read_provenance(tmp_path), "differs from its checksum", kind=VerificationError
        )
