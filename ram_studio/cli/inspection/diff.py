"""``ram-studio diff``."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import progress_bars
from ram_studio.cli.tables import number_text, print_table


@options.expand_groups
def diff(
    base: Annotated[str, typer.Argument(help="The model to compare with: folder or Hub id.")],
    model: Annotated[str, typer.Argument(help="A merge, agent, adapter or delta of that model.")],
    *,
    adapter: Annotated[
        str | None, typer.Option(help="An adapter or agent: how much of its update MODEL carries.")
    ] = None,
    by: Annotated[
        Literal["module", "layer", "expert", "tower", "tensor"],
        typer.Option(help="What a row of the table is."),
    ] = "module",
    reading: options.Reading,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Show what differs between two models, and whether a merge took effect.

    Lists which modules, layers or experts changed, by how much, and which are bit-identical.
    Reads both models once; memory does not grow with them.
    """
    from ram_studio.checkpoints.read.describe import plural, quoted, shown_list
    from ram_studio.engine.diff import diff as compare_models

    with progress_bars(quiet=as_json) as (on_progress, _):
        found = compare_models(
            base,
            model,
            adapter=adapter,
            threads=threads,
            on_progress=on_progress,
            **reading.fit(),
        )
    if as_json:
        print(json.dumps(found.to_dict(by)))
        return
    changes = found.by(by)
    changed = [one for one in changes if one.changed]
    if changed:
        print_table(
            (by, "elements", "changed", "relative change", "largest", *["carried"] * bool(adapter)),
            [
                (
                    one.name,
                    f"{one.elements:,}",
                    f"{one.share:.3%}" if one.share >= 1e-5 else "< 0.001%",
                    number_text(one.relative, ".3e"),
                    f"{one.largest:.3e}",
                    *[number_text(one.carried, ".1%")] * bool(adapter),
                )
                for one in changed
            ],
        )
    equal = [one.name for one in changes if not one.changed]
    if equal and changed:
        print(f"Bit-identical to the base: {shown_list(equal, 12, ', ')}.")
    for names, who in ((found.missing, "the base"), (found.extra, "the model")):
        if names:
            listed = shown_list(names, separator=", ", show=quoted)
            print(f"note: {plural(len(names), 'tensor')} of {who} alone: {listed}.")
    for note in found.notes:
        print(f"note: {note}")
    print(found.verdict)
