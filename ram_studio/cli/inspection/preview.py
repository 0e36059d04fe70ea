"""``ram-studio preview``."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.inspection.counts import (
    print_agents,
    print_counts,
    print_retained,
    with_relations,
)


def preview(
    analysis: Annotated[
        str,
        typer.Argument(help="A file from analyze or analysis compact, or its Hub id."),
    ],
    epsilon: Annotated[
        float, typer.Option(help="Threshold of change; snaps to the epsilon grid.")
    ] = 1e-5,
    rule: Annotated[str, typer.Option(help="ram, ram+, ram+s or ram+m.")] = "ram+",
    r: Annotated[float, typer.Option("--r", help="Strength of the rescaling.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="Cap on rho.")] = 2.0,
    agents: Annotated[str | None, typer.Option(help="Only these agents, such as a,b.")] = None,
    by: Annotated[
        Literal["model", "layer", "module", "tower", "expert", "tensor"],
        typer.Option(help="Also show the counts in each of these."),
    ] = "model",
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT=W[,W...]",
            help="Weight of an agent's task vector; several numbers: one gradient over all layers.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Preview this recipe instead of settings.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show rho and lambda at any settings, from an analysis, without reading the checkpoints."""
    from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, find_grid_index, snap
    from ram_studio.checkpoints.hub.analyses import find_analysis

    loaded = find_analysis(analysis)
    if recipe is not None:
        _print_recipe(loaded, recipe, as_json=as_json)
        return
    if agents is not None:
        loaded = loaded.select([name.strip() for name in agents.split(",")])
    point = snap(epsilon)
    if find_grid_index(epsilon) is None:
        print(
            f"note: epsilon {epsilon:g} is not on the grid; {EPSILON_GRID[point]!r} is used. "
            "A merge takes the exact value.",
            file=sys.stderr,
        )
    weights = options.parse_weights(weight)
    preview = loaded.preview(point, rule, r, alpha, by=by, weights=weights)
    described = with_relations(loaded, preview)
    if as_json:
        print(json.dumps(described))
        return
    print_counts(described, loaded)
    for label, group in described.get("groups", {}).items():
        print_agents(group["agents"], title=f"layer {label}" if label.isdigit() else label)


def _print_recipe(analysis: Any, file: str, *, as_json: bool) -> None:
    from ram_studio.checkpoints.read.describe import plural
    from ram_studio.checkpoints.record.provenance import read_recipe
    from ram_studio.engine.passes.previewing import preview_recipe

    found = preview_recipe(analysis, read_recipe(file))
    if as_json:
        print(json.dumps(found))
        return
    print_agents(found["agents"], title="With the recipe's weights and filters")
    print_retained(found["agents"])
    for one in found["filters"]:
        print(f"{one['filter'] or 'all others'}: {plural(len(one['tensors']), 'tensor')}")
