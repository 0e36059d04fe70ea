"""The CUDA path stores the bytes and counts that the CPU's does; skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from engine_zoo import NAMES, contents, make_zoo
from test_analyze_counts import assert_same_sketch

from ram_studio.engine.analyse import analyze
from ram_studio.engine.merge import merge
from ram_studio.errors import SettingsError

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("agents", [3, 7])
def test_cuda_makes_the_same_sketch(tmp_path, agents):
    zoo = make_zoo(tmp_path, agents, seed=1)
    sketches = [
        analyze(zoo.base_path, zoo.agent_paths, device=device) for device in ("cpu", "cuda")
    ]
    assert_same_sketch(*sketches)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("output", ["BF16", "F16", "F32"])
def test_cuda_stores_the_same_bytes(tmp_path, output, rounding):
    zoo = make_zoo(tmp_path / "zoo", 3, agent_dtypes=("BF16", "F32", "F16"), seed=2)
    recipe = zoo.recipe(dtype=NAMES[output], rounding=rounding, settings={"shared": "ties"})
    files = [
        contents(merge(recipe, tmp_path / device, device=device).out) for device in ("cpu", "cuda")
    ]
    assert files[0]["model.safetensors"] == files[1]["model.safetensors"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_is_refused_in_plain_words_where_there_is_none(tmp_path):
    zoo = make_zoo(tmp_path, 1)
    with pytest.raises(SettingsError, match="sees no CUDA device"):
        analyze(zoo.base_path, zoo.agent_paths, device="cuda")
