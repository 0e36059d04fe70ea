"""The GPU benchmark measures what it says, and says so where there is no GPU."""

from __future__ import annotations

import subprocess
import sys

import gpu
import measuring
import pytest
import torch
import zoo


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, measuring.ROOT / "benchmarks" / "gpu.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "No CUDA device here: nothing was measured. Run this on a machine with a GPU.\n"
    )


def test_its_parts_run_on_the_cpu_in_place_of_a_gpu(tmp_path):
    rows = gpu.resident_rows("cpu", 3, 5000, 1)
    assert [row[0].split(":")[0] for row in rows] == ["memory", *["resident"] * 3]
    assert all(float(row[2]) > 0 for row in rows[1:])
    models = zoo.make_zoo(tmp_path / "zoo", "tiny", 3)
    streamed = gpu.streamed_rows(models, 3, "torch", 1, tmp_path / "out")
    assert [row[4] != "-" for row in streamed] == [False, *[True] * 5]
    assert not (tmp_path / "out").exists()


def test_seven_billion_elements_have_the_shapes_of_their_model():
    every = dict(gpu.tensors_of(gpu.SEVEN_B, 10**10))
    assert sum(torch.Size(shape).numel() for shape in every.values()) == 7_615_616_512
    few = [block.n for block in gpu.blocks_like(gpu.SEVEN_B, 2, 5000)]
    assert few == [3584, 512, 512]
