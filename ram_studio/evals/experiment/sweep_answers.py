"""One loaded model that answers as one setting after another, and what each is known to score."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ram_studio.algorithm.methods import METHODS, Need, make_settings
from ram_studio.algorithm.sketch import Sketch
from ram_studio.engine.analyse import analyze_report, load
from ram_studio.engine.in_memory import AppliedMerge, InMemoryMerger
from ram_studio.evals.answering.local import DEFAULT_BATCH_SIZE
from ram_studio.evals.answering.merged import MergedEngine
from ram_studio.evals.experiment.sweep_identity import MergeIdentity, identify
from ram_studio.evals.experiment.sweep_items import SweepItems, draw_items
from ram_studio.evals.experiment.sweep_plan import SweepPlan
from ram_studio.evals.experiment.sweep_race import Loss
from ram_studio.evals.experiment.sweep_result import Status, SweepRow
from ram_studio.evals.experiment.sweep_space import Candidate
from ram_studio.evals.fisher import with_fisher_files
from ram_studio.evals.polled import PolledToken
from ram_studio.evals.question import Question
from ram_studio.evals.report.tables import DomainScore
from ram_studio.evals.run import SuiteRun
from ram_studio.evals.store.answers import AnswerStore
from ram_studio.evals.suites import ALL_SUITES

Progress = Callable[[str, int, int], None]
ShouldStop = Callable[[], bool]

_STOPPED = "The sweep was stopped; finished answers were kept."


@dataclass
class Entry:
    """One setting on its way.

    digest, factors: see `sweep_identity`; same_as: the setting whose answers it shares; verdicts:
    question id -> whether the answer is right; stages: how many are answered; loss: why it is out;
    applied: what its merge gave, None before it was made; opened: suites asked in this run.
    """

    candidate: Candidate
    digest: str
    factors: Mapping[str, float | None] = field(default_factory=dict)
    is_start: bool = False
    status: Status = "waiting"
    same_as: Entry | None = None
    verdicts: dict[str, bool] = field(default_factory=dict)
    stages: int = 0
    loss: Loss | None = None
    note: str = ""
    applied: AppliedMerge | None = None
    seconds: float = 0.0
    opened: set[str] = field(default_factory=set)

    @property
    def label(self) -> str:
        """The setting in words."""
        return self.candidate.label

    @property
    def is_alive(self) -> bool:
        """Whether it can still be the best."""
        return self.same_as is None and self.status not in ("dropped", "behind", "failed")

    def row(self, domain_of: Mapping[str, str]) -> SweepRow:
        """Return the setting for the result. domain_of: question id -> domain."""
        known = self.same_as or self
        recipe = self.candidate.recipe
        verdicts: dict[str, list[bool]] = {}
        for question, is_correct in known.verdicts.items():
            verdicts.setdefault(domain_of[question], []).append(is_correct)
        applied = known.applied
        factors = dict(known.factors)
        if applied is not None:
            factors = {name: agent.scaling_factor for name, agent in applied.agents.items()}
        return SweepRow(
            label=self.label,
            values=self.candidate.values,
            method=recipe.method,
            settings=make_settings(recipe.method, recipe.settings).model_dump(mode="json"),
            status=self.status,
            same_as=None if self.same_as is None else self.same_as.label,
            is_start=self.is_start,
            correct=sum(known.verdicts.values()),
            n=len(known.verdicts),
            domains={d: DomainScore(len(own), sum(own)) for d, own in verdicts.items()},
            loss=known.loss,
            note=self.note,
            factors=factors,
            merge_seconds=None if applied is None else applied.seconds,
            seconds=self.seconds,
        )


class SweepAnswers:
    """The checkpoints, the questions and the model of a sweep, opened for its length.

    Args:
        plan: what is swept.
        is_over: polled before each batch and token; work then ends with Stopped.
        device, batch_size, sketch, store, fresh, fisher_folder, on_progress: as for `Sweep`.

    Raises: what `engine.analyse.load`, counting and `LocalEngine` raise.
    """

    def __init__(
        self,
        plan: SweepPlan,
        is_over: ShouldStop,
        *,
        device: str = "auto",
        batch_size: int = DEFAULT_BATCH_SIZE,
        sketch: Sketch | None = None,
        store: AnswerStore | None = None,
        fresh: bool = False,
        fisher_folder: str | Path | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self._plan, self._is_over = plan, is_over
        self._device, self._store, self._fresh = device, store, fresh
        self._on_progress = on_progress
        self._cancel = PolledToken(is_over, _STOPPED)
        self._closing = contextlib.ExitStack()
        recipe = plan.recipe
        self._report = load(
            recipe.base,
            recipe.agents,
            missing=recipe.missing,
            extra=recipe.extra,
            rows=recipe.rows,
        )
        self._sketch = sketch if sketch is not None else self._counted()
        self._engine = MergedEngine(
            self._report.base.folder, device=device, chat=plan.chat, batch_size=batch_size
        )
        self._closing.callback(self._engine.close)
        self._fisher = self._closing.enter_context(_folder(fisher_folder))
        self._merger: InMemoryMerger | None = None
        self._asked, self._seconds, self._is_warm = 0, 0.0, False
        self.items: SweepItems = draw_items(
            plan.suite_names,
            items=plan.items,
            held_out=plan.held,
            seed=plan.seed,
            count_tokens=self._engine.count_tokens,
            lengths=plan.lengths,
            code=plan.code,
        )

    def _counted(self) -> Sketch | None:
        """Return a sketch of the checkpoints if a method will want counts, else None."""
        needs = {
            need
            for name in self._plan.methods
            for need in METHODS[name].needs(METHODS[name].settings())
            if name != "fisher"
        }
        if not needs & {Need.RATIOS, Need.MAGNITUDES}:
            return None
        by_magnitude = Need.MAGNITUDE_RATIOS in needs
        return analyze_report(
            self._report, device=self._device, relations=by_magnitude, cancel=self._cancel
        )

    def identify(self, candidate: Candidate) -> MergeIdentity:
        """Return what decides a setting's weights.

        Raises: SettingsError when the settings do not suit these agents.
        """
        return identify(
            self._report,
            candidate.recipe,
            sketch=self._sketch,
            device=self._device,
            cancel=self._cancel,
        )

    @property
    def seconds_each(self) -> float:
        """How long an answer takes, merging included; 0 while only the first merge was asked.

        The first one also loads the model, and stored answers take no time: both are left out.
        """
        return self._seconds / self._asked if self._asked else 0.0

    def ask(self, entry: Entry, questions: Mapping[str, Sequence[Question]]) -> dict[str, bool]:
        """Return question id -> verdict of one setting; each batch goes to the store as it comes.

        Args:
            questions: by suite.

        Raises: Stopped; SettingsError when the setting cannot be merged.
        """
        self._cancel.raise_if_cancelled()
        began = time.monotonic()
        total, done = sum(map(len, questions.values())), 0
        found: dict[str, bool] = {}
        self._engine.hold(entry.digest, lambda model: self._put(entry, model))
        for name, own in questions.items():
            fresh = self._fresh and name not in entry.opened
            entry.opened.add(name)
            run = SuiteRun(
                f"sweep: {entry.label}",
                str(self._plan.recipe.base),
                self._engine,
                ALL_SUITES[name],
                self._plan.code,
                self._store,
                fresh,
            )
            parts: dict[str, int] = {}

            def report(
                _: str, domain: str, answered: int, of: int, parts: Any = parts, done: int = done
            ) -> None:
                parts[domain] = answered
                if self._on_progress:
                    self._on_progress(entry.label, done + sum(parts.values()), total)

            answers = run.answers(tuple(own), report, self._is_over)
            found |= {question.id: answer.is_correct for question, answer in answers}
            done += len(own)
        seconds = time.monotonic() - began
        entry.seconds += seconds
        if self._engine.was_asked:
            if self._is_warm:
                self._asked, self._seconds = self._asked + total, self._seconds + seconds
            self._is_warm = True
        return found

    def _put(self, entry: Entry, model: Any) -> None:
        """Put a setting's merge into the loaded model."""
        if self._merger is None:
            self._merger = InMemoryMerger(
                model, self._report, sketch=self._sketch, device=self._device, cancel=self._cancel
            )
        recipe = with_fisher_files(
            entry.candidate.recipe, self._fisher, device=self._device, should_stop=self._is_over
        )
        entry.applied = self._merger.apply(recipe, cancel=self._cancel)

    def close(self) -> None:
        """Let go of the model."""
        self._merger = None
        self._closing.close()


@contextlib.contextmanager
def _folder(folder: str | Path | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="ram-studio-fisher-") as name:
        yield Path(name)
