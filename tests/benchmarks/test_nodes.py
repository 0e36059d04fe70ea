"""The table of many machines is what its script computes."""

from __future__ import annotations

from pathlib import Path

import nodes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "many_machines.md"


def test_the_page_shows_what_the_script_computes():
    assert nodes.table() in PAGE.read_text(encoding="utf-8")


def test_the_slowest_resource_decides():
    slow = nodes.Cluster(cores=1, read=100.0, write=100.0, shared_read=1000.0, shared_write=1000.0)
    assert nodes.steps(8e9, 1, slow)["analyze"][1] == "cores"
    seconds, bound = nodes.steps(8e9, 1, nodes.Cluster())["finish"]
    assert (seconds, bound) == (16 / 2 + nodes.START_SECONDS, "reading")
