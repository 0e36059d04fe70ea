"""What a merge would keep, without a merge: the same as a merge measures."""

from __future__ import annotations

import pytest

from ram_studio.engine.analyse import load
from ram_studio.engine.in_memory import preview_kept
from ram_studio.engine.merge import merge
from ram_studio.resources import asset_path

AGENTS = ("coding", "tool", "memory")


@pytest.mark.parametrize("method", ["ties", "ram+"])
def test_the_preview_is_what_a_float32_merge_measures(tmp_path, method: str) -> None:
    sources = {name: str(asset_path("example", name)) for name in AGENTS}
    report = load(str(asset_path("example", "base")), sources)
    found = preview_kept(report, method, {}, device="cpu")
    from ram_studio.engine.job import recipe_of

    made = merge(recipe_of(report, method, {}, dtype="float32"), tmp_path / "out", device="cpu")
    assert {name: vars(kept) for name, kept in found.items()} == {
        name: pytest.approx(vars(kept), abs=1e-12) for name, kept in made.kept.items()
    }
    assert 0.8 < found["tool"].kept < 1.2
