"""What CONTRIBUTING.md says is done to a copy of the package, and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ram_studio.resources import asset_path

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

_ENTRY = re.search(r"Figure\(alone, [^`]*\)", GUIDE)[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package with the method, the suite and the chart of the guide in it."""
    root = tmp_path_factory.mktemp("contributed")
    # With the compiled loops: their sources keep their times, which is what numba looks at.
    shutil.copytree(ROOT / "ram_studio", root / "ram_studio")
    (root / "assets").symlink_to(asset_path("independent").parent)
    files = dict(re.findall(r"`(ram_studio/\S+\.py)`[^`]*?```python\n(.*?)```", GUIDE, flags=re.S))
    assert len(files) == 3
    for name, text in files.items():
        assert not (root / name).exists()
        (root / name).write_text(text, encoding="utf-8")
    methods, suites, details = (
        "algorithm/methods/__init__.py",
        "evals/suites/__init__.py",
        "algorithm/figures/catalog.py",
    )
    _insert(root, methods, "METHODS: ", "from ram_studio.algorithm.methods.largest import LARGEST")
    _insert(root, methods, "        REGION,\n", "        LARGEST,")
    _insert(root, suites, "_GENERAL = ", "from ram_studio.evals.suites import backwards")
    _replace(root, suites, "_GENERAL = (", "_GENERAL = (backwards.SUITE, ")
    _insert(
        root, details, "class Figure", "from ram_studio.algorithm.figures.alone_chart import alone"
    )
    _replace(root, details, "FIGURES = {", f'FIGURES = {{"alone": {_ENTRY},')
    return root


def _replace(root, name, old, new):
    path = root / "ram_studio" / name
    before, found, after = path.read_text(encoding="utf-8").partition(old)
    assert found, f"{old!r} is not in {name} any more; CONTRIBUTING.md may be out of date"
    path.write_text(before + new + after, encoding="utf-8")


def _insert(root, name, before, line):
    _replace(root, name, before, f"{line}\n{before}")


# Everything in one process of the copy: each would import torch anew.
SCRIPT = """
import json, sys
import ram_studio as rs
from typer.testing import CliRunner
from ram_studio.algorithm.figures.catalog import FIGURES
from ram_studio.cli.main import commands

def run(*words):
    done = CliRunner().invoke(commands, [*words, "--json"])
    assert done.exit_code == 0, (words, done.output)
    return json.loads(done.stdout)

example = rs.asset_path("independent")
sources = [f"--base={example / 'base'}"]
sources += [f"--agent={name}={example / name}" for name in ("coding", "tool")]
store = "--store=answers.sqlite"
analysis = rs.load_analysis(example / "analysis.safetensors")
told = {
    "merge": run("merge", *sources, "--method=largest", "--set=scale=0.5", "--out=merged"),
    "verify": run("verify", "merged", "--sources", "--full"),
    "evaluate": run("evaluate", str(example / "base"), "--suite=backwards", "--limit=3", store),
    "history": run("history", store),
    "bars": len(FIGURES["alone"].draw(analysis, 20, False).data[0].y),
    "file": rs.__file__,
}
print(json.dumps(told))
"""


def test_a_method_a_suite_and_a_chart_of_one_file_each_work(copy):
    path = os.pathsep.join([str(copy), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert Path(told["file"]).is_relative_to(copy)
    assert told["merge"]["method"] == "largest"
    assert told["verify"]["match"] is True
    ((_, row),) = told["evaluate"]["models"].items()
    assert row["domains"]["backwards"]["n"] == 3
    assert "backwards" in [run["suite"] for run in told["history"]]
    assert told["bars"] == 3
