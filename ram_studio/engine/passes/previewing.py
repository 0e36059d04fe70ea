"""Predicts a recipe's retained shares from an analysis, without reading checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from ram_studio.algorithm import scaling
from ram_studio.algorithm.analysis import Analysis, Scope
from ram_studio.algorithm.epsilon_grid import find_grid_index
from ram_studio.algorithm.meters.weighted import GroupSettings
from ram_studio.algorithm.methods import make_settings
from ram_studio.algorithm.overlap import counts_dict
from ram_studio.checkpoints.read.describe import BASE_NAME
from ram_studio.checkpoints.record.filters import TensorChoice, caught_by
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import SettingsError


def preview_recipe(analysis: Analysis, recipe: Recipe) -> dict[str, Any]:
    """Return every agent's retained shares in a recipe's merge, ready for JSON.

    It includes weights over layers and filters with their own epsilon and scope: each tensor is
    previewed at its own. The analysis must have the recipe's agents.

    Returns: "agents", by name: total, active, unique, shared, overlap, density, rho, lambda (the
    mean over unique elements, weights too), retained, interference and factors as in
    ``Analysis.preview``; "filters": the tensors that each matches, see ``filters.caught_by``.

    Raises: SettingsError for a method that is not of the RAM family, for shared "ties", and for an
    epsilon that is not on the grid; AnalysisError where the analysis lacks the required sums.
    """
    if recipe.method not in scaling.RULES:
        raise SettingsError(
            f"The method is {recipe.method}; weights and filters are previewed for "
            f"{', '.join(scaling.RULES)}. Run the merge: it measures the same."
        )
    analysis = analysis.select(tuple(recipe.agents))
    choices = recipe.choices(analysis.names) or [TensorChoice()] * len(analysis.tensors)
    made = {
        found: make_settings(
            recipe.method, recipe.every_settings[0 if found is None else found + 1]
        )
        for found in {choice.filter for choice in choices}
    }
    every = [made[choice.filter] for choice in choices]
    points = np.array([_point(settings) for settings in every])
    lambdas = _lambdas(analysis, recipe.method, every, points)
    shared = np.array([choice.weights or (1.0,) * len(analysis.agents) for choice in choices])
    keep = np.full(len(choices), -1)
    for row, choice in enumerate(choices):
        if choice.keep is not None:
            shared[row] = 0.0
            keep[row] = -1 if choice.keep == BASE_NAME else analysis.agents.index(choice.keep)
    by_tensor = GroupSettings(points, shared * lambdas, shared, keep)
    retained = analysis.merged_retained(by_tensor)
    counts = analysis.counts.shared[np.arange(len(points)), points]
    agents = {
        name: counts_dict(own, analysis.total)
        for name, own in zip(analysis.agents, counts.sum(0).tolist(), strict=True)
    }
    unique = counts[:, :, 0]
    requested = by_tensor.unique.copy()
    requested[keep >= 0, keep[keep >= 0]] = 1.0
    for t, (name, agent) in enumerate(agents.items()):
        total = unique[:, t].sum()
        mean = float((unique[:, t] * requested[:, t]).sum() / total) if total else 1.0
        agent |= {"lambda": mean, **retained[name]}
    return {"agents": agents, "filters": caught_by(analysis.names, recipe.filters, choices)}


def _point(settings: Any) -> int:
    point = find_grid_index(settings.epsilon)
    if point is None:
        raise SettingsError(
            f"epsilon {settings.epsilon:g} is not on the analysis's grid; use a value of "
            "`ram-studio preview --json`, or merge with any epsilon."
        )
    if settings.shared != "mean":
        raise SettingsError(
            'shared is "ties", which previews do not support; run the merge: it measures it.'
        )
    return point


def _lambdas(
    analysis: Analysis, method: str, settings: list[Any], points: np.ndarray
) -> np.ndarray:
    """Return lambda by tensor and agent: rho over the scope, each tensor at its own epsilon."""
    magnitude = None
    if method == scaling.MAGNITUDE_RULE:
        magnitude = analysis.require_relations().magnitude[np.arange(len(points)), points]
    scopes: list[Scope] = [getattr(own, "scope", "global") for own in settings]
    by_scope = {scope: analysis.ratios(points, scope, magnitude=magnitude) for scope in set(scopes)}
    rows = []
    for row, (own, scope) in enumerate(zip(settings, scopes, strict=True)):
        ratios = by_scope[scope][row]
        alpha = getattr(own, "alpha", scaling.DEFAULT_ALPHA)
        rows.append(scaling.scaling_factors(ratios, method, getattr(own, "r", 0.0), alpha))
    return np.array(rows)
