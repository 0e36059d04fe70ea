"""Verifying a merge: what matches, and which file or tensor does not."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from engine_zoo import EMBEDDING, Zoo, make_zoo
from safetensors.torch import load_file, save_file

from ram_studio.checkpoints.read.content_hash import blake3_of
from ram_studio.checkpoints.read.header import read_header
from ram_studio.checkpoints.record.provenance import (
    SourceRecord,
    checksum_of,
    read_provenance,
    read_recipe,
)
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS
from ram_studio.engine.verify import verify
from ram_studio.errors import RamStudioError, VerificationError

SHAPES = {EMBEDDING: (40, 30), "model.layers.0.w": (5 * GROUP_ELEMENTS,), "model.norm.w": (9,)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return make_zoo(tmp_path_factory.mktemp("made"), 3, shapes=SHAPES, seed=1)


@pytest.fixture
def zoo(made: Zoo, tmp_path: Path) -> Zoo:
    """Files of the test's own: some tests change them."""
    shutil.copytree(made.folder, tmp_path / "zoo")
    return replace(made, folder=tmp_path / "zoo")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rounding": "stochastic", "dtype": "float16", "seed": 3},
        {"settings": {"epsilon": 0.0123, "scope": "tensor", "shared": "ties"}},
        {"method": "task-arithmetic"},
        {"method": "ties"},
        {"method": "ram+m", "settings": {"epsilon": 2e-5}},
        {"method": "dare-ties", "rounding": "stochastic"},
    ],
    ids=str,
)
def test_a_merge_is_what_its_sources_give(zoo, tmp_path, changes):
    out = merge(zoo.recipe(**changes), tmp_path / "out", max_shard_bytes=100_000).out
    quick = verify(out)
    assert (quick.shards, quick.tensors, quick.compared_bytes) == (3, len(zoo.base), 0)
    full = verify(out, with_sources=True, full=True)
    assert full.compared_bytes == full.total_bytes == quick.total_bytes
    assert verify(out, with_sources=True).compared_bytes > 0


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def write_forged(out: Path, text: str) -> None:
    """Write a provenance file with the checksum it should have: a forger's way."""
    stored = json.loads(text)
    stored["checksum"] = checksum_of(stored)
    (out / "ram_studio.json").write_text(json.dumps(stored))


def test_one_flipped_bit_is_found_and_its_shard_named(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out", max_shard_bytes=100_000).out
    shards = sorted(out.glob("*.safetensors"))
    assert len(shards) == 3
    chance = random.Random(0)
    for shard in shards:
        for _ in range(3):
            place, bit = chance.randrange(shard.stat().st_size), chance.randrange(8)
            flip(shard, place, bit)
            with pytest.raises(VerificationError) as caught:
                verify(out)
            flip(shard, place, bit)
            assert shard.name in str(caught.value)
            for other in set(shards) - {shard}:
                assert other.name not in str(caught.value)
    verify(out)


def test_every_other_file_is_covered_too(zoo, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE"):
        (zoo.base_path / name).write_text('{"a": 1}')
    out = merge(zoo.recipe(), tmp_path / "out", max_shard_bytes=100_000).out
    names = {p.name for p in out.iterdir() if p.suffix != ".safetensors"}
    assert names > {"config.json", "tokenizer.json", "LICENSE", "model.safetensors.index.json"}
    for name in sorted(names - {"README.md"}):
        flip(out / name, 3)
        with pytest.raises(RamStudioError) as caught:
            verify(out)
        assert name in str(caught.value)
        flip(out / name, 3)
    (out / "config.json").rename(tmp_path / "config.json")
    (out / "tokenizer.json").unlink()
    with pytest.raises(VerificationError, match=r"2 files changed.*config\.json is missing"):
        verify(out)


def test_an_edited_card_is_told_and_added_files_are_refused(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out").out
    (out / "README.md").write_text("my own words")
    (out / "picture.png").write_bytes(b"x")
    (out / ".gitattributes").write_text("x")
    assert verify(out).notes == (
        "README.md was edited after the merge.",
        "picture.png was added after the merge.",
    )
    for name in ("adapter_model.safetensors", "pytorch_model.bin", "modeling_x.py", "vocab.json"):
        (out / name).write_bytes(b"{}")
        with pytest.raises(VerificationError, match=rf"{name}.*[Rr]emove added ones"):
            verify(out)
        (out / name).unlink()


def test_the_source_file_that_differs_is_named(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out").out
    assert verify(out, with_sources=True).source_files == 4
    shard = zoo.folder / "agent1" / "model.safetensors"
    flip(shard, shard.stat().st_size - 5)
    with pytest.raises(VerificationError) as caught:
        verify(out, with_sources=True)
    assert str(caught.value).startswith('Agent "agent1": ')
    assert "the content of `model.safetensors` differs" in str(caught.value)
    assert "agent0" not in str(caught.value)
    shard.rename(shard.with_name("weights.safetensors"))
    with pytest.raises(VerificationError, match=r"`model\.safetensors` has no bytes"):
        verify(out, with_sources=True)


def test_without_hashes_sources_are_known_by_their_fingerprints(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out", hash_sources=False).out
    checked = verify(out, with_sources=True, full=True)
    assert checked.source_files == 0
    assert "no content hashes" in checked.notes[0]
    shard = zoo.folder / "agent0" / "model.safetensors"
    flip(shard, shard.stat().st_size - 5)
    with pytest.raises(VerificationError, match=r'Agent "agent0": .*its fingerprint differs'):
        verify(out, with_sources=True)


def test_a_wrong_number_in_the_provenance_is_found(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out").out
    text = (out / "ram_studio.json").read_text()
    stored = json.loads(text)
    for key, value in (("unique", 1), ("scaling_factor", 1.5), ("effective_scaling_factor", 1.9)):
        agent = {**stored["agents"]["agent1"], key: value}
        write_forged(out, json.dumps({**stored, "agents": {**stored["agents"], "agent1": agent}}))
        verify(out)
        with pytest.raises(VerificationError, match=r'Agent "agent1": .* in the provenance'):
            verify(out, full=True, with_sources=True)


def test_a_provenance_of_other_agents_than_its_recipe_is_refused(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out").out
    stored = json.loads((out / "ram_studio.json").read_text())
    del stored["agents"]["agent1"]
    write_forged(out, json.dumps(stored))
    with pytest.raises(VerificationError, match=r"agents are agent0, agent2, the recipe's agent0"):
        verify(out)


def test_libraries_and_licenses_are_in_the_provenance(zoo, tmp_path):
    (zoo.base_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    for name, license in (("agent0", "mit"), ("agent1", "cc-by-nc-4.0"), ("agent2", "mit")):
        (zoo.folder / name / "README.md").write_text(f"---\nlicense: {license}\n---\n")
    result = merge(zoo.recipe(), tmp_path / "out")
    assert result.provenance.agents["agent0"].license.id == "mit"
    libraries = {"python", "numpy", "numba", "llvmlite", "blake3"}
    # The commit of the code, where it is known.
    assert set(result.provenance.libraries) - {"ram-studio"} == libraries
    card = (result.out / "README.md").read_text()
    assert "license: other\nlicense_name: apache-2.0 and mit and cc-by-nc-4.0\n" in card
    assert "The sources state different licenses." in card


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, r"of its data\.$"),
        ({"ram_studio_version": "0.0.1"}, r"It was merged by version 0\.0\.1, this is"),
        ({"arithmetic": "other"}, r"may not be damage.* computed in float\d\d, this version"),
    ],
)
def test_bytes_not_given_by_the_sources_are_found(zoo, tmp_path, change, said):
    """Shard and provenance changed together, by a forger or by another version's arithmetic."""
    out = merge(zoo.recipe(), tmp_path / "out").out
    shard = out / "model.safetensors"
    info = read_header(shard).tensors["model.layers.0.w"]
    stored = json.loads((out / "ram_studio.json").read_text())
    assert stored["arithmetic"] in ("float32", "float64")
    flip(shard, info.offset + 1000)
    stored["shards"][shard.name]["blake3"] = blake3_of(shard)
    known = {**stored, **change}
    if known["arithmetic"] == "other":
        known["arithmetic"] = {"float32": "float64", "float64": "float32"}[stored["arithmetic"]]
    write_forged(out, json.dumps(known))
    verify(out)
    with pytest.raises(VerificationError, match=r"`model.layers.0.w`.*byte 1000 .*" + said):
        verify(out, with_sources=True, full=True)


@pytest.mark.parametrize("method", ["sce", "task-arithmetic"])
def test_whole_matrices_are_compared_within_their_last_place(zoo, tmp_path, method):
    """Another device's or processor's matrix products differ there; other methods' bytes do not."""
    out = merge(zoo.recipe(method=method, dtype="float32"), tmp_path / "out", device="torch").out
    shard, stored = out / "model.safetensors", json.loads((out / "ram_studio.json").read_text())
    assert stored["device"] == ("torch" if method == "sce" else None)
    assert not verify(out, with_sources=True, full=True).notes
    at = read_header(shard).tensors["model.layers.0.w"].offset + 4 * 100

    def forge(bit: int) -> None:
        flip(shard, at + bit // 8, bit % 8)
        stored["shards"][shard.name]["blake3"] = blake3_of(shard)
        write_forged(out, json.dumps(stored))

    forge(0)
    if method == "sce":
        (note,) = verify(out, with_sources=True, full=True).notes
        assert note.startswith("1 elements of whole matrices differ")
        assert "computed on torch, these on cpu" in note
        forge(0)
        forge(12)
    with pytest.raises(VerificationError, match=r"`model.layers.0.w` differs"):
        verify(out, with_sources=True, full=True)


def test_other_sources_than_those_that_were_merged_are_refused(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out").out
    moved = tmp_path / "moved"
    shutil.move(zoo.folder, moved)
    with pytest.raises(RamStudioError, match="base"):
        verify(out, with_sources=True)
    paths = {name: moved / name for name in zoo.agents}
    assert verify(out, base=moved / "base", agents=paths, full=True).compared_bytes > 0
    swapped = dict(zip(paths, reversed(paths.values()), strict=True))
    with pytest.raises(VerificationError, match="agent0"):
        verify(out, base=moved / "base", agents=swapped)


def test_an_agent_given_in_place_of_another_is_refused(zoo, tmp_path):
    shard = zoo.folder / "agent1" / "model.safetensors"
    save_file(load_file(shard), shard, {"format": "pt", "of": "another size than agent0's"})
    out = merge(zoo.recipe(), tmp_path / "out").out
    with pytest.raises(VerificationError, match=r'Agent "agent0".*`model\.safetensors` has \d+'):
        verify(out, agents={"agent0": shard.parent})


def test_a_folder_without_provenance_is_no_merge(zoo):
    with pytest.raises(VerificationError, match=r"ram_studio\.json"):
        verify(zoo.base_path)


def test_a_hub_source_is_read_at_the_commit_that_was_merged():
    record = {"fingerprint": "f", "nbytes": 1}
    hub = SourceRecord(source="owner/name@main", revision="a" * 40, **record)
    assert hub.place == f"owner/name@{'a' * 40}"
    assert SourceRecord(source="owner/name", **record).place == "owner/name"  # a folder


def test_a_merge_of_relative_paths_is_verified_from_any_folder(tmp_path, zoo, monkeypatch):
    monkeypatch.chdir(zoo.folder.parent)
    near = zoo.folder.name  # `zoo/base`, spelled like a Hub id
    sources = {"base": f"{near}/base", "agents": {n: f"./{near}/{n}" for n in zoo.agents}}
    merge(make_recipe(sources), tmp_path / "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    provenance = read_provenance("../first")
    assert provenance.recipe.base == provenance.base.source == sources["base"]
    assert provenance.base.folder == str(zoo.base_path)
    assert verify("../first", with_sources=True, full=True).compared_bytes > 0
    again = read_recipe("../first/ram_studio.json")
    shutil.copy("../first/ram_studio.json", "copied.json")
    assert read_recipe("copied.json") == again
    assert again.agents == {n: str(p) for n, p in zoo.agent_paths.items()}
    merge(again, tmp_path / "second")
    assert read_provenance("../second").shards == provenance.shards
