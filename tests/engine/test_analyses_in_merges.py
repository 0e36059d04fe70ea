"""Saved analyses: whole or refused, and only ever used with the files they were made from."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from engine_zoo import contents, make_zoo, refused, write_folder
from safetensors import safe_open
from safetensors.numpy import save_file
from test_analyze_counts import assert_same_analysis

from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.checkpoints.record.analysis_packing import pack, unpack
from ram_studio.engine.analyze import analyze
from ram_studio.engine.merge import merge
from ram_studio.errors import AnalysisError, OutputError


@pytest.mark.parametrize(
    "options",
    [
        {"agents": 3},
        {"agents": 7},
        {"agents": 3, "agent_dtypes": ("F32", "BF16", "BF16")},
    ],
    ids=str,
)
def test_an_analysis_comes_back_from_disk_as_it_was(tmp_path, options):
    analysis = make_zoo(tmp_path / "zoo", **options).analyze()
    path = save_analysis(analysis, tmp_path / "new" / "folder" / "my.analysis")
    assert [p.name for p in path.parent.iterdir()] == ["my.analysis"]
    assert_same_analysis(load_analysis(path), analysis)
    again = save_analysis(load_analysis(path), tmp_path / "again.analysis")
    assert again.read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    return save_analysis(make_zoo(folder / "zoo", 2).analyze(), folder / "a.analysis")


@pytest.fixture
def saved(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copy(whole, tmp_path))


def test_what_is_no_analysis_is_refused(saved, tmp_path):
    zoo = make_zoo(tmp_path / "zoo", 1)
    places = [zoo.base_path / "model.safetensors", zoo.base_path, tmp_path / "nowhere.analysis"]
    cut_short = [saved.read_bytes()[:end] for end in (0, 7, 200, -1)]
    for number, data in enumerate((*cut_short, b"not one at all", bytes(100), b"\xff" * 5000)):
        places.append(tmp_path / f"other{number}.analysis")
        places[-1].write_bytes(data)
    for path in places:
        with pytest.raises(AnalysisError, match=path.name):
            load_analysis(path)


def rewritten(path: Path, change) -> None:
    """Write the analysis again after ``change(header, arrays)``."""
    with safe_open(path, framework="np") as file:
        ((key, text),) = file.metadata().items()
        body = file.get_tensor("packed").tobytes()
    header = json.loads(text)
    arrays = unpack(body, header)
    change(header, arrays)
    body = pack(arrays, exact=True)
    header["blake3"] = hash_bytes(body)
    save_file({"packed": np.frombuffer(body, np.uint8)}, path, {key: json.dumps(header)})


def of(name, place, value):
    """Put a value into an array of an analysis."""
    return lambda header, arrays: arrays[name].__setitem__(place, value)


def shortened(name):
    """Leave out the last column of an array."""
    return lambda header, arrays: arrays.update({name: arrays[name][:, :-1].copy()})


def as_shared(header, arrays):
    """As for more than six agents, with more shared elements than there are."""
    arrays["counts.shared"] = np.zeros((*arrays.pop("counts.patterns").shape[:2], 2, 2), np.int64)
    arrays["counts.shared"][1, 4, 1] = arrays["numel"][1]


def of_other_agents(header, arrays):
    arrays["relations.pair_sums"] = np.zeros((*arrays["relations.pair_sums"].shape[:2], 3, 2))


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("format 99", lambda h, a: h.update(format=99)),
        ("damaged", lambda h, a: h.update(kind="other")),
        ("epsilon grid", lambda h, a: h["epsilon_grid"].__setitem__(3, 1.0)),
        # Parts that do not fit.
        ("damaged", lambda h, a: h.pop("agents")),
        ("damaged", lambda h, a: h["agents"].append("third")),
        ("damaged", lambda h, a: h["tensors"].pop()),
        ("damaged", lambda h, a: a.pop("counts.patterns")),
        ("damaged", lambda h, a: a.pop("steps.layer_exact_count")),
        ("damaged", shortened("counts.patterns")),
        ("damaged", shortened("magnitudes")),
        ("damaged", of_other_agents),
        # Numbers that cannot be.
        ("damaged", of("counts.patterns", (2, 5, 1), -1)),
        ("damaged", lambda h, a: np.add.at(a["counts.patterns"], (0, 30, 2), 1)),
        ("damaged", as_shared),
        ("damaged", of("relations.dots", (0, 1, 1), np.nan)),
        ("damaged", of("relations.by_set", (1, 4, 0), -1.0)),
        ("damaged", of("steps.exact", (0, 3), 256)),
        ("damaged", lambda h, a: a["steps.layer_exact"].__setitem__((0, 0), len(h["layers"]))),
        ("damaged", of("steps.exact_count", 0, -5)),
    ],
)
def test_an_analysis_that_cannot_be_is_refused(saved, said, change):
    rewritten(saved, change)
    with pytest.raises(AnalysisError, match=said):
        load_analysis(saved)


def test_an_analysis_that_cannot_be_written_leaves_nothing(saved, tmp_path):
    (tmp_path / "file").write_text("")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"b\.analysis"):
        save_analysis(load_analysis(saved), tmp_path / "file" / "b.analysis")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("method", ["ram", "ram+"])
@pytest.mark.parametrize(
    "case",
    [
        "other files",
        "other order",
        "fewer agents",
        "more agents",
        "another base",
        "trained on since",
    ],
)
def test_an_analysis_of_other_models_is_refused_before_any_work(tmp_path, case, method):
    zoo = make_zoo(tmp_path / "zoo", 2, seed=1)
    paths = {n: str(p) for n, p in zoo.agent_paths.items()}
    recipe = zoo.recipe(method=method)
    if case == "other files":
        analysis = make_zoo(tmp_path / "other", 2, seed=2).analyze()
    elif case == "other order":
        analysis = analyze(zoo.base_path, dict(reversed(paths.items())))
    elif case == "fewer agents":
        analysis = zoo.analyze().select(["agent0"])
    elif case == "more agents":
        analysis = zoo.analyze()
        recipe = recipe.model_copy(update={"agents": {"agent0": paths["agent0"]}})
    elif case == "trained on since":
        analysis = zoo.analyze()
        shard = zoo.agent_paths["agent1"] / "model.safetensors"
        data = bytearray(shard.read_bytes())
        data[-40] ^= 1
        shard.write_bytes(data)
    else:
        write_folder(tmp_path / "another", zoo.agents["agent1"])
        analysis = analyze(tmp_path / "another", paths)
    said = {
        "trained on since": "agent1.*Analyze",
        "other order": "given for their order.*Analyze",
        "more agents": "given for their names.*Analyze",
    }.get(case, "Analyze")
    with refused(AnalysisError, tmp_path / "out", said):
        merge(recipe, tmp_path / "out", analysis=analysis)


def test_an_analysis_with_wrong_counts_is_found_out(tmp_path):
    """As a large checkpoint's fingerprint reads only part of it, the merge counts anew."""
    zoo = make_zoo(tmp_path / "zoo", 2, seed=4)
    analysis = zoo.analyze()
    patterns = analysis.counts.patterns.copy()
    patterns[0, :, 0] -= 1
    patterns[0, :, 1] += 1
    wrong = dataclasses.replace(
        analysis, counts=type(analysis.counts).from_patterns(analysis.counts.numel, patterns)
    )
    with refused(AnalysisError, tmp_path / "out", "counts differ"):
        merge(zoo.recipe(), tmp_path / "out", analysis=wrong)
    assert np.array_equal(patterns.sum(-1), analysis.counts.patterns.sum(-1))
