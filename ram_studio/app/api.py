"""The steps as named endpoints for gradio_client and MCP: plain JSON in, plain JSON out.

An analysis is known by its name: "example", "house", "independent" and "dense" are always
there; ``/analyze`` returns one that the same client can use in the other calls.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import gradio as gr

from ram_studio.algorithm.ladder import LADDER, snap
from ram_studio.app.asking.plan import LENGTHS, SUITE, Asked, How, asked_of, most_items
from ram_studio.app.check import work as check
from ram_studio.app.check.verdicts import described
from ram_studio.app.experiment import work as experiment
from ram_studio.app.jobs import Report, Result, Work, begin
from ram_studio.app.load import work as load_work
from ram_studio.app.load.examples import load_example
from ram_studio.app.load.sources import MAX_AGENTS, read_sources
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.work import merge_work
from ram_studio.app.session import Loaded, Session
from ram_studio.app.workspace import Workspace
from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.run import DEFAULT_SEED
from ram_studio.evals.suites import ALL_SUITES, known_suites

EXAMPLES = {"example": "1", "house": "house", "independent": "independent", "dense": "dense"}
_POLL_SECONDS = 0.1
_MOST_PROMPTS = 300


def worded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint whose errors come as Gradio shows them: our own text, no traceback."""

    @functools.wraps(endpoint)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return await endpoint(*arguments, **named)
        except RamStudioError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return call


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{name} is {str(value)[:80]!r}; it must be a number.") from None


def _between(name: str, value: Any, low: float, high: float) -> float:
    number = _number(name, value)
    if not low <= number <= high:
        raise SettingsError(f"{name} is {value}; it must be from {low} to {high}.")
    return number


def _check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise SettingsError(f"There is no {kind} {unknown[:80]!r}; there are {', '.join(known)}.")


async def _finish(work: Work[Result], session: Session) -> Result:
    """Do the work when it is its turn and wait for it; a cancelled request stops it."""
    job = begin(session, work)
    try:
        while not job.is_done:
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        job.stop()
    return job.result()


class Endpoints:
    """The endpoints of one app."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._settings = workspace.settings

    def _session(self, request: gr.Request) -> Session:
        return self._workspace.session_of(request, "api-")

    def _loaded(self, analysis: str, session: Session) -> Loaded:
        if analysis in EXAMPLES:
            loaded = load_example(EXAMPLES[analysis])
            if session.loaded is not loaded:
                session.load(loaded)
            return loaded
        if session.loaded is None or analysis != session.loaded.title:
            raise SettingsError(
                f"There is no analysis {analysis[:80]!r}; use {', '.join(EXAMPLES)}, or "
                "what /analyze returned to this client last."
            )
        return session.loaded

    async def analyze(
        self,
        base: str,
        agents: dict,
        request: gr.Request,
        missing: str = "error",
        extra: str = "error",
        rows: str = "exact",
    ) -> dict:
        """Count, in one pass over the files, which weights each agent changed.

        Args:
            base: folder (not on a public Space) or Hub id owner/name[@revision] of the base model.
            agents: folder or Hub id of each agent by name, e.g. {"coding": "owner/coder"}.
            missing: what to do when an agent lacks a tensor: "error" or "keep-base".
            extra: what to do when an agent has a tensor more: "error" or "ignore".
            rows: what to do when vocabulary sizes differ: "exact" (refuse) or "common".

        Returns:
            {"analysis": name for the other endpoints, "agents", "ladder": epsilons that are counted
            exactly, "preview": as /preview at the defaults, "warnings"}.
        """
        if not isinstance(agents, dict) or len(agents) > MAX_AGENTS:
            raise SettingsError(f"agents must be an object with 1 to {MAX_AGENTS} names.")
        sources = read_sources(
            str(base),
            [str(n) for n in agents],
            [str(s) for s in agents.values()],
            self._settings,
        )
        options = {"missing": missing, "extra": extra, "rows": rows}
        session = self._session(request)

        def work(report: Report, cancel: CancelToken) -> load_work.Analysis:
            return load_work.analyze(sources, options, self._settings, report, cancel)

        found = await _finish(work, session)
        session.load(found.loaded("+".join(sources.agents)))
        sketch = found.sketch
        return {
            "analysis": session.models.title,
            "agents": list(sketch.agents),
            "ladder": list(LADDER),
            "preview": sketch.preview(),
            "warnings": list(sketch.warnings),
        }

    async def preview(
        self,
        request: gr.Request,
        analysis: str = "example",
        epsilon: float = 1e-5,
        rule: str = "ram+",
        r: float = 0.1,
        alpha: float = 2.0,
        agents: list | None = None,
        by: str = "model",
    ) -> dict:
        """Return rho, lambda and the exact overlap counts of every agent at one epsilon.

        Args:
            analysis: "example", "house", "independent", "dense" or what /analyze returned.
            epsilon: a weight is changed when it moved by more; snapped to the nearest ladder point,
                which the answer names.
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
        sketch = self._loaded(analysis, self._session(request)).sketch
        if agents:
            sketch = sketch.select([str(a) for a in agents])
        point = snap(_number("epsilon", epsilon))
        return sketch.preview(point, rule, _number("r", r), _number("alpha", alpha), by=by)

    async def merge(
        self,
        request: gr.Request,
        analysis: str = "example",
        method: str = "ram+",
        settings: dict | None = None,
        dtype: str = "",
        rounding: str = "nearest",
        seed: int = 0,
        device: str = "auto",
        other_base: bool = False,
    ) -> dict:
        """Merge the agents into one model folder, kept for this client until it expires.

        Args:
            analysis: "example", "house", "independent", "dense" or what /analyze returned.
            method: "ram", "ram+", "ram+s", "task-arithmetic", ...
            settings: the method's own settings, e.g. {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}.
            dtype: "bfloat16", "float16" or "float32"; the base's when empty.
            rounding: "nearest" or "stochastic" (seeded).
            seed: of everything random.
            device: "auto", "cpu" or "cuda".
            other_base: merge agents that seem to be of another base too.

        Returns:
            {"merge": name for /evaluate, "out": folder (its name only on a public Space), "method",
            "agents": {name: {"rho", "lambda", "effective_lambda"}}, "bytes_read", "bytes_written",
            "seconds", "peak_rss_bytes", "recipe": YAML}.
        """
        session = self._session(request)
        loaded = self._loaded(analysis, session)
        if self._settings.is_public and "files" in (settings or {}):
            raise SettingsError("files names a folder, which this public app does not open.")
        recipe = recipe_from(
            loaded,
            method,
            settings or {},
            dtype=dtype,
            rounding=rounding,
            seed=seed,
            other_base=other_base,
        )
        merged = await _finish(merge_work(recipe, session, self._settings, device=device), session)
        out = merged.folder.name if self._settings.is_public else str(merged.folder)
        return {"merge": merged.name, **merged.result, "out": out, "recipe": merged.recipe}

    async def evaluate(
        self,
        request: gr.Request,
        analysis: str = "example",
        models: list | None = None,
        limit: int = 200,
        suites: list | None = None,
        lengths: list | None = None,
        max_tokens: int = 0,
        think_tokens: int = 0,
        temperature: float = 0.0,
        top_p: float = 1.0,
        samples: int = 1,
        seed: int = DEFAULT_SEED,
        difficulty: int = 2,
        until: float = 0.0,
        margin: float = 5.0,
        mode: str = "whole",
        data: str = "",
    ) -> dict:
        """Score base, agents and this client's merges on the example's skills, or general suites.

        Args:
            analysis: "example", "house", "independent", "dense" or what /analyze returned.
            models: names among "base", the agents and what /merge returned; all when left out.
            limit: prompts per skill, 1 to 300; of a general suite at most as many as it has.
            suites: ["demo"] (the default), or any others of those that `ram-studio suites` lists,
                and "health".
            lengths: prompt lengths of suites about long texts in tokens, such as [1000, 4000].
            max_tokens: of an answer, 0 for each suite's own; think_tokens: of thinking, apart.
            temperature, top_p, samples: how answers are drawn, and how many to each question; the
                paper's are 1.0, 0.95 and 4.
            seed: of generated questions and draws. difficulty: of suites made to order, 1 to 5.
            until: ask suites made to order until every interval spans at most so many points,
                where they are the only ones; 0 asks as many as limit says.
            margin: points below its specialist that a merge may be and still survive.
            mode: how long texts are read, "whole" or "memagent" (in pieces with a bounded memory).
            data: folder with the rows of suites that are data sets, on an app of one's own; empty
                for the Hub's cache.

        Returns:
            {"suite", "seed", "n", "models": {name: {"domains": {skill: {"n", "correct", "score",
            "stderr", "ci95"}}, "average", "average_ci95", "retention", "seconds", and with several
            samples "samples": {skill: {"mean", "ci95", "pass_at"}}}}, "floors", "verdicts": [{
            "merge", "domain", "outcome", "kept", "low95", "high95", ...}], "trust":
            {"prompts", "software", ...}, with until "until"}.
        """
        session = self._session(request)
        self._loaded(analysis, session)
        limit = int(_between("limit", limit, 1, _MOST_PROMPTS))
        how: dict[str, Any] = {
            "max_tokens": max_tokens,
            "think_tokens": think_tokens,
            "until": until,
        }
        how |= {"temperature": temperature, "top_p": top_p, "samples": samples}
        how |= {"seed": seed, "difficulty": difficulty, "mode": mode, "data": data}
        margin = _between("margin", margin, 0.1, 99.0) / 100
        plan = self._plan(suites, limit, lengths, how)
        every = check.candidates(session)
        wanted = [str(m) for m in models] if models else list(every)
        _check_names("model", wanted, every)
        chosen = {name: every[name] for name in wanted}
        work = check.score_work(chosen, plan, session, self._workspace)
        report = described(await _finish(work, session), check.agents_of(session), margin)
        for numbers in report["models"].values():
            # gradio_client takes anything with a "path" for a file to download.
            path = numbers.pop("path", None)
            if self._settings.is_private:
                numbers["folder"] = path
        return report

    def _plan(
        self, suites: list | None, limit: float, lengths: list | None, how: dict[str, Any]
    ) -> check.Plan:
        names = [SUITE] if suites is None else [str(name) for name in suites]
        _check_names("suite", names, known_suites())
        limits = {n: int(min(limit, most_items(n, self._settings))) for n in names}
        return check.make_plan(names, limits, lengths or LENGTHS[:1], self._settings, how)

    def _asked(self, suites: list | None, lengths: list | None, how: dict | None) -> Asked:
        names = [SUITE] if suites is None else [str(name) for name in suites]
        _check_names("suite", names, ALL_SUITES)
        _check_names("setting of how", list(how or {}), How.__dataclass_fields__)
        return asked_of(names, lengths or LENGTHS[:1], self._settings, how)

    async def compare(
        self,
        request: gr.Request,
        analysis: str = "example",
        rows: list | None = None,
        preset: str = "",
        settings: dict | None = None,
        limit: int = 100,
        suites: list | None = None,
        lengths: list | None = None,
        how: dict | None = None,
    ) -> dict:
        """Score methods side by side, each merged in memory; no model folder is written.

        Args:
            analysis: "example", "house", "independent", "dense" or what /analyze returned.
            rows: among "task-arithmetic-mean", "task-arithmetic-sum", "ties", "dare-ta",
                "dare-ties", "fisher", "wudi", "tsv-m", "iso-c", "ram", "ram+", "ram+s"; a usual
                seven when left out.
            preset: instead of rows: "r-ablation", "epsilon-ablation", "standard" (every method),
                "unique-region", "mechanism", "leave-one-out" or "pairwise".
            settings: epsilon, r and alpha of the RAM rows.
            limit: prompts per skill, 1 to 300.
            suites, lengths: as for /evaluate, without health; the example's own when left out.
            how: what else /evaluate can be told of asking, by name: temperature, top_p, samples,
                seed, max_tokens, think_tokens, difficulty, until, mode, data.

        Returns:
            {"suite", "seed", "n", "reference", "rows": [{"row", "kind", "method", "settings",
            "domains": {skill: {"score", "ci95", ...}}, "average", "retention", "merge_seconds",
            "agents": {name: {"rho", "lambda", "effective_lambda"}}, "versus": {"wins", "losses",
            "p_value", "p_adjusted", "outcome"} against the reference}], "statements"}.
        """
        session = self._session(request)
        loaded = self._loaded(analysis, session)
        limit = int(_between("limit", limit, 1, _MOST_PROMPTS))
        _check_names("preset", [str(preset)] if preset else [], experiment.PRESETS)
        chosen = experiment.USUAL if rows is None else [str(row) for row in rows]
        recipes = experiment.rows_for(loaded, preset, chosen, settings or {})
        asked = self._asked(suites, lengths, how)
        work = experiment.compare_work(recipes, limit, session, self._workspace, asked)
        return (await _finish(work, session)).to_dict()

    async def sweep(
        self,
        request: gr.Request,
        over: dict | None = None,
        analysis: str = "example",
        settings: dict | None = None,
        suites: list | None = None,
        items: int = 30,
        minutes: float = 5.0,
        search: str = "grid",
        trials: int = 12,
        lengths: list | None = None,
        how: dict | None = None,
    ) -> dict:
        """Try many settings merged in memory; check the best one on questions it was not chosen by.

        Args:
            over: what to vary, for example {"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}; a range is
                from:to:count, with :log at the end for even ratios. Left out: that example.
            analysis: "example", "house", "independent", "dense" or what /analyze returned.
            settings: epsilon, r and alpha where they are not varied.
            suites: as for /evaluate, without health; the example's own when left out.
            items: questions per suite (the example's: per skill) to choose by, 1 to 100.
            minutes: time for all, up to 30 (3 where strangers come).
            search: "grid" for every combination, or "optuna" to propose `trials` settings.
            lengths: as for /evaluate. how: as for /compare.

        Returns:
            {"winner", "settings" (how many were compared), "comparisons", "recheck": {"winner",
            "start"} on held-out questions, "rows": [{"setting", "values", "status", "n", "score",
            "ci95", "lambda", ...}], "ending": "done" or "out of time", "statements"}.
        """
        session = self._session(request)
        loaded = self._loaded(analysis, session)
        items = int(_between("items", items, 1, experiment.MAX_ITEMS))
        trials = int(_between("trials", trials, 1, experiment.MAX_SETTINGS))
        asked = self._asked(suites, lengths, how)
        plan = experiment.plan_over(
            loaded,
            over if over is not None else experiment.USUAL_SWEEP,
            settings or {},
            suites=asked.suites,
            **asked.settings,
            items=items,
            minutes=min(_number("minutes", minutes), self._settings.max_sweep_minutes),
            search=search,
            trials=trials,
        )
        work = experiment.sweep_work(plan, session, self._workspace)
        return (await _finish(work, session)).to_dict()


def build(workspace: Workspace) -> None:
    """Add the endpoints to the open Blocks."""
    endpoints = Endpoints(workspace)
    gr.api(worded(endpoints.preview), api_name="preview", queue=False)
    for name in ("analyze", "merge", "evaluate", "compare", "sweep"):
        gr.api(
            worded(getattr(endpoints, name)),
            api_name=name,
            concurrency_id="heavy",
            concurrency_limit=None,
        )
