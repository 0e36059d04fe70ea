"""Published sets against a Hub on this machine: what is not as listed is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_zoo import make_zoo
from loopback_hub import LoopbackHub
from safetensors.torch import load_file, save_file

from ram_studio.checkpoints.hub.presets import ListedModel, Preset
from ram_studio.engine.reading.preset_check import check_preset

CARD = "---\nlicense: {license}\nbase_model:\n- {base}\n---\n"


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    zoo = make_zoo(tmp_path / "zoo", 2, shards=2)
    found = {"base": zoo.base_path, **zoo.agent_paths}
    for folder in found.values():
        (folder / "README.md").write_text(CARD.format(license="mit", base="Lab/base"))
    return found


def publish(hub: LoopbackHub, folders: dict[str, Path]) -> Preset:
    """Publish the models and list them as they are."""
    commits = {name: hub.add(f"lab/{name}", folder) for name, folder in folders.items()}
    elements = sum(
        t.numel() for f in folders["base"].glob("*.safetensors") for t in load_file(f).values()
    )
    base, *agents = [
        ListedModel(name, f"lab/{name}", commit, "mit", "BF16") for name, commit in commits.items()
    ]
    return Preset("set", "A set", replace(base, elements=elements), tuple(agents))


def test_a_listed_set_is_told_with_sizes_and_not_fetched(
    hub: LoopbackHub, folders: dict[str, Path], tmp_path: Path
) -> None:
    preset = publish(hub, folders)
    report = check_preset(preset)
    assert (report.is_fine, report.refusals, report.problem) == (True, (), None)
    sizes = [sum(f.stat().st_size for f in d.glob("*.safetensors")) for d in folders.values()]
    assert report.fetch_bytes == sum(sizes)
    assert report.merge_bytes == sum(sizes) + sizes[0]
    assert [model.source for model in report.models] == [m.source for m in preset.models]
    assert report.sampled.keys() == {"agent0", "agent1"}
    assert 0 < report.sampled["agent0"] < 1
    assert not list((tmp_path / "hf-home").rglob("*.safetensors"))
    assert json.loads(json.dumps(report.to_dict()))["models"][0]["pinned"] is True


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"license": "apache-2.0"}, "its license is mit, expected apache-2.0"),
        ({"dtype": "F32"}, "its dtype is BF16, expected F32"),
        ({"elements": 12}, "its number of stored elements is "),
    ],
)
def test_what_is_not_as_listed_is_refused(
    hub: LoopbackHub, folders: dict[str, Path], changes: dict, said: str
) -> None:
    preset = publish(hub, folders)
    agent = replace(preset.agents[0], **changes)
    report = check_preset(replace(preset, agents=(agent, *preset.agents[1:])))
    assert not report.is_fine
    [told] = report.refusals
    assert told.startswith('Agent "agent0": lab/agent0 is not as listed: ')
    assert said in told


def test_another_base_is_found_by_card_shape_and_numbers(
    hub: LoopbackHub, folders: dict[str, Path]
) -> None:
    card = folders["agent1"] / "README.md"
    card.write_text(CARD.format(license="mit", base="other/model"))
    [told] = check_preset(publish(hub, folders)).refusals
    assert "names another base (other/model), the set lists lab/base" in told

    card.write_text(CARD.format(license="mit", base="lab/base"))
    for file in folders["agent1"].glob("*.safetensors"):
        other = {n: t + 1 if t.is_floating_point() else t for n, t in load_file(file).items()}
        save_file(other, file)
    [told] = check_preset(publish(hub, folders)).refusals
    assert told.startswith('Agent "agent1" changed about 99.0% of all elements.')

    for file in folders["agent1"].glob("*.safetensors"):
        save_file({n: torch.ones(3, 3).bfloat16() for n in load_file(file)}, file)
    preset = publish(hub, folders)
    refusals = check_preset(preset).refusals
    assert any("have other shapes" in text for text in refusals)


def test_a_set_that_cannot_be_asked_is_no_refusal(hub: LoopbackHub) -> None:
    report = check_preset(Preset("set", "A set", ListedModel("base", "lab/nothing"), ()))
    assert (report.is_fine, report.refusals) == (False, ())
    assert "lab/nothing is not on" in str(report.problem)
