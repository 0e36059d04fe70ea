"""The report of an evaluation: a heat table of scores against the base, paired tests, health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ram_studio.algorithm.analysis import BASE
from ram_studio.app.check.verdicts import has_verdicts
from ram_studio.app.templates import render
from ram_studio.evals.report.comparison import Comparison
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.skill_verdict import is_named_after
from ram_studio.evals.suites.health import MEASURES, measure_text

# Differences of at least this many points get the full tint.
_FULL_POINTS = 30.0
_BESIDE = {"follow": " (retention)"}


def report_html(result: EvalResult, agents: Sequence[str]) -> str:
    """Return all but the verdicts: statements, heat table, categories, pairs, health.

    It is folded below verdicts (``verdict_cards``), if there are any.
    """
    health = {n: r.health for n, r in result.models.items() if r.health is not None}
    measured = next(iter(health.values()), {})
    return render(
        "check/report.html.j2",
        is_folded=has_verdicts(result.report, agents),
        result=result,
        statements=_statements(result, agents),
        heat=heat_table(result, agents) if result.report.items else None,
        models=list(result.models),
        health=health,
        measures={key: label for key, label in MEASURES.items() if key in measured},
        number=measure_text,
    )


def heat_table(
    result: EvalResult,
    agents: Sequence[str],
    base: str = BASE,
    order: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the model-by-domain table for the template's ``heat``.

    agents: all that are not merges, with or without the base. order: the agents in the order of
    their markers, where it differs from ``agents``.
    """
    report, pairs = result.report, result.comparisons
    skills = list(report.skills)
    # Domains outside the average come after it.
    beside = list(report.beside)
    against = {(c.a, c.domain): c for c in pairs if c.against == "base" and c.b == base}
    scores = {
        d: [m.domains[d].score for m in report.models.values() if m.domains[d].n] for d in skills
    }
    # If all are equal, none is the best.
    best = {d: max(values) for d, values in scores.items() if len(set(values)) > 1}
    has_average = len(skills) > 1
    rows = []
    for name, row in report.models.items():
        cells = [
            _cell(
                report,
                name,
                d,
                against.get((name, d)),
                best.get(d),
                base,
                is_elsewhere=name in agents and not is_named_after(name, d),
            )
            for d in (*skills, *beside)
        ]
        if has_average:
            cells.insert(len(skills), {"score": None, "average": row.average})
        rows.append((name, cells))
    sizes = [len(items) for items in report.items.values()]
    low, high = min(sizes), max(sizes)
    return {
        "heads": [
            *skills,
            *(["Average"] if has_average else []),
            *(f"{d}{_BESIDE.get(d, '')}" for d in beside),
        ],
        "rows": rows,
        "agents": list(agents),
        "order": order if order is None else list(order),
        "whom": "the base" if base == BASE else base,
        "n": f"{low} questions per column"
        if low == high
        else f"{low} to {high} questions per column",
        "made": len(pairs),
        "is_compared": bool(against),
        "has_base": base in report.models,
        "chance_levels": [report.chance_levels.get(d) for d in (*skills, *beside)]
        if report.chance_levels
        else [],
        "skills": len(skills) if has_average else None,
        "beside": beside,
    }


def _cell(
    report: EvalReport,
    name: str,
    domain: str,
    pair: Comparison | None,
    best: float | None,
    base: str,
    *,
    is_elsewhere: bool,
) -> dict[str, Any]:
    """is_elsewhere: the cell is an agent's score in a skill that is not its own."""
    score = report.models[name].domains[domain]
    cell = {"score": score, "is_best": best is not None and score.score == best}
    if pair is None or not pair.n:
        return {**cell, "tone": "", "side": "", "hint": "", "delta": ""}
    points = 100 * (score.score - report.models[base].domains[domain].score)
    tone = "" if pair.outcome == "inconclusive" else pair.outcome
    sign = {"better": "▲", "worse": "▼"}.get(tone, "~")
    strength = min(1.0, abs(points) / _FULL_POINTS)
    if is_elsewhere and points < 0:
        # The agent was not trained for it, so no color.
        return {**cell, "tone": "", "side": "", "hint": pair.sentence(), "delta": f"{points:+.1f}"}
    return {
        **cell,
        "tone": tone,
        "side": "up" if points > 0 else "down" if points < 0 else "",
        # Only a light tint within noise.
        "share": 18 + 62 * strength if tone else 22 * strength,
        "hint": pair.sentence(),
        "delta": f"{sign} {points:+.1f}",
    }


def _statements(
    result: EvalResult, agents: Sequence[str]
) -> dict[str, list[dict[str, Any]]] | None:
    """Return each merge's gains and losses against each skill's own specialist.

    Where no agent was evaluated, against the base. None without a merge.
    """
    report, pairs = result.report, result.comparisons
    merges = report.merges(BASE, agents)
    if not merges:
        return None
    against = "specialist" if any(c.against == "specialist" for c in pairs) else "base"
    rows = (result.judged if against == "specialist" else report).models
    statements: dict[str, list[dict[str, Any]]] = {name: [] for name in merges}
    for pair in pairs:
        if pair.a in merges and pair.against == against and pair.domain in report.skills:
            mine, theirs = (rows[name].domains[pair.domain].score for name in (pair.a, pair.b))
            is_same = pair.counts.wins == pair.counts.losses == 0
            line = {"pair": pair, "mine": mine, "theirs": theirs, "is_same": is_same}
            statements[pair.a].append(line)
    return {name: lines for name, lines in statements.items() if lines}
