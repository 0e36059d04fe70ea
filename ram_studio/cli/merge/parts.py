"""``ram-studio plan`` and ``finish``, and ``analyze`` and ``merge`` for one part."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ram_studio.checkpoints.read.describe import shell_word
from ram_studio.cli import options
from ram_studio.cli.merge.result import report
from ram_studio.cli.progress import progress_bars
from ram_studio.cli.tables import print_table


def plan(
    recipe: Annotated[Path, typer.Argument(help="A recipe (YAML), or a provenance file.")],
    parts: Annotated[int, typer.Option(help="How many parts; at most one per output file works.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (JSON).")],
    max_shard_size: options.MaxShardSize = "5GB",
    hash_sources: options.Hash = True,
    as_json: options.Json = False,
) -> None:
    """Split a merge into parts for many machines: whole output files, about equal in bytes.

    Then analyze --plan --part i, analysis add, merge --plan --part i and finish; i is 1 to N.
    """
    from ram_studio.checkpoints.read.describe import plural, shown_bytes
    from ram_studio.checkpoints.record.part_plan import save_plan
    from ram_studio.checkpoints.record.provenance import read_recipe
    from ram_studio.checkpoints.write.output_folder import check_file
    from ram_studio.engine.parts.planning import make_plan

    shard_bytes = options.parse_size(max_shard_size)
    check_file(out)
    with progress_bars(quiet=as_json) as (_, on_download):
        made = make_plan(
            read_recipe(recipe),
            parts,
            max_shard_bytes=shard_bytes,
            hash_sources=hash_sources,
            on_download=on_download,
        )
    save_plan(made, out)
    if as_json:
        files = [{**part.model_dump(include={"part", "nbytes", "shards"})} for part in made.parts]
        print(json.dumps({"plan": str(out), "digest": made.digest, "parts": files}))
        return
    print_table(
        ("part", "files", "bytes"),
        [(str(p.part), str(len(p.shards)), shown_bytes(p.nbytes)) for p in made.parts],
        title=f"{made.recipe.method} in {plural(len(made.parts), 'part')}",
    )
    if idle := [part.part for part in made.parts if not part.shards]:
        print(
            f"note: nothing is left for {made.text(*idle)}: the output has fewer files than there "
            "are parts. A smaller --max-shard-size makes more files."
        )
    print(
        f"Written to {out}. Next, for every part i from 1: ram-studio analyze --plan "
        f"{shell_word(out)} --part i --analysis part-i.analysis"
    )


def finish(
    plan: Annotated[Path, typer.Argument(help="The plan.")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="The folder or URL that all parts were merged into.")
    ],
    as_json: options.Json = False,
) -> None:
    """Check merged parts and complete the model: index, card, provenance, config."""
    from ram_studio.checkpoints.record.part_plan import load_plan
    from ram_studio.engine.parts.finishing import finish as run

    with progress_bars(quiet=as_json) as (on_progress, on_download):
        result = run(load_plan(plan), out, on_progress=on_progress, on_download=on_download)
    report(result, as_json)


def analyze(
    plan: Path, part: int, analysis: Path | None, how: dict[str, Any], as_json: bool
) -> None:
    """Count one part's tensors into its own analysis; how: see ``analyze_part``."""
    from ram_studio.checkpoints.record.part_plan import load_plan
    from ram_studio.engine.parts.steps import analyze_part

    if analysis is None:
        raise typer.BadParameter("name an analysis file to write", param_hint="--analysis")
    whole = load_plan(plan)
    with progress_bars(quiet=as_json) as (on_progress, on_download):
        found = analyze_part(
            whole, part, analysis, on_progress=on_progress, on_download=on_download, **how
        )
    if as_json:
        counts = {"part": part, "of": found.of, "tensors": len(found.analysis.tensors)}
        print(json.dumps({"analysis": str(analysis), **counts, "elements": found.analysis.total}))
        return
    print(
        f"{whole.text(part).capitalize()}: {found.analysis.total:,} elements of "
        f"{len(found.analysis.tensors)} tensors counted into {analysis}. Next, with all parts: "
        "ram-studio analysis add FILE ... --out FILE"
    )


def merge(
    plan: Path, part: int, out: str, analysis: Path | None, how: dict[str, Any], as_json: bool
) -> None:
    """Write the files of one part; how: keywords of ``merge_part``."""
    from ram_studio.checkpoints.read.describe import plural
    from ram_studio.checkpoints.record.part_plan import load_plan
    from ram_studio.engine.parts.planning import name_part
    from ram_studio.engine.parts.steps import merge_part

    whole = load_plan(plan)
    with name_part(whole, part):
        loaded = options.known_analysis(analysis)
    with progress_bars(quiet=as_json) as (on_progress, on_download):
        result = merge_part(
            whole,
            part,
            out,
            analysis=loaded,
            on_progress=on_progress,
            on_download=on_download,
            **how,
        )
    if as_json:
        print(json.dumps(asdict(result), default=str))
        return
    text, files = whole.text(part).capitalize(), plural(len(result.shards), "file")
    if result.is_done_before:
        print(f"{text} is merged already; nothing was done.")
        return
    print(
        f"{text}: {files} ({result.bytes_written:,} bytes) written to {result.out} in "
        f"{result.seconds:.1f} s. Next, with all parts: ram-studio finish {shell_word(plan)} "
        f"--out {shell_word(result.out)}"
    )
