"""Kernels kept as machine code: found again without numba, and never used where they do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ram_studio.algorithm import kernels, machine_code
from ram_studio.algorithm.machine_code import Kernel

ROOT = Path(__file__).parents[2]
CALL = """
import sys
import numpy as np
from ram_studio.algorithm import kernels
ones = np.full(100, 0x3F80, np.uint16)
assert kernels.is_finite(ones)
ones[70] = 0x7F80
assert not kernels.is_finite(ones)
print("numba" in sys.modules)
"""


def call(cache: Path, **environment: str) -> bool:
    """Run two kernels in a process of its own; return whether it imported numba."""
    asked = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache)}
    asked["XDG_CACHE_HOME"] = str(cache / "user")
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        env=asked | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split() == ["True"]


def test_a_kept_kernel_needs_no_numba_and_a_damaged_or_foreign_one_is_made_anew(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert call(tmp_path)
    (kept,) = tmp_path.glob("is_finite-*.kernel")
    assert not call(tmp_path)
    content = kept.read_bytes()
    for damaged in (content[:-1], b"", content[: len(content) // 2] + b"\0" * 64, b"{}\n"):
        kept.write_bytes(damaged)
        assert machine_code._read(kept.name) is None
    assert call(tmp_path)
    assert kept.read_bytes() == content
    assert call(tmp_path, NUMBA_CPU_FEATURES="", NUMBA_CPU_NAME="generic")
    assert len(list(tmp_path.glob("is_finite-*.kernel"))) == 2


def test_kernels_run_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert call(tmp_path / "file")


def test_what_is_kept_depends_on_every_source(tmp_path):
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("1")
    before = machine_code.sources_digest.__wrapped__(tmp_path)
    assert machine_code.sources_digest.__wrapped__(tmp_path) == before
    (tmp_path / "two.py").write_text("2")
    assert machine_code.sources_digest.__wrapped__(tmp_path) != before


def test_kernels_are_told_apart_by_what_they_are_called_with():
    empty, short = np.zeros(4, np.float32), np.zeros(4, np.uint16)
    names = {
        kernels.is_finite._file_name(kinds)
        for kinds in ((("f", 1),), (("H", 1),), (("H", 2),), ((("H", 1),),))
    }
    assert len(names) == 4
    assert kernels.is_finite(empty)
    assert kernels.is_finite(short)
    assert not kernels.is_unchanged(short, (short, short + np.uint16(1)))


def test_results_are_numbers_truth_values_tuples_or_nothing():
    active = np.array([1, 3, 1, 2, 0], np.uint8)
    assert kernels.count_active(active, 0) == (3, 2)
    base, agent, stored = (np.array(x, np.float32) for x in ([1, 1], [3, 9], [4, 9]))
    change = kernels.stored_change(base, agent, stored, np.array([1, 3], np.uint8), 0)
    assert change == (6.0, 4.0)
    chain = np.zeros(2 * 1 * 2, np.int32)
    tables = np.zeros((2, 1, 1), np.int64), np.zeros((1, 2), np.int64)
    assert kernels.fold_chain(chain, np.zeros(2, np.int64), *tables) is None


def test_arrays_with_gaps_are_refused():
    with pytest.raises(AssertionError, match="contiguous"):
        kernels.is_finite(np.zeros(10, np.float32)[::2])


def test_a_kernel_that_calls_something_unknown_is_not_loaded():
    kept = {"symbol": "f", "result": "", "needs": ["no_such_function_anywhere"], "object": b""}
    with pytest.raises(RuntimeError, match="no_such_function_anywhere"):
        machine_code._bind(kept, ())
    assert "merge_mean" in repr(Kernel("loop_kernels", "merge_mean"))


def test_where_machine_code_cannot_be_loaded_numba_calls_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def refuse(kept: dict, kinds: tuple) -> None:
        raise RuntimeError("calls what is not there")

    monkeypatch.setattr(machine_code, "_bind", refuse)
    kernel = Kernel("loop_kernels", "is_finite")
    ones = np.full(100, 0x3F80, np.uint16)
    assert kernel(ones)
    ones[70] = 0x7F80
    assert not kernel(ones)
