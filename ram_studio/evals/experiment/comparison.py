"""Methods and settings side by side: scores, time, and what of it is within noise.

The base is loaded once; every agent and every merge is put into it in memory, scored on the same
prompts, and taken out again. Each row is compared with one reference row on the same prompts by
McNemar's test, corrected for the number of rows (Holm).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ram_studio.algorithm.methods import make_settings
from ram_studio.algorithm.sketch import BASE, Sketch
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyse import load
from ram_studio.engine.in_memory import AppliedMerge, InMemoryMerger
from ram_studio.errors import EvaluationError, SettingsError
from ram_studio.evals.answering.decode import load_model
from ram_studio.evals.evaluate import DEFAULT_LIMIT, DEFAULT_SEED, evaluate_loaded
from ram_studio.evals.experiment.method_table import MethodTable
from ram_studio.evals.fisher import with_fisher_files
from ram_studio.evals.polled import PolledToken
from ram_studio.evals.report.tables import EvalReport

Progress = Callable[[str, int, int], None]

_STOPPED = "The comparison was stopped before it was complete; nothing was kept."


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
    cancel = PolledToken(should_stop, _STOPPED)
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
