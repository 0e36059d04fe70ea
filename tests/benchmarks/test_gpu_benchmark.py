"""The GPU benchmark measures what it says, and says so where there is no GPU."""

from __future__ import annotations

import gpu
import pytest
import torch
import zoo


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    gpu.main()
    assert capsys.readouterr().out == (
        "No CUDA device here: nothing was measured. Run this on a machine with a GPU.\n"
    )


def test_its_parts_run_on_the_cpu_in_place_of_a_gpu(tmp_path):
    floor, row = gpu.copy_row("cpu", 1)
    assert (floor > 0, row[0]) == (True, "memory: copy")
    rows = list(gpu.resident_rows("cpu", 3, 5000, 1, 1 << 20, floor))
    assert [row[0].split(":")[0] for row in rows] == ["resident"] * 3
    assert all(float(row[2]) > 0 for row in rows)
    models = zoo.make_zoo(tmp_path / "zoo", "tiny", 3)
    streamed = list(gpu.streamed_rows(models, 3, "torch", 1, tmp_path / "out"))
    assert [row[4] != "-" for row in streamed] == [False, *[True] * 5]
    assert not (tmp_path / "out").exists()


def test_seven_billion_elements_have_the_shapes_of_their_model():
    every = dict(gpu.tensors_of(gpu.SEVEN_B, 10**10))
    assert sum(torch.Size(shape).numel() for shape in every.values()) == 7_615_616_512
    few = [block.n for block in gpu.blocks_like(gpu.SEVEN_B, 2, 5000, 1 << 20)]
    assert few == [3584, 512, 512]


def test_tensors_larger_than_a_block_come_in_many():
    blocks = gpu.blocks_like(gpu.SEVEN_B, 2, 600_000_000, 1 << 24)
    assert max(block.n for block in blocks) == 1 << 24
    assert sum(block.n for block in blocks if block.tensor_index == 0) == 152064 * 3584
