"""The same merge gives the same bytes, however it is cut, threaded or computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_zoo import (
    EMBEDDING,
    Zoo,
    bits_of,
    contents,
    make_zoo,
    read_folder,
)

from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.engine.merge import merge
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS

BIG = {
    EMBEDDING: (1500, 100),
    "model.layers.0.mlp.up_proj.weight": (2 * GROUP_ELEMENTS + 4321,),
    "model.layers.1.mlp.up_proj.bias": (33,),
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    dtypes = ("BF16", "F32", "F16")
    folder = tmp_path_factory.mktemp("big")
    return make_zoo(folder, 3, agent_dtypes=dtypes, shapes=BIG, shards=2, seed=20)


def cut_differently(zoo: Zoo, tmp_path: Path, **changes: object) -> list[dict[str, bytes]]:
    """Return the folders' contents for several numbers of threads and sizes of blocks."""
    results = []
    for threads, groups in ((1, 4), (1, 1), (2, 1), (4, 2), (2, 64)):
        out = tmp_path / f"out-{threads}-{groups}"
        merge(zoo.recipe(**changes), out, threads=threads, block_elements=groups * GROUP_ELEMENTS)
        results.append(contents(out))
    return results


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rounding": "stochastic", "seed": 9},
        {"rounding": "stochastic", "dtype": "float16"},
        {"dtype": "float32", "settings": {"shared": "ties", "scope": "tensor"}},
        {"method": "task-arithmetic", "rounding": "stochastic"},
        {"method": "ties"},
        {"method": "dare-ta"},
        {"method": "dare-ties", "rounding": "stochastic"},
    ],
    ids=str,
)
def test_every_file_is_the_same_for_any_threads_and_blocks(big, tmp_path, changes):
    first, *others = cut_differently(big, tmp_path, **changes)
    for other in others:
        assert other.keys() == first.keys()
        assert [name for name in first if other[name] != first[name]] == []


def test_an_agents_rows_may_end_between_blocks(tmp_path):
    # Float32 numbers of one size: sums of their products show in which order they were added.
    rng = torch.Generator().manual_seed(25)
    base = {EMBEDDING: torch.randn(3000, 100, generator=rng)}
    agents = {}
    for name, rows in (("short", 2237), ("long", 3000)):
        noise = torch.randn(rows, 100, generator=rng)
        mine = torch.rand(rows, 100, generator=rng) < 0.3
        agents[name] = {EMBEDDING: base[EMBEDDING][:rows] + noise * mine}
    agents["still"] = base  # loops for three are compiled already
    zoo = Zoo.write(tmp_path, base, agents)
    first, *others = cut_differently(zoo, tmp_path, rows="common", dtype="bfloat16")
    for other in others:
        assert [name for name in first if other[name] != first[name]] == []


def test_an_analysis_saves_a_pass_and_changes_nothing(big, tmp_path):
    analysis = big.analyze()
    path = save_analysis(analysis, tmp_path / "zoo.analysis")
    without = merge(big.recipe(), tmp_path / "without")
    results = [
        merge(big.recipe(), tmp_path / "fresh", analysis=analysis),
        merge(big.recipe(), tmp_path / "loaded", analysis=load_analysis(path)),
    ]
    for result in results:
        assert contents(result.out) == contents(without.out)
        assert result.agents == without.agents
        assert 2 * result.bytes_read == without.bytes_read


def test_a_seed_draws_the_same_numbers_and_another_others(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 3, seed=22)
    folders = [
        merge(zoo.recipe(rounding="stochastic", seed=seed), tmp_path / f"out{i}").out
        for i, seed in enumerate((1, 1, 2, 2**64 - 1))
    ]
    assert contents(folders[0]) == contents(folders[1])
    merged = [read_folder(folder) for folder in folders]
    for other in merged[2:]:
        assert any(not torch.equal(merged[0][n], other[n]) for n in zoo.counted)


def test_the_order_of_agents_changes_nothing_but_rounding(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 3, seed=23)
    names = list(zoo.agents)
    first = merge(zoo.recipe(dtype="float32"), tmp_path / "first")
    turned = {n: str(zoo.agent_paths[n]) for n in (names[2], names[0], names[1])}
    second = merge(zoo.recipe(agents=turned, dtype="float32"), tmp_path / "second")
    for name in names:
        assert second.agents[name].rho == first.agents[name].rho
        assert second.agents[name].scaling_factor == first.agents[name].scaling_factor
    a, b = read_folder(first.out), read_folder(second.out)
    for name in zoo.counted:
        torch.testing.assert_close(a[name], b[name], rtol=2.0**-22, atol=1e-12)
        untouched = (bits_of(a[name]) == bits_of(b[name])).double().mean() if a[name].numel() else 1
        assert untouched > 0.9


def test_the_provenance_does_not_depend_on_the_day_or_the_place(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 2, seed=24)
    merge(zoo.recipe(), tmp_path / "a")
    merge(zoo.recipe(), tmp_path / "deeper" / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "deeper" / "b")
    provenance = json.loads((tmp_path / "a" / "ram_studio.json").read_text())
    assert provenance["recipe"]["base"] == str(zoo.base_path)
