"""What an evaluation showed: scores against the base as a heat table, paired tests, health."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ram_studio.app import markup, wording
from ram_studio.app.check import wording as words
from ram_studio.app.check.scoring import BASE, specialist
from ram_studio.evals import RETENTION_DOMAIN, Comparison, EvalReport, compare_all
from ram_studio.evals.report.breakdown import breakdown

# Differences of so many points and more get the full tint.
_FULL_POINTS = 30.0
_TONES = {"better": "better", "worse": "worse", "no difference shown": ""}


def comparisons_of(report: EvalReport, agents: Sequence[str], base: str = BASE) -> list[Comparison]:
    """Return all paired comparisons of a report: with the base, the best agents, other merges."""
    experts = {domain: specialist(report, domain, agents) for domain in report.items}
    return list(
        compare_all(
            report,
            base=base if base in report.models else None,
            specialists={d: name for d, name in experts.items() if name is not None},
        )
    )


def report_html(report: EvalReport, agents: Sequence[str]) -> str:
    """Return the whole result: statements, heat table, categories, all pairs, health."""
    pairs = comparisons_of(report, agents)
    parts = [
        statements_html(report, agents, pairs),
        table_html(report, agents, pairs) if report.items else "",
        categories_html(report),
        pairs_html(pairs),
        health_html(report),
    ]
    return f'<div class="stack">{"".join(parts)}</div>'


def model_head(name: str, agents: Sequence[str], base: str = BASE) -> str:
    """Return a model's name with its marker or tag."""
    if name in agents:
        return markup.marker(list(agents).index(name)) + escape(name)
    return escape(name) if name == base else f'<span class="merge-tag">merge</span>{escape(name)}'


def table_html(
    report: EvalReport, agents: Sequence[str], pairs: Sequence[Comparison], base: str = BASE
) -> str:
    """Return the heat table, model by domain."""
    domains = list(report.items)
    kept = RETENTION_DOMAIN if report.suite == "demo" else None
    skills = [d for d in domains if d != kept]
    against = {(c.a, c.domain): c for c in pairs if c.against == "base" and c.b == base}
    scores = {d: [m.domains[d].score for m in report.models.values()] for d in skills}
    # Where all are equal, none is the best.
    best = {d: max(values) for d, values in scores.items() if len(set(values)) > 1}
    rows = []
    for name, result in report.models.items():
        cells = [
            _cell(report, name, d, against.get((name, d)), best.get(d), base)
            for d in (*skills, *((kept,) if kept else ()))
        ]
        if len(skills) > 1:
            average = "–" if math.isnan(result.average) else f"{100 * result.average:.1f} %"
            cells.insert(len(skills), f'<td class="score"><b>{average}</b></td>')
        rows.append((model_head(name, agents, base), *cells))
    columns = ["Model", *(d.capitalize() for d in skills)]
    columns += ["Average"] if len(skills) > 1 else []
    columns += [f"{kept.capitalize()} (kept?)"] if kept else []
    sizes = [len(items) for items in report.items.values()]
    n = (
        words.HEAT_N.format(n=sizes[0])
        if len(set(sizes)) == 1
        else words.HEAT_N_RANGE.format(low=min(sizes), high=max(sizes))
    )
    whom = "the base" if base == BASE else escape(base)
    note = (
        words.HEAT_LEGEND.format(n=n, made=len(pairs), base=whom)
        if against
        else f"{n}." + ("" if base in report.models else f" {words.NO_BASE}")
    )
    return markup.table(columns, rows, css="scores heat") + f'<p class="fine">{note}</p>'


def _cell(
    report: EvalReport,
    name: str,
    domain: str,
    pair: Comparison | None,
    best: float | None,
    base: str,
) -> str:
    value = report.models[name].domains[domain]
    low, high = value.ci95
    tone, delta, tint, hint = "", "", "", ""
    if pair is not None:
        points = 100 * (value.score - report.models[base].domains[domain].score)
        tone = _TONES[pair.outcome]
        sign = {"better": "▲ ", "worse": "▼ "}.get(tone, "~ ")
        delta = f'<span class="delta">{sign}{points:+.1f}</span>'
        strength = min(1.0, abs(points) / _FULL_POINTS)
        # Within noise there is a breath of colour only.
        share = 18 + 62 * strength if tone else 22 * strength
        side = "up" if points > 0 else "down"
        tint = f' data-side="{side}" style="--heat:{share:.0f}%"' if points else ""
        hint = f' title="{escape(pair.sentence())}"'
    top = " best" if best is not None and value.score == best else ""
    return (
        f'<td class="score {tone}{top}"{tint}{hint}><b>{100 * value.score:.1f} %</b>{delta}'
        f'<span class="ci">{100 * low:.0f}–{100 * high:.0f} · n {value.n}</span></td>'
    )


def statements_html(report: EvalReport, agents: Sequence[str], pairs: Sequence[Comparison]) -> str:
    """Return, for each merge, what it gained or lost against each skill's own specialist.

    Where no agent was evaluated, against the base.
    """
    merges = [name for name in report.models if name != BASE and name not in agents]
    if not merges:
        return markup.callout(wording.NO_MERGE_YET, "note")
    against = "specialist" if any(c.against == "specialist" for c in pairs) else "base"
    kept = RETENTION_DOMAIN if report.suite == "demo" else None
    blocks = []
    for name in merges:
        lines = [
            f"<li>{_statement(report, c)}</li>"
            for c in pairs
            if c.a == name and c.against == against and c.domain != kept
        ]
        if lines:
            blocks.append(
                f'<div class="statement"><h3>{escape(name)}</h3><ul>{"".join(lines)}</ul></div>'
            )
    return f'<div class="statements">{"".join(blocks)}</div>' if blocks else ""


def _statement(report: EvalReport, pair: Comparison) -> str:
    mine = report.models[pair.a].domains[pair.domain].score
    theirs = report.models[pair.b].domains[pair.domain].score
    tone = _TONES[pair.outcome] or "same"
    same = pair.counts.wins == pair.counts.losses == 0
    said = words.SAME_ANSWERS if same else words.AGAINST[pair.outcome]
    whose = f"of its specialist {pair.b}" if pair.against == "specialist" else "of the base"
    parts = [f"{pair.counts.wins} gained, {pair.counts.losses} lost of {pair.n}"]
    if not same:
        parts.append(f"adjusted p {pair.p_adjusted:.2g}")
    if tone == "same" and pair.items_needed:
        parts.append(words.NEED.format(n=f"{pair.items_needed:,}"))
    return (
        f'<span class="key {tone}">{escape(said)}</span> on <b>{escape(pair.domain)}</b>: '
        f"{100 * mine:.1f} % against {100 * theirs:.1f} % {escape(whose)} "
        f'<span class="muted">({"; ".join(parts)})</span>'
    )


def pairs_html(pairs: Sequence[Comparison]) -> str:
    """Return all paired comparisons, folded."""
    if not pairs:
        return ""
    rows = [
        (
            escape(c.a),
            markup.cell(c.b),
            markup.cell(c.domain),
            markup.cell(str(c.counts.wins)),
            markup.cell(str(c.counts.losses)),
            markup.cell(str(c.counts.ties)),
            markup.cell(f"{c.p_adjusted:.2g}"),
            f'<td><span class="key {_TONES[c.outcome] or "same"}">'
            f"{escape(words.AGAINST[c.outcome])}</span></td>",
            markup.cell("–" if c.items_needed is None else f"about {c.items_needed:,}"),
        )
        for c in pairs
    ]
    return (
        f'<details class="fold"><summary>{words.ALL_PAIRS.format(n=len(pairs))}</summary>'
        f"{markup.table(words.PAIR_COLUMNS, rows, css='pairs')}</details>"
    )


def categories_html(report: EvalReport) -> str:
    """Return right answers by kind of question, folded; and what got no reply."""
    parts = breakdown(report)
    silent = "".join(
        markup.callout(words.UNANSWERED.format(model=name, n=part["unanswered"]), "warn")
        for name, part in parts.items()
        if part["unanswered"]
    )
    silent += "".join(
        markup.callout(words.TOO_LONG.format(model=name, n=n, of=len(answers)), "warn")
        for name, row in report.models.items()
        for answers in [[a for own in row.answers.values() for a in own]]
        for n in [sum(a.note.startswith("too long") for a in answers)]
        if n
    )
    first = next(iter(parts.values()))["categories"]
    rows = [
        (
            f"{escape(domain)}: {escape(category)}",
            *(
                markup.cell(f"{s['correct']}/{s['n']}")
                for s in (part["categories"][domain][category] for part in parts.values())
            ),
        )
        for domain, categories in first.items()
        if len(categories) > 1
        for category in categories
    ]
    if not rows:
        return silent
    return (
        f'{silent}<details class="fold"><summary>{words.CATEGORIES}</summary>'
        f"{markup.table(('', *parts), rows)}</details>"
    )


def health_html(report: EvalReport) -> str:
    """Return the health numbers, model by measure, with what is plainly wrong in words."""
    measured = {n: r.health for n, r in report.models.items() if r.health is not None}
    if not measured:
        return ""
    keys = [key for key in words.HEALTH_NAMES if key in next(iter(measured.values()))]
    rows = [
        (escape(name), *(markup.cell(_number(key, health[key])) for key in keys))
        for name, health in measured.items()
    ]
    wrong = [f"{name}: {text}." for name, health in measured.items() for text in health["warnings"]]
    said = "".join(markup.callout(text, "bad") for text in wrong) or markup.callout(
        words.HEALTH_SOUND, "good"
    )
    heads = ("Model", *(words.HEALTH_NAMES[key] for key in keys))
    return (
        f'<div class="stack health"><h3>{words.HEALTH_HEADING}</h3>{said}'
        f"{markup.table(heads, rows)}</div>"
    )


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    if key in ("ended", "repetition"):
        return f"{100 * value:.0f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
