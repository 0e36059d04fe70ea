"""``ram-studio analyze`` and ``ram-studio preview``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ram_studio.cli import options
from ram_studio.cli.relation_view import print_relations, with_relations
from ram_studio.cli.tables import print_table, ratio


def analyze(
    base: options.Base = None,
    agent: options.Agents = None,
    sketch: Annotated[
        Path | None, typer.Option(help="Where to write the sketch (safetensors).")
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    missing: options.Missing = "error",
    extra: options.Extra = "error",
    rows: options.Rows = "exact",
    relations: Annotated[
        bool,
        typer.Option(help="Also collect magnitudes, signs, cosines and what rounding keeps."),
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Count densities and overlaps in one pass over the checkpoints, and keep them as a sketch."""
    from ram_studio.checkpoints.fit.storage_report import storage_report
    from ram_studio.checkpoints.record.sketch_file import save_sketch
    from ram_studio.cli.progress import progress_bars
    from ram_studio.cli.storage_view import print_shares
    from ram_studio.engine.analyse import analyze_report, load

    agents = options.parse_agents(agent)
    with progress_bars(quiet=as_json) as (on_progress, on_download):
        fit = load(
            options.require_base(base),
            agents,
            missing=missing,
            extra=extra,
            rows=rows,
            on_download=on_download,
        )
        result = analyze_report(
            fit, device=device, threads=threads, relations=relations, on_progress=on_progress
        )
    storage = storage_report(fit, result)
    if sketch is not None:
        save_sketch(result, sketch)
    described = with_relations(result, result.preview())
    if as_json:
        saved = None if sketch is None else str(sketch)
        warnings = {"warnings": list(result.warnings), "storage": storage.to_dict()}
        print(json.dumps({"sketch": saved, **warnings, **described}))
        return
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print_shares(storage)
    _print_preview(described, result)
    print_relations(described, result)
    if sketch is not None:
        print(f"Sketch written to {sketch}. Next: ram-studio preview {sketch}")


def preview(
    sketch: Annotated[Path, typer.Argument(help="A file that analyze wrote.")],
    epsilon: Annotated[
        float, typer.Option(help="Threshold of change; snaps to the ladder.")
    ] = 1e-5,
    rule: Annotated[str, typer.Option(help="ram, ram+, ram+s or ram+m.")] = "ram+",
    r: Annotated[float, typer.Option("--r", help="Strength of the rescaling.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="Cap on rho.")] = 2.0,
    agents: Annotated[str | None, typer.Option(help="Only these, as a,b.")] = None,
    by: Annotated[str, typer.Option(help="model, layer, module or tensor.")] = "model",
    as_json: options.Json = False,
) -> None:
    """Show rho and lambda at any settings, from a sketch, without reading the checkpoints."""
    from ram_studio.algorithm.ladder import LADDER, ladder_index, snap
    from ram_studio.checkpoints.record.sketch_file import load_sketch

    loaded = load_sketch(sketch)
    if agents is not None:
        loaded = loaded.select([name.strip() for name in agents.split(",")])
    point = snap(epsilon)
    if ladder_index(epsilon) is None:
        print(
            f"note: epsilon {epsilon:g} is not on the sketch's ladder; {LADDER[point]!r} is used. "
            "A merge honours the exact value.",
            file=sys.stderr,
        )
    described = with_relations(loaded, loaded.preview(point, rule, r, alpha, by=by))
    if as_json:
        print(json.dumps(described))
        return
    _print_preview(described, loaded)
    print_relations(described, loaded)
    for label, group in described.get("groups", {}).items():
        _print_agents(group["agents"], title=label)


def _print_preview(described: dict[str, Any], sketch: Any) -> None:
    from ram_studio.algorithm.ladder import snap
    from ram_studio.algorithm.verdict import verdict

    _print_agents(
        described["agents"],
        title=f"{described['rule']}, r {described['r']:g}, alpha {described['alpha']:g}, "
        f"epsilon {described['epsilon']:g}",
    )
    if "as_base_dtype" in described:
        _print_agents(described["as_base_dtype"]["agents"], title="As if in the base's dtype")
    print(verdict(sketch, snap(described["epsilon"])).text)


def _print_agents(agents: dict[str, Any], title: str) -> None:
    by_size = ["rho by size"] if all("rho_m" in a for a in agents.values()) else []
    print_table(
        ("agent", "changed", "density", "unique", "shared", "rho", *by_size, "lambda"),
        [
            (
                name,
                f"{a['active']:,}",
                f"{a['density']:.2%}",
                f"{a['unique']:,}",
                f"{a['shared']:,}",
                ratio(a["rho"]),
                *(ratio(a["rho_m"]) for _ in by_size),
                "-" if a["lambda"] is None else ratio(a["lambda"]),
            )
            for name, a in agents.items()
        ],
        title=title,
    )
