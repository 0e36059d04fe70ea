"""The steps as named endpoints for gradio_client and MCP: plain JSON in, plain JSON out.

Analyses have names: "shared-style", "independent" and "dense" always exist; ``/analyze`` returns
the name of one that the same client can use in the other calls.
"""

from __future__ import annotations

import gradio as gr

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.app.api.arguments import (
    between,
    name_list,
    number,
    object_of,
    with_error_messages,
    yes_or_no,
)
from ram_studio.app.api.asking import AskingEndpoints
from ram_studio.app.load import work as load_work
from ram_studio.app.load.sources import MAX_AGENTS, read_sources
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session.jobs import Work
from ram_studio.app.session.session import MergedModel, Session
from ram_studio.app.session.sets import DEFAULT_SET
from ram_studio.app.session.workspace import Workspace
from ram_studio.errors import SettingsError


class Endpoints(AskingEndpoints):
    """The endpoints of one app."""

    async def analyze(
        self,
        base: str,
        agents: dict,
        request: gr.Request,
        missing: str = "error",
        extra: str = "error",
        rows: str = "exact",
        names: str = "exact",
        experts_packing: str = "ask",
    ) -> dict:
        """Count, in one pass over the files, which weights each agent changed.

        Args:
            base: folder (not on a public Space) or Hub id owner/name[@revision] of the base model.
            agents: folder or Hub id of each agent by name, e.g. {"coding": "owner/coder"}.
            missing: what to do when an agent lacks a tensor: "error" or "keep-base".
            extra: what to do when an agent has an extra tensor: "error" or "ignore".
            rows: what to do when vocabulary sizes differ: "exact" (refuse) or "common".
            names: tensor names of text-only agents on a multimodal base: "exact" (refuse) or
                "mapped".
            experts_packing: of a LoRA on stacked experts: "ask", "rank-major" or "expert-major".

        Returns:
            {"analysis": name for the other endpoints, "agents", "epsilon_grid": its epsilons
            exactly, "preview": as /preview at the defaults, "warnings"}.
        """

        def prepare(_: Session) -> Work[load_work.FreshAnalysis]:
            if not isinstance(agents, dict) or len(agents) > MAX_AGENTS:
                raise SettingsError(f"agents must be an object with 1 to {MAX_AGENTS} names.")
            places = [str(place) for place in agents.values()]
            sources = read_sources(str(base), [*map(str, agents)], places, self._settings)
            options = {"missing": missing, "extra": extra, "rows": rows}
            options |= {"names": names, "experts_packing": experts_packing}
            return lambda report, cancel: load_work.analyze(
                sources, options, self._settings, report, cancel
            )

        def describe_result(session: Session, found: load_work.FreshAnalysis) -> dict:
            analysis = found.analysis
            session.load(found.as_loaded("+".join(found.sources.agents)))
            self._workspace.free_memory()
            return {
                "analysis": session.models.title,
                "agents": list(analysis.agents),
                "epsilon_grid": list(EPSILON_GRID),
                "preview": analysis.preview(),
                "warnings": list(analysis.warnings),
            }

        return await self._finish(request, prepare, describe_result)

    async def preview(
        self,
        request: gr.Request,
        analysis: str = DEFAULT_SET,
        epsilon: float = 1e-5,
        rule: str = "ram+",
        r: float = 0.1,
        alpha: float = 2.0,
        agents: list | None = None,
        by: str = "model",
    ) -> dict:
        """Return rho, lambda and the exact overlap counts of every agent at one epsilon.

        Args:
            analysis: "shared-style", "independent", "dense", "real" or what /analyze returned.
            epsilon: threshold of change, snapped to the nearest grid point, which the answer
                contains.
            rule: "ram" (lambda 1), "ram+" (1 + r min(rho, alpha)), "ram+s"
                (1 + r rho / (1 + rho)) or "ram+m" ("ram+" with rho by size of change).
            r: strength of the rescaling, 0 or more.
            alpha: cap on rho in "ram+" and "ram+m", 0 or more.
            agents: names of the agents to merge; all when left out.
            by: "model", "layer", "module", "tower", "expert" or "tensor": adds the counts inside
                each group.

        Returns:
            {"epsilon", "rule", "r", "alpha", "agents": {name: {"total", "active", "unique",
            "shared", "overlap", "density", "rho" (null: unbounded), "lambda"}}, "patterns"}.
        """

        def preview(session: Session) -> dict:
            chosen = self._find_loaded(analysis, session).analysis
            if agents:
                chosen = chosen.select(name_list("agents", agents))
            point = snap(number("epsilon", epsilon))
            # The same ranges as in /merge.
            settings = str(rule), between("r", r, 0, 100), between("alpha", alpha, 0, 1e6)
            return chosen.preview(point, *settings, by=str(by))

        return await self._in_session(request, preview)

    async def merge(
        self,
        request: gr.Request,
        analysis: str = DEFAULT_SET,
        method: str = "ram+",
        settings: dict | None = None,
        dtype: str = "",
        rounding: str = "nearest",
        seed: int = 0,
        device: str = "auto",
        other_base: bool = False,
    ) -> dict:
        """Merge the agents into one model folder, stored for this client until it expires.

        Args:
            analysis: "shared-style", "independent", "dense" or what /analyze returned.
            method: "ram", "ram+", "ram+s", "task-arithmetic", ...
            settings: the method's own settings, e.g. {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}.
            dtype: "bfloat16", "float16" or "float32"; the base's when empty.
            rounding: "nearest" or "stochastic" (seeded).
            seed: of everything random.
            device: "auto", "cpu" or "cuda".
            other_base: also merge agents that seem to have another base.

        Returns:
            {"merge": name for /evaluate, "out": folder (its name only on a public Space), "method",
            "agents": {name: {"rho", "lambda", "effective_lambda"}}, "bytes_read", "bytes_written",
            "seconds", "peak_rss_bytes", "recipe": YAML}.
        """

        def prepare(session: Session) -> Work[MergedModel]:
            loaded, own = self._find_models(analysis, session), object_of("settings", settings)
            if self._settings.is_public and "files" in own:
                raise SettingsError("files names a folder, which this public app does not open.")
            recipe = recipe_from(
                loaded,
                str(method),
                own,
                dtype=dtype,
                rounding=rounding,
                seed=seed,
                other_base=yes_or_no("other_base", other_base),
            )
            return merge_work(recipe, session, self._settings, device=str(device))

        def describe_result(_: Session, merged: MergedModel) -> dict:
            out = merged.folder.name if self._settings.is_public else str(merged.folder)
            return {"merge": merged.name, **merged.result, "out": out, "recipe": merged.recipe}

        return await self._finish(request, prepare, describe_result)


def build(workspace: Workspace) -> None:
    """Add the endpoints to the open Blocks."""
    endpoints = Endpoints(workspace)
    gr.api(with_error_messages(endpoints.preview), api_name="preview", queue=False)
    for name in ("analyze", "merge", "evaluate", "compare", "sweep"):
        gr.api(
            with_error_messages(getattr(endpoints, name)),
            api_name=name,
            concurrency_id="heavy",
            concurrency_limit=None,
        )
