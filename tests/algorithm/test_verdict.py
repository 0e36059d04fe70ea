"""The verdict: the cases of one table, which JavaScript is held to as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from verdict_table import analysis_of, cases, settings_of

from ram_studio.algorithm.verdict import Key, verdict


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_verdict_is_that_of_the_table(case: dict[str, Any], tmp_path: Path) -> None:
    found = verdict(analysis_of(case, tmp_path), **settings_of(case))
    assert found.text == case["text"]
    assert (found.key, found.tone) == (case["key"], case["tone"])


def test_every_verdict_is_in_the_table() -> None:
    assert {case["key"] for case in cases()} == set(get_args(Key)) - {"unknown"}


def test_verdict_is_unknown_without_relations(tmp_path: Path) -> None:
    case = cases()[0]
    found = verdict(analysis_of(case, tmp_path, relations=False))
    assert found.key == "unknown"
    assert found.text.endswith("analyze the models again, with relations.")
