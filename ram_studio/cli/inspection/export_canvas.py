"""``ram-studio export-canvas``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export_canvas(
    source: Annotated[
        str,
        typer.Argument(
            help="An analysis, a folder with analysis.safetensors (and skills.json.gz), or a "
            "set: shared-style, independent, dense or real."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="A .html file, or a folder for a static Space (with its README)."
        ),
    ],
) -> None:
    """Write Tune's canvas as one HTML file that works offline."""
    from ram_studio.evals.report.canvas_page import export_canvas as write

    page = write(source, out)
    print(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
