"""Merging from memory: the tensors that `merge` writes, again and again from one loading."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from engine_zoo import DTYPES, EMBEDDING, HEAD, Zoo, bits_of, make_zoo, read_folder
from test_cuda import BIG, EVERY_METHOD, on_devices

import ram_studio as rs
from ram_studio.engine import in_memory
from ram_studio.engine.in_memory import ResidentMerge
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CompatibilityError, SettingsError, SourceChangedError

everywhere = pytest.mark.parametrize("device", ["cpu", *on_devices.args[1]])


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("zoo"), 3, seed=8)


def load(zoo: Zoo, device: str, **options) -> ResidentMerge:
    return rs.ResidentMerge(zoo.base_path, zoo.agent_paths, device=device, **options)


def assert_same_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        own = found[name].cpu()
        assert (own.shape, own.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(bits_of(own), bits_of(tensor)), name


@everywhere
def test_every_method_gives_the_written_tensors(zoo, tmp_path, device):
    resident = load(zoo, device)
    for method, settings in EVERY_METHOD.items():
        result = resident.merge(method, settings, seed=3)
        written = merge(result.recipe, tmp_path / method)
        assert_same_tensors(result.tensors, read_folder(written.out))
        for name, agent in written.agents.items():
            assert result.agents[name].changed == agent.changed
            assert result.agents[name].scaling_factor == agent.scaling_factor


@everywhere
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes_and_rounding_are_the_recipes(zoo, tmp_path, device, dtype):
    resident = load(zoo, device)
    result = resident.merge("ram+", {"r": 0.3}, dtype=dtype, rounding="stochastic", seed=5)
    assert_same_tensors(result.tensors, read_folder(merge(result.recipe, tmp_path / "out").out))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Zoo, dict[float, Path]]:
    """A zoo of several blocks, and its merges by epsilon."""
    folder, dtypes = tmp_path_factory.mktemp("big"), ("BF16", "F32", "BF16")
    zoo = make_zoo(folder / "zoo", 3, shapes=BIG, agent_dtypes=dtypes, seed=9)
    return zoo, {
        epsilon: merge(zoo.recipe(settings={"epsilon": epsilon}), folder / str(epsilon)).out
        for epsilon in (1e-5, 1.3e-5)  # the second is off the epsilon grid: counted anew
    }


@everywhere
def test_nothing_is_read_again(big, device, monkeypatch):
    zoo, expected = big
    resident = load(zoo, device)
    original = Sources.read_into

    def read_into(self, source, byte_start, buffer):
        assert source.dtype not in DTYPES, f"{source.name} was read"
        original(self, source, byte_start, buffer)

    monkeypatch.setattr(Sources, "read_into", read_into)
    for epsilon, folder in expected.items():
        result = resident.merge("ram+", {"epsilon": epsilon})
        assert_same_tensors(result.tensors, read_folder(folder))


@everywhere
def test_results_go_into_given_tensors(zoo, tmp_path, device):
    resident = load(zoo, device)
    expected = read_folder(merge(zoo.recipe(method="ram"), tmp_path / "out").out)
    wide = {
        name: torch.full_like(tensor, 7.0, dtype=torch.float32)
        if tensor.dtype == torch.bfloat16
        else torch.zeros_like(tensor)
        for name, tensor in zoo.base.items()
    }
    result = resident.merge("ram", into=wide)
    for name, tensor in expected.items():
        assert torch.equal(wide[name], tensor.to(wide[name].dtype)), name
        assert result.tensors[name].data_ptr() == wide[name].data_ptr()
    # And once more into tensors of the output's dtype on the device, in place.
    own = resident.merge("ram+").tensors
    places = {name: tensor.data_ptr() for name, tensor in own.items()}
    again = resident.merge("ram", into=own).tensors
    assert_same_tensors(again, expected)
    assert {name: tensor.data_ptr() for name, tensor in again.items()} == places


def test_tensors_that_do_not_fit_are_refused(zoo):
    resident = load(zoo, "cpu")
    with pytest.raises(CompatibilityError, match="has no"):
        resident.merge(into={EMBEDDING: torch.zeros(17, 8)})
    narrow = {name: torch.empty_like(tensor) for name, tensor in zoo.base.items()}
    with pytest.raises(SettingsError, match="merge gives F32, the loaded model holds bfloat16"):
        resident.merge(dtype="float32", into=narrow)


@everywhere
def test_a_head_stored_twice_and_rows_of_some_agents(tmp_path, device):
    made = make_zoo(tmp_path / "made", 3, agent_dtypes=("BF16", "F32", "BF16"), seed=6)
    base = {**made.base, HEAD: made.base[EMBEDDING].clone()}
    agents = {
        name: {**tensors, HEAD: tensors[EMBEDDING].clone()} for name, tensors in made.agents.items()
    }
    for name in (EMBEDDING, HEAD):
        agents["agent0"][name] = agents["agent0"][name][:11]
    zoo = Zoo.write(tmp_path / "zoo", base, agents, made.counted, tied=True)
    resident = load(zoo, device, rows="common")
    result = resident.merge("ram+", rounding="stochastic")
    assert_same_tensors(result.tensors, read_folder(merge(result.recipe, tmp_path / "out").out))
    assert torch.equal(result.tensors[HEAD], result.tensors[EMBEDDING])


@everywhere
def test_a_file_changed_since_loading_is_refused(tmp_path, device):
    zoo = make_zoo(tmp_path, 2, seed=2)
    resident = load(zoo, device)
    resident.merge()
    path = zoo.folder / "agent1" / "model.safetensors"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    with pytest.raises(SourceChangedError, match=r"agent1/model\.safetensors changed after"):
        resident.merge()


@everywhere
def test_too_little_memory_is_said_before_anything_is_read(zoo, device, monkeypatch):
    monkeypatch.setattr(in_memory, "free_bytes", lambda device: 3000)
    monkeypatch.setattr(Sources, "read_into", lambda *_: pytest.fail("read"))
    with pytest.raises(SettingsError, match=r"3 agents and a merge takes \d.* has 3.00 kB free"):
        load(zoo, device)
