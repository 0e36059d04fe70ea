"""What Merge shows: the plan, and the finished merge."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from ram_studio.algorithm.meters.rounding_meter import rounding_advice
from ram_studio.algorithm.meters.storage import pass_findings
from ram_studio.app import templates
from ram_studio.app.jobs import NEED_LOAD, NEED_MODELS
from ram_studio.app.merge.plan import RESCALING, plan_merge
from ram_studio.app.merge.work import MergeForm
from ram_studio.app.session import Loaded, Merged, Session
from ram_studio.app.settings import Settings
from ram_studio.checkpoints.fit.mismatches import OPTION_WORDS

_NOTES = {
    "ram": "Unique changes in full, shared ones averaged.",
    "ram+": "RAM, with unique changes scaled up by λ = 1 + r · min(ρ, α).",
    "ram+s": "RAM, with unique changes scaled up by λ = 1 + r · ρ ÷ (1 + ρ).",
    "ram+m": "RAM+ with ρ of sizes of change instead of counts.",
    "task-arithmetic": "Base plus scale × the sum of all changes. 1/N is plain averaging.",
    "ties": "Keeps each agent's largest changes, elects one sign, averages those that agree.",
    "dare-ta": "Drops changes at random, scales up the rest, then adds them.",
    "dare-ties": "Drops changes at random, scales up the rest, then resolves signs.",
    "tsv-m": "Keeps each agent's strongest directions per layer and turns them apart before adding "
    "them. Needs whole matrices in memory and many times longer than the others.",
    "iso-c": "Adds all changes per layer, then makes every direction of the sum equally strong. "
    "Needs whole matrices in memory and many times longer than the others.",
    "wudi": "Finds per-layer changes that disturb each agent's own ones least. Needs no data, but "
    "whole matrices in memory and many times longer than the others.",
}


def plan_html(
    loaded: Loaded | None, form: MergeForm, folder: Path, made: Iterable[Merged] = ()
) -> Markup:
    """Return what the merge will do and need, and the rounding caution where it holds.

    made: merges of the same models, as for ``plan_merge``.
    """
    if loaded is None:
        return templates.callout(NEED_LOAD, "warn")
    if loaded.is_sketch_only:
        return templates.callout(NEED_MODELS, "warn")
    plan = plan_merge(loaded, form, folder, made)
    return templates.render("merge/plan.html.j2", plan=plan, note=_NOTES.get(form.method, ""))


def has_other(loaded: Loaded) -> bool:
    """Say whether the analysis found an agent that seems to be of another base."""
    return any(finding.kind == "dense" for finding in pass_findings(loaded.sketch))


def result_html(merged: Merged, settings: Settings) -> Markup:
    """Return a finished merge: lambda asked and stored per agent, sizes, time, where it is."""
    agents = merged.result["agents"]
    factors = {n: (a.get("lambda"), a.get("effective_lambda")) for n, a in agents.items()}
    return templates.render(
        "merge/result.html.j2",
        merged=merged,
        result=merged.result,
        shows_lambda=merged.method in ("ram", *RESCALING),
        advice=rounding_advice(None, factors),
        folder=None if settings.is_public else merged.folder,
    )


def hide_paths(text: str, session: Session, settings: Settings) -> str:
    """Return a message without the session's folder in it, on a Space, in the form's words."""
    text = text.replace(OPTION_WORDS["other base"], "tick “Merge although …” in the form")
    return text.replace(f"{session.folder}/", "") if settings.is_public else text
