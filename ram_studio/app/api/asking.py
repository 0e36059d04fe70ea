"""The endpoints that ask models: evaluate, compare, sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from ram_studio.app.api.arguments import (
    Client,
    between,
    check_names,
    name_list,
    number,
    object_of,
    whole_between,
    with_settings,
)
from ram_studio.app.asking.limits import SUITE, most_items, offered_lengths, read_settings
from ram_studio.app.check import work as check
from ram_studio.app.check.verdicts import judge_merges
from ram_studio.app.experiment import work as experiment
from ram_studio.app.session.jobs import Work
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import DEFAULT_SET
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.score import as_json
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, HEALTH

_MOST_PROMPTS = 300


class AskingEndpoints(Client):
    """The endpoints of one app that ask models."""

    @with_settings
    async def evaluate(
        self,
        request: gr.Request,
        analysis: str = DEFAULT_SET,
        models: list | None = None,
        limit: int | None = None,
        margin: float = 5.0,
        *,
        eval_settings: dict,
    ) -> dict:
        """Score base, agents and this client's merges on the example's skills, or general suites.

        Args:
            analysis: "shared-style", "independent", "dense" or what /analyze returned.
            models: names among "base", the agents and what /merge returned; all when left out.
            limit: questions per skill, 1 to 300 (200 when left out); for a general suite at most
                its size; with ci_width the maximum.
            margin: points below its specialist that a merge may be and still survive.
            {settings}

        Returns:
            {"suite", "seed", "n", "models": {name: {"domains": {skill: {"n", "correct", "score",
            "stderr", "ci95", "chance_level", "samples": {"mean", "ci95", "pass_at"}, ...}},
            "average": {"score", "ci95", ...}, "retention", "seconds"}}, "chance_levels",
            "comparisons", "verdicts": [{"merge", "domain", "verdict", "retained_gain": {"value",
            "low", "high"}, "p", "p_adjusted", ...}], "reproducibility": {"prompts", "software",
            ...}, "until"}.
        """

        agents: list[str] = []  # as of the request: another one may load other models meanwhile

        def prepare(session: Session) -> Work[EvalReport]:
            agents.extend(self._find_models(analysis, session).agents)
            between("margin", margin, 0.1, 99.0)
            settings = self._read_settings(eval_settings, limit, 200)
            if isinstance(settings.limit, int) and settings.ci_width is None:
                most = {name: most_items(name, self._settings) for name in settings.suites}
                limits = {name: min(settings.limit, own) for name, own in most.items()}
                settings = settings.model_copy(update={"limit": limits})
            every = check.candidates(session)
            wanted = name_list("models", models) if models else list(every)
            check_names("model", wanted, every)
            chosen = {name: every[name] for name in wanted}
            return check.score_work(chosen, settings, session, self._workspace)

        def describe_result(_: Session, found: EvalReport) -> dict:
            result = as_json(judge_merges(found, agents, float(margin) / 100))
            for numbers in result["models"].values():
                # gradio_client treats any object with a "path" as a file to download.
                path = numbers.pop("path", None)
                if self._settings.is_private:
                    numbers["folder"] = path
            return dict(result)

        return await self._finish(request, prepare, describe_result)

    def _read_settings(
        self,
        eval_settings: Mapping[str, Any],
        limit: Any,
        usual: int,
        most: int = _MOST_PROMPTS,
    ) -> EvalSettings:
        """Return the checked evaluation settings.

        Args: limit: the number of questions; usual: its default; most: its maximum, except for
            questions that are asked until intervals are narrow.
        """
        suites = name_list("suites", eval_settings["suites"] or [SUITE])
        offered, lengths = [*map(str, offered_lengths(self._settings))], eval_settings["lengths"]
        lengths = [] if lengths is None else name_list("lengths", lengths)
        check_names("prompt length", lengths, offered)
        check_names("suite", suites, (*ALL_SUITES, HEALTH))
        if not eval_settings["ci_width"]:
            limit = whole_between("limit", usual if limit is None else limit, 1, most)
        return read_settings({**eval_settings, "suites": suites, "limit": limit}, self._settings)

    @with_settings
    async def compare(
        self,
        request: gr.Request,
        analysis: str = DEFAULT_SET,
        rows: list | None = None,
        preset: str = "",
        settings: dict | None = None,
        limit: int | None = None,
        *,
        eval_settings: dict,
    ) -> dict:
        """Score methods side by side, each merged in memory; no model folder is written.

        Args:
            analysis: "shared-style", "independent", "dense" or what /analyze returned.
            rows: among "average", "sum", "ties", "dare-ta", "dare-ties", "fisher", "wudi", "tsv-m",
                "iso-c", "ram", "ram+", "ram+s"; seven common ones when left out.
            preset: instead of rows: "r-ablation", "epsilon-ablation", "standard" (15 rows),
                "unique-region", "mechanism", "leave-one-out" or "pairwise".
            settings: epsilon, r and alpha of the RAM rows.
            limit: questions per skill, 1 to 300 (100 when left out); with ci_width the most.
            {settings}

        Returns:
            {"kind": "comparison", "suite", "seed", "reference", "rows": [{"label", "kind",
            "method", "settings", "status", "domains": {skill: {"score", "ci95", ...}}, "average":
            {"score", "ci95", ...}, "merge_seconds", "agents": {name: {"rho", "lambda",
            "effective_lambda"}}, "versus": {"counts": {"wins", "losses", "p_value"},
            "p_adjusted", "outcome"} against the reference}], "ending": "done" or "stopped",
            "chance_levels", "reproducibility", "statements"}.
        """

        def prepare(session: Session) -> Work[ExperimentResult]:
            loaded = self._find_models(analysis, session)
            check_names("preset", [str(preset)] if preset else [], experiment.PRESETS)
            chosen = experiment.USUAL if rows is None else name_list("rows", rows)
            recipes = experiment.rows_for(loaded, preset, chosen, object_of("settings", settings))
            read = self._read_settings(eval_settings, limit, 100)
            return experiment.compare_work(recipes, read, session, self._workspace)

        return await self._finish(request, prepare, lambda _, found: as_json(found))

    @with_settings
    async def sweep(
        self,
        request: gr.Request,
        over: dict | None = None,
        analysis: str = DEFAULT_SET,
        settings: dict | None = None,
        limit: int | None = None,
        minutes: float = 5.0,
        search: str = "grid",
        trials: int = 12,
        *,
        eval_settings: dict,
    ) -> dict:
        """Try many settings merged in memory; check the best one on held-out questions.

        Args:
            over: what to vary, for example {"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}; a range is
                from:to:count, with :log at the end for even ratios; "weight" is each agent's,
                "ramp" its weights in the first and the last layer. Default: that example.
            analysis: "shared-style", "independent", "dense" or what /analyze returned.
            settings: epsilon, r and alpha where they are not varied.
            limit: questions per suite (the example's: per skill) to choose by, 1 to 100 (30 when
                left out); with ci_width the most.
            minutes: time for all, up to 30 (3 on a shared server).
            search: "grid" for every combination, "optuna" to propose `trials` settings, or "slim"
                for the weights of agents ({"weight": "0:1"}).
            trials: how many settings a search proposes.
            {settings}

        Returns:
            As /compare, with "kind": "sweep", "winner", "settings" (number compared),
            "tests", "recheck": {"winner", "start"} on held-out questions, in rows "values" and
            "loss", and "ending": "done" or "out_of_time".
        """

        def prepare(session: Session) -> Work[ExperimentResult]:
            plan = experiment.plan_over(
                self._find_models(analysis, session),
                experiment.USUAL_SWEEP if over is None else object_of("over", over),
                object_of("settings", settings),
                self._read_settings(eval_settings, limit, 30, experiment.MAX_ITEMS),
                minutes=min(number("minutes", minutes), self._settings.max_sweep_minutes),
                search=search,
                trials=whole_between("trials", trials, 1, experiment.MAX_SETTINGS),
            )
            return experiment.sweep_work(plan, session, self._workspace)

        return await self._finish(request, prepare, lambda _, found: as_json(found))
