"""Imports point one way, and the core stays light.

    errors <- algorithm <- checkpoints <- engine <- evals <- cli | app

`_version`, `resources` and `errors` serve everybody; `demo` trains the example agents and may use
everything but `cli` and `app`. Gradio is imported under `app/` and in `app.py` only. Imports are
read from the syntax trees, those inside functions too, so a lazy import cannot hide an arrow or a
circle. Files, rooms and signatures stay small enough to be read.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ram_studio"

SHARED = frozenset({"_version", "resources", "errors"})
TOWER = ("algorithm", "checkpoints", "engine", "evals")
ALLOWED: dict[str, frozenset[str]] = {
    "_version": frozenset(),
    "errors": frozenset(),
    "resources": frozenset({"errors"}),
    **{layer: SHARED | frozenset(TOWER[: height + 1]) for height, layer in enumerate(TOWER)},
    "demo": SHARED | frozenset(TOWER) | {"demo"},
    "cli": SHARED | frozenset(TOWER) | {"__init__", "cli"},
    "app": SHARED | frozenset(TOWER) | {"__init__", "app"},
    # The package's front and `python -m ram_studio`.
    "__init__": SHARED | frozenset(TOWER),
    "__main__": SHARED | {"cli"},
}
"""Layer -> the layers it may import."""

MAX_LINES = 400
LONGER = {"ram_studio.algorithm.kernels.loops": "numba keeps code until this one file changes"}
MAX_PARAMETERS = 8
MAX_ROOM = 12
HEAVY = ("torch", "gradio", "transformers", "plotly", "pandas", "scipy", "statsmodels", "optuna")


@dataclass(frozen=True)
class Import:
    """One imported module: its dotted name, where, and whether importing the file imports it."""

    module: str
    line: int
    at_import_time: bool


def read_imports(source: str, module: str, is_package: bool) -> list[Import]:
    """Return every import in a module's source, with relative ones made absolute."""
    found: list[Import] = []

    def visit(node: ast.AST, at_import_time: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(a.name, node.lineno, at_import_time) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package)
            # `from ram_studio import engine` names a layer only in its second half.
            found.extend(
                Import(f"{base}.{a.name}", node.lineno, at_import_time) for a in node.names
            )
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        type_checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, at_import_time and not inner and not type_checking)

    visit(ast.parse(source), True)
    return found


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    keep = len(parts) - node.level + is_package
    return ".".join(parts[:keep] + ([node.module] if node.module else []))


def layer_of(module: str) -> str:
    """Return the layer of a module inside the package: the name after `ram_studio.`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def arrow_faults(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return one line per import that a module of this name must not have."""
    layer = layer_of(module)
    if layer not in ALLOWED:
        return [f"{module}: `{layer}` has no place in the layers; give it one in this test"]
    faults = []
    for found in read_imports(source, module, is_package):
        parts = found.module.split(".")
        if parts[0] == "gradio" and layer != "app":
            faults.append(f"{module}:{found.line} imports gradio outside app/")
        if parts[0] != "ram_studio":
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if target not in ALLOWED:  # a name that the package itself exports
            target = "__init__"
        # `ram-studio app` may start the app from within its function.
        is_app_command = (layer, target) == ("cli", "app") and not found.at_import_time
        is_version = target == "__init__" and parts[-1] == "__version__"
        if target not in ALLOWED[layer] and not is_app_command and not is_version:
            faults.append(f"{module}:{found.line} imports {found.module}: `{layer}` -> `{target}`")
    return faults


def package_modules() -> list[tuple[Path, str, bool]]:
    """Return (path, dotted name, is a package's __init__) of every module in the package."""
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        modules.append((path, ".".join(parts[:-1] if is_package else parts), is_package))
    return modules


def test_imports_point_down_the_layers() -> None:
    faults = [
        fault
        for path, module, is_package in package_modules()
        for fault in arrow_faults(path.read_text(encoding="utf-8"), module, is_package)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ram_studio.algorithm.ladder", "from ram_studio.engine.events import Progress"),
        ("ram_studio.algorithm.ladder", "def f():\n    import ram_studio.checkpoints.read.header"),
        ("ram_studio.algorithm.ladder", "from ram_studio import checkpoints"),
        ("ram_studio.algorithm.ladder", "from ..checkpoints import header"),
        ("ram_studio.algorithm.methods.ram", "from ...engine import merge"),
        ("ram_studio.checkpoints.read.header", "from ram_studio.evals import evaluate"),
        ("ram_studio.engine.merge", "from ram_studio.demo import build"),
        ("ram_studio.evals.suites.demo.tasks", "import ram_studio.cli"),
        ("ram_studio.demo.build", "from ram_studio.app import build"),
        ("ram_studio.app.page", "def f():\n    from ram_studio.cli import main"),
        ("ram_studio.cli.main", "from ram_studio.app import build"),
        ("ram_studio.errors", "from ram_studio.resources import asset_path"),
        ("ram_studio.engine.merge", "def f():\n    import gradio as gr"),
        ("ram_studio.cli.main", "from gradio import Blocks"),
        ("ram_studio.utils", ""),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str) -> None:
    assert arrow_faults(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ram_studio.engine.merge", "from ram_studio.algorithm.methods import get_method"),
        ("ram_studio.cli.app_command", "def app():\n    from ram_studio.app import launch"),
        ("ram_studio.app.page", "import gradio as gr\nfrom ram_studio.engine import merge"),
        ("ram_studio.checkpoints.record.passport", "from ram_studio import __version__"),
        ("ram_studio.algorithm.methods.ram", "from .base import Method\nfrom ..ladder import snap"),
    ],
)
def test_a_right_arrow_passes(module: str, source: str) -> None:
    assert not arrow_faults(source, module)


def imports_among(sources: dict[str, str], packages: Collection[str] = ()) -> dict[str, set[str]]:
    """Return which of these modules each imports, at import time or later.

    sources: text by dotted name. packages: those names that are a package's `__init__`.
    """
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = (i.module for i in read_imports(source, module, module in packages))
        # `from a.b import c`: c may be a module, or a name in the module a.b.
        homes = {name if name in sources else name.rpartition(".")[0] for name in names}
        found[module] = homes & (sources.keys() - {module})
    return found


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Return modules each of which imports the next, the last being the first; or none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_no_imports_go_in_a_circle() -> None:
    modules = package_modules()
    # The package's front only points, for type checkers, at what it fetches when it is asked.
    sources = {m: p.read_text(encoding="utf-8") for p, m, _ in modules if m != "ram_studio"}
    imports = imports_among(sources, {m for _, m, is_package in modules if is_package})
    assert not circle_in(imports), " -> ".join(circle_in(imports))


def test_a_circle_is_found_wherever_its_imports_stand() -> None:
    sources = {
        "p": "",
        "p.a": "from p import b",
        "p.b": "def later():\n    from p.c import name",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a",
    }
    circle = circle_in(imports_among(sources, {"p"}))
    assert set(circle) == {"p.a", "p.b", "p.c"}
    assert (circle[0], len(circle)) == (circle[-1], 4)
    assert circle_in(imports_among({**sources, "p.c": "import p"}, {"p"})) == []


def size_faults(source: str, module: str) -> list[str]:
    """Return one line for a file that is too long, and per function that takes too much."""
    lines = len(source.splitlines())
    is_long = lines > MAX_LINES and module not in LONGER
    faults = [f"{module} has {lines} lines, more than {MAX_LINES}"] if is_long else []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # The options of a command and the fields of an endpoint are its parameters.
        is_outside = layer_of(module) == "cli" or module.startswith("ram_studio.app.api.")
        is_command = is_outside and not node.name.startswith("_")
        taken = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
        if taken > MAX_PARAMETERS and not is_command:
            faults.append(f"{module}: {node.name} takes {taken}, more than {MAX_PARAMETERS}")
    return faults


def test_files_and_signatures_stay_short() -> None:
    faults = [
        fault
        for path, module, _ in package_modules()
        for fault in size_faults(path.read_text(encoding="utf-8"), module)
    ]
    assert not faults, "\n".join(faults)


def test_a_long_file_and_a_wide_signature_are_found() -> None:
    wide = "def f({}): pass".format(", ".join(f"a{i}" for i in range(MAX_PARAMETERS + 1)))
    assert len(size_faults(wide, "ram_studio.cli.main")) == 0
    assert len(size_faults(wide.replace("f(", "_f("), "ram_studio.cli.main")) == 1
    assert len(size_faults(wide.replace(", a3", ", *, a3"), "ram_studio.engine.merge")) == 1
    assert len(size_faults(wide.replace(", a8", ""), "ram_studio.engine.merge")) == 0
    assert len(size_faults("\n" * MAX_LINES, "ram_studio.engine.merge")) == 0
    assert len(size_faults("\n" * (MAX_LINES + 1), "ram_studio.engine.merge")) == 1
    assert len(size_faults("\n" * (MAX_LINES + 1), next(iter(LONGER)))) == 0


def test_rooms_stay_small() -> None:
    rooms = Counter(path.parent for path, _, is_package in package_modules() if not is_package)
    crowded = {str(r.relative_to(ROOT)): n for r, n in rooms.items() if n > MAX_ROOM}
    assert not crowded, f"part these rooms (over {MAX_ROOM} files): {crowded}"


def heavy_imports(code: str) -> list[str]:
    """Return which heavy packages a fresh interpreter has imported after running the code."""
    report = f"\nimport sys; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LIGHT = (
    "ram_studio",
    "ram_studio.algorithm.sketch",
    "ram_studio.algorithm.methods",
    "ram_studio.checkpoints.read.checkpoint",
    "ram_studio.checkpoints.hub.inspect",
    "ram_studio.engine.analyse",
    "ram_studio.engine.merge",
    "ram_studio.engine.verify",
    "ram_studio.evals",
    "ram_studio.evals.answering",
    "ram_studio.evals.report.export",
    "ram_studio.evals.store.history",
    "ram_studio.evals.experiment.run",
    "ram_studio.cli.main",
    "ram_studio.app.settings",
)


def test_the_core_imports_no_heavy_package() -> None:
    assert heavy_imports("\n".join(f"import {module}" for module in LIGHT)) == []


def test_the_heavy_import_check_can_fail() -> None:
    found = heavy_imports("import plotly, ram_studio.algorithm.kernels.torch")
    assert {"plotly", "torch"} <= set(found)
