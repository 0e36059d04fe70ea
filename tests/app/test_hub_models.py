"""Models on the Hub in the app: read there by byte ranges, not stored, and what follows."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from loopback_hub import LoopbackHub

from ram_studio.app.asking.limits import unavailable_suites
from ram_studio.app.load import work as load_work
from ram_studio.app.load.sources import Sources
from ram_studio.app.load.view import fit_html
from ram_studio.app.load.work import open_loaded
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.view import plan_html, plan_merge
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import load_set
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.read.checkpoint import DownloadProgress
from ram_studio.engine.events import CancelToken
from ram_studio.engine.microscope.view import Span, inspect
from ram_studio.engine.verify import verify
from ram_studio.errors import HubError

AGENTS = ("coding", "tool", "memory")


@pytest.fixture(autouse=True)
def published(hub: LoopbackHub) -> None:
    set_name = load_set("independent")
    hub.add("lab/base", Path(set_name.base))
    for name in AGENTS:
        hub.add(f"lab/{name}", Path(set_name.agents[name]))


def stored(folder: Path) -> list[Path]:
    return list((folder / "hf-home").rglob("*.safetensors"))


def analyze(events: list[object], *, download: bool = False) -> load_work.FreshAnalysis:
    sources = Sources("lab/base", {name: f"lab/{name}" for name in AGENTS})
    return load_work.analyze(
        sources, {}, Settings(), events.append, CancelToken(), download=download
    )


def test_public_ids_are_never_looked_up_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "secret").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    told = []
    for typed in ("own/secret", "own/nothing"):
        with pytest.raises(HubError) as refused:
            load_work.inspect_sources(Sources(typed, {}), {}, Settings(is_space=True))
        told.append(str(refused.value).replace(typed, "it"))
    assert told[0] == told[1]


def test_an_analysis_of_the_hub_stores_no_weights(hub, tmp_path) -> None:
    found = analyze([])
    set_name = load_set("independent")
    assert np.array_equal(found.analysis.counts.shared, set_name.analysis.counts.shared)
    session = Session("s", tmp_path / "session", loaded=found.as_loaded("models"))
    (tmp_path / "session").mkdir()
    said = fit_html(found.fit, found.analysis, is_public=False, merges=Path())
    assert "they were read there and not stored" in said
    commits = {name: hub.repositories[f"lab/{name}"].branches["main"] for name in ("base", *AGENTS)}
    assert session.models.base == f"lab/base@{commits['base']}", "later reads are of these files"
    assert session.models.agents == {name: f"lab/{name}@{commits[name]}" for name in AGENTS}
    assert f"lab/base@{commits['base'][:8]}," in said
    recipe = recipe_from(session.models, "ram+", {})
    plan = plan_merge(session.models, recipe, tmp_path)
    assert plan.remote == sum(c.nbytes for c in found.fit.checkpoints) > 0
    assert "from the Hub again" in plan_html(plan, recipe.method)
    assert unavailable_suites(session, Settings()), "asked of small files"
    report = open_loaded(session.models)
    before = len(hub.requests)
    inspect(report, report.counted[0], [Span(5, 3)], {"ram+": recipe})
    sizes = [wanted for _, path, wanted in hub.requests[before:] if path.endswith("safetensors")]
    spans = [tuple(map(int, str(span).removeprefix("bytes=").split("-"))) for span in sizes]
    assert all(last - first < 100_000 for first, last in spans)
    merged = merge_work(recipe, session, Settings())(lambda event: None, CancelToken())
    verify(merged.folder)
    assert not stored(tmp_path)
    # A Hub that goes after the count takes nothing away.
    hub.status = 404
    assert found.as_loaded("models").analysis is found.analysis


def test_a_users_token_is_not_kept_when_what_they_loaded_is_gone(hub: LoopbackHub) -> None:
    loaded = analyze([]).as_loaded("models")
    with rights.acting_as("hf_user"):
        opened = weakref.ref(open_loaded(loaded))
        assert open_loaded(loaded) is opened()
    assert "Bearer hf_user" in hub.tokens
    assert open_loaded(loaded) is not opened(), "nor used for who has none"
    del loaded
    gc.collect()
    assert opened() is None


def test_a_download_that_is_asked_for_is_done_and_told(tmp_path: Path) -> None:
    events: list[object] = []
    found = analyze(events, download=True)
    assert found.fit.is_local
    assert len(stored(tmp_path)) == 4
    assert found.as_loaded("x").remote_bytes == 0
    assert any(isinstance(event, DownloadProgress) for event in events)
