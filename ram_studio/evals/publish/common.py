"""The skill table of any models, from the answers in a store that they have in common.

Checks, sweeps and comparisons store their answers. A table needs questions that base and agents all
answered, and merges of them that answered the same ones. Among the sets of questions that a merge
shares with base and agents, the one with the largest table counts, settings times questions. Every
domain has equally many; answers to other questions, or with other settings, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.checkpoints.opening import open_folder
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.errors import CheckpointError
from ram_studio.evals.question import Answer
from ram_studio.evals.report.skill_table import MeasuredRow, skill_table
from ram_studio.evals.store import AnswerStore, StoredAnswer, StoredRun
from ram_studio.evals.suites import ALL_SUITES, apart
from ram_studio.evals.suites.demo.tasks import SKILL_DOMAINS

LEAST = 5
"""A domain with fewer common questions is left out: its score would not be informative."""

Key = tuple[str, str, str]
"""Suite, item and digest: one question."""
Answered = Mapping[Key, StoredAnswer]


class Common(NamedTuple):
    """Questions that all of these models answered, in the table's order.

    sources: by name, base first; merges: by fingerprint, the newest first.
    """

    questions: tuple[Key, ...]
    sources: Mapping[str, Answered]
    merges: Mapping[str, Answered]


def folders_of(
    sources: Mapping[str, str], paths: Mapping[str, str | None]
) -> dict[str, Path] | None:
    """Return the folders of base and agents, by name; None where one is not on this machine.

    Args: sources: folder or Hub id by name. paths: of the models asked last, for Hub ids.
    """
    found = {}
    for name, source in sources.items():
        folder = source if Path(source).is_dir() else paths.get(name)
        if folder is None or not Path(folder).is_dir():
            return None
        found[name] = Path(folder)
    return found


def fingerprints_of(folders: Mapping[str, Path]) -> dict[str, str] | None:
    """Return the fingerprints of folders in a store, by name; None where one is not a model."""
    try:
        return {
            name: model_fingerprint(folder, open_folder(str(folder), name=name).fingerprint)
            for name, folder in folders.items()
        }
    except CheckpointError:
        return None


def find_common(
    store: AnswerStore,
    prints: Mapping[str, str],
    merges: Collection[str],
    *,
    needs_merge: bool = True,
) -> Common | None:
    """Return the largest table of these models in the store, None for none.

    Args:
        prints: of base and agents, by name. merges: fingerprints of merges of these models.
        needs_merge: whether a table needs a merge besides base and agents.
    """
    tables: list[Common] = []
    for runs in _group_runs(store.runs()):
        if set(prints.values()) <= runs.keys():
            asked = {
                fingerprint: _answers(store, own)
                for fingerprint, own in runs.items()
                if fingerprint in merges or fingerprint in prints.values()
            }
            sources = {name: asked[fingerprint] for name, fingerprint in prints.items()}
            tables += _tables(sources, {f: own for f, own in asked.items() if f in merges})
    wanted = (table for table in tables if table.merges or not needs_merge)
    return max(wanted, key=_size, default=None)


def replies(asked: Iterable[StoredAnswer]) -> dict[str, Answer]:
    """Return answers by question id, for a row of a skill table."""
    return {a.question.id: a.answer for a in asked}


def common_table(common: Common, merges: Sequence[MeasuredRow]) -> dict[str, Any]:
    """Return the skill table of base, agents and these rows."""
    sources = [
        MeasuredRow("source", name, {}, None, replies(known[key] for key in common.questions))
        for name, known in common.sources.items()
    ]
    base = next(iter(common.sources.values()))
    return skill_table([base[key].question for key in common.questions], [*sources, *merges])


def _size(common: Common) -> tuple[int, int]:
    return len(common.questions) * len(common.merges), len(common.questions)


def _group_runs(runs: Iterable[StoredRun]) -> list[dict[str, list[StoredRun]]]:
    """Return runs by fingerprint, separately for the demo's domains and for all other settings.

    Runs of other versions of a suite are left out.
    """
    found: dict[tuple[bool, str], dict[str, list[StoredRun]]] = {}
    for run in runs:
        suite = ALL_SUITES.get(run.suite)
        if suite is None or run.suite_version != suite.version or not run.answered:
            continue
        key = (run.suite == "demo", json.dumps(dict(run.settings), sort_keys=True))
        found.setdefault(key, {}).setdefault(run.fingerprint, []).append(run)
    return list(found.values())


def _answers(store: AnswerStore, runs: Sequence[StoredRun]) -> dict[Key, StoredAnswer]:
    beside = apart(run.suite for run in runs)
    found = {}
    for run in runs:
        for row in store.answers(run.id):
            if row.answer.is_reported and row.question.domain not in beside:
                # Ids are unique within a suite only.
                question = replace(row.question, id=f"{run.suite}/{row.question.id}")
                found[run.suite, row.question.id, row.digest] = replace(row, question=question)
    return found


def _tables(sources: Mapping[str, Answered], merges: Mapping[str, Answered]) -> Iterator[Common]:
    """Yield a table of the common answers of base and agents, and one for each merge as well."""
    by_all = set.intersection(*(set(own) for own in sources.values()))
    one = next(iter(sources.values()))
    shared = [by_all, *(by_all & own.keys() for own in merges.values())]
    for questions in sorted({_even_keys(keys, one) for keys in shared} - {()}):
        wanted = set(questions)
        rows = {f: own for f, own in merges.items() if wanted <= own.keys()}
        yield Common(questions, sources, rows)


def _even_keys(keys: set[Key], answers: Answered) -> tuple[Key, ...]:
    """Return equally many questions of each domain, in order, without domains with too few."""
    by_domain: dict[str, list[Key]] = {}
    for key in sorted(keys):
        by_domain.setdefault(answers[key].question.domain, []).append(key)
    places = {domain: i for i, domain in enumerate(SKILL_DOMAINS)}
    order = sorted(by_domain, key=lambda domain: places.get(domain, len(places)))
    enough = [by_domain[domain] for domain in order if len(by_domain[domain]) >= LEAST]
    least = min(map(len, enough), default=0)
    return tuple(key for own in enough for key in own[:least])
