"""The canvas as one HTML file that works from a disk, in a mail, or as a static Space.

It contains the page's own modules, styles and colors, one analysis, and its measured answers.
Modules import one another by name through an import map of data: addresses, because a file may
import no other file. A policy in the page itself forbids every request.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from ram_studio._version import __version__
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import RULES
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.checkpoints.record.filters import choices_text
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.checkpoints.write.output_folder import absolute, write_whole
from ram_studio.errors import EvaluationError, OutputError, raise_as
from ram_studio.evals.report.colors import SHAPE_PATHS, css_variables
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path, asset_text, templates

ENTRY = "exported.js"
STYLE = "canvas.css"
ANALYSIS_FILE = "analysis.safetensors"
TABLE_FILE = "skills.json.gz"
PAGE_FILE = "index.html"
SETS = ("shared-style", "independent", "dense", "real")
"""Shipped sets; their folders under assets/ have the same names."""

SHOWN = (*RULES, "task-arithmetic", "ties", "dare-ta", "dare-ties", "tsv-m", "iso-c", "wudi")
"""Methods that the canvas shows, by the names in assets/canvas/model/methods.js and recipes."""

RANGES: Mapping[str, float] = {
    "epsilon": EPSILON_GRID[-1],
    "r": 1.0,
    "alpha": 10.0,
    "scale": 10.0,
    "density": 1.0,
    "drop_rate": 0.99,
}
"""Numbers among a method's settings, each from 0 to the canvas's maximum."""

FIXED = {"solver": "closed"}
"""The canvas's value of a setting without a dial, where it is not the default."""

_IMPORT = re.compile(r'(\b(?:import|from)\s*)"(\.{1,2}/[^"]+)"')


@cache
def modules(entry: str = ENTRY) -> Mapping[str, str]:
    """Return an entry's modules, by path under assets/, with imports by bare names."""
    found: dict[str, str] = {}
    wanted = [entry]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        folder = PurePosixPath(name).parent

        def bare(match: re.Match[str], folder: PurePosixPath = folder) -> str:
            path = normpath(f"{folder}/{match[2]}")
            wanted.append(path)
            return f'{match[1]}"ram/{path}"'

        found[name] = _IMPORT.sub(bare, asset_text(name))
    return found


def canvas_page(
    data: Mapping[str, Any] | None,
    *,
    entry: str = ENTRY,
    style: str = "",
    more: str = "",
    note: str = "",
) -> str:
    """Return the page.

    data: see ``canvas_data``; None leaves a placeholder for the app. entry: the first module.
    style, more: further styles, and HTML after the stage. note: a sentence above it.
    """
    imports = {
        f"ram/{name}": f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
        for name, text in modules(entry).items()
    }
    page = templates(Path(__file__).parent).get_template("canvas_page.html.j2")
    return page.render(
        style=f"{css_variables()}\n{asset_text(STYLE)}\n{style}",
        imports=_script_json({"imports": imports}),
        shapes=_script_json(SHAPE_PATHS),
        data=_script_json(data),
        entry=f"ram/{entry}",
        more=more,
        note=note,
        version=__version__,
    )


def can_show(method: str, settings: Mapping[str, Any]) -> bool:
    """Return whether the canvas shows a merge: settings without a dial have its values."""
    if method not in SHOWN:
        return False
    usual = {n: field.default for n, field in METHODS[method].settings.model_fields.items()}
    shown = {name: FIXED.get(name, value) for name, value in usual.items()}
    return all(n in RANGES or v == shown.get(n) for n, v in {**usual, **settings}.items())


def canvas_settings(recipe: Recipe) -> tuple[dict[str, Any], str]:
    """Return a merge's settings for the canvas, and a sentence on those that it cannot show.

    recipe: possibly untrusted, with any settings.
    """
    hidden = [f"{n} {t}" for n, t in choices_text(recipe.model_dump()).items() if n != "weights"]
    found: dict[str, Any] = {}
    if recipe.method in SHOWN:
        found = {"method": recipe.method, "weights": recipe.weights}
        usual = METHODS[recipe.method].settings.model_fields
        for name, value in recipe.settings.items():
            shown: Any = FIXED.get(name, usual[name].default if name in usual else None)
            if name in RANGES and isinstance(value, (int, float)):
                found[name] = shown = max(0.0, min(value, RANGES[name]))
                if name == "epsilon":
                    found["point"] = snap(found.pop(name))
                    point = EPSILON_GRID[found["point"]]
                    # A grid point is a bin's edge, up to 0.3 % off the round number.
                    shown = shown if math.isclose(point, shown, rel_tol=5e-3) else point
            if shown != value:
                hidden.append(f"{name.replace('_', ' ')} {value}")
    else:
        hidden.insert(0, f"method {recipe.method} (it opens with RAM+)")
    hidden_text = printable("; ".join(hidden), 400)
    return (
        found,
        f"The canvas cannot show this part of the recipe: {hidden_text}." if hidden else "",
    )


def _script_json(value: Any) -> str:
    """Return JSON that cannot end the script element around it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def canvas_data(source: str) -> dict[str, Any]:
    """Return a page's data: {"title", "profile", "table": skills or None}.

    source: an analysis file, a folder with one (``analysis.safetensors``, and ``skills.json.gz`` if
    it was measured), or the name of a shipped set.

    Raises: EvaluationError for anything else; AnalysisError for a damaged analysis.
    """
    path = Path(os.path.expanduser(source))
    if source in SETS and not path.exists():
        path = asset_path(source)
    analysis_file = path / ANALYSIS_FILE if path.is_dir() else path
    if not analysis_file.is_file():
        raise EvaluationError(
            f"{printable(path)} is not an analysis, a folder with {ANALYSIS_FILE} or a shipped "
            f"set ({', '.join(SETS)}). Make an analysis with ram-studio analyze."
        )
    analysis = load_analysis(analysis_file)
    table_file = path / TABLE_FILE
    table = load_table(table_file) if path.is_dir() and table_file.is_file() else None
    return {
        "title": ", ".join(analysis.agents),
        "profile": client_profile(analysis),
        "table": table,
    }


_SPACE = """\
---
title: {title}
emoji: 🧭
colorFrom: blue
colorTo: yellow
sdk: static
pinned: false
---

{about}
"""


def space_readme(title: str, about: str) -> str:
    """Return the README of a static Space, with the title as its front matter takes it."""
    return _SPACE.format(title=json.dumps(title, ensure_ascii=False), about=about)


def export_canvas(source: str, out: str | Path) -> Path:
    """Write the page of a source (see ``canvas_data``) and return its path.

    out: a file that ends in .html; else a folder, which gets ``index.html`` and the README of a
    static Space.

    Raises: as ``canvas_data``; OutputError when it cannot be written or the folder holds other
    files of these names.
    """
    data, target = canvas_data(source), absolute(out)
    files = {target: canvas_page(data)}
    if target.suffix.lower() not in (".html", ".htm"):
        about = (
            f"What a merge of {data['title']} does to each agent's update, at every setting: one "
            f"page that sends no\nrequests, made by RAM Studio {__version__} (Reinforced Agent "
            "Merging, arXiv 2601.13572)."
        )
        readme = space_readme(f"RAM Studio: {data['title']}", about)
        files = {target / PAGE_FILE: files[target], target / "README.md": readme}
        existing = [file.name for file in files if file.exists()]
        if existing:
            raise OutputError(
                f"{printable(target)} already has {' and '.join(existing)}. Choose another folder, "
                "or remove them."
            )
    what = f"The page cannot be written to {printable(target)}"
    with raise_as(OutputError, what, "check that the folder is writable"):
        for file, text in files.items():
            write_whole(file, text.encode())
    return next(iter(files))
