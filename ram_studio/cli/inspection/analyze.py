"""``ram-studio analyze``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.checkpoints.read.describe import shell_word
from ram_studio.cli import options
from ram_studio.cli.inspection.counts import (
    print_counts,
    print_parts,
    print_shares,
    with_parts,
    with_relations,
)
from ram_studio.cli.merge import parts as part_command
from ram_studio.cli.progress import progress_bars
from ram_studio.cli.tables import print_warnings

if TYPE_CHECKING:
    from ram_studio.algorithm.analysis import Analysis
    from ram_studio.checkpoints.fit.storage_report import StorageReport
    from ram_studio.engine.passes.driver import RunKeywords


@options.expand_groups
def analyze(
    *,
    base: options.Base = None,
    agent: options.Agents = None,
    analysis: Annotated[Path | None, typer.Option(help="Analysis to write (safetensors).")] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    policies: options.Policies,
    relations: Annotated[
        bool | None,
        typer.Option(
            "--relations/--no-relations",
            help="Also collect magnitudes, signs, cosines and rounding loss [default: yes; "
            "with --plan where its method needs them].",
        ),
    ] = None,
    plan: options.Plan = None,
    part: options.Part = None,
    download: Annotated[
        bool,
        typer.Option(help="Download Hub models instead of reading them remotely."),
    ] = False,
    ray: options.Ray = None,
    as_json: options.Json = False,
) -> None:
    """Count densities and overlaps in one pass over the checkpoints, and save them as an analysis.

    Hub models that are not in the cache are read remotely and not stored here.

    With --plan and --part only the tensors of one part are counted; `analysis add` adds them up.
    """
    from ram_studio.checkpoints.write.output_folder import check_file

    if analysis is not None:
        check_file(analysis)
    if plan is not None or part is not None:
        options.refuse_beside_plan(base=base, agent=agent, ray=ray)
        how = {"device": device, "threads": threads, "relations": relations}
        return part_command.analyze(*options.require_part(plan, part), analysis, how, as_json)
    from ram_studio.checkpoints.fit.storage_report import storage_report
    from ram_studio.checkpoints.record.analysis_file import save_analysis
    from ram_studio.engine.analyze import analyze_report, load

    relations = relations is not False
    agents = options.parse_agents(agent)
    with progress_bars(quiet=as_json) as (on_progress, on_download):
        fit = load(
            options.require_base(base),
            agents,
            **policies.fit(),
            on_download=on_download,
            stream=not download and ray is None,
        )
        run: RunKeywords = {"device": device, "threads": threads, "on_progress": on_progress}
        if ray is None:
            result = analyze_report(fit, relations=relations, **run)
        else:
            from ram_studio.engine.parts.on_ray import analyze_on_ray

            recipe = options.parse_recipe(base, agent, "analyze", **policies.fit())
            result = analyze_on_ray(recipe, ray, run, relations=relations)
    storage = storage_report(fit, result)
    if analysis is not None:
        save_analysis(result, analysis)
    _print_counts(result, storage, analysis, as_json)


def _print_counts(
    result: Analysis, storage: StorageReport, path: Path | None, as_json: bool
) -> None:
    """Print the counts; path: of the written analysis."""
    described = with_parts(result, with_relations(result, result.preview()))
    if as_json:
        saved = None if path is None else str(path)
        warnings = {"warnings": list(result.warnings), "storage": storage.to_dict()}
        print(json.dumps({"analysis": saved, **warnings, **described}))
        return
    print_warnings(result.warnings)
    print_shares(storage)
    print_counts(described, result)
    print_parts(described, result.agents)
    if path is not None:
        print(f"Analysis written to {path}. Next: ram-studio preview {shell_word(path)}")
