"""The output of Load for the user's own models: progress of a pass, and whether they fit.

The storage report comes from headers only, is completed after the analysis, and is also part of
Tune's details at its epsilon.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from ram_studio.algorithm.analysis import Analysis
from ram_studio.app import templates
from ram_studio.app.load.work import open_loaded, pinned_sources
from ram_studio.app.numbers import duration_text, size_text
from ram_studio.app.session.session import LoadedModels
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.fit.storage_report import StorageReport, storage_report
from ram_studio.checkpoints.read.checkpoint import DownloadProgress
from ram_studio.engine.events import Progress
from ram_studio.engine.reading.sampling import sample_changes, sample_findings
from ram_studio.errors import RamStudioError

_VERBS = {
    "analyze": "Counting",
    "count": "Counting",
    "merge": "Merging",
    "hash": "Hashing",
    "flush": "Flushing",
}


def progress_html(event: Progress | DownloadProgress | None, start: str) -> Markup:
    """Return the progress bar for a pass's latest event; ``start`` is shown before the first."""
    if event is None:
        return templates.progress(None, start)
    if isinstance(event, DownloadProgress):
        fraction = event.done_bytes / event.total_bytes if event.total_bytes else None
        rate = event.done_bytes / event.seconds if event.seconds else 0.0
        of_all = f"{size_text(event.done_bytes)} of {size_text(event.total_bytes)}"
        return templates.progress(
            fraction, f"Downloading {event.name}", f"{of_all} · {size_text(rate)}/s"
        )
    noun = {"hash": "source file", "flush": "output file"}.get(event.stage, "tensor")
    verb = _VERBS.get(event.stage, event.stage)
    details = f"{size_text(event.rate)}/s"
    if event.eta_seconds is None:
        details += " · estimating the time"
    elif event.fraction < 1:
        # A merge may follow the counting, and a flush the merge; each has its own estimate.
        whole = " of this pass" if event.stage == "count" else ""
        details += f" · about {duration_text(event.eta_seconds)} left{whole}"
    title = f"{verb} {noun} {event.tensor_index} of {event.tensor_count}"
    return templates.progress(event.fraction, title, details)


def fit_html(
    fit: CompatibilityReport, analysis: Analysis | None = None, *, is_public: bool, merges: Path
) -> Markup:
    """Return the compatibility report: that they fit, their storage and sources.

    analysis: of the same checkpoints, after they were analyzed. is_public: show no path of this
    machine. merges: a folder of the disk that merges are written to.
    """
    models = fit.checkpoints
    stored = storage_report(fit, analysis)
    # An analysis has exact counts; before it a sample estimates the changes.
    sampled = sample_changes(fit) if analysis is None else {}
    findings = sample_findings(sampled, fit.counted_elements)
    stored = replace(stored, findings=(*stored.findings, *findings))
    return templates.render(
        "load/fit.html.j2",
        fit=fit,
        kinds=[tensor.kind for tensor in fit.tensors],
        tied=[tensor.name for tensor in fit.tensors if tensor.tied_to is not None],
        missing=sum(model.nbytes for model in models if not model.is_local),
        counted=analysis is not None,
        pins=[f"{source[:-40]}{source[-40:-32]}" for source in pinned_sources(fit).values()],
        free=shutil.disk_usage(merges).free,
        stored=storage_html(stored),
        sampled={name: own.changed for name, own in sampled.items()},
        sources=[
            Path(m.source).name if is_public and Path(m.source).is_absolute() else m.source
            for m in models
        ],
        models=models,
    )


def report_of(loaded: LoadedModels, point: int) -> StorageReport:
    """Return the storage report of the loaded models, at a grid point.

    From the analysis only where the files cannot be opened any longer: it is still valid.
    """
    try:
        return storage_report(open_loaded(loaded), loaded.analysis, point=point)
    except RamStudioError:
        return storage_report(None, loaded.analysis, point=point)


def storage_html(report: StorageReport) -> Markup:
    """Return the report as a section: warnings always, models and notes in a fold."""
    warnings = [f.text for f in report.findings if f.level == "warn"]
    agents = enumerate(report.agents.values())
    return templates.render(
        "load/stored.html.j2",
        report=report,
        warnings=warnings,
        by_agent=[(t, a.text) for t, a in agents if report.is_complete and a.text not in warnings],
        notes=[f.text for f in report.findings if f.level == "note"],
        has_rounded=any(agent.rounded is not None for agent in report.agents.values()),
    )
