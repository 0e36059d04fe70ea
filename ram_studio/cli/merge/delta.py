"""``ram-studio delta make|apply|info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import progress_bars

commands = typer.Typer(
    name="delta",
    help="Keep an agent as its base and the elements it changed, exactly.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.command("make")
@options.expand_groups
def make(
    base: Annotated[str, typer.Argument(help="Base model: folder or Hub id.")],
    agent: Annotated[str, typer.Argument(help="An agent of it, or a merge.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (safetensors).")],
    reading: options.Reading,
    as_json: options.Json = False,
) -> None:
    """Write only what an agent or a merge changed; refused if that is not smaller."""
    from ram_studio.engine.delta import make_delta

    with progress_bars(quiet=as_json) as (on_progress, _):
        made = make_delta(base, agent, out, on_progress=on_progress, **reading.fit())
    _print(made.to_dict(), as_json)


@commands.command("apply")
def apply(
    base: Annotated[str, typer.Argument(help="The base the delta was made from.")],
    delta: Annotated[Path, typer.Argument(help="The delta.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to create.")],
    as_json: options.Json = False,
) -> None:
    """Restore the agent bit for bit, with the base's config and tokenizer."""
    from ram_studio.engine.delta import apply_delta

    with progress_bars(quiet=as_json) as (on_progress, _):
        folder = apply_delta(base, delta, out, on_progress=on_progress)
    print(json.dumps({"out": str(folder)}) if as_json else f"Written to {folder}, as it was.")


@commands.command("info")
def info(
    delta: Annotated[Path, typer.Argument(help="The delta.")], as_json: options.Json = False
) -> None:
    """Show what a delta contains."""
    from ram_studio.engine.delta import read_info

    _print(read_info(delta).to_dict(), as_json)


def _print(delta: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(delta))
        return
    print(
        f"{delta['path']}: {delta['changed']:,} of {delta['elements']:,} elements changed "
        f"({delta['density']:.2%}) in {delta['tensors']} tensors; {delta['nbytes']:,} bytes "
        f"instead of {delta['whole_nbytes']:,}. Base {str(delta['base'])[:16]}..."
    )
