"""Scores of a merge in the Hub's formats, and reading those that others published.

A published data set that is a benchmark there, asked completely, gives a file in `.eval_results/`;
all other suites give an entry of the card's `model-index`. Both contain the counts in the same
words, see `text`, and readers compute the share and its interval from them again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCard,
    eval_result_entries_to_yaml,
    parse_eval_result_entries,
)

from ram_studio.algorithm.analysis import BASE
from ram_studio.checkpoints.hub.repository import talking_to
from ram_studio.checkpoints.hub.transfer import fetch_file
from ram_studio.checkpoints.opening import open_folder
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.checkpoints.read.files import Files
from ram_studio.checkpoints.record.provenance import SKILL_CHECKS, Provenance, not_checked
from ram_studio.checkpoints.record.strict_yaml import load_plain
from ram_studio.errors import CheckpointError, RamStudioError, SettingsError
from ram_studio.evals.prompts import stored_wording
from ram_studio.evals.report.comparison import PairedCounts, paired_counts
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.store import AnswerStore, StoredAnswer, StoredRun
from ram_studio.evals.suites import ALL_SUITES, HEALTH
from ram_studio.evals.suites.published import gsm8k, ifeval, math500, mbpp, nq
from ram_studio.evals.suites.published.rows import DataSet
from ram_studio.evals.suites.suite import SuiteSettings

RESULTS_FOLDER = ".eval_results/"
MOST_RESULT_BYTES = 100_000
MOST_CARD_BYTES = 1_000_000
MOST_SCORES = 60
_MOST_QUESTIONS = 10**7
_COUNTS = re.compile(
    r"(?P<right>\d{1,8}) of (?P<n>\d{1,8}) right, 95 % interval [\d.]+ to [\d.]+"
    r"(?: as of (?P<alike>\d{1,8}) questions)?; "
    r"(?:against (?P<agent>\S{1,64}) (?P<wins>\d{1,8}) gained, (?P<losses>\d{1,8}) lost of "
    r"(?P<both>\d{1,8})(?: as of (?P<both_alike>\d{1,8}))?; )?(?P<settings>.+)"
)

_UNCHECKED = "Not checked after the merge:"
DATA_SETS: Mapping[str, DataSet] = {
    module.DATA.name: module.DATA for module in (gsm8k, ifeval, math500, mbpp, nq)
}
"""Data sets with one question per row, by the suite's name."""


@dataclass(frozen=True)
class StatedScore:
    """Right answers in one domain, with their settings: scores with equal settings are comparable.

    agent, against: the best agent on these questions, and the merge compared with it on those that
    both answered; None where no agent was asked them.
    """

    name: str
    score: DomainScore
    settings: str
    agent: str | None = None
    against: PairedCounts | None = None

    @property
    def text(self) -> str:
        """The counts in words, as published; see `parse_stated_score`."""
        low, high = (100 * end for end in self.score.ci95)

        def effective(n: float | None, what: str = "") -> str:
            return "" if n is None else f" as of {n:.0f}{what}"

        counts = f"{self.score.correct} of {self.score.n} right"
        known = effective(self.score.effective_n, " questions")
        paired = ""
        if (both := self.against) is not None:
            of = f"{both.n}{effective(both.effective_n)}"
            paired = f"against {self.agent} {both.wins} gained, {both.losses} lost of {of}; "
        return f"{counts}, 95 % interval {low:.1f} to {high:.1f}{known}; {paired}{self.settings}"

    @property
    def percent(self) -> float:
        return round(100 * self.score.score, 2)


def parse_stated_score(name: str, text: object) -> StatedScore | None:
    """Return the score in a text of `StatedScore.text`; None for any other text."""
    found = _COUNTS.fullmatch(text) if isinstance(text, str) else None
    if found is None or not (found[0].isprintable() and name.isprintable()):
        return None
    groups = found.groupdict()
    agent, settings = groups.pop("agent"), groups.pop("settings")
    counts = {key: int(value) for key, value in groups.items() if value is not None}
    right, n, alike = counts["right"], counts["n"], counts.get("alike")
    if not 0 <= right <= n or not 0 < n <= _MOST_QUESTIONS or not 0 < len(name) <= 80:
        return None
    if len(settings) > 200 or (alike is not None and not 1 <= alike <= n):
        return None
    stated = StatedScore(name, DomainScore(n, right, effective_n=alike), settings)
    if agent is None:
        return stated
    wins, losses, both = (counts[key] for key in ("wins", "losses", "both"))
    alike = counts.get("both_alike")
    if not (wins + losses <= both <= n and wins <= right and losses <= n - right and both):
        return None
    if alike is not None and not 1 <= alike <= both:
        return None
    paired = PairedCounts(wins, losses, both - wins - losses, stated_n=alike)
    return replace(stated, agent=agent, against=paired)


# ------------------------------------------------------------------ out of the store


def stored_scores(
    store: AnswerStore, fingerprint: str, sources: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[StoredRun, StatedScore]]:
    """Yield a model's scores in the store, by suite and domain.

    Of several runs of a suite the one of its newest version with the most answers counts.

    Args: fingerprint, and sources (names by fingerprint): see `sources_in`.
    """
    agents = {own: name for own, name in sources.items() if name != BASE}
    runs = store.runs()
    asked = [r for r in runs if r.fingerprint == fingerprint and r.suite != HEALTH and r.answered]
    # Of equal ones the last counts: the newest.
    asked.sort(key=lambda run: (run.suite_version, run.answered, run.id))
    for suite, run in sorted({run.suite: run for run in asked}.items()):
        same = (suite, run.suite_version, run.settings)
        beside = [
            (agents[other.fingerprint], store.answers(other.id))
            for other in runs
            if other.fingerprint in agents
            and (other.suite, other.suite_version, other.settings) == same
        ]
        own = store.answers(run.id) if beside else []
        for domain, score in run.domains.items():
            name = suite if domain == suite else f"{suite}: {domain}"
            yield run, StatedScore(name, score, _settings(run), *_best_agent(own, beside, domain))


def _best_agent(
    own: Sequence[StoredAnswer], agents: Sequence[tuple[str, Sequence[StoredAnswer]]], domain: str
) -> tuple[str | None, PairedCounts | None]:
    """Return the agent with the most right answers on a merge's questions, and their comparison."""
    asked = {
        (row.question.id, row.digest): row.answer for row in own if row.question.domain == domain
    }
    best: tuple[float, str | None, PairedCounts | None] = (-1.0, None, None)
    for name, rows in agents:
        known = {(row.question.id, row.digest): row.answer for row in rows}
        common = [key for key in asked if key in known]
        counts = paired_counts([asked[k] for k in common], [known[k] for k in common])
        score = DomainScore.of(known[key] for key in common)
        if counts.n and score.score > best[0]:
            best = score.score, name, counts
    return best[1:]


def sources_in(store: AnswerStore, provenance: Provenance) -> dict[str, str]:
    """Return the base and agents that were asked, by `content_hash.model_fingerprint`.

    Their weights identify them, in whichever folder a run found them.
    """
    names = {source.fingerprint: name for name, source in provenance.sources.items()}
    found = {}
    for path in {run.path for run in store.runs() if run.path}:
        with suppress(CheckpointError, OSError):
            weights = open_folder(path, name="source").fingerprint
            if weights in names:
                found[model_fingerprint(Path(path), weights)] = names[weights]
    return found


def _settings(run: StoredRun) -> str:
    """Return a run's settings in words, without its device."""
    settings, wording = dict(run.settings), stored_wording(run.settings)
    for apart in ("engine", "device", "dtype", "lm_eval", "tasks", *wording):
        settings.pop(apart, None)
    chat, heat = settings.pop("chat", None), settings.pop("temperature", 0)
    parts = [f"version {run.suite_version}", "greedy" if not heat else f"temperature {heat}"]
    if chat is not None:
        parts.append("chat template" if chat else "plain text")
    parts += [f"{key} {value}" for key, value in wording.items()]
    parts += [
        f"{key.replace('_', ' ')} {value}" for key, value in sorted(settings.items()) if value
    ]
    return ", ".join(parts)[:200]


def hub_results(
    store: AnswerStore, runs: Sequence[tuple[StoredRun, StatedScore]]
) -> tuple[dict[str, bytes], list[EvalResult]]:
    """Return files of `.eval_results/` by name, and the entries of the card's `model-index`."""
    files, rest = {}, []
    for run, stated in runs:
        data = DATA_SETS.get(stated.name)
        task = benchmark_task(data) if data is not None and is_whole(store, run) else None
        if data is not None and task is not None:
            entry = EvalResultEntry(
                dataset_id=data.repository,
                task_id=task,
                value=stated.percent,
                date=run.created[:10],
                notes=f"RAM Studio: {stated.text}",
            )
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)
            files[f"{RESULTS_FOLDER}{stated.name}.yaml"] = text.encode()
            continue
        rest.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=data.repository if data else f"ram-studio/{run.suite}",
                dataset_name=stated.name,
                metric_type="accuracy",
                metric_name=stated.text,
                metric_value=stated.percent,
            )
        )
    return files, rest


def is_whole(store: AnswerStore, run: StoredRun) -> bool:
    """Return whether a run's answers match the rows of the published revision exactly.

    False also where that revision is neither in the Hub's cache nor can be downloaded.
    """
    suite = ALL_SUITES[run.suite]
    try:
        rows = suite.questions(SuiteSettings(len))
    except RamStudioError:
        return False
    answered = [row.question for row in store.answers(run.id) if row.answer.is_scored]
    return sorted((q.id, q.gold) for q in answered) == sorted((q.id, q.gold) for q in rows)


def benchmark_task(data: DataSet) -> str | None:
    """Return the task id of a data set that is a benchmark on the Hub; None for all others.

    Benchmarks have an `eval.yaml` with their tasks; scores of other data sets are refused there.
    """
    try:
        with talking_to(data.repository, None, None):
            path = fetch_file(data.repository, "eval.yaml", repo_type="dataset")
        if path.stat().st_size > MOST_RESULT_BYTES:
            return None
        tasks = load_plain(path.read_bytes(), "eval.yaml")["tasks"]
        ids = [str(task["id"]) for task in tasks]
    except (RamStudioError, LookupError, TypeError):
        return None
    return ids[0] if len(ids) == 1 else data.name if data.name in ids else None


def card_with(text: str, name: str, results: list[EvalResult], asked: Collection[str] = ()) -> str:
    """Return a model card whose `model-index` is replaced by these results.

    asked: suites with scores; the card ends with a list of skills that were not checked.
    """
    card: Any = ModelCard(text, ignore_metadata_errors=True)
    card.data.model_name, card.data.eval_results = name, results
    left = [f"{SKILL_CHECKS[check][0]} ({check})" for check in not_checked(asked)]
    note = f"{_UNCHECKED} {', '.join(left)}.\n" if left else ""
    lines = [line for line in str(card).splitlines() if not line.startswith(_UNCHECKED)]
    return "\n".join(lines).rstrip() + f"\n\n{note}"


# ------------------------------------------------------------------ read back


def stated_scores(files: Files) -> list[StatedScore]:
    """Return the scores of a model's folder or repository that are written in the form of `text`.

    Everything else in it is ignored, as it is untrusted. At most MOST_SCORES.

    Raises: RamStudioError where a file is too large or cannot be read.
    """
    found: dict[str, StatedScore] = {}
    for name in sorted(files.sizes()):
        if name.startswith(RESULTS_FOLDER) and name.endswith(".yaml"):
            found |= _of_results(files.read(name, MOST_RESULT_BYTES))
    if files.has("README.md"):
        found = _of_card(files.read("README.md", MOST_CARD_BYTES)) | found
    return [found[name] for name in sorted(found)][:MOST_SCORES]


def _of_results(data: bytes) -> dict[str, StatedScore]:
    names = {data_set.repository: name for name, data_set in DATA_SETS.items()}
    try:
        entries = parse_eval_result_entries(load_plain(data, "scores"))
    except (SettingsError, LookupError, TypeError, ValueError, AttributeError):
        return {}
    stated_scores = (
        parse_stated_score(names.get(e.dataset_id, ""), str(e.notes).removeprefix("RAM Studio: "))
        for e in entries
    )
    return {stated.name: stated for stated in stated_scores if stated}


def _of_card(data: bytes) -> dict[str, StatedScore]:
    text = data.decode("utf-8", "replace")
    head = re.match(r"\s*---\r?\n(.*?)\r?\n---\s", text, re.DOTALL)
    found: dict[str, StatedScore] = {}
    if head is None or len(head[1]) > MOST_RESULT_BYTES:
        return found
    try:
        for model in load_plain(head[1].encode(), "card")["model-index"]:
            for result in model["results"]:
                for metric in result["metrics"]:
                    stated = parse_stated_score(str(result["dataset"]["name"]), metric.get("name"))
                    if stated is not None:
                        found[stated.name] = stated
    except (SettingsError, LookupError, TypeError, ValueError, AttributeError):
        pass
    return found
