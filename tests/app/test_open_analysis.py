"""An analysis opened without models (file, upload, Hub), and what is not possible then."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub

from ram_studio.app.check.work import candidates
from ram_studio.app.load.analysis_panel import analysis_at, uploaded_analysis
from ram_studio.app.load.work import open_loaded
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import build_profile
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.errors import AnalysisError, HubError, RamStudioError, SettingsError
from ram_studio.resources import asset_path

PRIVATE, SPACE = Settings(), Settings(is_space=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the compact analysis of the example in it."""
    folder = tmp_path_factory.mktemp("repository")
    analysis = load_analysis(asset_path("independent", "analysis.safetensors"))
    save_analysis(analysis.compact(), folder / "my.analysis.safetensors")
    (folder / "README.md").write_text("An analysis.")
    return folder


def test_an_analysis_opens_from_a_repository(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    hub.add("lab/models", folder)
    hub.add("datasets/lab/data", folder)
    for name in ("lab/models", "lab/data"):
        loaded = analysis_at(name, SPACE)
        assert loaded.is_analysis_only
        assert loaded.analysis.agents == ("coding", "tool", "memory")
    assert [file for file, _ in hub.downloads()] == ["my.analysis.safetensors"] * 2
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"x")
    hub.add("lab/empty", tmp_path / "empty")
    with pytest.raises(HubError, match="Analysis files in lab/empty: none"):
        analysis_at("lab/empty", PRIVATE)
    with pytest.raises(HubError, match="is not on"):
        analysis_at("lab/nothing", PRIVATE)


@pytest.mark.parametrize("kind", ["", "datasets/"])
def test_a_gated_analysis_that_another_opened_stays_gated(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(rights, "_shared_advice", "sign in with Hugging Face")
    hub.add(f"{kind}lab/gated", folder, is_gated=True, readers=frozenset({"hf_reader"}))
    with rights.acting_as("hf_reader"):
        assert analysis_at("lab/gated", SPACE).is_analysis_only
    for token in (None, "hf_other"):
        with rights.acting_as(token), pytest.raises(HubError, match="is gated"):
            analysis_at("lab/gated", SPACE)


def test_a_public_app_looks_for_no_name_on_its_disk(
    hub: LoopbackHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab" / "models").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    hub.add("lab/models", folder)
    assert analysis_at("lab/models", SPACE).analysis.agents == ("coding", "tool", "memory")


def test_a_file_opens_in_a_private_app_only(folder: Path) -> None:
    file = folder / "my.analysis.safetensors"
    assert analysis_at(str(file), PRIVATE).title == "my.analysis.safetensors"
    with pytest.raises(SettingsError, match="not a Hub id"):
        analysis_at(str(file), SPACE)
    with pytest.raises(SettingsError, match="Name an analysis"):
        analysis_at("  ", PRIVATE)


def test_public_uploads_are_compact_analyses_only(folder: Path, tmp_path: Path) -> None:
    assert uploaded_analysis(str(folder / "my.analysis.safetensors"), SPACE).is_analysis_only
    whole = asset_path("independent", "analysis.safetensors")
    assert uploaded_analysis(str(whole), PRIVATE).is_analysis_only
    with pytest.raises(RamStudioError, match="only compact analyses are opened") as caught:
        uploaded_analysis(str(whole), SPACE)
    assert str(whole.parent) not in str(caught.value), "no place of this machine"
    (tmp_path / "large.safetensors").write_bytes(bytes(4_000_001))
    with pytest.raises(RamStudioError, match=r"larger than 4\.00 MB"):
        uploaded_analysis(str(tmp_path / "large.safetensors"), SPACE)


def test_made_up_names_are_refused(tmp_path: Path) -> None:
    analysis = load_analysis(asset_path("independent", "analysis.safetensors"))
    for change in ({"agents": ("a/b", "c", "d")}, {"warnings": ("line\nbreak",)}):
        file = save_analysis(replace(analysis, **change), tmp_path / "analysis")
        with pytest.raises(AnalysisError, match="damaged or invalid"):
            analysis_at(str(file), PRIVATE)


def test_what_needs_models_says_so(folder: Path, tmp_path: Path) -> None:
    loaded = analysis_at(str(folder / "my.analysis.safetensors"), PRIVATE)
    with pytest.raises(SettingsError, match="need the models themselves"):
        open_loaded(loaded)
    session = Session("key", tmp_path)
    session.load(loaded)
    assert candidates(session) == {}
    assert json.dumps(build_profile(loaded.analysis))
