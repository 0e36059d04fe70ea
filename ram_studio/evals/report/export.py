"""A report as a file: JSON with everything, CSV with one line per answer, or one HTML page.

What models wrote is untrusted. The page is self-contained, escapes every text and forbids scripts
and outside content; in CSV a text that a spreadsheet would run as a formula gets an apostrophe in
front. Files are written beside their place and then renamed.
"""

import csv
import html
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.errors import EvaluationError, OutputError
from ram_studio.evals.report.breakdown import breakdown
from ram_studio.evals.report.statistics import Comparison
from ram_studio.evals.report.tables import EvalReport

FORMATS = (".json", ".csv", ".html")
COLUMNS = ("model", "domain", "category", "item", "prompt", "gold", "answer", "correct", "note")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1c2430; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #d5dae1; padding: .35rem .6rem; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
small { color: #5a6675; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; max-height: 24rem;
  overflow: auto; font-size: 13px; }
.right { background: #e2f3e6; } .wrong { background: #fbe6e3; }
summary { cursor: pointer; padding: .2rem 0; }
"""


def export_report(
    report: EvalReport, path: str | Path, comparisons: Sequence[Comparison] = ()
) -> None:
    """Write a report to a file; the ending of the name (.json, .csv, .html) chooses the format.

    Raises:
        EvaluationError: another ending.
        OutputError: the file cannot be written.
    """
    target = Path(path)
    writers = {".json": as_json, ".csv": as_csv, ".html": as_html}
    if target.suffix.lower() not in writers:
        raise EvaluationError(
            f"Cannot tell the format of {target.name!r}. End the name in {', '.join(FORMATS)}."
        )
    content = writers[target.suffix.lower()](report, comparisons)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        # newline="": CSV brings its own line ends.
        partial.write_text(content, encoding="utf-8", errors="replace", newline="")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(
            f"The report cannot be written to {target}: {error.strerror or error}. Check that the "
            "folder exists and is writable."
        ) from error


def as_dict(report: EvalReport, comparisons: Sequence[Comparison] = ()) -> dict[str, Any]:
    """Return scores, breakdown, comparisons and every answer as JSON-ready values."""
    return {
        **report.to_dict(),
        "breakdown": breakdown(report),
        "comparisons": [comparison.to_dict() for comparison in comparisons],
        "answers": [dict(zip(COLUMNS, row, strict=True)) for row in _rows(report)],
        "package_version": __version__,
    }


def as_json(report: EvalReport, comparisons: Sequence[Comparison] = ()) -> str:
    """Return `as_dict` as JSON text."""
    return json.dumps(as_dict(report, comparisons), ensure_ascii=False, indent=1) + "\n"


def as_csv(report: EvalReport, comparisons: Sequence[Comparison] = ()) -> str:
    """Return one line per answer; comparisons have no place in it."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in _rows(report):
        writer.writerow([_harmless(value) if isinstance(value, str) else value for value in row])
    return out.getvalue()


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _rows(report: EvalReport) -> Iterable[tuple[Any, ...]]:
    for name, model in report.models.items():
        for domain, items in report.items.items():
            for number, (item, answer) in enumerate(zip(items, model.answers[domain], strict=True)):
                yield (
                    name,
                    domain,
                    getattr(item, "category", domain),
                    getattr(item, "id", f"{domain}-{number:04d}"),
                    item.prompt,
                    item.gold,
                    answer.text,
                    answer.is_correct,
                    answer.note,
                )


def as_html(report: EvalReport, comparisons: Sequence[Comparison] = ()) -> str:
    """Return one self-contained page: scores, comparisons, and every question with all answers."""
    parts = [
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
        "style-src 'unsafe-inline'\">",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{_text(report.suite)}: {_text(', '.join(report.models))}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Evaluation: {_text(report.suite)}</h1>",
        "<p><small>Correct answers of n, with the 95 % Wilson interval. "
        f"RAM Studio {_text(__version__)}.</small></p>",
        _scores(report),
        _comparisons(comparisons),
        *(_domain(report, domain) for domain in report.items),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _scores(report: EvalReport) -> str:
    head = "".join(f"<th>{_text(domain)}</th>" for domain in report.items)
    rows = []
    for name, model in report.models.items():
        cells = []
        for domain in report.items:
            score = model.domains[domain]
            low, high = score.ci95
            cells.append(
                f"<td class='n'>{score.correct}/{score.n} = {score.score:.3f}"
                f"<br><small>{low:.2f} to {high:.2f}</small></td>"
            )
        rows.append(f"<tr><th>{_text(name)}</th>{''.join(cells)}</tr>")
    return f"<table><tr><th>model</th>{head}</tr>{''.join(rows)}</table>"


def _comparisons(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return ""
    lines = "".join(f"<li>{_text(comparison.sentence())}</li>" for comparison in comparisons)
    return (
        f"<h2>Differences</h2><p><small>{len(comparisons)} comparisons were made; p-values are "
        f"adjusted for that (exact McNemar, Holm).</small></p><ul>{lines}</ul>"
    )


def _domain(report: EvalReport, domain: str) -> str:
    blocks = []
    for number, item in enumerate(report.items[domain]):
        answers = [(name, model.answers[domain][number]) for name, model in report.models.items()]
        marks = "".join("✓" if answer.is_correct else "✗" for _, answer in answers)
        rows = "".join(
            f"<tr class='{'right' if answer.is_correct else 'wrong'}'><th>{_text(name)}</th>"
            f"<td><pre>{_text(answer.text)}</pre><small>{_text(answer.note)}</small></td></tr>"
            for name, answer in answers
        )
        label = getattr(item, "id", f"{domain}-{number:04d}")
        blocks.append(
            f"<details><summary>{marks} {_text(label)}</summary><table>"
            f"<tr><th>question</th><td><pre>{_text(item.prompt)}</pre></td></tr>"
            f"<tr><th>right answer</th><td><pre>{_text(item.gold)}</pre></td></tr>"
            f"{rows}</table></details>"
        )
    return f"<h2>{_text(domain)}</h2>{''.join(blocks)}"
