"""``ram-studio preview``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.look.counts import print_agents, print_counts, with_relations


def preview(
    analysis: Annotated[
        str,
        typer.Argument(help="A file that analyze or analysis compact wrote, or a Hub id of one."),
    ],
    epsilon: Annotated[
        float, typer.Option(help="Threshold of change; snaps to the epsilon grid.")
    ] = 1e-5,
    rule: Annotated[str, typer.Option(help="ram, ram+, ram+s or ram+m.")] = "ram+",
    r: Annotated[float, typer.Option("--r", help="Strength of the rescaling.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="Cap on rho.")] = 2.0,
    agents: Annotated[str | None, typer.Option(help="Only these, as a,b.")] = None,
    by: Annotated[
        str, typer.Option(help="model, layer, module, tower, expert or tensor.")
    ] = "model",
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="AGENT=W", help="What an agent's tau counts, in every tensor."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show rho and lambda at any settings, from an analysis, without reading the checkpoints."""
    from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, find_grid_index, snap
    from ram_studio.checkpoints.hub.analyses import find_analysis

    loaded = find_analysis(analysis)
    if agents is not None:
        loaded = loaded.select([name.strip() for name in agents.split(",")])
    point = snap(epsilon)
    if find_grid_index(epsilon) is None:
        print(
            f"note: epsilon {epsilon:g} is not on the grid; {EPSILON_GRID[point]!r} is used. "
            "A merge honours the exact value.",
            file=sys.stderr,
        )
    weights = _weights(weight)
    preview = loaded.preview(point, rule, r, alpha, by=by, weights=weights)
    described = with_relations(loaded, preview)
    if as_json:
        print(json.dumps(described))
        return
    print_counts(described, loaded)
    for label, group in described.get("groups", {}).items():
        print_agents(group["agents"], title=label)


def _weights(pairs: list[str] | None) -> dict[str, float]:
    """Return the weights of ``--weight AGENT=W``.

    Raises: SettingsError for several numbers, which only a merge can measure.
    """
    from ram_studio.errors import SettingsError

    found = {}
    for name, text in options.parse_pairs(pairs, "weight AGENT=W").items():
        try:
            found[name] = float(text)
        except ValueError:
            raise SettingsError(
                f"The weight of {name} is {text!r}; a preview takes one number. What weights over "
                "layers retain shows in the merge."
            ) from None
    return found
