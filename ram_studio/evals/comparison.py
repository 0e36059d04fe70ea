"""Methods and settings side by side: scores, time, and what of it is within noise.

The base is loaded once; every agent and every merge is put into it in memory, scored on the same
prompts, and taken out again. Each row is compared with one reference row on the same prompts by
McNemar's test, corrected for the number of rows (Holm).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.algorithm.methods import make_settings
from ram_studio.algorithm.sketch import BASE, Sketch
from ram_studio.checkpoints.recipe import Recipe
from ram_studio.engine.analyse import load
from ram_studio.engine.events import CancelToken
from ram_studio.engine.in_memory import AppliedMerge, InMemoryMerger
from ram_studio.errors import EvaluationError, SettingsError, Stopped
from ram_studio.evals.evaluate import DEFAULT_LIMIT, DEFAULT_SEED, evaluate_loaded
from ram_studio.evals.fisher import with_fisher_files
from ram_studio.evals.generation import load_model
from ram_studio.evals.report import SIGNIFICANCE, EvalReport, PairedCounts, compare
from ram_studio.evals.statistics import holm

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Versus:
    """A row against the reference row over all skill prompts.

    p_adjusted: McNemar's p after Holm's correction over all rows of the table.
    """

    counts: PairedCounts
    p_adjusted: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the difference could well be chance, given how many rows were compared."""
        return self.p_adjusted >= SIGNIFICANCE

    @property
    def outcome(self) -> str:
        """ "better", "worse" or "within noise"."""
        if self.is_within_noise:
            return "within noise"
        return "better" if self.counts.wins > self.counts.losses else "worse"

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, both p-values and the outcome."""
        return {
            **self.counts.to_dict(),
            "p_adjusted": self.p_adjusted,
            "is_within_noise": self.is_within_noise,
            "outcome": self.outcome,
        }


@dataclass(frozen=True)
class MethodTable:
    """A finished comparison.

    report: every row's answers, by label; merges: what each merge row asked for and stored;
    agents: the rows that are agents (the base's row is "base"); reference: label of the row that
    all others are compared with.
    """

    report: EvalReport
    merges: Mapping[str, AppliedMerge]
    agents: tuple[str, ...]
    reference: str

    def kind(self, label: str) -> str:
        """Return "merge", "agent" or "base"."""
        if label in self.merges:
            return "merge"
        return "agent" if label in self.agents else "base"

    def versus(self) -> dict[str, Versus]:
        """Return every other row against the reference, over all skill prompts."""
        others = [label for label in self.report.models if label != self.reference]
        counts = [compare(self.report, label, self.reference)["skills"] for label in others]
        adjusted = holm([pair.p_value for pair in counts])
        return {
            label: Versus(pair, p) for label, pair, p in zip(others, counts, adjusted, strict=True)
        }

    def statements(self) -> tuple[str, ...]:
        """Return one sentence per other merge on how it compares with the reference."""
        said = []
        for label, versus in self.versus().items():
            if label not in self.merges:
                continue
            counts = versus.counts
            verdict = (
                f"within noise of {self.reference}"
                if versus.is_within_noise
                else f"{versus.outcome} than {self.reference}"
            )
            said.append(
                f"{label} is {verdict}: on {counts.wins + counts.losses + counts.ties} skill "
                f"prompts {counts.wins} gained, {counts.losses} lost "
                f"(adjusted p {versus.p_adjusted:.2g})."
            )
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """Return the table ready for JSON: suite, seed, n, reference and one object per row."""
        versus = self.versus()
        scores = self.report.to_dict()["models"]
        rows = []
        for label, score in scores.items():
            applied = self.merges.get(label)
            rows.append(
                {
                    "row": label,
                    "kind": self.kind(label),
                    "method": None if applied is None else applied.recipe.method,
                    "settings": None if applied is None else dict(applied.recipe.settings),
                    "merged_agents": None if applied is None else list(applied.recipe.agents),
                    "domains": score["domains"],
                    "average": _finite(score["average"]),
                    "retention": _finite(score["retention"]),
                    "merge_seconds": None if applied is None else applied.seconds,
                    "evaluation_seconds": score["seconds"],
                    "agents": {} if applied is None else _agents(applied),
                    "versus": versus[label].to_dict() if label in versus else None,
                }
            )
        return {
            "suite": self.report.suite,
            "seed": self.report.seed,
            "n": self.report.n,
            "reference": self.reference,
            "rows": rows,
            "statements": list(self.statements()),
        }

    def to_csv(self) -> str:
        """Return the table as CSV with a header; unknown values are empty."""
        table = self.to_dict()
        agents = list(dict.fromkeys(name for row in table["rows"] for name in row["agents"]))
        domains = list(table["rows"][0]["domains"]) if table["rows"] else []
        columns = ["row", "kind", "method", "settings"]
        columns += [f"{d}{part}" for d in domains for part in ("", "_low95", "_high95")]
        columns += ["average", "retention", "merge_seconds", "evaluation_seconds"]
        columns += [f"{part}_{a}" for a in agents for part in ("rho", "lambda", "effective_lambda")]
        columns += ["gained", "lost", "p", "p_adjusted", "versus_reference"]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for row in table["rows"]:
            cells = [row["row"], row["kind"], row["method"]]
            cells.append("" if row["settings"] is None else json.dumps(row["settings"]))
            for domain in domains:
                score = row["domains"][domain]
                cells += [score["score"], *score["ci95"]]
            cells += [row[k] for k in ("average", "retention", "merge_seconds")]
            cells.append(row["evaluation_seconds"])
            for agent in agents:
                numbers = row["agents"].get(agent, {})
                cells += [numbers.get(k) for k in ("rho", "lambda", "effective_lambda")]
            against = row["versus"] or {}
            keys = ("wins", "losses", "p_value", "p_adjusted", "outcome")
            cells += [against.get(k) for k in keys]
            writer.writerow("" if cell is None else cell for cell in cells)
        return out.getvalue()


def _agents(applied: AppliedMerge) -> dict[str, dict[str, float | None]]:
    return {
        name: {
            "rho": _finite(a.rho),
            "lambda": a.scaling_factor,
            "effective_lambda": a.effective_scaling_factor,
        }
        for name, a in applied.agents.items()
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def compare_methods(
    rows: Mapping[str, Recipe],
    *,
    reference: str | None = None,
    sources: bool = True,
    suite: str = "demo",
    limit: int = DEFAULT_LIMIT,
    seed: int = DEFAULT_SEED,
    device: str = "auto",
    sketch: Sketch | None = None,
    fisher_folder: str | Path | None = None,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> MethodTable:
    """Apply every recipe in memory, score it, and return the table.

    Args:
        rows: recipes by label, e.g. of `experiments.experiment_recipes`; all of one base, an agent
            of the same name being the same source in all of them.
        reference: label of the row that others are compared with; default the first "ram+" row,
            else the first row.
        sources: whether the base and the agents get rows too, before the merges.
        suite, limit, seed: as for `evaluate`.
        device: where the model is evaluated. Merging is done on the CPU.
        sketch: of base and all agents, in the order the rows first name them; saves a pass.
        fisher_folder: where estimated Fisher files are kept; a temporary one when left out.
        on_progress: called with (row, rows done, rows in all) at each row's start and at the end.

    Raises: SettingsError for rows that do not go together, before any work; what `merge` and
    `evaluate` raise; Stopped.
    """
    base, agents = _sources_of(rows)
    chosen = _reference(rows, reference)
    for recipe in rows.values():
        make_settings(recipe.method, recipe.settings)
    labels = [BASE, *agents] if sources else []
    clash = [label for label in rows if label in labels]
    if clash:
        raise SettingsError(f"A row is called {clash[0]!r}, as the base or an agent; rename it.")
    first = next(iter(rows.values()))
    report = load(base, agents, missing=first.missing, extra=first.extra, rows=first.rows)
    results: EvalReport | None = None
    merges: dict[str, AppliedMerge] = {}
    cancel = _PolledToken(should_stop)
    total = len(labels) + len(rows)
    with _folder(fisher_folder) as folder:
        ready = {
            label: with_fisher_files(recipe, folder, device=device, should_stop=should_stop)
            for label, recipe in rows.items()
        }
        model, tokenizer = load_model(report.base.folder, device)
        merger = InMemoryMerger(model, report, sketch=sketch, cancel=cancel)
        for done, label in enumerate([*labels, *ready]):
            if on_progress:
                on_progress(label, done, total)
            if label in ready:
                merges[label] = merger.apply(ready[label], cancel=cancel)
            elif label == BASE:
                merger.restore()
            else:
                merger.apply_agent(label)
            row = evaluate_loaded(
                label,
                model,
                tokenizer,
                suite=suite,
                limit=limit,
                seed=seed,
                should_stop=should_stop,
            )
            results = row if results is None else results.joined(row)
    if on_progress:
        on_progress("", total, total)
    assert results is not None, "there is at least one row"
    return MethodTable(results, merges, tuple(agents) if sources else (), chosen)


class _PolledToken(CancelToken):
    """A cancel token that also asks a function."""

    def __init__(self, should_stop: Callable[[], bool] | None) -> None:
        super().__init__()
        self._should_stop = should_stop

    @property
    def is_cancelled(self) -> bool:
        """Whether stopping was asked for."""
        return super().is_cancelled or bool(self._should_stop and self._should_stop())

    def raise_if_cancelled(self) -> None:
        """Raise Stopped once stopping was asked for."""
        if self.is_cancelled:
            raise Stopped("The comparison was stopped before it was complete; nothing was kept.")


def _sources_of(rows: Mapping[str, Recipe]) -> tuple[str, dict[str, str]]:
    """Return the one base and the agents by name that all rows speak of.

    Raises: SettingsError when they differ.
    """
    if not rows:
        raise EvaluationError("No row to compare was given; give at least one method.")
    base = next(iter(rows.values())).base
    agents: dict[str, str] = {}
    for label, recipe in rows.items():
        if recipe.base != base:
            raise SettingsError(f"Row {label!r} has the base {recipe.base}, others have {base}.")
        for name, source in recipe.agents.items():
            if agents.setdefault(name, source) != source:
                raise SettingsError(
                    f"Row {label!r} has {source} as agent {name!r}, others have {agents[name]}."
                )
    return base, agents


def _reference(rows: Mapping[str, Recipe], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in rows:
            raise SettingsError(
                f"The reference row is {wanted!r}; it must be one of {', '.join(rows)}."
            )
        return wanted
    ram_plus = [label for label, recipe in rows.items() if recipe.method == "ram+"]
    return (ram_plus or list(rows))[0]


@contextlib.contextmanager
def _folder(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="ram-studio-fisher-") as name:
        yield Path(name)
