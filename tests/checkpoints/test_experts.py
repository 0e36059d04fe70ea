"""Experts one by one, in stacks, and in stacks the other way round: one model in all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from checkpoint_zoo import write_checkpoint
from pandas.testing import assert_frame_equal
from safetensors.torch import load_file

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.partial import add_partial
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.analyze import analyze, load, partial_analysis
from ram_studio.engine.merge import merge
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import CompatibilityError, SettingsError

Tensors = dict[str, torch.Tensor]
CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
EXPERTS, LAYERS = 3, 2


def model(seed: int, hidden: int, inner: int) -> Tensors:
    """Return a model with its experts one by one."""
    torch.manual_seed(seed)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape).bfloat16()

    tensors = {"model.embed_tokens.weight": matrix(6, hidden)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp"
        tensors[f"{at}.gate.weight"] = matrix(EXPERTS, hidden)
        for expert in range(EXPERTS):
            for part in ("gate_proj", "up_proj"):
                tensors[f"{at}.experts.{expert}.{part}.weight"] = matrix(inner, hidden)
            tensors[f"{at}.experts.{expert}.down_proj.weight"] = matrix(hidden, inner)
    return tensors


def stacked(tensors: Tensors, *, turned: bool = False) -> Tensors:
    """Return the model with its experts in stacks, by the formulas of the libraries."""
    made = {name: t for name, t in tensors.items() if ".experts." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp.experts"
        parts = [
            [tensors[f"{at}.{e}.{part}_proj.weight"] for e in range(EXPERTS)]
            for part in ("gate", "up", "down")
        ]
        gate_up = torch.stack([torch.cat(pair) for pair in zip(*parts[:2], strict=True)])
        down = torch.stack(parts[2])
        made[f"{at}.gate_up_proj"] = gate_up.mT.contiguous() if turned else gate_up
        made[f"{at}.down_proj"] = down.mT.contiguous() if turned else down
    return made


def mixtral(tensors: Tensors) -> Tensors:
    """Return the model with the names that Mixtral's experts have."""
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    return {
        n if ".experts." not in n else n.replace(p := n.split(".")[-2], names[p]): t
        for n, t in tensors.items()
    }


def paired(tensors: Tensors) -> Tensors:
    """Return the model with gate above up for each expert."""
    made = {
        n: t for n, t in tensors.items() if not n.endswith(("gate_proj.weight", "up_proj.weight"))
    }
    for name, gate in tensors.items():
        if name.endswith("gate_proj.weight"):
            up = tensors[name.replace("gate_proj", "up_proj")]
            made[name.replace("gate_proj", "gate_up_proj")] = torch.cat([gate, up])
    return made


LAYOUTS: dict[str, Callable[[Tensors], Tensors]] = {
    "singly": dict,
    "w1": mixtral,
    "stacks": stacked,
    "turned": lambda tensors: stacked(tensors, turned=True),
    "pairs": paired,
}
# The base's layout, and agents' in others; one of the two shapes says nothing where they are given.
GROUPS = [
    ("singly", ["stacks", "turned", "pairs"], (5, 3)),
    ("w1", ["stacks"], (5, 3)),
    ("w1", ["turned"], (5, 3)),
    ("stacks", ["singly", "w1", "turned"], (5, 3)),
    ("stacks", ["pairs"], (5, 3)),
    ("turned", ["singly", "w1", "stacks"], (5, 3)),
    ("turned", ["pairs"], (5, 3)),
    *(("stacks", ["turned"], size) for size in ((4, 2), (2, 2))),
    *(("turned", ["singly"], size) for size in ((4, 2), (2, 2))),
]


def rows(analysis: Analysis) -> object:
    frame = analysis.to_frame(by="expert").sort_values(["expert", "agent"])
    return frame.reset_index(drop=True).drop(columns="rho_m", errors="ignore")


@pytest.mark.parametrize(("ours", "theirs", "size"), GROUPS)
def test_agents_in_another_layout_are_read_as_their_base_has_it(tmp_path, ours, theirs, size):
    base, agent = model(0, *size), model(0, *size)
    changed = "model.layers.1.mlp.experts.2"
    agent[f"{changed}.up_proj.weight"][-1, -1] += 1
    agent[f"{changed}.down_proj.weight"][0] += 2
    agent["model.layers.0.mlp.gate.weight"][1] += 3
    folder = write_checkpoint(tmp_path / "base", LAYOUTS[ours](base), config=CONFIG, shards=2)
    agents = {
        name: write_checkpoint(tmp_path / name, LAYOUTS[name](agent), config=CONFIG, shards=2)
        for name in theirs
    }
    report = load(folder, agents)
    for finding in report.findings[: len(agents)]:
        assert "experts of 2 layers are stored in another layout" in finding.text
    expected = LAYOUTS[ours](agent)
    with Sources(*report.checkpoints) as sources:  # wherever a block begins
        for tensor, own in itertools.product(report.tensors, range(len(agents))):
            piece, wanted = bytearray(2 * (tensor.numel - 1)), expected[tensor.name].flatten()[1:]
            sources.read_into(tensor.agents[own], 2, memoryview(piece))
            assert torch.equal(torch.frombuffer(piece, dtype=torch.bfloat16), wanted), tensor.name
    analysis = analyze(folder, agents)
    hidden, inner = size
    for _, frame in analysis.to_frame(by="expert").groupby("agent"):
        found = frame.set_index("expert").loc[["1/2", "0/router", "0/0"], "active"].tolist()
        assert found == [1 + inner, hidden, 0]
    sources = {"base": str(folder), "agents": {n: str(path) for n, path in agents.items()}}
    recipe = make_recipe({**sources, "method": "ram"})
    merged = load_file(merge(recipe, tmp_path / "out", analysis=analysis).out / "model.safetensors")
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in expected.items())


def test_stacks_are_counted_expert_by_expert_and_kept_so(tmp_path):
    """The same agents in every layout have the same counts of every expert and router."""
    base, agents = model(0, 5, 3), [model(0, 5, 3) for _ in range(3)]
    for t, agent in enumerate(agents):
        for i, tensor in enumerate(agent.values()):
            tensor.view(-1)[t : 2 + i % 4] += 1
    frames = []
    for layout in ("singly", "w1", "stacks", "turned"):
        folder, form = tmp_path / layout, LAYOUTS[layout]
        write_checkpoint(folder / "base", form(base), config=CONFIG)
        paths = {
            f"a{t}": write_checkpoint(folder / f"a{t}", form(agent), config=CONFIG)
            for t, agent in enumerate(agents)
        }
        analysis = analyze(folder / "base", paths)
        frames.append(rows(analysis))
        again = load_analysis(save_analysis(analysis, folder / "s.analysis"))
        assert_frame_equal(rows(again), frames[-1])
        assert_frame_equal(
            rows(analysis.select(["a1"])), rows(analyze(folder / "base", {"a1": paths["a1"]}))
        )
        whole = analysis.to_frame()
        experts = frames[-1].groupby("agent")[["active", "total"]].sum()
        assert experts.loc["a0", "total"] == whole["total"][0] - 30, "all but the embedding"
    for frame in frames[1:]:
        assert_frame_equal(frame, frames[0])


def test_parts_of_a_model_add_up_to_the_same_experts(tmp_path):
    """The matrices of an expert lie in two parts, which are added in any order."""
    base, agent = model(0, 5, 3), model(1, 5, 3)
    folders = [
        write_checkpoint(tmp_path / name, stacked(tensors), config=CONFIG)
        for name, tensors in (("base", base), ("agent", agent))
    ]
    report = load(folders[0], {"a": folders[1]})
    names = [tensor.name for tensor in report.counted]
    cut = names.index("model.layers.1.mlp.experts.down_proj")
    first, second = (
        partial_analysis(report, RunOptions.of(), tensors, part=("plan", number, 2))
        for number, tensors in enumerate((report.counted[:cut], report.counted[cut:]), start=1)
    )
    whole = analyze(folders[0], {"a": folders[1]})
    for parts in ([first, second], [second, first]):
        added = add_partial(parts).whole()
        assert added.experts.labels == whole.experts.labels
        assert_frame_equal(added.to_frame(by="expert"), whole.to_frame(by="expert"))


def test_what_cannot_be_matched_is_told_as_before(tmp_path):
    tensors = model(0, 5, 3)
    base = write_checkpoint(tmp_path / "base", stacked(tensors), config=CONFIG)
    del tensors["model.layers.0.mlp.experts.1.up_proj.weight"]
    agent = write_checkpoint(tmp_path / "agent", tensors, config=CONFIG)
    with pytest.raises(CompatibilityError, match=r"experts\.gate_up_proj` is missing"):
        load(base, {"a": agent})
    dense = write_checkpoint(tmp_path / "dense", {"w": torch.ones(3).bfloat16()}, config=CONFIG)
    with pytest.raises(SettingsError, match="router or an expert"):
        analyze(dense, {"a": dense}).to_frame(by="expert")


def test_a_merge_from_another_layout_verifies(tmp_path):
    tensors = model(0, 5, 3)
    base = write_checkpoint(tmp_path / "base", tensors, config=CONFIG)
    tensors["model.layers.0.mlp.experts.1.up_proj.weight"] += 1
    agent = write_checkpoint(tmp_path / "agent", stacked(tensors, turned=True), config=CONFIG)
    recipe = make_recipe({"base": str(base), "agents": {"a": str(agent)}, "method": "ram+"})
    out = merge(recipe, tmp_path / "out").out
    assert verify(out, with_sources=True, full=True).source_files == 2
