"""``ram-studio verify``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import progress_bars


def verify(
    folder: Annotated[str, typer.Argument(help="A merged checkpoint: folder or fsspec URL.")],
    sources: Annotated[
        bool, typer.Option("--sources", help="Also check the recipe's sources and recompute.")
    ] = False,
    base: options.Base = None,
    agent: options.Agents = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Your own method, if it was used."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Recompute every tensor.")] = False,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Re-check a merged checkpoint against its provenance and, if given, its sources."""
    from ram_studio.checkpoints.own_methods import bring_method
    from ram_studio.checkpoints.read.describe import plural
    from ram_studio.engine.verify import verify as run

    if method is not None:
        bring_method(method)
    with progress_bars(quiet=as_json) as (on_progress, _):
        result = run(
            folder,
            with_sources=sources or full,
            base=base,
            agents=options.parse_pairs(agent, "agent NAME=PATH"),
            full=full,
            threads=threads,
            on_progress=on_progress,
        )
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    for note in result.notes:
        print(f"note: {note}")
    print(
        f"MATCH: {plural(result.shards, 'shard')} with {plural(result.tensors, 'tensor')} and "
        f"{plural(result.files, 'other file')} are as the provenance says."
    )
    if result.source_files:
        files = plural(result.source_files, "source file")
        print(f"MATCH: the merge read {files} with the same content.")
    if result.compared_bytes:
        print(
            f"MATCH: {result.compared_bytes:,} of {result.total_bytes:,} bytes recomputed from the "
            "sources are the same."
        )
