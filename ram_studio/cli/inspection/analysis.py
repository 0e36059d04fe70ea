"""``ram-studio analysis add|compact``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.checkpoints.read.describe import shell_word
from ram_studio.cli import options

commands = typer.Typer(
    name="analysis",
    help="Combine the analyses of a plan's parts, or compact an analysis to share it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.command("add")
def add(
    files: Annotated[
        list[Path], typer.Argument(help="Analyses of parts, from `analyze --plan --part`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Analysis to write.")],
    as_json: options.Json = False,
) -> None:
    """Add the analyses of parts; with all parts it is exactly the analysis of the whole model."""
    from ram_studio.algorithm.partial import add_partial, parts_text
    from ram_studio.checkpoints.record.analysis_file import load_partial, save_analysis

    added = add_partial([load_partial(file) for file in files])
    save_analysis(added if added.missing else added.whole(), out)
    if as_json:
        parts = {"parts": list(added.parts), "of": added.of, "missing": added.missing}
        print(json.dumps({"analysis": str(out), **parts}))
    elif added.missing:
        print(f"{out} holds {parts_text(added.parts, added.of)}; add the missing parts.")
    else:
        print(
            f"{out} is the analysis of the whole model. Next: ram-studio merge --plan PLAN --part "
            f"1 --analysis {shell_word(out)} --out OUT"
        )


@commands.command("compact")
def compact(
    file: Annotated[Path, typer.Argument(help="An analysis, from `analyze --analysis`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (safetensors).")],
    as_json: options.Json = False,
) -> None:
    """Make an analysis small enough to share: for `preview` and the app, without any weights.

    Counts of each tensor stay exact; magnitudes, signs and cosines are stored by layer.
    """
    from ram_studio.checkpoints.read.describe import shown_bytes
    from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis

    nbytes = save_analysis(load_analysis(file).compact(), out).stat().st_size
    if as_json:
        print(json.dumps({"analysis": str(out), "nbytes": nbytes}))
    else:
        print(f"{out} takes {shown_bytes(nbytes)}. It opens in the app; see ram-studio preview.")
