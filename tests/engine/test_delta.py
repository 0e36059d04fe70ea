"""Sparse deltas: rebuilt bit for bit, agents like any other, refused where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch
from engine_zoo import (
    DTYPES,
    EMBEDDING,
    HEAD,
    Zoo,
    bits_of,
    make_zoo,
    read_folder,
    run_command,
    write_folder,
)
from safetensors import safe_open
from safetensors.torch import save_file

from ram_studio.checkpoints.fit.compatibility import MergeTensor, check_compatibility
from ram_studio.checkpoints.opening import open_folder
from ram_studio.checkpoints.read.checkpoint import DELTA_FORMAT
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.checkpoints.virtual.deltas import overlay_delta
from ram_studio.engine import delta as delta_module
from ram_studio.engine.analyze import analyze, analyze_report, load
from ram_studio.engine.delta import apply_delta, make_delta, read_info
from ram_studio.engine.events import CancelToken
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.sources import Sources
from ram_studio.engine.verify import verify
from ram_studio.errors import (
    CheckpointError,
    CompatibilityError,
    EvaluationError,
    OutputError,
    SettingsError,
)

UP = "model.layers.0.mlp.up_proj.weight"


def sparse(tensors: dict[str, torch.Tensor], every: int = 50) -> dict[str, torch.Tensor]:
    """Return tensors of which some elements are others, among them a -0.0."""
    found = {}
    for name, tensor in tensors.items():
        other = tensor.clone().flatten()
        other[::every] = other[::every] * 2 + 1
        found[name] = other.view(tensor.shape)
    found[UP][0, 1] = -0.0
    return found


@pytest.fixture(params=DTYPES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    rng = torch.Generator().manual_seed(3)
    shapes = {EMBEDDING: (300, 20), UP: (400, 900), "model.norm.weight": (20,)}
    base = {n: torch.randn(s, generator=rng).to(DTYPES[request.param]) for n, s in shapes.items()}
    base[UP][0, 1] = 0.0
    agent = {**sparse(base), "model.norm.weight": base["model.norm.weight"]}
    return write_folder(tmp_path / "base", base), write_folder(tmp_path / "agent", agent, shards=2)


one_dtype = pytest.mark.parametrize("pair", ["BF16"], indirect=True)


@one_dtype
def test_an_overlaid_delta_is_a_whole_model(pair, tmp_path) -> None:
    base, agent = pair
    make_delta(base, agent, tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_text("[")  # of something else
    report = load(base, {"a": tmp_path / "a.safetensors"})
    assert check_compatibility(report.base, report.agents).tensors == report.tensors


def test_an_agent_is_rebuilt_bit_for_bit(pair, tmp_path) -> None:
    base, agent = pair
    made = make_delta(base, agent, tmp_path / "a.safetensors")
    expected, before = read_folder(agent), read_folder(base)
    changed = sum(int((bits_of(expected[n]) != bits_of(before[n])).sum()) for n in expected)
    assert (made.changed, made.tensors) == (changed, 2)
    assert made == read_info(tmp_path / "a.safetensors")
    assert made.nbytes < made.whole_nbytes / 2
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        names = {f"{n}.{part}" for n in (EMBEDDING, UP) for part in ("indices", "values")}
        assert set(file.keys()) == names
        indices, values = (file.get_tensor(f"{UP}.{part}") for part in ("indices", "values"))
    assert indices.dtype == torch.int32
    assert torch.equal(bits_of(values), bits_of(expected[UP]).flatten()[indices.long()])
    found = read_folder(apply_delta(base, tmp_path / "a.safetensors", tmp_path / "again"))
    for name, tensor in expected.items():
        assert torch.equal(bits_of(found[name]), bits_of(tensor))


@one_dtype
def test_the_delta_of_an_equal_agent_is_read(pair, tmp_path) -> None:
    """It was written, and then refused as damaged."""
    base, _ = pair
    made = make_delta(base, base, tmp_path / "a.safetensors")
    assert (made.changed, made.tensors) == (0, 0)
    found = read_folder(apply_delta(base, tmp_path / "a.safetensors", tmp_path / "again"))
    assert all(torch.equal(bits_of(t), bits_of(found[n])) for n, t in read_folder(base).items())


def test_a_delta_is_an_agent_wherever_its_base_is(pair, tmp_path) -> None:
    base, agent = pair
    make_delta(base, agent, tmp_path / "a.safetensors")
    places = {"delta": tmp_path / "a.safetensors", "whole": agent}
    # Loops for three agents are compiled already.
    agents = {n: {"a": str(p), "b": str(base), "c": str(base)} for n, p in places.items()}
    assert analyze(base, agents["delta"]).preview() == analyze(base, agents["whole"]).preview()
    outs = []
    for name, sources in agents.items():
        recipe = make_recipe({"base": str(base), "agents": sources, "method": "ram"})
        outs.append(merge(recipe, tmp_path / name).provenance)
    assert outs[0].shards == outs[1].shards
    assert verify(tmp_path / "delta", with_sources=True, full=True).source_files == 4


@one_dtype
def test_a_delta_of_another_base_at_a_url_is_refused(pair, tmp_path) -> None:
    """It was laid over whatever lay there: of all that is not on this disk nothing was compared."""
    base, agent = pair
    make_delta(base, agent, tmp_path / "a.safetensors")
    memory = fsspec.filesystem("memory")
    memory.put(str(base), "/of/base", recursive=True)
    memory.put(str(agent), "/of/other", recursive=True)
    try:
        at_url = load("memory://of/base", {"a": tmp_path / "a.safetensors"})
        assert at_url.agents[0].tensors.keys() == read_folder(agent).keys()
        in_shards = write_folder(tmp_path / "shards", read_folder(base), shards=2)
        memory.put(str(in_shards), "/of/shards", recursive=True)
        again = load("memory://of/shards", {"a": tmp_path / "a.safetensors"})
        assert again.agents[0].tensors.keys() == at_url.agents[0].tensors.keys()
        with pytest.raises(CompatibilityError, match="is a delta of another base"):
            load("memory://of/other", {"a": tmp_path / "a.safetensors"})
    finally:
        memory.rm("/of", recursive=True)


@one_dtype
def test_a_delta_of_another_base_on_the_hub_is_refused(pair, hub, tmp_path) -> None:
    """Streamed, it was laid over whatever lay there: its fingerprint is another one."""
    base, agent = pair
    delta = tmp_path / "a.safetensors"
    make_delta(base, agent, delta)
    in_shards = write_folder(tmp_path / "shards", read_folder(base), shards=2)
    for name, folder in {"base": base, "other": agent, "shards": in_shards}.items():
        hub.add(f"lab/{name}", folder)
    for name in ("base", "shards"):
        report = load(f"lab/{name}", {"a": delta}, stream=True)
        assert not report.is_local
        assert report.agents[0].tensors.keys() == read_folder(agent).keys()
    with pytest.raises(CompatibilityError, match="is a delta of another base"):
        load("lab/other", {"a": delta}, stream=True)


def test_tied_heads_stored_twice_and_integers_come_back(tmp_path) -> None:
    zoo: Zoo = make_zoo(tmp_path / "zoo", 1, shapes={EMBEDDING: (300, 20), UP: (9, 7)})
    matrix = zoo.base[EMBEDDING]
    moved = matrix.clone()
    moved[3, 2] = 7
    base = write_folder(tmp_path / "base", {**zoo.base, HEAD: matrix.clone()}, tied=True)
    both = {EMBEDDING: moved, HEAD: moved.clone()}
    agent = write_folder(tmp_path / "agent", {**zoo.base, **both}, tied=True)
    make_delta(base, agent, tmp_path / "a.safetensors")
    found = read_folder(apply_delta(base, tmp_path / "a.safetensors", tmp_path / "again"))
    assert all(torch.equal(bits_of(t), bits_of(found[n])) for n, t in read_folder(agent).items())


@one_dtype
def test_what_does_not_pay_or_fit_is_refused(pair, tmp_path) -> None:
    base, agent = pair
    out = tmp_path / "a.safetensors"
    dense = write_folder(tmp_path / "dense", sparse(read_folder(base), 1))
    with pytest.raises(SettingsError, match=r"changed (99\.9|100\.0)% of all elements"):
        make_delta(base, dense, out)
    wide = {n: t.to(torch.float64).float() for n, t in read_folder(agent).items()}
    if next(iter(read_folder(base).values())).dtype != torch.float32:
        with pytest.raises(SettingsError, match="is F32 in the agent"):
            make_delta(base, write_folder(tmp_path / "wide", wide), out)
    assert not out.exists()
    make_delta(base, agent, out)
    with pytest.raises(OutputError, match="exists"):
        make_delta(base, agent, out)
    with pytest.raises(CompatibilityError, match="delta of another base"):
        apply_delta(agent, out, tmp_path / "again")
    with pytest.raises(CheckpointError, match="is not a delta"):
        read_info(base)
    data = bytearray(out.read_bytes())
    data[-1] ^= 1
    out.write_bytes(data)
    with pytest.raises(CheckpointError, match="differs from what"):
        apply_delta(base, out, tmp_path / "again")
    assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("again*"))


@one_dtype
@pytest.mark.parametrize(
    ("metadata", "lost", "error"),
    [
        ({"nbytes": "many"}, "", CheckpointError),
        ({"agent": None}, "", CheckpointError),
        ({"hashes": "{"}, "", CheckpointError),
        ({"hashes": "[1]"}, "", CheckpointError),
        ({}, f"{UP}.indices", CompatibilityError),
        ({}, f"{UP}.values", CompatibilityError),
    ],
)
def test_a_damaged_delta_is_refused(pair, tmp_path, metadata, lost, error) -> None:
    base, agent = pair
    out = tmp_path / "a.safetensors"
    make_delta(base, agent, out)
    with safe_open(out, "pt") as file:
        tensors = {n: file.get_tensor(n) for n in file.keys() if n != lost}  # noqa: SIM118
        known = file.metadata() | metadata
    save_file(tensors, out, {key: value for key, value in known.items() if value is not None})
    with pytest.raises(error, match=r"damaged|Metadata"):
        print(read_info(out), apply_delta(base, out, tmp_path / "again"))
    assert not (tmp_path / "again").exists()


@one_dtype
@pytest.mark.parametrize("places", [[5, 3, 9], [3, 3, 9], [-2, 3, 9], [3, 9, 6000]])
def test_places_that_do_not_rise_are_refused(pair, tmp_path, places) -> None:
    """Elements at the others were left out, and nobody was told."""
    base = open_folder(pair[0], name="base")
    stored = {f"{EMBEDDING}.indices": torch.tensor(places, dtype=torch.int32)}
    stored[f"{EMBEDDING}.values"] = torch.ones(3).bfloat16()
    metadata = {"format": DELTA_FORMAT, "base": base.fingerprint}
    save_file(stored, tmp_path / "d.safetensors", metadata)
    report = load(pair[0], {"a": tmp_path / "d.safetensors"})
    with pytest.raises(CheckpointError, match=r"indices` does not rise from 0 to less than 6000"):
        analyze_report(report)
    empty = {"none.indices": torch.zeros(1, dtype=torch.int32), "none.values": torch.ones(1)}
    weights = read_folder(pair[0]) | {"none": torch.zeros(0, 4)}
    metadata["base"] = open_folder(write_folder(tmp_path / "b", weights), name="base").fingerprint
    save_file(empty, tmp_path / "d.safetensors", metadata)
    with pytest.raises(CompatibilityError, match=r"`none\.\w+` does not fit"):
        load(tmp_path / "b", {"a": tmp_path / "d.safetensors"})
    metadata["base"] = base.fingerprint
    save_file(stored | {"extra": torch.ones(2)}, tmp_path / "d.safetensors", metadata)
    with pytest.raises(CompatibilityError, match="`extra` does not fit"):
        load(pair[0], {"a": tmp_path / "d.safetensors"})


@one_dtype
def test_the_commands_make_tell_and_apply(pair, tmp_path) -> None:
    (base, agent), out = pair, tmp_path / "a.safetensors"
    made, told, applied = (
        json.loads(run_command("delta", *arguments, "--json"))
        for arguments in (
            ("make", base, agent, "--out", out),
            ("info", out),
            ("apply", base, out, "--out", tmp_path / "again"),
        )
    )
    assert made == told
    assert 0 < told["density"] < 0.05
    assert applied == {"out": str(tmp_path / "again")}


def test_a_base_in_other_shards_is_the_same_base(pair, tmp_path) -> None:
    base, agent = pair
    make_delta(base, agent, tmp_path / "a.safetensors")
    resharded = write_folder(tmp_path / "resharded", read_folder(base), shards=3)
    agents = {"a": tmp_path / "a.safetensors", "b": base, "c": base}
    assert analyze(resharded, agents).preview() == analyze(base, agents | {"a": agent}).preview()
    other = read_folder(base)
    other["model.norm.weight"][0] += 1
    with pytest.raises(CompatibilityError, match="delta of another base"):
        analyze(write_folder(tmp_path / "other", other, shards=3), agents)


def test_places_beyond_2_31_take_64_bits(tmp_path) -> None:
    """A header made for 2**31 + 8 elements, over a file that is one hole."""
    n = 2**31 + 8
    tensor = TensorInfo("w", "BF16", (n,), tmp_path, 0, 2 * n)
    width = {
        numel: delta_module._specs(MergeTensor(replace(tensor, shape=(numel,)), ()), 1)[0][1]
        for numel in (2**31, 2**31 + 1)
    }
    assert width == {2**31: "I32", 2**31 + 1: "I64"}

    header = {"w": {"dtype": "BF16", "shape": [n], "data_offsets": [0, 2 * n]}}
    text = json.dumps(header).encode()
    (tmp_path / "base").mkdir()
    with open(tmp_path / "base" / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2 * n)
    base = open_folder(tmp_path / "base", name="base")
    places = torch.tensor([1, 2**31 - 1, 2**31, 2**31 + 5])
    values = torch.tensor([1, 2, 3, 4]).bfloat16()
    save_file(
        {"w.indices": places, "w.values": values},
        tmp_path / "d.safetensors",
        {"format": DELTA_FORMAT, "base": base.fingerprint},
    )
    agent = open_folder(tmp_path / "d.safetensors", name="a")
    agent = overlay_delta(agent, agent.delta, base)
    with Sources(base, agent) as sources:
        found = sources.decoded(agent.tensors["w"], 2**31 - 2, 10).tolist()
        first = sources.decoded(agent.tensors["w"], 0, 3).tolist()
    assert found == [0, 2, 3, 0, 0, 0, 0, 4, 0, 0]
    assert first == [0, 1, 0]


@one_dtype
def test_a_delta_cannot_be_asked_alone(pair, tmp_path) -> None:
    from ram_studio.app.check.work import open_model

    base, agent = pair
    make_delta(base, agent, tmp_path / "a.safetensors")
    with pytest.raises(EvaluationError, match=r"is a delta.*ram-studio delta apply BASE FILE"):
        open_model(str(tmp_path / "a.safetensors"), "a", CancelToken(), print)
