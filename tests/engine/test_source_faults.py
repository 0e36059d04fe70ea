"""Sources that are wrong, or change while they are read: one line that names them, nothing left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_zoo import DTYPES, Zoo, make_zoo, refused

from ram_studio.checkpoints.hub.analyses import find_analysis
from ram_studio.engine.analyze import analyze
from ram_studio.engine.delta import make_delta
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS, Block
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.verify import verify
from ram_studio.errors import (
    NonFiniteError,
    RamStudioError,
    SettingsError,
)

TENSOR = "model.layers.0.mlp.up_proj.weight"


def poisoned(folder: Path, who: str, dtype: str, bad: dict[tuple[int, ...], float]) -> Zoo:
    """Return a zoo in which one checkpoint holds numbers that are not finite."""
    made = make_zoo(folder / "made", 3, dtype=dtype, seed=1)
    everyone = {"base": made.base, **made.agents}
    tensor = everyone[who][TENSOR].clone()
    for index, value in bad.items():
        tensor[index] = value
    everyone[who] = {**everyone[who], TENSOR: tensor}
    return Zoo.write(folder / "zoo", everyone.pop("base"), everyone, made.counted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("who", ["base", "agent1"])
def test_nan_and_infinity_are_named_with_file_tensor_and_place(tmp_path, dtype, who):
    zoo = poisoned(
        tmp_path, who, dtype, {(2, 5): float("nan"), (2, 6): -float("inf"), (7, 0): float("inf")}
    )
    shown = "Base" if who == "base" else f'Agent "{who}"'
    for run in (
        lambda: zoo.analyze(),
        lambda: merge(zoo.recipe(), tmp_path / "out"),
        lambda: merge(zoo.recipe(method="ram"), tmp_path / "out"),
        lambda: merge(zoo.recipe(method="task-arithmetic"), tmp_path / "out"),
    ):
        with refused(NonFiniteError, tmp_path / "out") as caught:
            run()
        text = str(caught.value)
        assert text.startswith(f"{shown}: ")
        assert str(zoo.folder / who / "model.safetensors") in text
        assert f"`{TENSOR}` has 3 NaN or Inf elements, the first at index (2, 5)" in text
        assert "\n" not in text


NAN = float("nan")
LATER = 4 * GROUP_ELEMENTS + 77


def with_nan(tensor: torch.Tensor, place: int) -> torch.Tensor:
    tensor.view(-1)[place] = NAN
    return tensor


@pytest.mark.parametrize(
    ("base", "agent", "said"),
    [
        (torch.tensor(1.0), torch.tensor(NAN), r'Agent "a": .*1 NaN or Inf element, .*\(\)'),
        *(
            (same, same, r"Base: .*has 1 NaN or Inf element, .*\(69,\)")
            for same in (with_nan(torch.ones(70), 69), with_nan(torch.ones(70).bfloat16(), 69))
        ),
        (
            torch.zeros(300, 1000).bfloat16(),
            with_nan(torch.zeros(300, 1000).bfloat16(), LATER),
            rf"1 NaN or Inf element, the first at index \({LATER // 1000}, {LATER % 1000}\)",
        ),
    ],
    ids=["a single number", "both F32", "both BF16", "a later block"],
)
def test_what_is_not_finite_is_placed_in_its_tensor(tmp_path, base, agent, said):
    agents = {"a": agent, "b": base, "c": base}
    zoo = Zoo.write(tmp_path, {"w": base}, {name: {"w": own} for name, own in agents.items()})
    for run in (
        lambda: zoo.analyze(),
        *(
            lambda method=method: merge(
                zoo.recipe(method=method, other_base="accept"), tmp_path / "out"
            )
            for method in ("ram", "task-arithmetic")
        ),
    ):
        with pytest.raises(NonFiniteError, match=said):
            run()


@pytest.mark.parametrize("method", ["ram+", "ram", "task-arithmetic", "ties", "dare-ta"])
def test_finite_numbers_too_far_apart_are_refused_by_name(tmp_path, method):
    base, *agents = ({"w": torch.full((3,), value)} for value in (3e38, -3e38, 3e38, 3e38))
    zoo = Zoo.write(tmp_path, base, dict(zip("abc", agents, strict=True)))
    with pytest.raises(NonFiniteError, match=r"`w`.*more than float32"):
        zoo.analyze()
    with pytest.raises(NonFiniteError, match=r"`w`.*more than float32"):
        merge(zoo.recipe(method=method, other_base="accept"), tmp_path / "out")


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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"device": "abacus"}, "abacus"),
        ({"max_shard_bytes": 0}, "0 bytes"),
    ],
)
def test_wrong_options_are_refused_before_any_work(tmp_path, options, named):
    zoo = make_zoo(tmp_path / "zoo", 1)
    with refused(SettingsError, tmp_path / "out", named) as caught:
        merge(zoo.recipe(), tmp_path / "out", **options)
    assert "\n" not in str(caught.value)


def test_more_agents_than_a_pattern_has_bits_are_refused(tmp_path):
    zoo = Zoo.write(tmp_path, {"w": torch.zeros(3)}, {"a": {"w": torch.ones(3)}})
    agents = {f"agent{t}": str(zoo.agent_paths["a"]) for t in range(33)}
    with pytest.raises(RamStudioError, match=r"33 agents.*at most 32"):
        merge(zoo.recipe(agents=agents, other_base="accept"), tmp_path / "out")


def test_the_folder_of_nobody_is_no_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zoo, place = make_zoo(tmp_path / "zoo", 1), "~nobody-of-that-name/x"
    fisher = zoo.recipe(method="fisher", settings={"files": place})
    for use in (
        lambda: merge(zoo.recipe(), place),
        lambda: merge(zoo.recipe(), "a\0b"),
        lambda: merge(fisher, tmp_path / "out"),
        lambda: make_delta(zoo.base_path, zoo.agent_paths["agent0"], place),
        lambda: analyze(place, zoo.agent_paths),
        lambda: verify(place),
        lambda: find_analysis(place),
    ):
        with pytest.raises(RamStudioError, match=r"~nobody|a.x00b"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["zoo"]
