"""The stage on a page of its own, without the app, and what shipped tables hold of it."""

from __future__ import annotations

from functools import cache
from typing import Any

from app_parts import run

from ram_studio.app.session.sets import build_profile
from ram_studio.app.templates import render
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path

LEARNED = ("code", "tool", "memory")
_FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => done())))"""

# The sets are given once: their text is large.
_MOUNT = """async (html, name) => {
  const [profile, table] = JSON.parse(sets[name]);
  document.body.innerHTML = "<div id=live></div>";
  const live = document.getElementById("live");
  live.innerHTML = html;
  delete document.documentElement.dataset.panel;
  const [canvas, store] = await Promise.all(
    ["canvas", "store"].map((name) => import(`./canvas/${name}.js`)));
  Object.assign(window, { canvas, store });
  RAM.mount(live, { value: profile }, () => {});
  canvas.setTable(profile, table);
  canvas.reset();
}"""


@cache
def shipped(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a shipped set's profile and its table of measured settings."""
    folder = asset_path(name)
    analysis = load_analysis(folder / "analysis.safetensors")
    return build_profile(analysis), load_table(folder / "skills.json.gz")


def mount_stage(page: Any, name: str) -> None:
    """Show the stage alone, at the paper's setting of a shipped set."""
    if not page.evaluate("(name) => name in (window.sets ??= {})", name):
        run(page, "(name, set) => { sets[name] = JSON.stringify(set); }", name, shipped(name))
    run(page, _MOUNT, render("tune/canvas.html.j2"), name)
    settle(page)


def settle(page: Any) -> None:
    """Wait until the stage has drawn what it shows."""
    page.evaluate(_FRAMES)


def row_of(table: dict[str, Any], method: str, **settings: float | None) -> dict[str, Any]:
    """Return the first measured row of a method with these settings."""
    rows = (row for row in table["rows"] if row["method"] == method)
    return next(row for row in rows if settings.items() <= row["settings"].items())


def right(table: dict[str, Any], row: dict[str, Any], skill: str) -> str:
    """Return which of a skill's questions a row solves, a digit each."""
    at = table["domains"].index(skill) * table["n"]
    marks: str = row["right"][at : at + table["n"]]
    return marks
