"""The storage report as a section of the page: how the models are stored, and what that looks like.

Shown in Load from headers alone, completed after the analysis, and again in Look at its epsilon.
"""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from ram_studio.app import templates
from ram_studio.app.load.opened import open_loaded
from ram_studio.app.numbers import DTYPE_NAMES, ratio_text
from ram_studio.app.session import Loaded
from ram_studio.checkpoints.fit.storage_report import AgentStorage, StorageReport, storage_report
from ram_studio.errors import RamStudioError

_HEADS = {
    "both": "both stored",
    "embedding": "embedding only",
    "head": "head only",
    "none": "neither",
}


def report_of(loaded: Loaded, point: int) -> StorageReport:
    """Return the report of what is loaded, at a ladder point.

    Of the sketch alone where the files cannot be opened any more: what it says holds all the same.
    """
    try:
        return storage_report(open_loaded(loaded), loaded.sketch, point=point)
    except RamStudioError:
        return storage_report(None, loaded.sketch, point=point)


def storage_html(report: StorageReport) -> Markup:
    """Return the report as a section: warnings always, every model and note unfolded."""
    warnings = [f.text for f in report.findings if f.level == "warn"]
    agents = enumerate(report.agents.values())
    told = [(t, a.text) for t, a in agents if report.is_complete and a.text not in warnings]
    columns = _columns(report)
    return templates.render(
        "look/stored.html.j2",
        report=report,
        warnings=warnings,
        told=told,
        notes=[f.text for f in report.findings if f.level == "note"],
        columns=list(columns),
        rows={
            name: [cell(name, agent) for cell in columns.values()]
            for name, agent in (("base", None), *report.agents.items())
        },
    )


def dtypes_text(dtypes: dict[str, int]) -> str:
    """Return dtypes by name, the most frequent first."""
    most = sorted(dtypes, key=lambda d: -dtypes[d])
    return " + ".join(DTYPE_NAMES.get(d, d) for d in most) or "–"


Cell = Callable[[str, AgentStorage | None], str]


def _columns(report: StorageReport) -> dict[str, Cell]:
    """Return the table's columns by title; what is unknown, or the same for all, has none.

    Each takes a model's name and its storage, None for the base.
    """
    columns: dict[str, Cell] = {}
    # From headers the page already lists dtypes, beside sizes.
    if not report.is_complete and not report.heads:
        return columns
    if report.base_dtypes:
        columns["Stored as"] = lambda _, a: dtypes_text(a.dtypes if a else report.base_dtypes)
    if report.heads:
        columns["Head and embedding"] = lambda name, _: _head(report, name)
    if report.is_complete:
        kinds = {"": "stored"}
        if any(agent.rounded is not None for agent in report.agents.values()):
            kinds = {", as stored": "stored", ", rounded to the base's format": "rounded"}
        for title, key in (("Changed", "density"), ("ρ", "rho")):
            for suffix, kind in kinds.items():
                columns[title + suffix] = lambda _, a, key=key, kind=kind: _share(a, kind, key)
    return columns


def _head(report: StorageReport, name: str) -> str:
    head = report.heads.get(name)
    if head is None:
        return "–"
    stored = _HEADS[head.stored]
    if head.is_tied is None:
        return stored
    return f"{stored}, {'one matrix' if head.is_tied else 'two matrices'}"


def _share(agent: AgentStorage | None, kind: str, key: str) -> str:
    """Return the density or rho of an agent, as stored or rounded; nothing for the base."""
    if agent is None:
        return ""
    share = getattr(agent, kind)
    if share is None:
        return "–"
    return ratio_text(share.rho) if key == "rho" else f"{100 * share.density:.2f} %"
