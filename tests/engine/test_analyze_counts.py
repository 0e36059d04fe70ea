"""The analysis of real folders against a plain count of every element."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference
import torch
from engine_zoo import (
    EMBEDDING,
    EXTRA,
    HEAD,
    LOST,
    ODD,
    SHAPES,
    Zoo,
    make_odd_zoo,
    make_zoo,
    write_folder,
)

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters import rounding_meter
from ram_studio.engine.analyze import analyze, analyze_report
from ram_studio.engine.reading.blocks import GROUP_ELEMENTS


def assert_counts_like_reference(analysis: Analysis, zoo: Zoo, every: int = 6) -> None:
    """Compare at the epsilon grid's points that are so far apart; plain loops over all are slow."""
    n = len(zoo.agents)
    assert analysis.agents == tuple(zoo.agents)
    names = [t.name for t in analysis.tensors]
    assert sorted(names) == sorted(zoo.counted)
    assert [t.numel for t in analysis.tensors] == [zoo.base[name].numel() for name in names]
    for point, epsilon in list(enumerate(EPSILON_GRID))[::every]:
        expected = zoo.counts(epsilon)
        for row, name in enumerate(names):
            shared = reference.shared_counts(expected[name], n)
            assert analysis.counts.shared[row, point].tolist() == shared, (name, epsilon)
            if analysis.counts.patterns is not None:
                assert analysis.counts.patterns[row, point].tolist() == expected[name]
    # Every change is in the histogram of magnitudes, whatever its size.
    active = [sum(row) for row in zoo.overlap(0.0)]
    assert analysis.magnitudes.sum(1).tolist() == active


@pytest.mark.parametrize(
    ("agents", "dtype", "shards"),
    [(1, "BF16", 1), (3, "F16", 3), (3, "BF16", 4), (3, "F32", 1), (7, "BF16", 1)],
)
def test_every_pattern_is_counted_at_every_epsilon(tmp_path, agents, dtype, shards):
    zoo = make_zoo(tmp_path, agents, dtype=dtype, shards=shards, seed=agents)
    analysis = zoo.analyze()
    assert_counts_like_reference(analysis, zoo, every=1 if (agents, dtype) == (3, "BF16") else 6)
    assert analysis.dtypes == dict.fromkeys(["base", *zoo.agents], dtype)
    assert analysis.rounded is None
    assert (analysis.counts.patterns is None) == (agents == 7)
    # Integers are not counted.
    assert analysis.total == sum(int(np.prod(shape)) for shape in SHAPES.values())
    places = {"base": zoo.base_path, **zoo.agent_paths}
    assert analysis.sources == {name: str(path) for name, path in places.items()}
    assert len(set(analysis.fingerprints.values())) == 1 + agents


def assert_same(a: object, b: object, name: str) -> None:
    """Compare to the last bit, arrays inside dataclasses included."""
    assert type(a) is type(b), name
    if dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{name}.{field.name}")
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, err_msg=name)
    else:
        assert a == b, name


def assert_same_analysis(a: Analysis, b: Analysis) -> None:
    assert_same(a, b, "analysis")


BIG = {"model.layers.0.w": (3 * GROUP_ELEMENTS + 12345,), "model.layers.1.w": (70_001, 2)}


@pytest.mark.parametrize("agents", [3, 7])
def test_threads_and_blocks_do_not_change_an_analysis(tmp_path, agents):
    zoo = make_zoo(tmp_path, agents, shapes=BIG, shards=2)
    report = zoo.load()
    expected = analyze_report(report, threads=1)
    for threads, groups in ((1, 1), (2, 1), (4, 2), (2, 64)):
        analysis = analyze_report(report, threads=threads, block_elements=groups * GROUP_ELEMENTS)
        assert_same_analysis(analysis, expected)
    if agents == 3:  # one epsilon by brute force, so that all of them are not equally wrong
        assert expected.model.shared[0, DEFAULT_INDEX].tolist() == zoo.overlap(1e-5)


@pytest.mark.parametrize(("agents", "dtype"), [(3, "F32"), (7, "BF16")])
def test_order_of_shards_does_not_change_what_is_kept(tmp_path, agents, dtype):
    one, many = (make_zoo(tmp_path / str(k), agents, dtype=dtype, shards=k) for k in (1, 4))
    found, other = one.analyze(), many.analyze()
    assert [t.name for t in found.tensors] != [t.name for t in other.tensors]
    assert_same(found.energies, other.energies, "energies")
    assert_same(found.part_factors, other.part_factors, "part factors")


def test_mixed_dtypes_are_counted_as_stored_and_as_the_base(tmp_path):
    zoo = make_zoo(tmp_path, 3, dtype="BF16", agent_dtypes=("F32", "F16", "BF16"), seed=5)
    analysis = zoo.analyze()
    assert_counts_like_reference(analysis, zoo)
    assert analysis.dtypes == {"base": "BF16", "agent0": "F32", "agent1": "F16", "agent2": "BF16"}
    rounded = Zoo(
        zoo.folder,
        zoo.base,
        {name: {n: t.bfloat16() for n, t in own.items()} for name, own in zoo.agents.items()},
        zoo.counted,
    )
    assert analysis.rounded is not None
    names = [t.name for t in analysis.tensors]
    for point in (0, DEFAULT_INDEX, 30, 50):
        expected = rounded.counts(EPSILON_GRID[point])
        assert {
            name: analysis.rounded.patterns[row, point].tolist() for row, name in enumerate(names)
        } == expected


def test_an_agent_beyond_the_bases_range_counts_as_changed(tmp_path):
    base = {"w": torch.zeros(4, dtype=torch.float16)}
    agent = {"w": torch.tensor([0.0, 1e-9, 1.0, 70000.0])}
    write_folder(tmp_path / "base", base)
    write_folder(tmp_path / "a", agent)
    still = tmp_path / "base"
    analysis = analyze(still, {"a": tmp_path / "a", "b": still, "c": still})
    assert analysis.counts.patterns[0, 0, :2].tolist() == [1, 3]
    assert analysis.rounded.patterns[0, 0, :2].tolist() == [2, 2]


@pytest.mark.parametrize("stored", ["both", "embedding", "head"])
def test_a_tied_matrix_is_counted_once_however_it_is_stored(tmp_path, stored):
    zoo = make_zoo(tmp_path / "made", 2, copied=False)
    for name, tensors in {"base": zoo.base, **zoo.agents}.items():
        own = dict(tensors)
        own[HEAD] = own[EMBEDDING].clone()
        if stored != "both":
            own.pop(HEAD if stored == "embedding" else EMBEDDING)
        write_folder(tmp_path / name, own, tied=True)
    analysis = analyze(tmp_path / "base", {a: tmp_path / a for a in zoo.agents})
    counted = {t.name for t in analysis.tensors}
    assert len(counted & {EMBEDDING, HEAD}) == 1
    once = Zoo(zoo.folder, zoo.base, zoo.agents, tuple(n for n in zoo.counted if n != HEAD))
    assert analysis.model.shared[0, DEFAULT_INDEX].tolist() == once.overlap(1e-5)
    assert analysis.total == sum(zoo.base[n].numel() for n in once.counted)


@pytest.mark.parametrize("odd", ODD)
def test_a_missing_tensor_is_unchanged_and_an_extra_not_counted(tmp_path, odd):
    seen = make_odd_zoo(tmp_path, odd, seed=6)
    analysis = seen.analyze(**ODD[odd])
    assert_counts_like_reference(analysis, seen)
    if "missing" in odd:
        for name in (LOST, EXTRA):
            assert any(name in warning for warning in analysis.warnings)


def test_agents_dropped_from_an_analysis_were_never_there(tmp_path):
    zoo = make_zoo(tmp_path, 3, seed=8)
    analysis = zoo.analyze().select(["agent2", "agent0"])
    paths = zoo.agent_paths
    alone = analyze(zoo.base_path, {"agent2": paths["agent2"], "agent0": paths["agent0"]})
    assert alone.relations is not None
    # Which of two agents points against their sum is not kept by pair, nor by set what each alone
    # changed by how many last places.
    assert (analysis.relations.cancelled, analysis.steps) == (None, None)
    relations = dataclasses.replace(alone.relations, cancelled=None)
    # What an agent alone changed grows when others leave; that is not kept.
    unknown = {"steps": None, "part_factors": None, "weighing": None}
    assert_same_analysis(analysis, dataclasses.replace(alone, relations=relations, **unknown))


def test_agents_in_another_order_have_the_same_statistics(tmp_path):
    zoo = make_zoo(tmp_path, 3, seed=8)
    order = ["agent2", "agent0", "agent1"]
    analysis = zoo.analyze().select(order)
    again = analyze(zoo.base_path, {name: zoo.agent_paths[name] for name in order})
    assert_same_analysis(
        dataclasses.replace(analysis, steps=None), dataclasses.replace(again, steps=None)
    )
    for t in range(3):
        for dtype in rounding_meter.DTYPES:
            assert analysis.steps.curve(t, DEFAULT_INDEX, dtype) == again.steps.curve(
                t, DEFAULT_INDEX, dtype
            )
