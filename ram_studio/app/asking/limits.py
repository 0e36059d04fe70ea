"""The app's limits on evaluation settings of a form or a request."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ram_studio.app.load.work import open_loaded
from ram_studio.app.public.job_queue import Effort
from ram_studio.app.session.session import Session
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.paraphrases import SUITES as PARAPHRASED
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, GENERAL_SUITES, HEALTH, generated, is_a
from ram_studio.evals.suites.suite import SuiteSettings

SUITE = "demo"
GENERATED = tuple(suite.name for suite in generated.SUITES)
"""Suites with unlimited questions."""
LENGTHS = (1000, 2000, 4000, 8000, 16000, 32000)
_SPACE_LENGTHS = LENGTHS[:3]
_MOST_TOKENS = 32_768
_MOST_PROMPTS = 1000  # per skill; no skill has many more different ones
_MOST_SEED = 2**31 - 1
_USUAL_ITEMS = 10
"""Answers of a suite without a limit, such as health."""


def read_settings(given: Mapping[str, Any], app: Settings) -> EvalSettings:
    """Return the evaluation settings of a form or a request.

    Args:
        given: fields of `EvalSettings`; None or empty means the default. limit: a number of
            questions per suite, or the numbers of all suites (demo: per skill).

    Raises:
        SettingsError, EvaluationError: no suite, an unavailable one, or a value out of range.
    """
    fields = {name: value for name, value in given.items() if value not in (None, "", (), [])}
    fields["suites"] = chosen = [n for n in (*ALL_SUITES, HEALTH) if n in fields.get("suites", ())]
    if not chosen:
        raise SettingsError("No suite is chosen. Choose at least one.")
    offered, wanted = offered_lengths(app), fields.get("lengths", ())
    fields["lengths"] = [length for length in offered if length in wanted] or offered[:1]
    about = [name for name in chosen if is_a(name, "has_texts")]
    if about and not set(wanted) & set(offered):
        raise SettingsError(f"Suite {about[0]} needs a prompt length. Choose at least one.")
    most = upper_limits(app)
    if fields.get("ci_width"):
        fields.setdefault("limit", most["limit"])
    elif isinstance(fields.get("limit"), Mapping):
        fields["limit"] = _checked_limits(chosen, fields["limit"], app)
    settings = EvalSettings(**fields)
    for name, high in most.items():
        value, is_counted = getattr(settings, name), name != "limit" or settings.ci_width
        if is_counted and isinstance(value, int) and value > high:
            raise SettingsError(f"{name} is {value}; choose at most {high}.")
    _check_data(settings, app)
    return settings


def upper_limits(app: Settings) -> dict[str, int]:
    """Return the fields' maxima in this app; limit: with ci_width."""
    return {
        "samples": app.max_samples,
        "limit": app.max_made_items,
        "max_tokens": _MOST_TOKENS,
        "think_tokens": _MOST_TOKENS,
        "seed": _MOST_SEED,
    }


def _checked_limits(
    suites: Sequence[str], limits: Mapping[str, Any], app: Settings
) -> dict[str, int]:
    found = {}
    for name in suites:
        if name == HEALTH:
            continue
        most, value = most_items(name, app), limits.get(name)
        if not isinstance(value, (int, float)) or not 1 <= value <= most:
            raise SettingsError(
                f"The number of questions for {name} is {value}; it must be from 1 to {most}."
            )
        found[name] = int(value)
    return found


def _check_data(settings: EvalSettings, app: Settings) -> None:
    if settings.data is not None and app.is_public:
        raise SettingsError("This public app does not open data folders. Leave this field empty.")
    # Path.is_dir raises for a name that is too long.
    if settings.data is not None and not os.path.isdir(settings.data):
        raise SettingsError(
            f"{printable(settings.data)} is not a folder. Name a folder of data sets, or none."
        )
    absent = absent_here(settings.data) if app.is_public else {}
    for name in settings.suites:
        if name in absent:
            raise SettingsError(f"Suite {name} is not offered here: its questions are missing.")


def count_answers(settings: EvalSettings) -> int:
    """Return the maximum number of a model's answers."""
    limit = _USUAL_ITEMS if settings.limit is None else settings.limit
    by_suite = limit if isinstance(limit, dict) else dict.fromkeys(settings.suites, limit)
    more = settings.paraphrases - 1
    return sum(
        (3 if name == SUITE else 1)
        * by_suite.get(name, _USUAL_ITEMS)
        * (settings.samples + (more if name in PARAPHRASED else 0))
        for name in settings.suites
    )


def asking_effort(session: Session, parts: Sequence[str], answers: int) -> Effort:
    """Return the effort of a job with this many answers for each part.

    All users share the answers of shipped sets; answers of other models belong to one user.
    """
    owner = session.key if session.models.set_name is None else ""
    kind = "slow answers" if owner else "answers"
    return Effort(kind, {f"{owner} {part}": answers for part in parts})


def offered_lengths(app: Settings) -> tuple[int, ...]:
    """Return the text lengths that suites about long texts offer in this app."""
    return _SPACE_LENGTHS if app.is_public else LENGTHS


def general_suites() -> tuple[str, ...]:
    """Return the suites of questions for any model."""
    return tuple(name for name in ALL_SUITES if name != SUITE)


def code_refusal() -> str | None:
    """Return why model-written programs may not run here; None where they may."""
    from ram_studio.evals.sandbox import check_code_allowed

    try:
        check_code_allowed("auto")
    except RamStudioError as error:
        return str(error)
    return None


def absent_here(data: Any = None) -> dict[str, str]:
    """Return why suites have no questions on this machine, by name; data: a folder with rows."""
    why = {name: ALL_SUITES[name].absent(data or None) for name in general_suites()}
    return {name: text for name, text in why.items() if text}


def unavailable_suites(session: Session, app: Settings) -> dict[str, str]:
    """Return why available suites cannot be asked of the loaded base; empty for none."""
    from ram_studio.evals.suites.unavailable import find_unavailable

    if session.loaded is None or session.loaded.is_analysis_only:
        return {}
    try:
        folder = open_loaded(session.loaded).base.folder  # headers and small files are enough
    except RamStudioError:
        return {}
    absent = absent_here(session.data)
    there = tuple(name for name in general_suites() if name not in absent)
    return find_unavailable(folder, there, offered_lengths(app)[0], session.data or None)


def most_items(suite: str, app: Settings, lengths: int | None = None) -> int:
    """Return the most questions of a suite (demo: per skill).

    lengths: number of lengths of its texts, by default all offered ones.
    """
    if suite == SUITE:
        return 300 if app.is_public else _MOST_PROMPTS
    if suite in GENERATED:
        return app.max_made_items
    most = app.max_suite_items if suite in GENERAL_SUITES else app.max_made_items
    texts = (lengths or len(offered_lengths(app))) if is_a(suite, "has_texts") else 1
    return min(most, texts * _count_shipped(suite) or most)


@functools.cache
def _count_shipped(suite: str) -> int:
    """Return the number of shipped questions; 0 for data sets, which are not read here."""
    own = ALL_SUITES.get(suite)
    if own is None or own.fetch is not None or own.absent(None):
        return 0
    return len(own.questions(SuiteSettings(len, limit=_MOST_PROMPTS, lengths=LENGTHS[:1])))
