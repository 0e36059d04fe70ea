"""The runner: one loaded model takes the weights of many merges, all asked the same questions.

No checkpoint is written. The base is loaded once; settings with equal weights are asked once;
answers are stored as they arrive, so that a stopped run can continue. A sweep races its settings
and scores the winner again on held-out questions, since the best of many scores is optimistic. A
comparison asks all of its rows everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ram_studio.algorithm.analysis import BASE
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.experiment import race
from ram_studio.evals.experiment.answers import Answers, Entry, Setup
from ram_studio.evals.experiment.draws import mean_scores, spread_over_merges, spread_over_samples
from ram_studio.evals.experiment.plan import ComparePlan, Plan, SweepPlan, by_stage, count_skills
from ram_studio.evals.experiment.presets import norm_matched
from ram_studio.evals.experiment.result import Ending, ExperimentResult, Recheck
from ram_studio.evals.experiment.search import SlimSearch
from ram_studio.evals.experiment.space import Candidate
from ram_studio.evals.question import Answer, Question, QuestionsBySuite
from ram_studio.evals.report.comparison import Pair
from ram_studio.evals.report.damage import damages
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.eval_result import Reproducibility
from ram_studio.evals.report.score import Average, DomainScore, paraphrase_scores, sample_scores

# A proposal that repeats an earlier merge costs nothing, but a space without new ones must end.
_ASKS_PER_TRIAL = 5


class Runner:
    """A running experiment; `result` is its current result.

    looks: number of stages until intervals were narrow. settings: of all merges, as stored, once
    one was asked.

    Args:
        plan: what to do.
        should_stop: polled before each batch and token.
        setup: fields of `Setup`.

    Raises: as `Plan.candidates`.
    """

    def __init__(
        self, plan: Plan, *, should_stop: Callable[[], bool] | None = None, **setup: Any
    ) -> None:
        self._candidates, self._start = plan.candidates(), plan.start()
        self.plan = plan
        self.sweep = plan if isinstance(plan, SweepPlan) else None
        self.entries: list[Entry] = []
        self.result = ExperimentResult(
            "sweep" if self.sweep else "comparison",
            ",".join(plan.settings.suites),
            plan.settings.seed,
            search=self.sweep.search if self.sweep else "grid",
            reference=plan.reference if isinstance(plan, ComparePlan) else None,
        )
        self._should_stop, self._setup = should_stop, Setup(**setup)
        self._answers: Answers | None = None
        self._deadline: float | None = None
        self._began = 0.0
        self._held: dict[str, ModelAnswers] = {}
        self.settings: Mapping[str, Any] = {}
        self.looks = 0

    def run(self) -> Iterator[ExperimentResult]:
        """Yield the result after every stage of every setting; the last one is complete.

        Ends early when time is up or `should_stop` returns True; see the last result's `ending`.

        Raises: what `engine.analyze.load`, merging and `LocalEngine` raise.
        """
        self._began = time.monotonic()
        if self.plan.minutes is not None:
            self._deadline = self._began + 60 * self.plan.minutes
        try:
            yield from self._run()
        finally:
            if self._answers is not None:
                self._answers.close()

    def _run(self) -> Iterator[ExperimentResult]:
        ending: Ending = "done"
        is_search = self.sweep is not None and self.sweep.is_search
        try:
            self._answers = Answers(self.plan, self._is_over, self._setup)
            self._prepare()
            yield self._update()
            for _ in self._search() if is_search else self._race():
                yield self._update()
            yield from self._ask_control()
        except Stopped:
            if self._is_stopped() or not self._is_late():
                ending = "stopped"
            else:
                ending = "out_of_time"
                self._drop_losers(self._alive(), final=True)
            if self.plan.settings.until is not None:
                # Questions that all have answered can be compared.
                self.looks = min((entry.stages for entry in self._alive()), default=0)
        for entry in self.entries:
            if not entry.is_over:
                entry.status = "unfinished"
        if self.sweep is None:
            self._compare_rows()
        elif ending != "stopped":
            yield self._update()
            # Time was reserved for this.
            self._deadline = None
            try:
                self._recheck()
            except Stopped:
                ending = "stopped"
        found = self._reproducibility()
        self.result = replace(self.result, ending=ending, now="", reproducibility=found)
        yield self._update()

    # ------------------------------------------------------------------ settings

    def _prepare(self) -> None:
        """Set up the stages, the start and the candidates."""
        assert self._answers is not None
        items = self._answers.items
        self._shares = self.plan.shares(items.count)
        self.looks = len(self._shares)
        self._stages = {name: by_stage(qs, self._shares) for name, qs in items.chosen_by.items()}
        self._asked = {q.id: q for qs in items.chosen_by.values() for q in qs}
        for candidate in self._candidates:
            self._add(candidate)
        if self._start is not None:
            start = self._add(self._start, is_start=True)
            self.entries.remove(start)
            if start.duplicate_of is None:
                self.entries.insert(0, start)
            else:
                # A point of the grid: it has its label there.
                start.duplicate_of.is_start = True
        settings = sum(entry.duplicate_of is None for entry in self.entries)
        if self.sweep is not None and self.sweep.is_search:
            # The start, and the search's proposals.
            settings = self.sweep.proposals + 1
        if isinstance(self.plan, ComparePlan):
            settings += self.plan.controls
        self.result = replace(
            self.result,
            settings=settings,
            level=race.level_for(settings, len(self._shares)),
            total_answers=settings * items.count,
        )

    def _add(self, candidate: Candidate, *, is_start: bool = False) -> Entry:
        """Add a setting; one with the weights of an earlier one shares its answers."""
        assert self._answers is not None
        entry = Entry.of(candidate, is_start=is_start)
        try:
            entry.digest, factors = self._answers.identify(candidate)
            entry.agents = {name: {"lambda": factor} for name, factor in factors.items()}
        except SettingsError as error:
            entry.status, entry.note = "failed", str(error)
        for other in self.entries:
            if entry.digest and other.digest == entry.digest and other.duplicate_of is None:
                entry.duplicate_of, entry.status = other, "duplicate"
        self.entries.append(entry)
        alike = [e for e in self.entries if e.label == entry.label and e.duplicate_of is None]
        if self.sweep is not None and len(alike) > 1:
            # Labels identify rows.
            for one in alike:
                one.label = one.whole_label
        return entry

    # ------------------------------------------------------------------ asking

    def _race(self) -> Iterator[None]:
        """Ask all settings stage by stage; drop clear losers after each."""
        for stage in range(len(self._shares)):
            for entry in [e for e in self.entries if e.is_alive]:
                self._ask_stage(entry, stage)
                yield
            self._drop_losers(self._alive(), final=stage == len(self._shares) - 1)
            if self._is_decided(stage + 1):
                return
            yield

    def _is_decided(self, number: int) -> bool:
        """Return whether asking may end after a stage, where intervals decide it."""
        until = self.plan.settings.until
        if until is None:
            return False
        alive, skills = self._alive(), self.result.skills
        rows = [row for entry in alive for row in entry.domains.items()]
        # Domains outside the average have few questions.
        decided = until.decide(number, [score for domain, score in rows if domain in skills])
        self.result = replace(self.result, until=decided)
        if decided.is_decided:
            self.looks = number
            for entry in alive:
                entry.status = "finished"
        return decided.is_decided

    def _search(self) -> Iterator[None]:
        """Ask one setting after another, each compared with the best finished one."""
        plan = self.sweep
        assert plan is not None
        search, trials = plan.searching(), plan.proposals
        yield from self._trial(self.entries[0])
        asks = tried = 0
        while tried < trials and asks < _ASKS_PER_TRIAL * trials:
            asks += 1
            proposed = search.propose()
            if proposed is None:
                break
            entry = self._add(proposed)
            if entry.duplicate_of is None:
                tried += 1
                yield from self._trial(entry)
            elif any(e.label == entry.label for e in self.entries[:-1]):
                self.entries.pop()
            known = entry.source
            score = round(known.average.score, 12) if known.status != "failed" else None
            is_finished = known.stages == len(self._shares)
            search.report_score(score, is_dropped=not is_finished, stage=known.stages)
        if isinstance(search, SlimSearch):
            self.result = replace(self.result, surrogate=search.surrogate)
        self._drop_losers(self._alive(), final=True)
        yield

    def _trial(self, entry: Entry) -> Iterator[None]:
        for stage in range(len(self._shares)):
            if entry.is_alive:
                self._ask_stage(entry, stage)
                if stage < len(self._shares) - 1:
                    self._drop_losers([entry], final=False)
                yield

    def _ask_stage(self, entry: Entry, stage: int) -> None:
        """Ask a setting the questions of a stage.

        Raises: Stopped when stopped or out of time; answers are stored by then.
        """
        if not self._ask_entry(entry, {n: parts[stage] for n, parts in self._stages.items()}):
            return
        self._score(entry, self._alone(entry).models[entry.label])
        self._take_draws(entry.candidate.draw_of or entry.label)
        entry.stages = stage + 1
        entry.status = "finished" if entry.stages == len(self._shares) else "partial"

    def _ask_entry(self, entry: Entry, questions: QuestionsBySuite) -> bool:
        """Ask a setting; return whether it could be merged. Raises: as `_ask_stage`."""
        assert self._answers is not None
        entry.status = "running"
        self.result = replace(self.result, now=entry.label)
        try:
            entry.answers.update(self._answers.ask(entry, questions))
        except SettingsError as error:
            entry.status, entry.note = "failed", str(error)
            return False
        self.settings = self.settings or self._answers.recorded_settings
        return True

    def _ask_control(self) -> Iterator[ExperimentResult]:
        """Ask a comparison's control, see `norm_matched`, the questions of the other rows."""
        plan, best = self.plan, self._update().best_agent
        if not isinstance(plan, ComparePlan) or not plan.controls or best is None:
            return
        assert self._answers is not None
        reference = next(e for e in self.entries if e.label == plan.reference)
        if not reference.source.answers:
            return
        made = (plan.rows[plan.reference], best.label, plan.recipe, self._answers.change_norm)
        candidate = norm_matched(*made)
        if candidate is None:
            return
        entry = self._add(candidate)
        if entry.is_alive:
            yield self._update()
            if self._ask_entry(entry, self.questions):
                entry.stages, entry.status = self.looks, "finished"

    def _score(self, entry: Entry, row: ModelAnswers) -> None:
        entry.domains, entry.average = row.domains, row.average
        for domain, own in row.answers.items():
            if sampled := sample_scores(own):
                entry.samples[domain] = sampled
            if worded := paraphrase_scores(own):
                entry.paraphrases[domain] = worded
        self.result = replace(self.result, skills=row.skills)

    def _take_draws(self, label: str) -> None:
        """Replace a comparison's row by the mean over its draws, of merges and of answers."""
        entry = next(e for e in self.entries if e.label == label)
        more = [e for e in self.entries if e.candidate.draw_of == label]
        own = [e.source for e in (entry, *more) if e.source.answers.keys() >= entry.answers.keys()]
        if not isinstance(self.plan, ComparePlan) or not entry.answers:
            return
        draws = {e.candidate.recipe.seed if e.candidate.recipe else 0: e.answers for e in own}
        asked = [self._asked[question] for question in entry.answers]
        every, skills, seed = list(draws.values()), self.result.skills, self.plan.settings.seed
        entry.domains = mean_scores(asked, every)
        entry.average = Average.over_skills(entry.domains, skills)
        entry.merge_draws = spread_over_merges(asked, draws, skills)
        entry.answer_draws = spread_over_samples(asked, every, seed, skills)

    # ------------------------------------------------------------------ comparing

    def _alive(self) -> list[Entry]:
        return [e for e in self.entries if e.is_alive and e.stages]

    def _rank_entries(self) -> list[Entry]:
        """Return the comparable settings, the best first; among equals the start, then the earlier.

        Settings are comparable on questions that all have answered: in a race all settings in it,
        in a search the finished ones.
        """
        alive = self._alive()
        if self.sweep is not None and self.sweep.is_search:
            most = max((e.stages for e in alive), default=0)
            alive = [e for e in alive if e.stages == most]
        level = min((e.stages for e in alive), default=0)
        common = [q for parts in self._stages.values() for p in parts[:level] for q in p]
        return sorted(alive, key=lambda e: (-_average(e, common), not e.is_start))

    def _drop_losers(self, entries: Sequence[Entry], *, final: bool) -> None:
        """Compare settings with the current best, and drop those that clearly lose."""
        if self._start is None:
            return
        ranked = self._rank_entries() if entries else []
        made = 0
        for entry in entries:
            leader = ranked[0]
            if entry is leader or not entry.is_alive or leader.stages < entry.stages:
                continue
            made += 1
            theirs, own, level = leader.answers, entry.answers, self.result.level
            entry.loss = race.loss_to(leader.label, theirs, own, level)
            if entry.loss is not None:
                entry.status = "worse" if final else "dropped"
        self.result = replace(self.result, tests=self.result.tests + made)

    def _recheck(self) -> None:
        """Score the winner and the start on the held-out questions."""
        ranked = self._rank_entries() if self.entries else []
        if not ranked or not self.plan.held_out_count or self._answers is None:
            return
        start = next(e for e in self.entries if e.is_start)
        sides = {"winner": ranked[0]}
        if start is not ranked[0] and start.status != "failed":
            sides["start"] = start
        self.result = replace(self.result, now="held-out questions")
        found: dict[str, Mapping[str, Answer]] = {}
        for side, entry in sides.items():  # a stop between the two keeps the first's answers
            found[side] = self._answers.ask(entry, self._held_out)
            report = self._report(found, [*chain(*self._held_out.values())])
            rows = report.models.items()
            self._held = {f"{sides[one].label}, held out": row for one, row in rows}
        self.result = replace(self.result, recheck=Recheck.of(report))

    def _compare_rows(self) -> None:
        """Compare every finished row with the reference; the other rows have no score."""
        finished: list[Entry] = []
        rows = [entry for entry in self.entries if not entry.candidate.draw_of]
        for entry in rows:
            known = entry.source
            if known.status == "finished" or 0 < self.looks <= known.stages:
                finished.append(entry)
                if entry is known:
                    entry.status = "finished"
            elif entry is not known:
                entry.status, entry.note = known.status, known.note
        answers = {entry.label: entry.source.answers for entry in finished}
        report = self._report(answers, [*chain(*self.questions.values())])
        report = replace(report, until=self.result.until)
        for entry in rows:
            if entry in finished:
                self._score(entry, report.models[entry.label])
                self._take_draws(entry.label)
            else:
                entry.domains, entry.average = {}, Average.over(())
        agents = self.plan.agents if isinstance(self.plan, ComparePlan) else ()
        reference = self.result.reference
        if reference in report.models:
            others = [entry for entry in finished if entry.label != reference]
            pairs: list[Pair] = [("skills", e.label, str(reference), "merge") for e in others]
            for entry, versus in zip(others, report.compare_pairs(pairs), strict=True):
                entry.versus = versus
        self.result = replace(
            self.result,
            report=report,
            chance_levels=dict(report.chance_levels),
            skills=report.skills,
            damage=damages(report, BASE, agents),
        )

    # ------------------------------------------------------------------ the result

    def _update(self) -> ExperimentResult:
        ranked = self._rank_entries() if self.sweep and self.entries else []
        if ranked:
            levels = dict(self._alone(ranked[0]).chance_levels)
            self.result = replace(self.result, winner=ranked[0].label, chance_levels=levels)
        self.result = replace(
            self.result,
            questions=count_skills(self.questions),
            held_out=count_skills(self._held_out),
            rows=tuple(e.snapshot() for e in self.entries if not e.candidate.draw_of),
            answers=sum(len(entry.answers) for entry in self.entries),
            seconds=time.monotonic() - self._began,
        )
        return self.result

    def _report(
        self, rows: Mapping[str, Mapping[str, Answer]], questions: Sequence[Question]
    ) -> EvalReport:
        """Return the report of rows by label, with their answers to all of these questions."""
        names = self.plan.settings.suites
        models = {
            label: ModelAnswers.of(
                label, None, [(q, answers[q.id]) for q in questions], names, settings=self.settings
            )
            for label, answers in rows.items()
        }
        return EvalReport.of(names, self.plan.settings.seed, questions, models)

    def _alone(self, entry: Entry) -> EvalReport:
        """Return the report of one row on its answered questions."""
        own = [self._asked[question] for question in entry.answers]
        return self._report({entry.label: entry.answers}, own)

    def _reproducibility(self) -> Reproducibility | None:
        """Return the rows' reproducibility details, including held-out questions."""
        report = self.result.report
        if report is not None:
            questions = [question for items in report.items.values() for question in items]
            return Reproducibility.of(report.seed, questions, report.models)
        answered = [entry for entry in self.entries if entry.answers]
        if not answered:
            return None
        rows = {e.label: self._alone(e).models[e.label] for e in answered}
        asked = dict.fromkeys(question for entry in answered for question in entry.answers)
        held_rows = [*chain(*self._held_out.values())] if self._held else []
        return Reproducibility.of(
            self.plan.settings.seed, [self._asked[q] for q in asked], rows | self._held, held_rows
        )

    @property
    def questions(self) -> QuestionsBySuite:
        """The questions that merges were compared on, by suite; empty before they were drawn."""
        return {} if self._answers is None else self._decisive(self._answers.items.chosen_by)

    @property
    def _held_out(self) -> QuestionsBySuite:
        """The questions of the final check, of each suite no more than were needed to decide."""
        return {} if self._answers is None else self._decisive(self._answers.items.held_out)

    def _decisive(self, asked: QuestionsBySuite) -> QuestionsBySuite:
        """Return these questions; where intervals ended the asking, those of the stages made."""
        if self.plan.settings.until is None:
            return asked
        return {
            name: [q for part in by_stage(own, self._shares)[: self.looks] for q in part]
            for name, own in asked.items()
        }

    # ------------------------------------------------------------------ stopping

    def _is_stopped(self) -> bool:
        return bool(self._should_stop and self._should_stop())

    def _is_late(self) -> bool:
        if self._deadline is None:
            return False
        set_aside = 0.0
        if self._answers is not None:
            held_count = sum(map(len, self._answers.items.held_out.values()))
            set_aside = 2 * held_count * self._answers.seconds_each
        return time.monotonic() > self._deadline - set_aside

    def _is_over(self) -> bool:
        return self._is_stopped() or self._is_late()


def _average(entry: Entry, questions: Sequence[Question]) -> float:
    """Return the mean over the domains of an entry's scores on these questions."""
    domains: dict[str, list[Any]] = {}
    for question in questions:
        domains.setdefault(question.domain, []).append(entry.answers[question.id])
    parts = Average.over(DomainScore.of(own) for own in domains.values())
    # Rounded, so that the order of summation does not matter.
    return round(parts.score, 12) if parts.n else 0.0
