"""Sweeps: many settings merged into one loaded model, scored on the same items, raced.

No checkpoint is written. The base is loaded once; settings that come to the same weights are asked
once; answers go to the store as they come, so that a stopped sweep is taken up where it ended. The
winner's score is the best of many on the same items and therefore too good: it is scored again on
held-out items, next to the setting that the sweep started from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import SettingsError, Stopped
from ram_studio.evals.experiment import sweep_race as race
from ram_studio.evals.experiment.sweep_answers import Entry, ShouldStop, SweepAnswers
from ram_studio.evals.experiment.sweep_items import by_stage
from ram_studio.evals.experiment.sweep_plan import DEFAULT_ITEMS, DEFAULT_TRIALS, Search, SweepPlan
from ram_studio.evals.experiment.sweep_result import Ending, Recheck, SweepState
from ram_studio.evals.experiment.sweep_search import OptunaSearch
from ram_studio.evals.experiment.sweep_space import Candidate, Space, parse_axes
from ram_studio.evals.report.tables import DomainScore, PairedCounts

__all__ = ["Sweep", "SweepPlan", "SweepState", "sweep"]

# A proposal that is an old merge again costs nothing; a space that has no other must end, though.
_ASKS_PER_TRIAL = 5


class Sweep:
    """A sweep under way; `state` is always what is known so far.

    Args:
        plan: what to do.
        should_stop: polled before each batch and token.
        options: of `SweepAnswers`. device: where the model answers and merges are made. sketch: of
            base and agents, else they are counted once where a method needs it. store: where
            answers go and are found again; fresh: forget stored answers first. fisher_folder:
            where estimated Fisher files are kept, a temporary one when left out. on_progress:
            called with (setting, answers of this stage, of how many).

    Raises: as `SweepPlan.candidates`.
    """

    def __init__(
        self, plan: SweepPlan, *, should_stop: ShouldStop | None = None, **options: Any
    ) -> None:
        self.plan = plan
        self._grid = plan.candidates()
        self._space = Space(plan.recipe, plan.axes)
        self._should_stop, self._options = should_stop, options
        self._entries: list[Entry] = []
        self._answers: SweepAnswers | None = None
        self._deadline: float | None = None
        self._began = 0.0
        self.state = SweepState(
            ",".join(plan.suite_names), plan.seed, is_search=plan.search == "optuna"
        )

    def run(self) -> Iterator[SweepState]:
        """Yield the state after every stage of every setting; the last one is the result.

        Ends early, with what is finished, when time is up or `should_stop` says so; then the last
        state's `ending` tells.

        Raises: what `engine.analyse.load`, merging and `LocalEngine` raise.
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
            self._answers = SweepAnswers(self.plan, self._is_over, **self._options)
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
        for entry in self._entries:
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
        self.state = replace(self.state, ending=ending, now="")
        yield self._tell()

    # ------------------------------------------------------------------ settings

    def _open(self) -> None:
        """Set up the stages, the start and the grid."""
        assert self._answers is not None
        items = self._answers.items
        self._shares = race.stage_shares(items.count, self.plan.early_stop)
        self._stages = {name: by_stage(qs, self._shares) for name, qs in items.chosen_by.items()}
        self._domain_of = {q.id: q.domain for qs in items.chosen_by.values() for q in qs}
        start = self._add(self._space.start(), is_start=True)
        for candidate in self._grid:
            self._add(candidate)
        twin = next((e for e in self._entries if e.same_as is start), None)
        if twin is not None:
            # The start is a point of the grid: it goes by the name it has there.
            self._entries.remove(start)
            twin.is_start, twin.same_as, twin.status = True, None, "waiting"
            for entry in self._entries:
                entry.same_as = twin if entry.same_as is start else entry.same_as
        distinct = sum(entry.same_as is None for entry in self._entries)
        settings = self.plan.trials + 1 if self.state.is_search else distinct
        held = [q for qs in items.held_out.values() for q in qs if q.domain in items.skills]
        self.state = replace(
            self.state,
            chosen_by=items.count,
            held_out=len(held),
            settings=settings,
            level=race.level_for(settings, len(self._shares)),
            total_answers=settings * items.count,
        )

    def _add(self, candidate: Candidate, *, is_start: bool = False) -> Entry:
        """Take a setting in; one that comes to an old one's weights shares its answers."""
        assert self._answers is not None
        try:
            entry = Entry(candidate, *self._answers.identify(candidate), is_start)
        except SettingsError as error:
            entry = Entry(candidate, "", {}, is_start, "failed", note=str(error))
        for other in self._entries:
            if entry.digest and other.digest == entry.digest and other.same_as is None:
                entry.same_as, entry.status = other, "same"
        self._entries.append(entry)
        return entry

    # ------------------------------------------------------------------ asking

    def _race(self) -> Iterator[None]:
        """Ask all settings stage by stage, dropping what clearly loses after each."""
        for stage in range(len(self._shares)):
            for entry in [e for e in self._entries if e.is_alive]:
                self._ask_stage(entry, stage)
                yield
            self._look(self._alive(), final=stage == len(self._shares) - 1)
            yield

    def _search(self) -> Iterator[None]:
        """Ask one setting after another, each compared with the best of those finished."""
        plan = self.plan
        search = OptunaSearch(self._space, seed=plan.seed, trials=plan.trials)
        yield from self._trial(self._entries[0])
        asks = tried = 0
        while tried < plan.trials and asks < _ASKS_PER_TRIAL * plan.trials:
            asks += 1
            entry = self._add(search.ask())
            if entry.same_as is None:
                tried += 1
                yield from self._trial(entry)
            elif any(e.label == entry.label for e in self._entries[:-1]):
                self._entries.pop()
            known = entry.same_as or entry
            score = sum(known.verdicts.values()) / max(1, len(known.verdicts))
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
        entry.verdicts.update(found)
        entry.stages = stage + 1
        entry.status = "kept" if entry.stages == len(self._shares) else "open"

    # ------------------------------------------------------------------ comparing

    def _alive(self) -> list[Entry]:
        return [e for e in self._entries if e.is_alive and e.stages]

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
        common = [q.id for parts in self._stages.values() for p in parts[:level] for q in p]
        return sorted(alive, key=lambda e: (-sum(e.verdicts[q] for q in common), not e.is_start))

    def _look(self, entries: Sequence[Entry], *, final: bool) -> None:
        """Compare settings with the best so far; those that clearly lose are out."""
        ranked = self._ranked() if entries else []
        made = 0
        for entry in entries:
            leader = ranked[0]
            if entry is leader or not entry.is_alive or leader.stages < entry.stages:
                continue
            made += 1
            entry.loss = race.loss_to(
                leader.label, leader.verdicts, entry.verdicts, self.state.level
            )
            if entry.loss is not None:
                entry.status = "behind" if final else "dropped"
        self.state = replace(self.state, comparisons=self.state.comparisons + made)

    def _recheck(self) -> None:
        """Score the winner and the start on the held-out questions."""
        ranked = self._ranked() if self._entries else []
        if not ranked or not self.plan.held or self._answers is None:
            return
        start = next(e for e in self._entries if e.is_start)
        sides = {"winner": ranked[0]}
        if start is not ranked[0] and start.status != "failed":
            sides["start"] = start
        held = self._answers.items.held_out
        self.state = replace(self.state, now="held-out items")
        found = {side: self._answers.ask(entry, held) for side, entry in sides.items()}
        found.setdefault("start", found["winner"])
        questions = [q for own in held.values() for q in own]
        skills = [q for q in questions if q.domain in self._answers.items.skills]
        domains = list(dict.fromkeys(q.domain for q in questions))
        scores = {
            side: DomainScore(len(skills), sum(v[q.id] for q in skills))
            for side, v in found.items()
        }
        apart = {
            side: {
                d: _domain_score(verdicts, [q.id for q in questions if q.domain == d])
                for d in domains
            }
            for side, verdicts in found.items()
        }
        pairs = [(found["winner"][q.id], found["start"][q.id]) for q in skills]
        wins, losses = pairs.count((True, False)), pairs.count((False, True))
        counts = PairedCounts(wins, losses, len(pairs) - wins - losses)
        recheck = Recheck(
            scores["winner"], scores["start"], apart, counts if "start" in sides else None
        )
        self.state = replace(self.state, recheck=recheck)

    # ------------------------------------------------------------------ telling and stopping

    def _tell(self) -> SweepState:
        ranked = self._ranked() if self._entries else []
        self.state = replace(
            self.state,
            rows=tuple(entry.row(self._domain_of) for entry in self._entries),
            winner=ranked[0].label if ranked else None,
            answers=sum(len(e.verdicts) for e in self._entries if e.same_as is None),
            seconds=time.monotonic() - self._began,
        )
        return self.state

    def _is_stopped(self) -> bool:
        return bool(self._should_stop and self._should_stop())

    def _is_late(self) -> bool:
        if self._deadline is None:
            return False
        kept_back = 0.0
        if self._answers is not None:
            held = sum(len(questions) for questions in self._answers.items.held_out.values())
            kept_back = 2 * held * self._answers.seconds_each
        return time.monotonic() > self._deadline - kept_back

    def _is_over(self) -> bool:
        return self._is_stopped() or self._is_late()


def _domain_score(verdicts: Mapping[str, bool], questions: Sequence[str]) -> DomainScore:
    return DomainScore(len(questions), sum(verdicts[q] for q in questions))


def sweep(
    recipe: Recipe,
    over: Mapping[str, Any] | Iterable[str],
    *,
    suites: str | Sequence[str] = "demo",
    items: int = DEFAULT_ITEMS,
    minutes: float | None = None,
    search: Search = "grid",
    trials: int = DEFAULT_TRIALS,
    plan: Mapping[str, Any] | None = None,
    on_update: Callable[[SweepState], None] | None = None,
    should_stop: ShouldStop | None = None,
    **options: Any,
) -> SweepState:
    """Try settings of a recipe in memory and return what was found.

    Args:
        recipe: base, agents and the setting to start from.
        over: what to vary, `{"r": "0:0.5:6", "rule": ["ram+", "ram+s"]}` or the same as texts
            `["r=0:0.5:6"]`, see `sweep_space`.
        suites, items, minutes, search, trials, plan: fields of `SweepPlan`; the rarer ones in plan.
        on_update: called with the state after every stage of every setting.
        should_stop, options: as for `Sweep`.

    Returns:
        The last state. Stopping and time being up are no errors: its `ending` tells.

    Raises: SettingsError, EvaluationError and what merging raises.

    Example:
        >>> result = sweep(recipe, {"r": "0:0.4:5"}, items=20)  # doctest: +SKIP
        >>> result.best.label, result.recheck.winner.score      # doctest: +SKIP
    """
    made = SweepPlan(
        recipe,
        parse_axes(over),
        suites=suites,
        items=items,
        minutes=minutes,
        search=search,
        trials=trials,
        **(plan or {}),
    )
    running = Sweep(made, should_stop=should_stop, **options)
    for state in running.run():
        if on_update:
            on_update(state)
    return running.state
