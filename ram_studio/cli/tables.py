"""Tables in the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import OutputError, raise_as

if TYPE_CHECKING:
    from pandas import DataFrame

    from ram_studio.algorithm.meters.retained import RetainedShares
    from ram_studio.evals.report.score import DomainScore


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table; the first column is text, the others are right-aligned numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=None if Console().is_terminal else 200).print(table)


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def print_reproducibility(lines: Sequence[str]) -> None:
    """Print the reproducibility details of a table of scores; nothing where unknown."""
    if lines:
        print("Reproducibility: " + "\n  ".join(lines))


def write_csv(frame: DataFrame, path: Path) -> None:
    """Write a table as CSV, atomically.

    Raises: OutputError when the file cannot be written.
    """
    text = frame.to_csv(index=False, lineterminator="\n")
    with raise_as(OutputError, f"{path} cannot be written"):
        write_whole(path, text.encode("utf-8", "replace"))


def score_text(score: DomainScore) -> str:
    """Return a score with its interval, "-" for none."""
    if not score.n:
        return "-"
    low, high = score.ci95
    return f"{score.score:.3f} [{low:.2f}, {high:.2f}]"


def number_text(value: Any, form: str = ".3f") -> str:
    """Return a number in a format, "-" for none."""
    return f"{value:{form}}" if isinstance(value, float) else "-" if value is None else str(value)


def ratio(value: float | None) -> str:
    """Return a ratio as text; None (infinity in JSON) as the symbol."""
    if value is None or math.isinf(value):
        return "∞"
    return f"{value:.4f}"


def retained_texts(retained: RetainedShares | None) -> tuple[str, str, str]:
    """Return retained, interference, and rounding's share of both: three cells."""
    if retained is None:
        return "-", "-", "-"
    by_rounding = f"{retained.rounding:+z.1%}, {retained.interference_rounding:+z.2f} x"
    return f"{retained.retained:.1%}", f"{retained.interference:.2f} x", by_rounding
