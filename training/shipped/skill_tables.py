"""Measure the skill tables of the shipped agents: ``python -m training.shipped.skill_tables``.

Settings are merged in memory and asked one after another, the most important first; answers are
stored as they arrive. So it can be stopped at any time, leaves a table of all measured settings,
and continues from there: rows of the table are not asked again if base and agents still give the
answers in it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.methods import make_settings
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.errors import EvaluationError
from ram_studio.evals.experiment.plan import ComparePlan
from ram_studio.evals.experiment.runner import Runner
from ram_studio.evals.experiment.space import setting_label, with_method
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.skill_table import MeasuredRow, load_table, save_table, skill_table
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path, user_folder
from training.shipped.analyses import ANALYSIS_FILE, SETS
from training.shipped.rivals import KEPT_RATIOS, SCALES, recipe_of
from training.shipped.table_factors import with_factors

TABLE_FILE = "skills.json.gz"
ITEMS = 60
"""Held-out questions per skill: the first ones of an evaluation."""

CHUNK = 25
"""Settings in one run of the experiment runner; a table is written after each."""

SETTINGS = 1050
"""Default number of settings with different weights in a table."""

ROUNDS = ((0.1, 0.3, 0.5, 1.0), (0.2, 0.7), (0.05, 0.15, 0.4, 0.8))
"""Strengths r; each is measured at all epsilons before the next."""

CAPS = (2.0, 1.0, 0.5, 10.0)
"""Values of alpha."""

Setting = tuple[str, dict[str, Any]]


def scaling_rules(strengths: Sequence[float]) -> list[Setting]:
    """Return the scaling rules with these strengths, without epsilon."""
    found: list[Setting] = [("ram+", {"r": strengths[0], "alpha": 2.0}), ("ram", {})]
    found += [("ram+", {"r": r, "alpha": cap}) for cap, r in product(CAPS, strengths)]
    found += [("ram+s", {"r": r}) for r in strengths]
    found += [("ram+m", {"r": r, "alpha": 2.0}) for r in strengths]
    return found


def others() -> list[Setting]:
    """Return the settings of methods without epsilon."""
    scales = (None, 1.0, *(round(0.1 * i, 1) for i in range(1, 21) if i != 10))
    found: list[Setting] = [("task-arithmetic", {"scale": scale}) for scale in scales]
    densities, ties_scales = (0.2, 0.05, 0.1, 0.3, 0.5, 0.7, 1.0), (1.0, 0.5, 0.8, 1.2, 1.5)
    found += [("ties", {"density": d, "scale": s}) for s, d in product(ties_scales, densities)]
    rates, dare_scales = (0.1, 0.3, 0.5, 0.7, 0.9), (1.0, 0.5, None)
    for scale, rate in product(dare_scales, rates):
        found.append(("dare-ta", {"drop_rate": rate, "scale": scale}))
        if scale is not None:
            found.append(("dare-ties", {"drop_rate": rate, "scale": scale}))
    return found


def full_grids() -> list[Setting]:
    """Return the ranges of the paper's Table 11 and, for DARE + TIES, untrimmed settings.

    Matrix methods, which are not in the paper, have their defaults and three scales.
    """
    rates = [round(0.1 * i, 1) for i in range(1, 10)]
    found: list[Setting] = [("wudi", {}), ("wudi", {"solver": "closed"})]
    found += [(m, {"scale": s}) for m, s in product(("tsv-m", "iso-c"), (1.0, 0.5, 1.5))]
    found += [("ties", {"density": d, "scale": s}) for s, d in product(SCALES, KEPT_RATIOS)]
    for kept in (1.0, *KEPT_RATIOS):
        for scale, rate in product(SCALES, rates):
            values = {"drop_rate": rate, "density": kept, "scale": scale}
            found.append(("dare-ties", values))
    found += [("dare-ta", {"drop_rate": p, "scale": s}) for s, p in product(SCALES, rates)]
    return found


def distinct_points(analysis: Analysis) -> list[int]:
    """Return the grid points with different counts, the default first, then ever denser ones.

    Counts only fall as epsilon rises: equal counts mean equal weights of every merge. Points
    without any change give the base and are left out.
    """
    counts = analysis.counts.shared
    points = [
        k
        for k in range(len(EPSILON_GRID))
        if counts[:, k].any() and (k == 0 or (counts[:, k] != counts[:, k - 1]).any())
    ]
    if not points:
        return []
    middle = sum(k <= DEFAULT_INDEX for k in points) - 1
    points[middle] = DEFAULT_INDEX
    order = {k: i - middle for i, k in enumerate(points)}
    # By the reversed bits of the distance: every eighth point comes before those between.
    return sorted(points, key=lambda k: (int(f"{abs(order[k]):08b}"[::-1], 2), -order[k]))


def settings_of(analysis: Analysis) -> Iterator[tuple[Setting, int | None]]:
    """Yield settings of different weights with their grid point, in the order of measuring."""
    seen: set[Any] = set()
    points = distinct_points(analysis)
    for strengths, point in product(ROUNDS, points):
        for method, own in scaling_rules(strengths):
            found = analysis.preview(point, method, **own)["agents"].values()
            factors = tuple(round(a["lambda"], 12) if a["unique"] else 1.0 for a in found)
            if (point, factors) not in seen:
                seen.add((point, factors))
                yield (method, {"epsilon": EPSILON_GRID[point], **own}), point
        also: list[Setting] = []
        if (strengths, point) == (ROUNDS[0], points[0]):
            also = others()
        elif (strengths, point) == (ROUNDS[0], points[-1]):
            also = full_grids()
        for method, own in also:
            # Defaults written out are the same setting.
            key = json.dumps([method, make_settings(method, own).model_dump()])
            if key not in seen:
                seen.add(key)
                yield (method, own), None


def _models(name: str, root: Path | None) -> tuple[Analysis, Path, dict[str, Path]]:
    """Return a set's analysis, its base and its agents by name."""
    folder = (root or asset_path()) / name
    analysis = load_analysis(folder / ANALYSIS_FILE)
    base = folder.with_name("independent") / "base"
    return analysis, base, {agent: folder / agent for agent in analysis.agents}


def ask(
    name: str,
    settings: Sequence[tuple[Setting, int | None]],
    *,
    sources: bool,
    items: int = ITEMS,
    root: Path | None = None,
    **setup: Any,
) -> tuple[list[Question], list[MeasuredRow]]:
    """Merge settings of a set in memory; return the questions and each one's answers.

    sources: whether base and agents are asked too, first. items: the first questions per domain;
    fewer change the batches, whose sums may be rounded differently. root: the folder with the sets,
    None for the shipped ones. setup: fields of ``answers.Setup``.

    Raises: Stopped, SettingsError.
    """
    analysis, base, agents = _models(name, root)
    start = recipe_of(base, agents)
    rows = {setting_label(method, own): (method, own, k) for (method, own), k in settings}
    merges = {label: with_method(start, method, own) for label, (method, own, _) in rows.items()}
    asked = EvalSettings(limit=items, device="cpu")
    # One draw per setting, like a user's merge.
    plan = ComparePlan.of(merges, asked, sources=sources, has_control=False, draws=1)
    runner = Runner(plan, analysis=analysis, **setup)
    for _ in runner.run():
        pass
    measured = []
    for entry in runner.entries:
        answers = entry.source.answers
        if entry.label in rows:
            method, own, k = rows[entry.label]
            measured.append(MeasuredRow("merge", method, own, k, answers))
        else:
            measured.append(MeasuredRow("source", entry.label, {}, None, answers))
    return [q for own in runner.questions.values() for q in own], measured


def known_rows(
    out: Path, questions: Sequence[Question], sources: Sequence[MeasuredRow]
) -> dict[str, MeasuredRow]:
    """Return the rows of the table at `out`, by setting; nothing if it is missing or unusable.

    It belongs to these models if base and agents, asked now, give its answers.
    """
    try:
        table = load_table(out)
    except EvaluationError:
        return {}
    now = skill_table(questions, sources)
    then = _said(table)
    own = sum(row["kind"] == "source" for row in table["rows"])
    if now["prompts"] != table["prompts"] or _said(now) != then[:own]:
        return {}
    asked = list(_asked(questions))
    found = {}
    for row, texts in zip(table["rows"], then, strict=True):
        answers = {
            question.id: Answer(text, right == "1")
            for question, text, right in zip(asked, texts, row["right"], strict=True)
        }
        own = MeasuredRow(row["kind"], row["method"], row["settings"], row["k"], answers)
        found[_key(own.method, own.settings)] = own
    return found


def _said(table: Mapping[str, Any]) -> list[list[str]]:
    """Return the answers of every row as texts."""
    known = table["answers"]
    return [[known[i][a] for i, a in enumerate(row["answers"])] for row in table["rows"]]


def _asked(questions: Sequence[Question]) -> Iterator[Question]:
    """Yield questions domain by domain, as in a table."""
    for domain in dict.fromkeys(q.domain for q in questions):
        yield from (q for q in questions if q.domain == domain)


def _key(method: str, settings: Mapping[str, Any]) -> str:
    return json.dumps([method, dict(settings)], sort_keys=True)


def build(
    name: str,
    out: Path,
    *,
    store: AnswerStore | None = None,
    deadline: float | None = None,
    limit: int = SETTINGS,
    items: int = ITEMS,
    root: Path | None = None,
) -> Mapping[str, Any]:
    """Measure the table of a set and write it after every chunk of settings; return it.

    store: of answers of an unfinished chunk; limit: most settings, the first ones; deadline: of
    ``time.monotonic``, no chunk begins after it; items, root: see `ask`.
    """
    analysis, base, agents = _models(name, root)
    where: dict[str, Any] = {"items": items, "store": store, "root": root}
    every = list(islice(settings_of(analysis), limit))
    began = time.monotonic()
    questions, sources = ask(name, every[:1], sources=True, **where)
    measured = {_key(row.method, row.settings): row for row in sources}
    known = known_rows(out, questions, sources[:-1])
    measured |= {key: known[key] for (m, s), _ in every if (key := _key(m, s)) in known}
    rest = [setting for setting in every if _key(*setting[0]) not in measured]
    table = skill_table(questions, list(measured.values()))
    for first in range(0, len(rest), CHUNK):
        if deadline is not None and time.monotonic() > deadline:
            break
        _, found = ask(name, rest[first : first + CHUNK], sources=False, **where)
        measured |= {_key(row.method, row.settings): row for row in found}
        table = skill_table(questions, list(measured.values()))
        path = save_table(table, out)
        print(
            f"{name}: {len(measured)} of {len(every) + 1 + len(analysis.agents)} rows, "
            f"{time.monotonic() - began:.0f} s, {path.stat().st_size} bytes",
            flush=True,
        )
    table = with_factors(table, base, agents)
    save_table(table, out)
    return table


def differing(name: str, number: int, *, items: int = ITEMS, seed: str = "") -> tuple[int, int]:
    """Ask random rows of a shipped table again; return numbers of differing answers and of all.

    number: of merges; base and agents are asked too. items: questions per domain, see ``ask``.
    """
    table = load_table(asset_path(name, TABLE_FILE))
    merges = [row for row in table["rows"] if row["kind"] == "merge"]
    chosen = random.Random(f"{name}/{seed}").sample(merges, min(number, len(merges)))
    settings = [((row["method"], row["settings"]), row["k"]) for row in chosen]
    questions, found = ask(name, settings, sources=True, items=items)
    places = {prompt: i for i, prompt in enumerate(table["prompts"])}
    rows = [row for row in table["rows"] if row["kind"] == "source"] + chosen
    wrong = 0
    for row, now in zip(rows, found, strict=True):
        for question in questions:
            i, answer = places[question.prompt], now.answers[question.id]
            then = table["answers"][i][row["answers"][i]], row["right"][i] == "1"
            wrong += then != (answer.text, answer.is_correct)
    return wrong, len(rows) * len(questions)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and build the tables into the assets folder."""
    parser = argparse.ArgumentParser(
        prog="python -m training.shipped.skill_tables",
        description="Measure which settings of the shipped agents solve which questions.",
    )
    parser.add_argument("--set", choices=SETS, action="append", help="default: all of them")
    parser.add_argument("--minutes", type=float, help="start no new chunk after this time")
    parser.add_argument(
        "--limit", type=int, default=SETTINGS, help="the most settings a set, the first ones"
    )
    parser.add_argument("--store", type=Path, help="file of stored answers (SQLite)")
    parser.add_argument(
        "--again", type=int, metavar="N", help="ask N random rows again instead and compare"
    )
    parser.add_argument(
        "--factors", action="store_true", help="only measure factors again, ask no model"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the tables used 1")
    options = parser.parse_args(arguments)

    import torch

    torch.set_num_threads(options.threads)
    if options.again:
        for name in options.set or SETS:
            wrong, of = differing(name, options.again)
            print(f"{name}: {wrong} of {of} answers differ from the table", flush=True)
        return
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    with AnswerStore(options.store or user_folder() / "skill-tables.sqlite3") as store:
        for name in options.set or SETS:
            out = Path(asset_path(name)) / TABLE_FILE
            if options.factors:
                _, base, agents = _models(name, None)
                save_table(with_factors(load_table(out), base, agents), out)
                continue
            build(name, out, store=store, deadline=deadline, limit=options.limit)


if __name__ == "__main__":
    main()
