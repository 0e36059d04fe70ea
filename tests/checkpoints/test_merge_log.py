"""The list of merges made: what was kept comes back; nothing that happens to it is a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_zoo import small_tensors, write_checkpoint

from ram_studio.engine.merge_log import (
    MERGE_LOG_FILE,
    PastMerge,
    past_merges,
    remember_merge,
)
from ram_studio.errors import OutputError

RECIPE = "base: b\nagents: {a: x}\nmethod: ram\nsettings: {epsilon: 1.0e-05}\n"

NUMBERS = {"rho": None, "lambda": 1.0, "effective_lambda": 1.0}
NUMBERS |= {"retained": {"total": 0.9}, "interference": 2.0, "interference_rounding": 0.1}


def remember(tmp_path: Path, store: Path, name: str = "m", recipe: str = RECIPE) -> list[PastMerge]:
    out = write_checkpoint(tmp_path / name, small_tensors())
    numbers = {**NUMBERS, "further": 0.5}
    result = {"out": str(out), "method": "ram", "agents": {"a": numbers}}
    result |= {"seconds": 0.5, "bytes_written": 296}
    remember_merge(store, result, recipe, name=name, title="a", set_name="dense")
    return past_merges(store)


def test_what_was_merged_comes_back_newest_first(tmp_path):
    store = tmp_path / "deep" / "home"
    assert past_merges(store) == []
    remember(tmp_path, store, "first")
    second, first = remember(tmp_path, store, "second")
    assert (first.name, first.title, first.set_name) == ("first", "a", "dense")
    assert (first.method, first.seconds, first.nbytes) == ("ram", 0.5, 296)
    assert first.settings == {"epsilon": 1e-5}
    assert first.agents == {"a": NUMBERS}
    assert first.folder == str(tmp_path / "first")
    assert (second.fingerprint, second.id != first.id) == (first.fingerprint, True)


def test_the_fingerprint_covers_what_shapes_an_answer(tmp_path):
    store, out = tmp_path / "home", tmp_path / "m"
    (old,) = remember(tmp_path, store)
    (out / "notes.txt").write_text("no part of it")
    same, _ = remember(tmp_path, store)
    (out / "chat_template.jinja").write_text("{{ messages }}")
    other, _, _ = remember(tmp_path, store)
    assert old.fingerprint == same.fingerprint != other.fingerprint


def test_a_damaged_line_is_left_out(tmp_path, caplog):
    remember(tmp_path, tmp_path)
    path = tmp_path / MERGE_LOG_FILE
    line = path.read_bytes()
    no_recipe = json.dumps(json.loads(line) | {"recipe": None}).encode()
    damaged = (line.replace(b'"base": "b"', b'"base'), b'{"id": \xff', b"[1]", no_recipe)
    path.write_bytes(b"\n".join([line.rstrip(), *damaged, b""]))
    assert [m.name for m in remember(tmp_path, tmp_path)] == ["m", "m"]
    assert "cannot be read" in caplog.text


def test_an_unwritable_list_is_no_failure_an_unreadable_one_is(tmp_path, caplog):
    (tmp_path / MERGE_LOG_FILE).mkdir()
    with pytest.raises(OutputError, match="cannot be read"):
        remember(tmp_path, tmp_path)
    assert "could not be written" in caplog.text


def test_a_recipe_with_aliases_is_logged_not_listed(tmp_path, caplog):
    for recipe in ("agents: &a {x: y}\nsettings: *a\n", "base: {"):
        assert remember(tmp_path, tmp_path, recipe=recipe) == []
    assert caplog.text.count("could not be written") == 2
    assert "aliases are not allowed" in caplog.text
