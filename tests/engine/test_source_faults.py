"""Sources that are wrong, or change while they are read: one line that names them, nothing left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_zoo import (
    DTYPES,
    EMBEDDING,
    Zoo,
    assert_leaves_nothing,
    make_zoo,
    write_folder,
)

from ram_studio.engine.analyse import analyze
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, Block
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.errors import (
    NonFiniteError,
    RamStudioError,
    SettingsError,
    SourceChangedError,
)

TENSOR = "model.layers.0.mlp.up_proj.weight"


def poisoned(folder: Path, who: str, dtype: str, bad: dict[tuple[int, ...], float]) -> Zoo:
    """Return a zoo in which one checkpoint holds numbers that are not finite."""
    made = make_zoo(folder / "made", 2, dtype=dtype, seed=1)
    everyone = {"base": made.base, **made.agents}
    tensor = everyone[who][TENSOR].clone()
    for index, value in bad.items():
        tensor[index] = value
    everyone[who] = {**everyone[who], TENSOR: tensor}
    for name, tensors in everyone.items():
        write_folder(folder / "zoo" / name, tensors)
    return Zoo(folder / "zoo", everyone.pop("base"), everyone, made.counted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("who", ["base", "agent1"])
def test_nan_and_infinity_are_named_with_file_tensor_count_and_place(tmp_path, dtype, who):
    zoo = poisoned(
        tmp_path, who, dtype, {(2, 5): float("nan"), (2, 6): -float("inf"), (7, 0): float("inf")}
    )
    before = set(tmp_path.iterdir())
    shown = "Base" if who == "base" else f'Agent "{who}"'
    for run in (
        lambda: analyze(zoo.base_path, zoo.agent_paths),
        lambda: merge(zoo.recipe(), tmp_path / "out"),
        lambda: merge(zoo.recipe(method="ram"), tmp_path / "out"),
        lambda: merge(zoo.recipe(method="task-arithmetic"), tmp_path / "out"),
    ):
        with pytest.raises(NonFiniteError) as caught:
            run()
        text = str(caught.value)
        assert text.startswith(f"{shown}: ")
        assert str(zoo.folder / who / "model.safetensors") in text
        assert f"`{TENSOR}` has 3 NaN or Inf elements, the first at index (2, 5)" in text
        assert "\n" not in text
        assert_leaves_nothing(tmp_path / "out", before)


def test_the_same_nan_in_base_and_agents_is_an_error_too(tmp_path):
    base = {"w": torch.ones(70)}
    base["w"][69] = float("nan")
    for dtype, tensors in (("F32", base), ("BF16", {"w": base["w"].bfloat16()})):
        for name in ("base", "a"):
            write_folder(tmp_path / dtype / name, tensors)
        zoo = Zoo(tmp_path / dtype, tensors, {"a": tensors}, ("w",))
        for method in ("ram", "task-arithmetic"):
            with pytest.raises(
                NonFiniteError, match=r"Base: .*has 1 NaN or Inf element, .*\(69,\)"
            ):
                merge(zoo.recipe(method=method), tmp_path / "out")
        with pytest.raises(NonFiniteError, match="Base"):
            analyze(tmp_path / dtype / "base", {"a": tmp_path / dtype / "a"})


def test_a_nan_in_a_single_number_has_an_index_too(tmp_path):
    write_folder(tmp_path / "base", {"w": torch.tensor(1.0)})
    write_folder(tmp_path / "a", {"w": torch.tensor(float("nan"))})
    with pytest.raises(NonFiniteError, match=r'Agent "a": .*`w` has 1 NaN or Inf element, .*\(\)'):
        analyze(tmp_path / "base", {"a": tmp_path / "a"})


def test_a_nan_in_a_later_block_is_placed_in_the_whole_tensor(tmp_path):
    place = 4 * GROUP_ELEMENTS + 77
    base = {"w": torch.zeros(300, 1000, dtype=torch.bfloat16)}
    agent = {"w": base["w"].clone()}
    agent["w"].view(-1)[place] = float("nan")
    write_folder(tmp_path / "base", base)
    write_folder(tmp_path / "a", agent)
    with pytest.raises(NonFiniteError) as caught:
        analyze(tmp_path / "base", {"a": tmp_path / "a"})
    assert f"1 NaN or Inf element, the first at index ({place // 1000}, {place % 1000})" in str(
        caught.value
    )


def test_finite_numbers_too_far_apart_are_refused_by_name(tmp_path):
    write_folder(tmp_path / "base", {"w": torch.full((3,), 3e38)})
    write_folder(tmp_path / "a", {"w": torch.full((3,), -3e38)})
    with pytest.raises(NonFiniteError, match=r"`w`.*more than float32"):
        analyze(tmp_path / "base", {"a": tmp_path / "a"})


BIG = {EMBEDDING: (4 * GROUP_ELEMENTS,), "model.layers.0.w": (3 * GROUP_ELEMENTS,)}


def at_block(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something to the files when a pass comes to its n-th block (counted over passes)."""
    original = BlockReader.read
    seen: list[int] = []

    def read(self: BlockReader, block: Block):
        seen.append(block.index)
        if len(seen) == number:
            act()
        return original(self, block)

    monkeypatch.setattr(BlockReader, "read", read)


@pytest.mark.parametrize("number", [2, 9])
@pytest.mark.parametrize("who", ["base", "agent0"])
def test_a_file_cut_short_in_the_middle_is_noticed(tmp_path, monkeypatch, who, number):
    zoo = make_zoo(tmp_path / "zoo", 2, shapes=BIG, seed=2)
    shard = zoo.folder / who / "model.safetensors"
    at_block(monkeypatch, number, lambda: os.truncate(shard, shard.stat().st_size // 8))
    before = set(tmp_path.iterdir())
    with pytest.raises(SourceChangedError) as caught:
        merge(zoo.recipe(), tmp_path / "out", threads=1, block_elements=GROUP_ELEMENTS)
    assert str(shard) in str(caught.value)
    assert ("Base" if who == "base" else 'Agent "agent0"') in str(caught.value)
    assert_leaves_nothing(tmp_path / "out", before)


@pytest.mark.parametrize(
    ("changes", "options", "named"),
    [
        ({"method": "averaging"}, {}, "averaging"),
        ({"settings": {"r": -1}}, {}, "r is -1"),
        ({"settings": {"colour": 1}}, {}, "colour"),
        ({"settings": {"epsilon": "big"}}, {}, "epsilon"),
        ({"method": "ram", "settings": {"r": 0.1}}, {}, "ram has no setting 'r'"),
        ({}, {"threads": 0}, "threads is 0"),
        ({}, {"device": "abacus"}, "abacus"),
        ({}, {"max_shard_bytes": 0}, "0 bytes"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(tmp_path, changes, options, named):
    zoo = make_zoo(tmp_path / "zoo", 1)
    before = set(tmp_path.iterdir())
    with pytest.raises(SettingsError) as caught:
        merge(zoo.recipe(**changes), tmp_path / "out", **options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_leaves_nothing(tmp_path / "out", before)


def test_more_agents_than_a_pattern_has_bits_are_refused(tmp_path):
    write_folder(tmp_path / "base", {"w": torch.zeros(3)})
    write_folder(tmp_path / "a", {"w": torch.ones(3)})
    agents = {f"agent{t}": str(tmp_path / "a") for t in range(33)}
    zoo = Zoo(tmp_path, {}, {}, ())
    with pytest.raises(RamStudioError, match=r"33 agents.*at most 32"):
        merge(zoo.recipe(agents=agents, other_base="accept"), tmp_path / "out")
