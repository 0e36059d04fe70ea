"""``ram-studio gallery``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.checkpoints.read.describe import plural
from ram_studio.cli import options
from ram_studio.cli.settings import Store


def gallery(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Merged folders, folders that describe a merge, or Hub ids owner/name[@revision].",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to make: the site, also a static Space.")
    ],
    title: Annotated[
        str, typer.Option(help="Heading of the page.")
    ] = "Merges of RL-trained agents",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Recompute each merge from its sources; those that match get a badge."
        ),
    ] = False,
    verified: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The verified.json of an earlier gallery: the same commits keep their badge.",
        ),
    ] = None,
    store: Store = None,
    as_json: options.Json = False,
) -> None:
    """Make a static site of merges: recipes, scores with intervals, and each one's canvas."""
    from ram_studio.evals.publish.gallery import build_gallery, load_verified
    from ram_studio.evals.store import AnswerStore

    known = {} if verified is None else load_verified(verified)
    with AnswerStore(store) as answers:
        built = build_gallery(sources, out, title=title, store=answers, known=known, check=verify)
    for name, reason in built.left_out.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    if as_json:
        rows = [
            {
                "title": entry.title,
                "commit": entry.commit,
                "verified": entry.verified is not None,
                "canvas": entry.analysis is not None,
                "scores": len(entry.scores),
                "notes": list(entry.notes),
            }
            for entry in built.entries
        ]
        print(json.dumps({"page": str(built.page), "merges": rows, "left_out": built.left_out}))
        return
    badges = sum(entry.verified is not None for entry in built.entries)
    print(f"{built.page}: {plural(len(built.entries), 'merge')}, {badges} verified.")
