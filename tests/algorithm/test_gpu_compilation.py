"""The kernels compile for a GPU, as the arithmetic of the CPU needs it; no GPU is needed for that.

What the interpreter cannot show: a multiplication and an addition contracted to one rounding, an
approximate division, or denormals flushed to zero would give other bits on the device.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or platform.machine() != "x86_64",
    reason="triton and its compiler are not installed here",
)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_for_gpu.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_kind_of_kernel_compiles_without_spilling_much(kernels):
    assert len(kernels) == 11
    for name, facts in kernels.items():
        assert facts["registers"] <= 255, name
        assert facts["stack"] <= 64, (name, facts["stack"])


def test_arithmetic_is_that_of_the_cpu(kernels):
    for name, facts in kernels.items():
        assert facts["fused"] == 0, name
        assert facts["flushing"] == 0, name
        assert set(facts["divisions"]) <= {"div.rn.f64"}, name
    assert kernels["merge plain"]["divisions"] == ["div.rn.f64"]


def test_memory_is_read_in_wide_loads_and_counted_by_relaxed_atomics(kernels):
    for name, facts in kernels.items():
        assert facts["wide_loads"] >= 2, name
    for agents in (1, 4, 6):
        assert kernels[f"count {agents}"]["atomics"] == ["atom.global.gpu.relaxed.add.u32"]
