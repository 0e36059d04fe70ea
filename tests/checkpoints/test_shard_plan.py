"""The shard planner: laws of a pure function, and the layout transformers expects."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ram_studio.checkpoints.write.shard_plan import index_files, lay_out, plan_shards
from ram_studio.errors import SettingsError


@given(sizes=st.lists(st.integers(0, 50), max_size=30), limit=st.integers(1, 60))
def test_every_tensor_lands_once_and_shards_are_filled(sizes, limit):
    named = [(f"t{i}", size) for i, size in enumerate(sizes)]
    shards = plan_shards(named, limit)
    assert [name for shard in shards for name in shard] == [name for name, _ in named]
    by_name = dict(named)
    totals = [sum(by_name[name] for name in shard) for shard in shards]
    for shard, total in zip(shards, totals, strict=True):
        assert shard
        assert total <= limit or len([n for n in shard if by_name[n]]) == 1
    # Filled: the first tensor of a shard did not fit into the one before.
    for total, following in zip(totals, shards[1:], strict=False):
        assert total + by_name[following[0]] > limit


def test_shards_are_named_as_save_pretrained_names_them():
    with pytest.raises(SettingsError, match="expected 1 or more"):
        plan_shards([("a", 1)], 0)
    tensors = [(f"t{i}", "BF16", (4,)) for i in range(3)]
    assert [s.file_name for s in lay_out(tensors, 100)] == ["model.safetensors"]
    assert index_files(lay_out(tensors, 100)) == {}
    many = lay_out(tensors, 8)
    assert [s.file_name for s in many] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert json.loads(index_files(many)["model.safetensors.index.json"]) == {
        "metadata": {"total_size": 24},
        "weight_map": {f"t{i}": f"model-0000{i + 1}-of-00003.safetensors" for i in range(3)},
    }


def test_wider_dtypes_come_first_so_that_every_tensor_is_aligned():
    tensors = [("odd", "BF16", (3,)), ("flag", "BOOL", (1,)), ("wide", "F32", (2,))]
    [shard] = lay_out([*tensors, ("long", "I64", ())], 1000)
    widths = {"odd": 2, "flag": 1, "wide": 4, "long": 8}
    assert list(shard.offsets) == ["long", "wide", "odd", "flag"]
    for name, (offset, _) in shard.offsets.items():
        assert offset % widths[name] == 0
    assert len(shard.head) % 8 == 0
    assert shard.file_size == len(shard.head) + 8 + 8 + 6 + 1
