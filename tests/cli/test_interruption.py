"""Stopping and killing a merge in a process of its own."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest


def _wait_for_partial(folder: Path, process) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(".merged.partial-*/*.partial")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_merge_killed_midway_leaves_nothing_that_loads_and_a_second_run_completes(
    start, big_zoo, tmp_path
):
    merge = ("merge", *big_zoo, "--out", tmp_path / "merged", "--json", "--threads", "1")
    process = start(*merge)
    _wait_for_partial(tmp_path, process)
    process.kill()
    process.communicate()
    assert not (tmp_path / "merged").exists()
    for left in tmp_path.glob(".merged.partial-*"):
        if left.is_dir():
            assert not list(left.glob("*.safetensors"))
            assert not (left / "config.json").exists()
    again = start(*merge)
    _, err = again.communicate()
    assert again.returncode == 0, err
    assert (tmp_path / "merged" / "model.safetensors").exists()
    assert not list(tmp_path.glob(".merged.partial-*"))


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_merge_exits_with_130_and_leaves_nothing(start, big_zoo, tmp_path, signal_number):
    process = start("merge", *big_zoo, "--out", tmp_path / "merged", "--threads", "1")
    _wait_for_partial(tmp_path, process)
    process.send_signal(signal_number)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == "ram-studio: Stopped as asked; nothing was left behind.\n"
    assert not (tmp_path / "merged").exists()
    assert not list(tmp_path.glob(".merged.partial-*"))
