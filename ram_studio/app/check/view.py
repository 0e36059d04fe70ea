"""What an evaluation showed: scores against the base as a heat table, paired tests, health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ram_studio.app.check.verdicts import has_verdicts
from ram_studio.app.check.work import BASE
from ram_studio.app.templates import render
from ram_studio.evals.report.breakdown import breakdown, drawn_rows, missing
from ram_studio.evals.report.skill_verdict import MARGIN
from ram_studio.evals.report.specialists import choose_specialists
from ram_studio.evals.report.statistics import Comparison, compare_all
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.report.trust import trust, trust_lines

# Differences of so many points and more get the full tint.
_FULL_POINTS = 30.0
_BESIDE = {"follow": " (kept?)"}
_MEASURES = {
    "perplexity": "Perplexity",
    "bits_per_byte": "Bits per byte",
    "kl_to_base": "KL to the base (nats/token)",
    "nonfinite_logits": "Logits not finite",
    "ended": "Answers that end",
    "repetition": "Repetition",
    "tokens_per_second": "Tokens/s",
    "text_tokens": "Tokens of text",
}


def report_html(report: EvalReport, agents: Sequence[str], margin: float = MARGIN) -> str:
    """Return all but the verdicts: statements, heat table, categories, pairs, health.

    It is folded where there are verdicts, which lead (``verdicts_drawn``).
    """
    chosen = choose_specialists(report, agents)
    pairs = compare_all(
        report,
        base=BASE if BASE in report.models else None,
        specialists=chosen.agents,
        judged=chosen.judged,
    )
    parts = breakdown(report)
    health = {n: r.health for n, r in report.models.items() if r.health is not None}
    measured = next(iter(health.values()), {})
    return render(
        "check/report.html.j2",
        is_folded=has_verdicts(report, agents),
        margin=margin,
        until=report.until.get("sentence", ""),
        draws=[[what, *texts] for what, texts in drawn_rows(parts)],
        statements=_statements(report, agents, pairs, chosen.judged),
        heat=heat_table(report, agents, pairs) if report.items else None,
        silent=missing(report),
        models=list(parts),
        kinds=_kinds(parts),
        pairs=pairs,
        health=health,
        measures={key: label for key, label in _MEASURES.items() if key in measured},
        trusted=trust_lines(trust(report)),
        number=_number,
    )


def heat_table(
    report: EvalReport, agents: Sequence[str], pairs: Sequence[Comparison], base: str = BASE
) -> dict[str, Any]:
    """Return the model-by-domain table as the template's ``heat`` takes it."""
    skills = list(report.skills)
    # What stands apart from the average comes after it.
    beside = [d for d in report.items if d not in skills]
    against = {(c.a, c.domain): c for c in pairs if c.against == "base" and c.b == base}
    scores = {
        d: [m.domains[d].score for m in report.models.values() if m.domains[d].n] for d in skills
    }
    # Where all are equal, none is the best.
    best = {d: max(values) for d, values in scores.items() if len(set(values)) > 1}
    has_average = len(skills) > 1
    rows = []
    for name, result in report.models.items():
        cells = [
            _cell(report, name, d, against.get((name, d)), best.get(d), base)
            for d in (*skills, *beside)
        ]
        if has_average:
            cells.insert(len(skills), {"score": None, "average": result.over_skills})
        rows.append((name, cells))
    sizes = [len(items) for items in report.items.values()]
    low, high = min(sizes), max(sizes)
    return {
        "heads": [
            *(d.capitalize() for d in skills),
            *(["Average"] if has_average else []),
            *(f"{d.capitalize()}{_BESIDE.get(d, '')}" for d in beside),
        ],
        "rows": rows,
        "agents": list(agents),
        "base": base,
        "whom": "the base" if base == BASE else base,
        "n": f"{low} questions per column"
        if low == high
        else f"{low} to {high} questions per column",
        "made": len(pairs),
        "is_compared": bool(against),
        "has_base": base in report.models,
        "floors": [report.floors.get(d) for d in (*skills, *beside)] if report.floors else [],
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
) -> dict[str, Any]:
    score = report.models[name].domains[domain]
    cell = {"score": score, "is_best": best is not None and score.score == best}
    if pair is None or not pair.n:
        return {**cell, "tone": "", "side": "", "hint": "", "delta": ""}
    points = 100 * (score.score - report.models[base].domains[domain].score)
    tone = pair.outcome if pair.outcome in ("better", "worse") else ""
    sign = {"better": "▲", "worse": "▼"}.get(tone, "~")
    strength = min(1.0, abs(points) / _FULL_POINTS)
    return {
        **cell,
        "tone": tone,
        "side": "up" if points > 0 else "down" if points < 0 else "",
        # Within noise there is a breath of color only.
        "share": 18 + 62 * strength if tone else 22 * strength,
        "hint": pair.sentence(),
        "delta": f"{sign} {points:+.1f}",
    }


def _statements(
    report: EvalReport, agents: Sequence[str], pairs: Sequence[Comparison], judged: EvalReport
) -> dict[str, list[dict[str, Any]]] | None:
    """Return, for each merge, what it gained or lost against each skill's own specialist.

    Where no agent was evaluated, against the base. None without a merge. judged: the report
    without the questions by which a specialist was chosen.
    """
    merges = [name for name in report.models if name != BASE and name not in agents]
    if not merges:
        return None
    against = "specialist" if any(c.against == "specialist" for c in pairs) else "base"
    said: dict[str, list[dict[str, Any]]] = {name: [] for name in merges}
    for pair in pairs:
        if pair.a in merges and pair.against == against and pair.domain in report.skills:
            rows = (judged if against == "specialist" else report).models
            mine, theirs = (rows[name].domains[pair.domain].score for name in (pair.a, pair.b))
            is_same = pair.counts.wins == pair.counts.losses == 0
            line = {"pair": pair, "mine": mine, "theirs": theirs, "is_same": is_same}
            line["floor"] = None
            if pair.n and report.is_at_floor(pair.domain, mine, theirs):
                line["floor"] = report.floors[pair.domain]
            said[pair.a].append(line)
    return {name: lines for name, lines in said.items() if lines}


def _kinds(parts: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return right answers of every model by kind of question, where a domain has several."""
    first = next(iter(parts.values()))["categories"]
    return [
        (f"{d}: {kind}", [part["categories"][d][kind] for part in parts.values()])
        for d, kinds in first.items()
        if len(kinds) > 1
        for kind in kinds
    ]


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    if key in ("ended", "repetition"):
        return f"{100 * value:.0f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
