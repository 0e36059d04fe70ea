"""The work behind Load: fit check from headers, then the counting pass.

Models on the Hub are read there by byte ranges and not stored, unless the user requests a download.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.algorithm.analysis import BASE, Analysis
from ram_studio.algorithm.meters.storage import texts
from ram_studio.app.load.sources import Sources, is_local
from ram_studio.app.numbers import size_text
from ram_studio.app.session.jobs import Report, check_weights
from ram_studio.app.session.session import LoadedModels
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, check_compatibility
from ram_studio.checkpoints.fit.mismatches import OPTION_WORDS
from ram_studio.checkpoints.fit.storage_report import storage_report
from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.hub.presets import Preset, presets
from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.engine.events import CancelToken, Progress
from ram_studio.engine.reading.sampling import ChangeSample, other_bases, sample_changes
from ram_studio.errors import CompatibilityError, HubError

MISMATCHES = "When tensors do not match"
CHOICES = {
    "missing": ("A tensor is missing in an agent", "error", {"Keep the base's": "keep-base"}),
    "extra": ("An agent has an extra tensor", "error", {"Leave it out": "ignore"}),
    "rows": ("Vocabulary sizes differ", "exact", {"Merge the common rows": "common"}),
    "names": ("An agent has a text model's names", "exact", {"Read the base's names": "mapped"}),
    "experts_packing": (
        "LoRAs on stacked experts were trained with",
        "ask",
        {"peft": "rank-major", "Unsloth before September 2026": "expert-major"},
    ),
}
"""The form's choices by option: its label, the value that refuses, other answers and values."""


def in_form_words(message: str) -> str:
    """Return an error's text with the form's names of options."""
    for option, (_, _, answers) in CHOICES.items():
        chosen = " or ".join(f"“{answer}”" for answer in answers)
        message = message.replace(OPTION_WORDS[option], f"choose {chosen} under “{MISMATCHES}”")
    for answer, order in CHOICES["experts_packing"][2].items():
        message = message.replace(f"{order} it has", f"by “{answer}” it has")
    # The form has one choice for all agents.
    return message.replace("For this agent alone:", "For agents of both, use the command line:")


class FreshAnalysis(NamedTuple):
    """A new analysis with its sources, the compatibility report, and the bytes read per second."""

    sources: Sources
    options: Mapping[str, Any]
    analysis: Analysis
    fit: CompatibilityReport
    read_rate: float | None

    def as_loaded(self, title: str) -> LoadedModels:
        """Return the part that a session stores."""
        pins = pinned_sources(self.fit)
        base = pins.get(self.sources.base, self.sources.base)
        agents = {name: pins.get(source, source) for name, source in self.sources.agents.items()}
        plain = LoadedModels(title, None, base, agents, self.analysis, self.options, self.read_rate)
        remote = sum(c.nbytes for c in self.fit.checkpoints if not c.is_local)
        cautions = cautions_of(self.fit, self.analysis)
        return replace(plain, cautions=cautions, remote_bytes=remote)


def cautions_of(fit: CompatibilityReport, analysis: Analysis) -> tuple[str, ...]:
    """Return the cautions before merging analyzed checkpoints, in the words of the form.

    A different base comes first, as such a merge is useless.
    """
    report = storage_report(fit, analysis)
    sampled: dict[str, ChangeSample] = {}
    with contextlib.suppress(HubError):  # a failed sample must not lose the counts
        sampled = sample_changes(fit)
    findings = (*other_bases(sampled), *report.findings)
    return tuple(in_form_words(text) for text in texts(findings))


def inspect_sources(
    sources: Sources, options: Mapping[str, Any], settings: Settings
) -> CompatibilityReport:
    """Return the compatibility report, from headers only: nothing large is downloaded.

    Raises: RamStudioError of the checkpoints layer; HubError when a model is too large for a Space;
    CompatibilityError where the models of a published set differ from its list.
    """
    checkpoints = []
    for opened in _open_models(sources, settings, stream=True):
        if settings.is_public and opened.nbytes > settings.max_download_bytes:
            raise HubError(
                f"{opened.name} ({opened.source}) is {size_text(opened.nbytes)}; this public app "
                f"allows {size_text(settings.max_download_bytes)} for each model. Run RAM Studio "
                "on your own machine for larger ones."
            )
        checkpoints.append(opened)
    fit = check_fit(checkpoints, options)
    if (listed := _find_preset(sources)) is not None:
        # Only needed here, so that others do not import huggingface_hub.
        from ram_studio.engine.reading.preset_check import differences_from_list

        if differences := differences_from_list(listed, fit):
            raise CompatibilityError(" ".join(differences))
    return fit


def _open_models(sources: Sources, settings: Settings, **how: Any) -> Iterator[Checkpoint]:
    """Yield base and agents, opened one by one; how: keywords of ``open_checkpoint``."""
    for name, source in {BASE: sources.base, **sources.agents}.items():
        local_ok = is_local(source, settings, name=name)
        yield open_checkpoint(source, name=name, local_ok=local_ok, **how)


def _find_preset(sources: Sources) -> Preset | None:
    """Return the published set with these sources, None where there is none."""
    repositories = [source.partition("@")[0] for source in (sources.base, *sources.agents.values())]
    sets = presets().values()
    return next((p for p in sets if [m.repository for m in p.models] == repositories), None)


def pinned_sources(fit: CompatibilityReport) -> dict[str, str]:
    """Return Hub ids without a commit, with the commit that was opened.

    Later reads then find the same files, even after a push.
    """
    found = ((c.source, c.revision) for c in fit.checkpoints)
    return {s: f"{s}@{commit}" for s, commit in found if commit is not None and "@" not in s}


def check_fit(checkpoints: Iterable[Checkpoint], options: Mapping[str, Any]) -> CompatibilityReport:
    """Return the compatibility report of the base and the agents, in this order.

    Raises: CompatibilityError in the words of the form.
    """
    base, *agents = checkpoints
    try:
        return check_compatibility(base, agents, **options)
    except CompatibilityError as error:
        raise CompatibilityError(in_form_words(str(error))) from error


def analyze(
    sources: Sources,
    options: Mapping[str, Any],
    settings: Settings,
    report: Report,
    cancel: CancelToken,
    *,
    download: bool = False,
) -> FreshAnalysis:
    """Check the fit and count: the whole Load step.

    report: takes DownloadProgress and Progress events; download: also store the models of Hub ids.
    """
    fit = inspect_sources(sources, options, settings)
    cancel.raise_if_cancelled()
    if download and not fit.is_local:
        fit = check_fit(_open_models(sources, settings, on_progress=report, cancel=cancel), options)
    last: list[Progress] = []

    def report_progress(event: Progress) -> None:
        last[:] = [event]
        report(event)

    analysis = analyze_report(fit, on_progress=report_progress, cancel=cancel)
    return FreshAnalysis(sources, options, analysis, fit, last[0].rate if last else None)


def open_loaded(loaded: LoadedModels) -> CompatibilityReport:
    """Return the loaded models' opened checkpoints; headers are read again when files changed.

    Raises: CheckpointError, CompatibilityError, HubError; SettingsError where only an analysis is.
    """
    check_weights(loaded)
    folders = (loaded.base, *loaded.agents.values())
    states = tuple(state for folder in folders for state in _shard_states(folder))
    # Files on the Hub are read with the rights of the user who opened them, and hold that user's
    # token: so the opened checkpoints belong to the loaded models, and are freed with them.
    key = (states, rights.token())
    report: CompatibilityReport | None = loaded.opened.get(key)
    if report is None:
        options: dict[str, Any] = dict(loaded.options)
        report = load(loaded.base, loaded.agents, **options, stream=True)
        loaded.opened.clear()
        loaded.opened[key] = report
    return report


def _shard_states(folder: str) -> list[tuple[str, int, int]]:
    """Return size and time of a folder's shards; nothing for a Hub id (its files stay)."""
    return [
        (path.name, (stat := path.stat()).st_size, stat.st_mtime_ns)
        for path in sorted(Path(folder).glob("*.safetensors"))
    ]
