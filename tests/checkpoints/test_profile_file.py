"""Profiles: a sketch made small enough to pass on, the same to look at."""

from __future__ import annotations

import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from checkpoint_zoo import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.record.sketch_file import load_sketch, save_profile, save_sketch
from ram_studio.errors import SketchError
from ram_studio.resources import asset_path


@pytest.fixture(scope="module")
def whole() -> Sketch:
    return load_sketch(asset_path("example", "sketch.safetensors"))


@pytest.fixture(scope="module")
def file(whole: Sketch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_profile(whole, tmp_path_factory.mktemp("profile") / "p.safetensors")


def test_a_profile_shows_what_the_sketch_shows(whole, file):
    small = load_sketch(file)
    assert small.is_profile
    assert file.stat().st_size < asset_path("example", "sketch.safetensors").stat().st_size
    for by in ("tensor", "module"):
        expected, found = whole.preview(by=by), small.preview(by=by)
        for group in expected["groups"].values():
            for agent in group["agents"].values():
                del agent["rho_m"]  # ratios by magnitude are kept by layer
        assert found["groups"] == expected["groups"]
    found, expected = small.preview(by="layer"), whole.preview(by="layer")
    assert close(found, expected)
    assert close(client_profile(small), client_profile(whole))


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


def test_what_a_profile_does_not_hold_is_said(file):
    small = load_sketch(file)
    with pytest.raises(SketchError, match="by layer, not by tensor; take the whole sketch"):
        small.grouped_relations("tensor")
    assert not small.has_magnitudes


def test_a_profile_saved_again_is_the_same_file(file, tmp_path):
    again = save_sketch(load_sketch(file), tmp_path / "again")
    assert again.read_bytes() == file.read_bytes()


def test_a_packed_sketch_is_the_sketch_bit_for_bit(whole, tmp_path):
    packed = save_sketch(whole, tmp_path / "packed", packed=True)
    plain, again = save_sketch(whole, tmp_path / "plain"), tmp_path / "again"
    assert packed.stat().st_size * 10 < plain.stat().st_size
    assert save_sketch(load_sketch(packed), again).read_bytes() == plain.read_bytes()
    # As earlier versions packed it: the arrays as they are, deflated.
    old = np.frombuffer(zlib.compress(save(load_file(plain))), np.uint8)
    header = header_of(plain) | {"format": 4}
    save_file({"packed": old}, tmp_path / "old", {"ram_studio_sketch": json.dumps(header)})
    assert save_sketch(load_sketch(tmp_path / "old"), again).read_bytes() == plain.read_bytes()


def header_of(file: Path) -> dict:
    with safe_open(file, framework="np") as opened:
        return json.loads(opened.metadata()["ram_studio_sketch"])


def test_a_changed_or_damaged_profile_and_other_files_are_refused(file, tmp_path):
    changes = {"blake3": "0" * 64, "ladder": [0.0], "agents": ["one"], "tensors": ["w"]}
    wrong = [("agents", [1, 2, 3]), ("warnings", [None]), ("sources", []), ("dtypes", {"a": 1})]
    for key, value in [*changes.items(), *wrong, ("format", 3), ("format", 99)]:
        header = json.dumps(header_of(file) | {key: value})
        save_file(load_file(file), tmp_path / "p", {"ram_studio_sketch": header})
        refused(lambda: load_sketch(tmp_path / "p"), kind=SketchError)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    for content in (data, data[:-10], struct.pack("<Q", 2) + b"{}", b"\x80\x04pickle", b""):
        (tmp_path / "p").write_bytes(content)
        refused(lambda: load_sketch(tmp_path / "p"), kind=SketchError)
