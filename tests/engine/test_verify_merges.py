"""Verifying a merge: what matches, and which file or tensor does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from engine_zoo import EMBEDDING, Zoo, make_zoo

from ram_studio.checkpoints.header import read_header
from ram_studio.engine.blocks import GROUP_ELEMENTS
from ram_studio.engine.merge import merge
from ram_studio.engine.verify import verify
from ram_studio.errors import RamStudioError, VerificationError

SHAPES = {EMBEDDING: (40, 30), "model.layers.0.w": (5 * GROUP_ELEMENTS,), "model.norm.w": (9,)}


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return make_zoo(tmp_path / "zoo", 2, shapes=SHAPES, seed=1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rounding": "stochastic", "dtype": "float16", "seed": 3},
        {"settings": {"epsilon": 0.0123, "scope": "tensor", "shared": "ties"}},
        {"method": "task-arithmetic"},
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


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_one_flipped_bit_is_found_and_its_shard_named(zoo, tmp_path):
    out = merge(zoo.recipe(), tmp_path / "out", max_shard_bytes=100_000).out
    shards = sorted(out.glob("*.safetensors"))
    assert len(shards) == 3
    flip(shards[1], shards[1].stat().st_size - 1)
    with pytest.raises(VerificationError, match=shards[1].name):
        verify(out)


def test_a_shard_and_passport_changed_together_are_found_from_the_sources(zoo, tmp_path):
    from ram_studio.checkpoints.writer import shard_digest

    out = merge(zoo.recipe(), tmp_path / "out").out
    shard = out / "model.safetensors"
    info = read_header(shard)[0]["model.layers.0.w"]
    passport = (out / "ram_studio.json").read_text()
    old = shard_digest(shard)
    flip(shard, info.offset + 1000)
    (out / "ram_studio.json").write_text(passport.replace(old, shard_digest(shard)))
    verify(out)
    with pytest.raises(VerificationError, match=r"`model.layers.0.w`.*byte 1000 "):
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


def test_a_folder_without_passport_is_no_merge(zoo):
    with pytest.raises(VerificationError, match=r"ram_studio\.json"):
        verify(zoo.base_path)
