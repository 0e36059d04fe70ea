"""The output of a finished merge, and its entry in History."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ram_studio.checkpoints.read.describe import shell_word
from ram_studio.cli.tables import print_table, print_warnings, ratio, retained_texts
from ram_studio.resources import user_folder

if TYPE_CHECKING:
    from ram_studio.engine.result import MergeResult


def report(result: MergeResult, as_json: bool) -> None:
    """Add a merge to History, and print its numbers."""
    from ram_studio.algorithm.meters.rounding_meter import rounding_advice
    from ram_studio.algorithm.scaling import has_lambda
    from ram_studio.checkpoints.record.recipe import recipe_yaml
    from ram_studio.engine.merge_log import remember_merge

    remember_merge(
        user_folder(),
        result.to_dict(),
        recipe_yaml(result.provenance.placed_recipe),
        name=str(result.out).rpartition("/")[2],
        title=", ".join(result.agents),
    )
    if as_json:
        warnings = {"warnings": list(result.provenance.warnings)}
        print(json.dumps({**result.to_dict(), **warnings}))
        return
    print_warnings(result.provenance.warnings)
    factors = {
        name: (agent.scaling_factor, agent.effective_scaling_factor)
        for name, agent in result.agents.items()
    }
    is_scaled = has_lambda(result.method)
    lambdas = ("requested lambda", "effective lambda") if is_scaled else ()
    print_table(
        ("agent", "rho", *lambdas, "retained", "interference", "by rounding"),
        [
            (
                name,
                ratio(agent.rho),
                *("-" if f is None else ratio(f) for f in factors[name] if is_scaled),
                *retained_texts(agent.retained),
            )
            for name, agent in result.agents.items()
        ],
        title=f"{result.method} in {result.seconds:.1f} s",
    )
    advice = rounding_advice(result.provenance.dtype, factors)
    if advice and result.provenance.rounding == "nearest":
        print(f"note: {advice} (--rounding stochastic, --dtype float32)")
    done = "already holds this merge; nothing was written" if result.is_done_before else ""
    place = f"{result.out} {done}" if done else f"Written to {result.out}"
    print(f"{place}. Next: ram-studio verify {shell_word(result.out)}")
