"""The runner: many merges put into one loaded model in turn, all asked the same questions.

No checkpoint is written. The base is loaded once; settings that come to the same weights are asked
once; answers go to the store as they come, so that what is stopped is taken up where it ended.
A sweep races its settings and scores the winner again, on held-out questions: its score is the best
of many on the same ones and therefore too good. A comparison asks all of its rows everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.experiment import race
from ram_studio.evals.experiment.answers import Answers, Entry, Setup
from ram_studio.evals.experiment.items import by_stage
from ram_studio.evals.experiment.plan import Plan, SweepPlan
from ram_studio.evals.experiment.space import Candidate, OptunaSearch
from ram_studio.evals.experiment.table import Ending, Recheck, SweepState
from ram_studio.evals.question import Answer, Asked, Question
from ram_studio.evals.report.score import Average, DomainScore, sample_scores
from ram_studio.evals.report.tables import EvalReport, ModelResult
from ram_studio.evals.report.trust import questions_told, trust

# A proposal that is an old merge again costs nothing; a space that has no other must end, though.
_ASKS_PER_TRIAL = 5


class Runner:
    """An experiment under way; `state` is always what is known so far.

    looks: after so many parts of the questions merges are compared. asked: the settings under
    which all merges are asked, once one was.

    Args:
        plan: what to do.
        should_stop: polled before each batch and token.
        setup: fields of `Setup`.

    Raises: as `Plan.candidates`.
    """

    def __init__(
        self, plan: Plan, *, should_stop: Callable[[], bool] | None = None, **setup: Any
    ) -> None:
        self.plan = plan
        self.entries: list[Entry] = []
        self.state = SweepState(
            ",".join(plan.settings.suites), plan.settings.seed, is_search=plan.is_search
        )
        self._candidates, self._start = plan.candidates(), plan.start()
        self._should_stop, self._setup = should_stop, Setup(**setup)
        self._answers: Answers | None = None
        self._deadline: float | None = None
        self._began = 0.0
        self._held: dict[str, ModelResult] = {}
        self.asked: Mapping[str, Any] = {}
        self.looks = 0

    def run(self) -> Iterator[SweepState]:
        """Yield the state after every stage of every setting; the last one is the result.

        Ends early, with what is finished, when time is up or `should_stop` says so; then the last
        state's `ending` tells.

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

    def _run(self) -> Iterator[SweepState]:
        ending: Ending = "done"
        try:
            self._answers = Answers(self.plan, self._is_over, self._setup)
            self._open()
            yield self._tell()
            for _ in self._search() if self.state.is_search else self._race():
                yield self._tell()
        except Stopped:
            if self._is_stopped() or not self._is_late():
                ending = "stopped"
            else:
                ending = "out of time"
                self._look(self._alive(), final=True)
            if self.plan.settings.until is not None:
                # What all have answered can be compared.
                self.looks = min((entry.stages for entry in self._alive()), default=0)
        for entry in self.entries:
            if entry.status in ("waiting", "running", "open"):
                entry.status = "unfinished"
        if ending != "stopped":
            yield self._tell()
            # Time for this was kept back.
            self._deadline = None
            try:
                self._recheck()
            except Stopped:
                ending = "stopped"
        self.state = replace(self.state, ending=ending, now="", trust=self._trust())
        yield self._tell()

    # ------------------------------------------------------------------ settings

    def _open(self) -> None:
        """Set up the stages, the start and the candidates."""
        assert self._answers is not None
        items = self._answers.items
        self._shares = self.plan.shares(items.count)
        self.looks = len(self._shares)
        self._stages = {name: by_stage(qs, self._shares) for name, qs in items.chosen_by.items()}
        self._asked = {q.id: q for qs in items.chosen_by.values() for q in qs}
        start = None if self._start is None else self._add(self._start, is_start=True)
        for candidate in self._candidates:
            self._add(candidate)
        twin = next((e for e in self.entries if start is not None and e.twin is start), None)
        if start is not None and twin is not None:
            # The start is a point of the grid: it goes by the name it has there.
            self.entries.remove(start)
            twin.is_start, twin.twin, twin.status = True, None, "waiting"
            for entry in self.entries:
                entry.twin = twin if entry.twin is start else entry.twin
        distinct = sum(entry.twin is None for entry in self.entries)
        # The start, and what a search proposes.
        settings = self.plan.trials + 1 if self.plan.is_search else distinct
        self.state = replace(
            self.state,
            chosen_by=items.count,
            held_out=items.held_skills,
            settings=settings,
            level=race.level_for(settings, len(self._shares)),
            total_answers=settings * items.count,
        )

    def _add(self, candidate: Candidate, *, is_start: bool = False) -> Entry:
        """Take a setting in; one that comes to an old one's weights shares its answers."""
        assert self._answers is not None
        entry = Entry.of(candidate, is_start=is_start)
        try:
            entry.digest, entry.factors = self._answers.identify(candidate)
        except SettingsError as error:
            entry.status, entry.note = "failed", str(error)
        for other in self.entries:
            if entry.digest and other.digest == entry.digest and other.twin is None:
                entry.twin, entry.status = other, "same"
        self.entries.append(entry)
        return entry

    # ------------------------------------------------------------------ asking

    def _race(self) -> Iterator[None]:
        """Ask all settings stage by stage, dropping what clearly loses after each."""
        for stage in range(len(self._shares)):
            for entry in [e for e in self.entries if e.is_alive]:
                self._ask_stage(entry, stage)
                yield
            self._look(self._alive(), final=stage == len(self._shares) - 1)
            if self._is_decided(stage + 1):
                return
            yield

    def _is_decided(self, look: int) -> bool:
        """Return whether asking may end after a look, where it goes on until the items decide."""
        until = self.plan.settings.until
        if until is None:
            return False
        alive = self._alive()
        scores = [score for entry in alive for score in entry.domains.values()]
        decided = until.look(look, scores)
        self.state = replace(self.state, until=decided.to_dict())
        if decided.is_decided:
            self.looks = look
            for entry in alive:
                entry.status = "kept"
        return decided.is_decided

    def _search(self) -> Iterator[None]:
        """Ask one setting after another, each compared with the best of those finished."""
        plan = self.plan
        assert isinstance(plan, SweepPlan)
        search = OptunaSearch(plan.space, seed=plan.settings.seed, trials=plan.trials)
        yield from self._trial(self.entries[0])
        asks = tried = 0
        while tried < plan.trials and asks < _ASKS_PER_TRIAL * plan.trials:
            asks += 1
            entry = self._add(search.ask())
            if entry.twin is None:
                tried += 1
                yield from self._trial(entry)
            elif any(e.label == entry.label for e in self.entries[:-1]):
                self.entries.pop()
            known = entry.twin or entry
            own = [self._asked[question] for question in known.answers]
            score = _average(known, own) if own else 0.0
            is_finished = known.stages == len(self._shares)
            search.tell(score, is_dropped=not is_finished, stage=known.stages)
        self._look(self._alive(), final=True)
        yield

    def _trial(self, entry: Entry) -> Iterator[None]:
        for stage in range(len(self._shares)):
            if entry.is_alive:
                self._ask_stage(entry, stage)
                if stage < len(self._shares) - 1:
                    self._look([entry], final=False)
                yield

    def _ask_stage(self, entry: Entry, stage: int) -> None:
        """Ask a setting the questions of a stage.

        Raises: Stopped when stopped or late; what was answered is in the store then.
        """
        assert self._answers is not None
        entry.status = "running"
        self.state = replace(self.state, now=entry.label)
        try:
            found = self._answers.ask(entry, {n: parts[stage] for n, parts in self._stages.items()})
        except SettingsError as error:
            entry.status, entry.note = "failed", str(error)
            return
        self.asked = self.asked or self._answers.asked
        entry.answers.update(found)
        result = self._alone(entry).models[entry.label]
        entry.domains = {d: score for d, score in result.domains.items() if d in result.skills}
        drawn = {d: sample_scores(own) for d, own in result.answers.items()}
        entry.samples = {d: found for d, found in drawn.items() if found}
        entry.stages = stage + 1
        entry.status = "kept" if entry.stages == len(self._shares) else "open"

    # ------------------------------------------------------------------ comparing

    def _alive(self) -> list[Entry]:
        return [e for e in self.entries if e.is_alive and e.stages]

    def _ranked(self) -> list[Entry]:
        """Return the comparable settings, the best first; among equals the start, then the earlier.

        Only those are comparable that answered as much as the others: in a race what all in it
        have answered counts, in a search what the finished ones have.
        """
        alive = self._alive()
        if self.state.is_search:
            most = max((e.stages for e in alive), default=0)
            alive = [e for e in alive if e.stages == most]
        level = min((e.stages for e in alive), default=0)
        common = [q for parts in self._stages.values() for p in parts[:level] for q in p]
        return sorted(alive, key=lambda e: (-_average(e, common), not e.is_start))

    def _look(self, entries: Sequence[Entry], *, final: bool) -> None:
        """Compare settings with the best so far; those that clearly lose are out."""
        if self._start is None:
            return
        ranked = self._ranked() if entries else []
        made = 0
        for entry in entries:
            leader = ranked[0]
            if entry is leader or not entry.is_alive or leader.stages < entry.stages:
                continue
            made += 1
            theirs, own = leader.verdicts, entry.verdicts
            entry.loss = race.loss_to(leader.label, theirs, own, self.state.level)
            if entry.loss is not None:
                entry.status = "behind" if final else "dropped"
        self.state = replace(self.state, comparisons=self.state.comparisons + made)

    def _recheck(self) -> None:
        """Score the winner and the start on the held-out questions."""
        ranked = self._ranked() if self.entries else []
        if not ranked or not self.plan.held or self._answers is None:
            return
        start = next(e for e in self.entries if e.is_start)
        sides = {"winner": ranked[0]}
        if start is not ranked[0] and start.status != "failed":
            sides["start"] = start
        self.state = replace(self.state, now="held-out items")
        found: dict[str, Mapping[str, Answer]] = {}
        for side, entry in sides.items():  # a stop between the two keeps what the first answered
            found[side] = self._answers.ask(entry, self._held_out)
            report = self.report(found, self._held_out)
            rows = report.models.items()
            self._held = {f"{sides[one].label}, held out": row for one, row in rows}
        self.state = replace(self.state, recheck=Recheck.of(report))

    # ------------------------------------------------------------------ telling and stopping

    def _tell(self) -> SweepState:
        ranked = self._ranked() if self.entries else []
        self.state = replace(
            self.state,
            rows=tuple(entry.told() for entry in self.entries),
            winner=ranked[0].label if ranked else None,
            floors=self._alone(ranked[0]).floors if ranked else {},
            answers=sum(len(e.answers) for e in self.entries if e.twin is None),
            seconds=time.monotonic() - self._began,
        )
        return self.state

    def report(self, rows: Mapping[str, Mapping[str, Answer]], questions: Asked) -> EvalReport:
        """Return rows by label, with the answers that each gave to all of these questions."""
        names, every = self.plan.settings.suites, [q for own in questions.values() for q in own]
        models = {
            label: ModelResult.of(
                label, None, [(q, answers[q.id]) for q in every], names, asked=self.asked
            )
            for label, answers in rows.items()
        }
        return EvalReport.of(names, self.plan.settings.seed, questions, models)

    def _alone(self, entry: Entry) -> EvalReport:
        """Return the report of one row on the questions that it answered."""
        own = [self._asked[question] for question in entry.answers]
        return self.report({entry.label: entry.answers}, {"": own})

    def _trust(self) -> Mapping[str, Any]:
        """Return what the table's rows rest on, those on held-out questions with them."""
        answered = [entry for entry in self.entries if entry.answers]
        if not answered:
            return {}
        rows = {e.label: self._alone(e).models[e.label] for e in answered}
        asked = dict.fromkeys(question for entry in answered for question in entry.answers)
        items = {"": tuple(self._asked[question] for question in asked)}
        state = self.state
        found = trust(
            EvalReport(state.suites, state.seed, 0, items, rows | self._held, state.floors)
        )
        if self._held:
            found["held_out"] = questions_told(q for own in self._held_out.values() for q in own)
        return found

    @property
    def questions(self) -> Asked:
        """What merges were compared on, by suite; empty before it was drawn."""
        return {} if self._answers is None else self._decisive(self._answers.items.chosen_by)

    @property
    def _held_out(self) -> Asked:
        """The questions of the final check: of each, no more than it took to decide."""
        return {} if self._answers is None else self._decisive(self._answers.items.held_out)

    def _decisive(self, asked: Asked) -> Asked:
        """Return these questions, those of the looks that were made where asking went on until."""
        if self.plan.settings.until is None:
            return asked
        return {
            name: [q for part in by_stage(own, self._shares)[: self.looks] for q in part]
            for name, own in asked.items()
        }

    def _is_stopped(self) -> bool:
        return bool(self._should_stop and self._should_stop())

    def _is_late(self) -> bool:
        if self._deadline is None:
            return False
        kept_back = 0.0
        if self._answers is not None:
            held = sum(map(len, self._answers.items.held_out.values()))
            kept_back = 2 * held * self._answers.seconds_each
        return time.monotonic() > self._deadline - kept_back

    def _is_over(self) -> bool:
        return self._is_stopped() or self._is_late()


def _average(entry: Entry, questions: Sequence[Question]) -> float:
    """Return the mean over the domains of an entry's scores on these questions."""
    domains: dict[str, list[Any]] = {}
    for question in questions:
        domains.setdefault(question.domain, []).append(entry.answers[question.id])
    parts = Average.over(DomainScore.of(own) for own in domains.values())
    # Rounded: sums in other orders of equal shares are equal.
    return round(parts.score, 12) if parts.n else 0.0
