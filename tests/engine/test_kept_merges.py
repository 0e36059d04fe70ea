"""What a merge keeps of each agent, measured in what it stored, against what was foretold."""

from __future__ import annotations

import json

import pytest
from engine_zoo import make_zoo, write_fisher_files

from ram_studio.algorithm.ladder import DEFAULT_INDEX
from ram_studio.algorithm.meters.kept import Kept, kept_dict
from ram_studio.algorithm.meters.rounding_meter import estimate
from ram_studio.algorithm.methods import METHODS
from ram_studio.checkpoints.record.passport import read_passport
from ram_studio.checkpoints.record.sketch_file import load_sketch
from ram_studio.engine.analyse import load
from ram_studio.engine.in_memory import ModelSink, preview_kept
from ram_studio.engine.job import AgentResult, MergeJob, recipe_of
from ram_studio.engine.merge import merge
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")
CODES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
FORETOLD = ("ram", "ram+", "ram+s", "ram+m", "average", "sum")


@pytest.fixture(scope="module")
def example():
    sketch = load_sketch(asset_path("example", "sketch.safetensors"))
    agents = {name: asset_path("example", name) for name in AGENTS}
    return sketch, load(asset_path("example", "base"), agents)


def merged(report, method: str, settings=None, **fields) -> dict[str, AgentResult]:
    if method in ("average", "sum"):
        method, settings = "task-arithmetic", {"scale": 1.0 if method == "sum" else None}
    job = MergeJob(report, recipe_of(report, method, settings or {}, **fields))
    return job.run(job.plan(), ModelSink({}, {}))


def measured(*arguments, **fields) -> dict[str, Kept | None]:
    return {name: found.kept for name, found in merged(*arguments, **fields).items()}


def foretold(sketch, method: str) -> dict[str, dict]:
    preview = sketch.preview(rule=method if method in ("ram", "ram+", "ram+s", "ram+m") else "ram")
    return preview["methods"][method] if method in preview["methods"] else preview["agents"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("method", FORETOLD)
def test_a_merge_keeps_what_was_foretold_but_for_rounding(example, method, dtype):
    sketch, report = example
    found, expected = merged(report, method, dtype=dtype), foretold(sketch, method)
    for t, (name, agent) in enumerate(found.items()):
        kept, told = agent.kept, expected[name]
        if "lambda" in told:
            asked = told["lambda"]
            assert agent.scaling_factor == pytest.approx(asked, rel=1e-9)
            # What is stored of it is foretold too, by format.
            code = CODES[dtype]
            value, low, high = estimate(sketch.steps.curve(t, DEFAULT_INDEX, code), asked)
            stored = agent.effective_scaling_factor
            assert stored == pytest.approx(value, abs=1e-3 + high - low)
            if dtype == "float32":
                assert stored == pytest.approx(asked, abs=1e-3)
        assert kept.kept - kept.rounding == pytest.approx(told["kept"]["total"], abs=1e-3)
        for part in ("unique", "boost", "shared", "averaged_away", "below_epsilon"):
            assert getattr(kept, part) == pytest.approx(told["kept"][part], abs=1e-3)
        assert kept.all_else - kept.all_else_rounding == pytest.approx(told["all_else"], abs=1e-3)
        if dtype == "float32":
            assert abs(kept.rounding) < 1e-6
            assert kept.all_else == pytest.approx(told["all_else"], abs=1e-3)
        # bfloat16 to nearest drops up to 1 % of these updates, and adds as much elsewhere.
        assert kept.kept == pytest.approx(told["kept"]["total"], abs=2e-2)
        assert kept.all_else == pytest.approx(told["all_else"], rel=5e-2)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Three agents in bfloat16, and Fisher files of them: what every method can merge."""
    folder = tmp_path_factory.mktemp("kept")
    zoo = make_zoo(folder / "zoo", 3, dtype="BF16")
    fisher = write_fisher_files(zoo, folder)
    return zoo.load(), {"fisher": {"files": str(fisher)}}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_is_told_apart_from_the_rounding_of_every_dtype(zoo, method):
    report, settings = zoo
    told = measured(report, method, settings.get(method), dtype="float32")
    for rounding in ("nearest", "stochastic"):
        for dtype in CODES:
            fields = {"dtype": dtype, "rounding": rounding}
            for name, kept in measured(report, method, settings.get(method), **fields).items():
                parts = kept.unique + kept.shared + kept.averaged_away + kept.below_epsilon
                assert parts == pytest.approx(1.0)
                whole = kept.unique + kept.boost + kept.shared + kept.rounding
                assert kept.kept == pytest.approx(whole)
                if dtype == "float32":
                    assert abs(kept.rounding) < 1e-5, "own parts add up to the change"
                    assert abs(kept.all_else_rounding) < 1e-5
                # What the method does is the same, whatever it is stored in.
                expected = told[name]
                for of, by_rounding in (("kept", "rounding"), ("all_else", "all_else_rounding")):
                    found = getattr(kept, of) - getattr(kept, by_rounding)
                    assert found == pytest.approx(getattr(expected, of), abs=1e-3), (of, fields)


@pytest.mark.parametrize("method", ["ties", "ram+"])
def test_the_preview_is_what_a_float32_merge_measures(example, tmp_path, method):
    _, report = example
    found = preview_kept(report, method, {}, device="cpu")
    made = merge(recipe_of(report, method, {}, dtype="float32"), tmp_path / "out", device="cpu")
    assert {name: vars(kept) for name, kept in found.items()} == {
        name: pytest.approx(vars(kept), abs=1e-12) for name, kept in made.kept.items()
    }
    assert 0.8 < found["tool"].kept < 1.2


def test_one_agent_whole_is_kept_whole(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 2, dtype="BF16")
    report = zoo.load()
    first, second = measured(report, "region", {"part": "whole", "epsilon": 0.0}).values()
    assert (first.kept, first.all_else, first.below_epsilon) == (1.0, 0.0, 0.0)
    assert (second.kept, second.below_epsilon) == (0.0, 1.0)


def test_what_is_kept_goes_into_result_passport_card_and_json(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 2)
    result = merge(zoo.recipe(method="ram+"), tmp_path / "out")
    told = json.loads(json.dumps(result.to_dict()))["agents"]
    passport = read_passport(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    frame = result.to_frame().set_index("agent")
    for name, kept in result.kept.items():
        record = passport.agents[name]
        assert {key: told[name][key] for key in kept_dict(kept)} == kept_dict(kept)
        assert record.kept.model_dump() == kept_dict(kept)["kept"]
        assert (frame["kept"][name], frame["all_else"][name]) == (kept.kept, kept.all_else)
        assert record.all_else_rounding == kept.all_else_rounding
        by_rounding = f"{kept.rounding:+.1%}, {kept.all_else_rounding:+.2f} x"
        assert f"| {kept.kept:.1%} | {kept.all_else:.2f} x | {by_rounding} |" in card
