"""The storage report as a section of the page: how the models are stored, and what that looks like.

Shown in Load from headers alone, completed after the analysis, and again among the details of Tune
at its epsilon.
"""

from __future__ import annotations

from markupsafe import Markup

from ram_studio.app import templates
from ram_studio.app.load.opened import open_loaded
from ram_studio.app.session import Loaded
from ram_studio.checkpoints.fit.storage_report import StorageReport, storage_report
from ram_studio.errors import RamStudioError


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
    return templates.render(
        "load/stored.html.j2",
        report=report,
        warnings=warnings,
        told=[(t, a.text) for t, a in agents if report.is_complete and a.text not in warnings],
        notes=[f.text for f in report.findings if f.level == "note"],
        has_rounded=any(agent.rounded is not None for agent in report.agents.values()),
    )
