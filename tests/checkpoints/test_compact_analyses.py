"""Compact analyses: small enough to pass on, with the same previews."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_zoo import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.errors import AnalysisError
from ram_studio.resources import asset_path


@pytest.fixture(scope="module")
def whole() -> Analysis:
    return load_analysis(asset_path("independent", "analysis.safetensors"))


@pytest.fixture(scope="module")
def file(whole: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_analysis(whole.compact(), tmp_path_factory.mktemp("compact") / "c.safetensors")


def test_a_compact_analysis_shows_what_the_whole_shows(whole, file):
    small = load_analysis(file)
    assert small.is_compact
    assert file.stat().st_size < asset_path("independent", "analysis.safetensors").stat().st_size
    for by in ("tensor", "module"):
        expected, found = whole.preview(by=by), small.preview(by=by)
        for group in expected["groups"].values():
            for agent in group["agents"].values():
                del agent["rho_m"]  # ratios by magnitude are kept by layer
        assert found["groups"] == expected["groups"]
    found, expected = small.preview(by="layer"), whole.preview(by="layer")
    assert close(found, expected)
    found, expected = client_profile(small), client_profile(whole)
    # In 12 digits; the browser's factors are held to a preview's to 1e-3.
    (mine, theirs) = (profile.pop("weighing") for profile in (found, expected))
    assert (mine["depth"], mine["reference"]) == (theirs["depth"], theirs["reference"])
    np.testing.assert_allclose(mine["total"], theirs["total"], rtol=2**-12, atol=1e-6)
    assert close(found, expected)


def close(one: object, other: object) -> bool:
    """Compare nested values: whole numbers and words exactly, others to five digits."""
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float | int):
        is_nan = math.isnan(one) and math.isnan(other)
        return is_nan or math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-12)
    return False


def test_what_a_compact_analysis_lacks_is_said(file):
    small = load_analysis(file)
    with pytest.raises(AnalysisError, match="by layer, not by tensor; use the whole analysis"):
        small.grouped_relations("tensor")
    assert not small.has_magnitudes


def test_a_compact_analysis_saved_again_is_the_same_file(file, tmp_path):
    again = save_analysis(load_analysis(file), tmp_path / "again")
    assert again.read_bytes() == file.read_bytes()


def header_of(file: Path) -> dict:
    with safe_open(file, framework="np") as opened:
        return json.loads(opened.metadata()["ram_studio_analysis"])


def test_changed_or_damaged_files_are_refused(file, tmp_path):
    changes = {"blake3": "0" * 64, "epsilon_grid": [0.0], "agents": ["one"], "tensors": ["w"]}
    wrong = [("agents", [1, 2, 3]), ("warnings", [None]), ("sources", []), ("dtypes", {"a": 1})]
    for key, value in [*changes.items(), *wrong, ("format", 3), ("kind", "whole")]:
        header = json.dumps(header_of(file) | {key: value})
        save_file(load_file(file), tmp_path / "p", {"ram_studio_analysis": header})
        refused(lambda: load_analysis(tmp_path / "p"), kind=AnalysisError)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    for content in (data, data[:-10], struct.pack("<Q", 2) + b"{}", b"\x80\x04pickle", b""):
        (tmp_path / "p").write_bytes(content)
        refused(lambda: load_analysis(tmp_path / "p"), kind=AnalysisError)


def forged(file: Path, header: dict, sizes: dict[str, int], words: bytes = b"{}") -> Path:
    """Write an analysis whose arrays are zeros of these sizes, with a right checksum."""
    arrays = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
    packed = zlib.compress(save(arrays | {"shapes": np.frombuffer(words, np.uint8)}), 9)
    header = header | {"blake3": hash_bytes(packed)}
    told = {"ram_studio_analysis": json.dumps(header)}
    save_file({"packed": np.frombuffer(packed, np.uint8)}, file, told)
    return file


def agents_of(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("agents", "tensors", "sizes", "words"),
    [
        # As its header speaks of them, and far more than its size can hold.
        (6, 2_000, {"numel": 16_000, "counts.patterns": 2_000 * 58 * 64 * 8}, b"{}"),
        (6, 50, {"counts.patterns": 100_000_000}, b"{}"),
        (6, 50, {"anything": 50_000_000}, b"{}"),
        (6, 50, {"steps.exact": 50_000_000}, b"{}"),
        (6, 50, {}, b"[" * 50_000_000),
        (6, 50, {}, b"[" + b"[]," * 10_000_000 + b"[]]"),
        (4_000, 1, {"magnitudes": 4_000 * 4_096 * 4}, b"{}"),
        (6, 50, {f"relations.{n}": 10 for n in range(20_000)}, b"{}"),
    ],
)
def test_a_bomb_is_refused_before_it_takes_memory(file, tmp_path, agents, tensors, sizes, words):
    names = [f"w{number}" for number in range(tensors)]
    header = header_of(file) | {"agents": agents_of(agents), "tensors": names}
    bomb = forged(tmp_path / "bomb", header, sizes, words)
    assert bomb.stat().st_size < 600_000
    tracemalloc.start()
    try:
        refused(lambda: load_analysis(bomb), kind=AnalysisError)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "1", '"x"', '{"format": 1}', '{"format": []}']
)
def test_a_header_of_any_words_is_refused(file, tmp_path, text):
    save_file(load_file(file), tmp_path / "p", {"ram_studio_analysis": text})
    refused(lambda: load_analysis(tmp_path / "p"), kind=AnalysisError)


def test_an_analysis_of_no_tensors_is_refused(whole, tmp_path):
    """The page that shows one failed."""
    nothing = replace(
        whole,
        tensors=(),
        counts=whole.counts.grouped([]),
        rounded=None,
        relations=whole.relations.grouped([]),
        weighing=None,
        steps=None,
        stacks=None,
    )
    path = save_analysis(nothing, tmp_path / "p")
    refused(lambda: load_analysis(path), kind=AnalysisError)
