"""A finished comparison as HTML: in the page and, with its own styles, as one file to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ram_studio._version import __version__
from ram_studio.app import markup, palette, wording
from ram_studio.app.experiment.comparison_figure import figure_svg
from ram_studio.evals import RETENTION_DOMAIN

Table = Mapping[str, Any]
"""What ``MethodTable.to_dict`` returns."""

_TONES = {"better": "better", "worse": "worse", "within noise": "same"}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _settings_text(row: Mapping[str, Any]) -> str:
    """Return a merge's settings in one line; a scale that was left out is 1/N."""
    shown = []
    for name, value in (row["settings"] or {}).items():
        if value is None:
            count = len(row["merged_agents"] or ())
            text = f"1/{count}" if name == "scale" and count else "–"
        elif name == "epsilon":
            text = markup.epsilon_text(value)
        else:
            text = f"{value:g}" if isinstance(value, (int, float)) else str(value)
        shown.append(f"{wording.SETTING_SIGNS.get(name, name.replace('_', ' '))} {text}")
    return " · ".join(shown)


def merge_rows(table: Table) -> list[Mapping[str, Any]]:
    """Return the rows that are merges, in order; their place, from 1, is their number."""
    return [row for row in table["rows"] if row["kind"] == "merge"]


def summary_html(table: Table) -> str:
    """Return, in one sentence each, what the reference is and which rows differ from it."""
    groups: dict[str, list[str]] = {"better": [], "within noise": [], "worse": []}
    for row in merge_rows(table):
        if row["versus"] is not None:
            groups[row["versus"]["outcome"]].append(row["row"])
    lines = []
    for outcome, labels in groups.items():
        text = ", ".join(labels) or wording.NONE_OF_THEM
        lines.append(
            f'<li><span class="key {_TONES[outcome]}">{escape(outcome)}</span> {escape(text)}</li>'
        )
    head = wording.COMPARE_SUMMARY.format(reference=table["reference"])
    return f'<div class="statement"><h3>{escape(head)}</h3><ul>{"".join(lines)}</ul></div>'


def table_html(table: Table) -> str:
    """Return the scores, row by row, with intervals and the comparison with the reference."""
    domains = list(table["rows"][0]["domains"])
    skills = [d for d in domains if d != RETENTION_DOMAIN]
    columns = [
        "",
        *skills,
        "Average",
        f"{RETENTION_DOMAIN} (kept?)",
        "Merged in",
        f"Against {table['reference']}",
    ]
    best = {d: max(row["domains"][d]["score"] for row in table["rows"]) for d in skills}
    top = max((row["average"] or 0.0) for row in table["rows"])
    agents = [row["row"] for row in table["rows"] if row["kind"] == "agent"]
    rows, number = [], 0
    for row in table["rows"]:

        def score_cell(domain: str, row: Mapping[str, Any] = row) -> str:
            value = row["domains"][domain]
            low, high = value["ci95"]
            css = " best" if value["score"] == best.get(domain) else ""
            return (
                f'<td class="score{css}"><b>{_percent(value["score"])}</b>'
                f'<span class="ci">{100 * low:.0f}–{100 * high:.0f}</span></td>'
            )

        if row["kind"] == "merge":
            number += 1
            head = f'<span class="number">{number}</span>{escape(row["row"])}'
            head += f'<span class="ci">{escape(_settings_text(row))}</span>'
        elif row["row"] in agents:
            head = markup.marker(agents.index(row["row"])) + escape(row["row"])
        else:
            head = escape(row["row"])
        seconds = row["merge_seconds"]
        rows.append(
            (
                head,
                *(score_cell(d) for d in skills),
                f'<td class="score{" best" if row["average"] == top else ""}">'
                f"<b>{_percent(row['average'])}</b></td>",
                score_cell(RETENTION_DOMAIN),
                markup.cell("–" if seconds is None else f"{seconds:.2f} s"),
                _against_cell(row, table["reference"]),
            )
        )
    note = escape(wording.COMPARE_NOTE.format(n=table["n"], seed=table["seed"]))
    return markup.table(columns, rows, css="scores compared") + f'<p class="fine">{note}</p>'


def _against_cell(row: Mapping[str, Any], reference: str) -> str:
    if row["row"] == reference:
        return '<td><span class="key">reference</span></td>'
    against = row["versus"]
    if against is None:
        return "<td>–</td>"
    counts = f"+{against['wins']} −{against['losses']}, p {_p_text(against['p_adjusted'])}"
    return (
        f'<td><span class="key {_TONES[against["outcome"]]}">{escape(against["outcome"])}</span>'
        f'<span class="ci">{counts}</span></td>'
    )


def _p_text(p: float) -> str:
    return "&lt; 0.001" if p < 0.001 else f"{p:.3f}"


def lambda_html(table: Table) -> str:
    """Return each merge's asked and stored lambda per agent."""
    names = list(dict.fromkeys(name for row in table["rows"] for name in row["agents"]))
    rows = []
    for number, row in enumerate(merge_rows(table), 1):
        cells = []
        for name in names:
            found = row["agents"].get(name, {})
            asked, stored = found.get("lambda"), found.get("effective_lambda")
            cells.append(
                "<td>–</td>"
                if stored is None
                else f"<td>{'–' if asked is None else f'{asked:.3f}'} → <b>{stored:.3f}</b></td>"
            )
        rows.append((f'<span class="number">{number}</span>{escape(row["row"])}', *cells))
    return (
        f'<details class="lambdas"><summary>{escape(wording.COMPARE_LAMBDAS)}</summary>'
        f'{markup.table(("", *names), rows)}<p class="fine">'
        f"{escape(wording.COMPARE_LAMBDAS_NOTE)}</p></details>"
    )


def _points(table: Table) -> list[tuple[str, str, float, float, bool]]:
    return [
        (str(i), row["row"], row["merge_seconds"], row["average"], row["row"] == table["reference"])
        for i, row in enumerate(merge_rows(table), 1)
        if row["average"] is not None
    ]


def figure_file(table: Table) -> str:
    """Return the time-versus-score figure as one SVG file that needs nothing else."""
    color = {name: pair[0] for name, pair in palette.PAGE.items()}
    style = (
        f"text {{ fill: {color['muted']}; font: 12px system-ui, sans-serif; }} "
        f".grid {{ stroke: {color['line']}; }} .lead {{ stroke: {color['muted']}; }} "
        f".dot {{ fill: {color['accent']}; }} "
        f".dot.reference {{ fill: {palette.AGENTS_LIGHT[1]}; }} "
        f"text.name {{ fill: {color['ink']}; font-weight: 600; }} svg {{ background: #fff; }}"
    )
    drawing = figure_svg(_points(table), 900)
    head, _, body = drawing.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{body}\n'


def figure_html(table: Table, widths: Sequence[int]) -> str:
    """Return the time-versus-score figure, drawn once for each width."""
    points = _points(table)
    drawings = "".join(
        f'<div class="drawing-{width}">{figure_svg(points, width)}</div>' for width in widths
    )
    return (
        f'<figure class="time-score"><figcaption><h3>{escape(wording.COMPARE_FIGURE)}</h3>'
        f'<p class="fine">{escape(wording.COMPARE_FIGURE_NOTE)}</p></figcaption>{drawings}</figure>'
    )


def page_html(table: Table) -> str:
    """Return the comparison for the page: summary, table, figure, lambdas."""
    return (
        f'<div class="stack compared">{summary_html(table)}'
        f'<section class="box">{table_html(table)}</section>'
        f'<section class="box">{figure_html(table, (900, 340))}</section>'
        f'<section class="box">{lambda_html(table)}</section></div>'
    )


_REPORT_CSS = """
body { margin: 0 auto; max-width: 1080px; padding: 28px 20px 60px; background: var(--ram-page);
  color: var(--ram-ink); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 22px; margin: 0; } h3 { font-size: 15px; margin: 0; }
.box, .statement { background: var(--ram-panel); border: 1px solid var(--ram-line);
  border-radius: 12px; padding: 14px 16px; margin-top: 14px; }
.statement ul { list-style: none; padding: 0; margin: 8px 0 0; display: grid; gap: 6px; }
.table-scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--ram-line);
  white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--ram-muted); font-weight: 550; font-size: 12.5px; }
td b { display: block; font-weight: 600; } .lambdas td b { display: inline; }
.ci { display: block; font-size: 11.5px; font-weight: 400; color: var(--ram-muted); }
th .ci { white-space: normal; max-width: 30ch; }
.best b { text-decoration: underline; text-underline-offset: 3px; }
.fine, .muted { color: var(--ram-muted); font-size: 12.5px; margin: 6px 0 0; }
.key { border-radius: 5px; padding: 1px 7px; font-size: 12.5px; font-weight: 600;
  background: var(--ram-sunken); color: var(--ram-muted); }
.key.better { background: var(--ram-good-soft); color: var(--ram-good); }
.key.worse { background: var(--ram-bad-soft); color: var(--ram-bad); }
.number { display: inline-block; min-width: 1.7em; color: var(--ram-accent); font-weight: 700; }
.marker { width: 12px; height: 12px; margin-right: 7px; }
figure { margin: 0; } svg.drawn { display: block; width: 100%; height: auto; }
.drawn text { fill: var(--ram-muted); font: 12px system-ui, sans-serif; }
.drawn .grid { stroke: var(--ram-line); } .drawn .lead { stroke: var(--ram-muted); }
.drawn .dot { fill: var(--ram-accent); } .drawn .dot.reference { fill: var(--ram-agent-1); }
.drawn text.name { fill: var(--ram-ink); font-weight: 600; }
summary { cursor: pointer; font-weight: 600; }
"""


def _colors() -> str:
    def rules(side: int, agents: Sequence[str]) -> str:
        pairs = [f"--ram-{name}: {pair[side]};" for name, pair in palette.PAGE.items()]
        pairs += [f"--ram-agent-{i}: {color};" for i, color in enumerate(agents)]
        return f":root {{ color-scheme: {('light', 'dark')[side]}; {' '.join(pairs)} }}"

    dark = rules(1, palette.AGENTS_DARK)
    return f"{rules(0, palette.AGENTS_LIGHT)}\n@media (prefers-color-scheme: dark) {{ {dark} }}"


def report_html(table: Table, title: str) -> str:
    """Return the comparison as one HTML file that needs nothing else."""
    about = wording.REPORT_ABOUT.format(
        version=__version__, suite=table["suite"], n=table["n"], seed=table["seed"]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_colors()}{_REPORT_CSS}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="muted">{escape(about)}</p>{summary_html(table)}'
        f'<section class="box">{table_html(table)}</section>'
        f'<section class="box">{figure_html(table, (900,))}</section>'
        f'<section class="box">{lambda_html(table)}</section></body></html>\n'
    )
