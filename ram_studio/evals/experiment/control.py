"""The control of a comparison: the best agent alone, moved as far from the base as the merge.

    control = base + s * tau_a,    s = |merge - base| / |tau_a|

with a the agent that scores best alone, and the merge the row that others are compared with. A
merge often lies further from the base than any agent; what a longer step in one agent's direction
gains as well is nothing that merging gained.
"""

from __future__ import annotations

from collections.abc import Callable

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.evals.experiment.presets import with_agents
from ram_studio.evals.experiment.space import Candidate, with_method

MOST = 100.0
"""Largest weight that a recipe may give an agent."""


def norm_matched(
    merge: Recipe, agent: str, every: Recipe, change_norm: Callable[[Recipe], float]
) -> Candidate | None:
    """Return the control; None where there is nothing to scale, or it would go beyond MOST.

    Args:
        merge: whose distance from the base is matched.
        agent: that scores best alone, one of ``every``'s.
        change_norm: recipe -> how far its merge lies from the base.
    """
    plain = every.model_copy(update={"weights": {}, "densities": {}, "filters": ()})
    alone = with_method(with_agents(plain, (agent,)), "task-arithmetic", {"scale": 1.0})
    length = change_norm(alone)
    scale = change_norm(merge) / length if length else 0.0
    if not 0 < scale <= MOST:
        return None
    scaled = alone.model_copy(update={"weights": {agent: scale}})
    return Candidate(f"norm-matched {agent}", {}, scaled)
