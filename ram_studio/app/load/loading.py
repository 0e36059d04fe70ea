"""The work behind the Load step: fit check from headers, then the counting pass."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from ram_studio.algorithm.sketch import Sketch
from ram_studio.app import markup, wording
from ram_studio.app.jobs import Report
from ram_studio.app.load.sources import Sources
from ram_studio.app.look.storage_view import dtypes_text, storage_html
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, check_compatibility
from ram_studio.checkpoints.fit.storage_report import storage_report
from ram_studio.checkpoints.read.checkpoint import (
    DownloadProgress,
    is_local_source,
    open_checkpoint,
    open_folder,
)
from ram_studio.engine.analyse import analyze_report
from ram_studio.engine.events import CancelToken, Progress
from ram_studio.errors import HubError

BASE = "base"


class Analysis(NamedTuple):
    """What an analysis found, how the checkpoints fit, and the bytes it read a second."""

    sketch: Sketch
    fit: CompatibilityReport
    read_rate: float | None


def inspect(
    sources: Sources, options: Mapping[str, str], settings: Settings
) -> CompatibilityReport:
    """Return whether the checkpoints fit, from their headers alone: nothing large is downloaded.

    Raises: RamStudioError of the checkpoints layer; HubError when a model is too large for a Space.
    """
    checkpoints = {}
    for name, source in {BASE: sources.base, **sources.agents}.items():
        if not settings.is_space and is_local_source(source, name=name):
            checkpoints[name] = open_folder(source, name=name)
        else:
            # huggingface_hub is only imported by those who use a Hub id.
            from ram_studio.checkpoints.hub.inspect import inspect_source

            checkpoints[name] = inspect_source(source, name=name)
        if settings.is_space and checkpoints[name].nbytes > settings.max_download_bytes:
            raise HubError(
                wording.TOO_LARGE.format(
                    who=name,
                    source=source,
                    size=markup.size_text(checkpoints[name].nbytes),
                    limit=markup.size_text(settings.max_download_bytes),
                )
            )
    return check_compatibility(
        checkpoints[BASE], [checkpoints[name] for name in sources.agents], **options
    )


def analyze(
    sources: Sources,
    options: Mapping[str, str],
    settings: Settings,
    report: Report,
    cancel: CancelToken,
) -> Analysis:
    """Check the fit, download what is missing, count: the whole Load step.

    report: takes DownloadProgress and Progress events.
    """
    fit = inspect(sources, options, settings)
    cancel.raise_if_cancelled()
    if not fit.is_local:
        opened = {
            name: open_checkpoint(
                source,
                name=name,
                on_progress=report,
                cancel=cancel,
                local_ok=not settings.is_space,
            )
            for name, source in {BASE: sources.base, **sources.agents}.items()
        }
        fit = check_compatibility(opened[BASE], [opened[n] for n in sources.agents], **options)
    last: list[Progress] = []

    def tell(event: Progress) -> None:
        last[:] = [event]
        report(event)

    sketch = analyze_report(fit, on_progress=tell, cancel=cancel)
    return Analysis(sketch, fit, last[0].rate if last else None)


def progress_html(event: Progress | DownloadProgress | None) -> str:
    """Return the progress bar for the latest event of an analysis or a merge."""
    if event is None:
        return markup.progress(None, "Reading headers")
    if isinstance(event, DownloadProgress):
        fraction = event.done_bytes / event.total_bytes if event.total_bytes else None
        rate = event.done_bytes / event.seconds if event.seconds else 0.0
        details = (
            f"{markup.size_text(event.done_bytes)} of {markup.size_text(event.total_bytes)} · "
            f"{markup.size_text(rate)}/s"
        )
        return markup.progress(fraction, f"Downloading {event.name}", details)
    verbs = {
        "analyze": "Counting",
        "count": "Counting",
        "merge": "Merging",
        "hash": "Hashing",
        "flush": "Flushing",
    }
    noun = {"hash": "source file", "flush": "output file"}.get(event.stage, "tensor")
    title = (
        f"{verbs.get(event.stage, event.stage)} {noun} {event.tensor_index} of {event.tensor_count}"
    )
    details = f"{markup.size_text(event.rate)}/s"
    if event.eta_seconds is not None:
        details += f" · {markup.duration_text(event.eta_seconds)} left"
    return markup.progress(event.fraction, title, details)


def fit_html(fit: CompatibilityReport, sketch: Sketch | None = None, *, is_space: bool) -> str:
    """Return the compatibility report: that they fit, what is stored, where it comes from.

    sketch: of the same checkpoints, once they were analyzed.
    """
    rows = []
    for i, checkpoint in enumerate((fit.base, *fit.agents)):
        name = escape(checkpoint.name)
        if i:
            name = markup.marker(i - 1) + name
        source = checkpoint.source if not is_space or "/" in checkpoint.source else "–"
        rows.append(
            (
                name,
                f'<td class="source" title="{escape(source)}">{escape(source)}</td>',
                markup.cell(markup.size_text(checkpoint.nbytes)),
                markup.cell(dtypes_text(fit.dtypes[checkpoint.name])),
                markup.cell(str(len(checkpoint.tensors))),
            )
        )
    merged = sum(t.kind == "merge" for t in fit.tensors)
    weights = f"{fit.counted_elements:,}".replace(",", " ")
    facts = [f"{weights} weights in {merged} tensors will be merged."]
    copied = sum(t.kind == "copy" for t in fit.tensors)
    if copied:
        facts.append(f"{copied} integer tensor(s) are copied from the base.")
    tied = [t.name for t in fit.tensors if t.tied_to is not None]
    if tied:
        facts.append(f"{', '.join(tied)} is tied to the embedding and counted once.")
    missing = sum(c.nbytes for c in (fit.base, *fit.agents) if not c.is_local)
    if missing:
        facts.append(f"{markup.size_text(missing)} are to be downloaded first.")
    free = shutil.disk_usage(_existing_parent(fit)).free
    facts.append(
        f"A merge in the base's format needs {markup.size_text(fit.base.nbytes)} of disk; "
        f"{markup.size_text(free)} are free."
    )
    lines = [markup.callout("They fit together. " + " ".join(facts), "good")]
    lines.append(storage_html(storage_report(fit, sketch)))
    columns = ("Model", "From", "Size", "Stored as", "Tensors")
    return f'<div class="stack">{"".join(lines)}{markup.table(columns, rows)}</div>'


def _existing_parent(fit: CompatibilityReport) -> str:
    return str(fit.base.folder) if fit.base.folder.exists() else "/"
