"""The endpoints that ask models: evaluate, compare, sweep."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ram_studio.app.api.arguments import Client, between, check_names, finish, number
from ram_studio.app.asking.plan import LENGTHS, SUITE, Asked, How, asked_of, most_items
from ram_studio.app.check import work as check
from ram_studio.app.check.verdicts import described
from ram_studio.app.experiment import work as experiment
from ram_studio.evals.how import DEFAULT_SEED
from ram_studio.evals.suites import ALL_SUITES, HEALTH

_MOST_PROMPTS = 300


class AskingEndpoints(Client):
    """The endpoints of one app that ask models."""

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
        limit = int(between("limit", limit, 1, _MOST_PROMPTS))
        how: dict[str, Any] = {"max_tokens": max_tokens, "think_tokens": think_tokens}
        how |= {"temperature": temperature, "top_p": top_p, "samples": samples, "until": until}
        how |= {"seed": seed, "difficulty": difficulty, "mode": mode, "data": data}
        margin = between("margin", margin, 0.1, 99.0) / 100
        asked = self._asked(suites, lengths, how, limit)
        every = check.candidates(session)
        wanted = [str(m) for m in models] if models else list(every)
        check_names("model", wanted, every)
        chosen = {name: every[name] for name in wanted}
        work = check.score_work(chosen, asked, session, self._workspace)
        report = described(await finish(work, session), check.agents_of(session), margin)
        for numbers in report["models"].values():
            # gradio_client takes anything with a "path" for a file to download.
            path = numbers.pop("path", None)
            if self._settings.is_private:
                numbers["folder"] = path
        return report

    def _asked(
        self, suites: list | None, lengths: list | None, how: dict | None, limit: int | None = None
    ) -> Asked:
        """Return what is asked, checked; limit: of an evaluation, which suites cut down."""
        names = [SUITE] if suites is None else [str(name) for name in suites]
        check_names("suite", names, (*ALL_SUITES, HEALTH))
        check_names("setting of how", list(how or {}), How.__dataclass_fields__)
        limits = None
        if limit is not None:
            limits = {name: min(limit, most_items(name, self._settings)) for name in names}
        return asked_of(names, lengths or LENGTHS[:1], self._settings, how, limits)

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
        limit = int(between("limit", limit, 1, _MOST_PROMPTS))
        check_names("preset", [str(preset)] if preset else [], experiment.PRESETS)
        chosen = experiment.USUAL if rows is None else [str(row) for row in rows]
        recipes = experiment.rows_for(loaded, preset, chosen, settings or {})
        asked = self._asked(suites, lengths, how)
        work = experiment.compare_work(recipes, limit, session, self._workspace, asked)
        return (await finish(work, session)).to_dict()

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
        items = int(between("items", items, 1, experiment.MAX_ITEMS))
        trials = int(between("trials", trials, 1, experiment.MAX_SETTINGS))
        asked = self._asked(suites, lengths, how)
        plan = experiment.plan_over(
            loaded,
            over if over is not None else experiment.USUAL_SWEEP,
            settings or {},
            suites=asked.suites,
            **asked.settings,
            items=items,
            minutes=min(number("minutes", minutes), self._settings.max_sweep_minutes),
            search=search,
            trials=trials,
        )
        work = experiment.sweep_work(plan, session, self._workspace)
        return (await finish(work, session)).to_dict()
