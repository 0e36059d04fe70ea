"""A report as a file: JSON with everything, CSV with one line per answer, or one HTML page.

Models' texts are untrusted. The page is self-contained, escapes every text and forbids scripts and
external content; in CSV a text that a spreadsheet would run as a formula gets a leading apostrophe.
Files are written under a temporary name and then renamed.
"""

import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.write.output_folder import absolute, write_whole
from ram_studio.errors import EvalSettingsError, OutputError, raise_as
from ram_studio.evals.report.comparison import holm_note
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.report.score import as_json
from ram_studio.resources import templates

FORMATS = (".json", ".csv", ".html")
COLUMNS = ("model", "domain", "category", "item", "prompt", "gold", "answer", "correct", "note")


def export_report(result: EvalResult, path: str | Path) -> None:
    """Write a result to a file; the suffix (.json, .csv, .html) chooses the format.

    Raises:
        EvaluationError: another suffix.
        OutputError: the file cannot be written.
    """
    target = absolute(path)
    ending = target.suffix.lower()
    if ending not in FORMATS:
        raise EvalSettingsError(
            f"The format of {target.name!r} is not known. End the name in {', '.join(FORMATS)}."
        )
    what = f"The report cannot be written to {printable(target)}"
    with raise_as(OutputError, what, "check that the folder exists and is writable"):
        # A missing folder is probably a typo.
        os.stat(target.parent)
        write_whole(target, export_result(result, ending).encode("utf-8", "replace"))


def export_result(result: EvalResult, ending: str, **more: Any) -> str:
    """Return a result with every answer, in a format of FORMATS; more: further fields of JSON."""
    if ending == ".csv":
        return as_csv(result.report)
    if ending == ".html":
        return as_html(result)
    answers = [dict(zip(COLUMNS, row, strict=True)) for row in _rows(result.report)]
    content = {**as_json(result), "answers": answers, "package_version": __version__, **more}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def as_csv(report: EvalReport) -> str:
    """Return one line per answer, without comparisons and verdicts."""
    lines = io.StringIO()
    rows = ([harmless_cell(v) if isinstance(v, str) else v for v in row] for row in _rows(report))
    csv.writer(lines).writerows([COLUMNS, *rows])
    return lines.getvalue()


def harmless_cell(text: str) -> str:
    """Return text that no spreadsheet reads as a formula, also in full-width characters."""
    starts = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
    return f"'{text}" if text.startswith(starts) else text


def _rows(report: EvalReport) -> Iterable[tuple[Any, ...]]:
    for name, model in report.models.items():
        for domain, items in report.items.items():
            for item, answer in zip(items, model.answers[domain], strict=True):
                asked = (item.category, item.id, item.prompt, item.gold)
                yield (name, domain, *asked, answer.text, answer.is_correct, answer.note)


def as_html(result: EvalResult) -> str:
    """Return one self-contained page: the terminal's tables, and every question's answers."""
    page = templates(Path(__file__).parent).get_template("report.html.j2")
    return page.render(
        result=result,
        report=result.report,
        holm_note=holm_note,
        version=__version__,
    )
