"""The storage report as a section of the page: how the models are stored, and what that looks like.

Shown in Load from headers alone, completed after the analysis, and again in Look at its epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from ram_studio.algorithm.meters.storage import Share
from ram_studio.app import markup
from ram_studio.app.load.opened import open_loaded
from ram_studio.app.session import Loaded
from ram_studio.app.tune import details_wording as texts
from ram_studio.checkpoints.fit.storage_report import AgentStorage, StorageReport, storage_report
from ram_studio.errors import RamStudioError

_TONES = {
    "training": "good",
    "partly-storage": "warn",
    "storage": "bad",
    "unchanged": "warn",
}


def report_of(loaded: Loaded, point: int) -> StorageReport:
    """Return the report of what is loaded, at a ladder point.

    Of the sketch alone where the files cannot be opened any more: what it says holds all the same.
    """
    try:
        return storage_report(open_loaded(loaded), loaded.sketch, point=point)
    except RamStudioError:
        return storage_report(None, loaded.sketch, point=point)


def storage_html(report: StorageReport) -> str:
    """Return the report as a section: warnings always, every model and note unfolded."""
    warnings = [f.text for f in report.findings if f.level == "warn"]
    notes = [f.text for f in report.findings if f.level == "note"]
    said = set(warnings)
    told = [
        f"<li>{markup.marker(t)} {escape(agent.text)}</li>"
        for t, agent in enumerate(report.agents.values())
        if report.is_complete and agent.text not in said
    ]
    told += [f"<li>{escape(note)}</li>" for note in notes]
    callouts = "".join(markup.callout(text, "warn") for text in warnings)
    listed = f'<ul class="notes">{"".join(told)}</ul>' if told else ""
    is_open = " open" if warnings else ""
    models = ""
    # From headers the page already lists dtypes, beside sizes.
    if report.is_complete or report.heads or told:
        table = _table(report) if report.is_complete or report.heads else ""
        title = f"<summary>{texts.STORED_MORE}</summary>"
        models = f"<details{is_open}>{title}{table}{listed}</details>"
    return (
        f'<section class="box stored"><div class="figure-head"><h3>{texts.STORED_HEADING}</h3>'
        f'<span class="muted">{escape(_summary(report, len(warnings)))}</span></div>{callouts}'
        f"{models}</section>"
    )


def _summary(report: StorageReport, warnings: int) -> str:
    if warnings:
        return texts.STORED_ODD.format(n=warnings) if warnings > 1 else texts.STORED_ONE_ODD
    return texts.STORED_FINE if report.is_complete else texts.STORED_FINE_SO_FAR


def dtypes_text(dtypes: dict[str, int]) -> str:
    """Return dtypes by name, the most frequent first."""
    most = sorted(dtypes, key=lambda d: -dtypes[d])
    return " + ".join(texts.STORED_NAMES.get(d, d) for d in most) or "–"


def _table(report: StorageReport) -> str:
    """Return one row per model; what is unknown, or the same for all, has no column."""
    agents = list(report.agents.values())
    has_rounded = any(agent.rounded is not None for agent in agents)
    columns = [texts.STORED_COLUMNS["model"]]
    cells: list[Callable[[str, AgentStorage | None], str]] = []

    def add(column: str, cell: Callable[[str, AgentStorage | None], str]) -> None:
        columns.append(texts.STORED_COLUMNS[column])
        cells.append(cell)

    if report.base_dtypes:
        add(
            "dtype", lambda name, a: markup.cell(dtypes_text(a.dtypes if a else report.base_dtypes))
        )
    if report.heads:
        add("head", lambda name, a: markup.cell(_head(report, name)))
    if report.is_complete:
        stored = texts.STORED_COLUMNS["stored"] if has_rounded else ""
        for key, show in (("density", _density), ("rho", _rho)):
            columns.append(texts.STORED_COLUMNS[key] + stored)
            cells.append(lambda name, a, show=show: markup.cell(show(a.stored) if a else ""))
            if has_rounded:
                columns.append(texts.STORED_COLUMNS[key] + texts.STORED_COLUMNS["rounded"])
                cells.append(lambda name, a, show=show: markup.cell(show(a.rounded) if a else ""))
        add("verdict", lambda name, a: _verdict(a))
    rows = [("base", *(cell("base", None) for cell in cells))]
    for t, (name, agent) in enumerate(report.agents.items()):
        first = markup.marker(t) + escape(name)
        rows.append((first, *(cell(name, agent) for cell in cells)))
    return markup.table(columns, rows, css="stored-table")


def _head(report: StorageReport, name: str) -> str:
    head = report.heads.get(name)
    if head is None:
        return "–"
    stored = texts.STORED_HEADS[head.stored]
    return f"{stored}, {texts.STORED_TIED[head.is_tied]}" if head.is_tied is not None else stored


def _density(share: Share | None) -> str:
    return "–" if share is None else f"{share.density:.2%}".replace("%", " %")


def _rho(share: Share | None) -> str:
    if share is None:
        return "–"
    return "∞" if math.isinf(share.rho) else f"{share.rho:.3f}"


def _verdict(agent: AgentStorage | None) -> str:
    if agent is None:
        return "<td></td>"
    text = escape(texts.STORED_VERDICTS[agent.verdict])
    return f'<td><span class="chip" data-tone="{_TONES[agent.verdict]}">{text}</span></td>'
