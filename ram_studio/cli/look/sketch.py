"""``ram-studio sketch add``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.cli import options

commands = typer.Typer(
    name="sketch",
    help="Put the sketches of a plan's parts together.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.callback()
def _sketch() -> None:
    """Keep `add` a command of its own: Typer would make a single one the group itself."""


@commands.command("add")
def add(
    files: Annotated[list[Path], typer.Argument(help="What `analyze --plan --part` wrote.")],
    out: Annotated[Path, typer.Option(help="Sketch to write.")],
    as_json: options.Json = False,
) -> None:
    """Add the sketches of parts; with all parts it is exactly the sketch of the whole model."""
    from ram_studio.algorithm.partial import add_partial, parts_text
    from ram_studio.checkpoints.record.partial_file import load_partial, save_partial
    from ram_studio.checkpoints.record.sketch_file import save_sketch

    added = add_partial([load_partial(file) for file in files])
    if added.missing:
        save_partial(added, out)
    else:
        save_sketch(added.whole(), out)
    if as_json:
        told = {"parts": list(added.parts), "of": added.of, "missing": added.missing}
        print(json.dumps({"sketch": str(out), **told}))
    elif added.missing:
        print(f"{out} holds {parts_text(added.parts, added.of)}; add what is missing to it.")
    else:
        print(f"{out} is the sketch of the whole model. Next: ram-studio merge --plan --part")
