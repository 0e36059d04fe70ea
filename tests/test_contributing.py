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

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

_ENTRY = re.search(r"Figure\(alone, [^`]*\)", GUIDE)[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package with the method, the suite and the chart of the guide in it."""
    root = tmp_path_factory.mktemp("contributed")
    # With the compiled loops: their sources keep their times, which is what numba looks at.
    shutil.copytree(ROOT / "ram_studio", root / "ram_studio")
    (root / "assets").symlink_to(asset_path("example").parent)
    files = dict(re.findall(r"`(ram_studio/\S+\.py)`[^`]*?```python\n(.*?)```", GUIDE, flags=re.S))
    assert len(files) == 3
    for name, text in files.items():
        assert not (root / name).exists()
        (root / name).write_text(text, encoding="utf-8")
    methods, suites, details = (
        "algorithm/methods/__init__.py",
        "evals/suites/__init__.py",
        "app/details/panel.py",
    )
    _insert(root, methods, "METHODS: ", "from ram_studio.algorithm.methods.largest import LARGEST")
    _insert(root, methods, "        REGION,\n", "        LARGEST,")
    _insert(root, suites, "_GENERAL = ", "from ram_studio.evals.suites import backwards")
    _replace(root, suites, "_GENERAL = (", "_GENERAL = (backwards, ")
    _insert(root, details, "class Figure", "from ram_studio.app.details.alone_chart import alone")
    _replace(root, details, "FIGURES = {", f'FIGURES = {{"alone": {_ENTRY},')
    return root


def _replace(root, name, old, new):
    path = root / "ram_studio" / name
    before, found, after = path.read_text(encoding="utf-8").partition(old)
    assert found, f"{old!r} is not in {name} any more; CONTRIBUTING.md may be out of date"
    path.write_text(before + new + after, encoding="utf-8")


def _insert(root, name, before, line):
    _replace(root, name, before, f"{line}\n{before}")


def _run(root, *words):
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_method_of_one_file_merges_verifies_and_is_offered(copy):
    sources = ["--base", str(asset_path("example", "base"))]
    sources += ["--agent", f"coding={asset_path('example', 'coding')}"]
    sources += ["--agent", f"tool={asset_path('example', 'tool')}"]
    command = ["-m", "ram_studio", "merge", *sources, "--method", "largest", "--set", "scale=0.5"]
    merged = json.loads(_run(copy, *command, "--out", "merged", "--json"))
    assert merged["method"] == "largest"
    verified = json.loads(
        _run(copy, "-m", "ram_studio", "verify", "merged", "--sources", "--full", "--json")
    )
    assert verified["match"] is True


def test_a_suite_of_one_file_is_asked_and_stored(copy):
    model = str(asset_path("example", "base"))
    command = ["-m", "ram_studio", "evaluate", model, "--suite", "backwards", "--limit", "3"]
    report = json.loads(_run(copy, *command, "--store", "answers.sqlite", "--json"))
    ((_, row),) = report["models"].items()
    assert row["domains"]["backwards"]["n"] == 3
    assert '"suite": "backwards"' in _run(
        copy, "-m", "ram_studio", "history", "--store", "answers.sqlite", "--json"
    )


def test_a_chart_of_one_file_is_drawn(copy):
    code = "import ram_studio as rs; from ram_studio.app.details.panel import FIGURES\n"
    code += "sketch = rs.load_sketch(rs.asset_path('example', 'sketch.safetensors'))\n"
    code += "print(len(FIGURES['alone'].draw(sketch, 20, False).data[0].y))"
    assert _run(copy, "-c", code).strip() == "3"
