"""One model on one suite: answers are judged and stored by batch, and reused where stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.conversations import Conversations
from ram_studio.evals.answering.engine import Decoding, Engine, ShouldStop
from ram_studio.evals.chunks import ChunkReader
from ram_studio.evals.paraphrases import SUITES, reword_question
from ram_studio.evals.question import (
    CLUSTER,
    NO_ANSWER,
    PARAPHRASES,
    SAMPLES,
    Answer,
    Question,
    QuestionsBySuite,
    Reply,
    Verdict,
)
from ram_studio.evals.report.chance_level import BASELINES, TrivialBaselines
from ram_studio.evals.report.score import with_marks
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.store import AnswerStore, RunKey, StoredAnswer
from ram_studio.evals.suites import Suite, visible

Progress = Callable[[str, str, int, int], None]
OnMarks = Callable[[str, str, str], None]
"""Callback for (model, domain, a letter for each question), see `marks_of`."""


@dataclass
class SuiteRun:
    """One model on one suite.

    name, path: the model's name and folder in the store; path is None unless it is a folder. merge:
    how it was merged, for History, see `AnswerStore.open_run`. settings: evaluation settings; their
    seed is stored with each answer and the versions of the engine's software. rerun: forget stored
    answers. baselines: judged on every question for the chance level; None leaves it out. on_marks:
    called with a domain's marks whenever answers to it arrive. wording: index of the questions'
    wording, 0 for their own, see `paraphrases`. run: id in the store, None before `answers` or
    without a store; runs: the ids of all samples and wordings, shared by the runs of the wordings.
    """

    name: str
    path: str | None
    engine: Engine
    suite: Suite
    settings: EvalSettings = field(default_factory=EvalSettings)
    store: AnswerStore | None = None
    rerun: bool = False
    merge: Mapping[str, Any] | None = None
    baselines: TrivialBaselines | None = None
    on_marks: OnMarks | None = None
    wording: int = 0
    run: int | None = field(default=None, init=False)
    runs: dict[int, None] = field(default_factory=dict)

    def check(self, questions: Sequence[Question]) -> None:
        """Raise EvaluationError where no question of the suite fits the model's context.

        Stored answers are enough, without a tokenizer. The engine keeps the decoding of the first
        sample, whose thinking tokens count.
        """
        self.engine.decoding = self.settings.decodings[0]
        if self.store is not None and not self.rerun and self.store.has_answers(self._key):
            return
        if reason := self._reader.context_overflow(questions):
            raise EvaluationError(
                f'Suite {self.suite.name} cannot be asked of model "{self.name}": {reason}. Leave '
                "the suite out; nothing was asked."
            )

    def find_unanswered(self, questions: Sequence[Question]) -> list[Question]:
        """Return the questions whose answers are not stored; with ``rerun`` all: it deletes them.

        Raises: EvaluationError when the store cannot be used.
        """
        known = self._open_run()
        return [q for q in questions if (q.id, q.digest) not in known]

    def answers(
        self,
        questions: Sequence[Question],
        on_progress: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> list[tuple[Question, Answer]]:
        """Return every question with its answer, in order; stored answers are reused.

        on_progress: called with (model, domain, done, total) for each domain, stored answers
        counted, and again after each batch. should_stop: polled before each batch and token.

        Raises: Stopped, EvaluationError; both say what was stored.
        """
        known = self._open_run()
        got: dict[str, Answer] = {}
        for question in questions:
            row = known.get((question.id, question.digest))
            if row is None:
                continue
            got[question.id] = row.answer
            # Another version of a benchmark's package may judge answers differently.
            if row.question.gold != question.gold:
                got[question.id] = self._judge(question, row.answer, row.answer.origin)
                self._record([(question, got[question.id])])
        open_questions = [question for question in questions if question.id not in got]

        def report(domains: set[str]) -> None:
            for domain in dict.fromkeys(q.domain for q in questions):
                if self.on_marks and domain in domains:
                    self.on_marks(self.name, domain, marks_of(questions, domain, got))
                if on_progress and domain in domains:
                    ids = [q.id for q in questions if q.domain == domain]
                    on_progress(self.name, domain, sum(i in got for i in ids), len(ids))

        report({question.domain for question in questions})
        try:
            for batch in self._reader.answer(open_questions, should_stop) if open_questions else ():
                got |= self.take(batch, self.engine.software)
                report({question.domain for question, _ in batch})
        except Stopped:
            raise Stopped(
                f"The evaluation was stopped; {self._stored_text(len(got), questions)}"
            ) from None
        except EvaluationError as error:
            stored = self._stored_text(len(got), questions)
            raise type(error)(f'Model "{self.name}": {error} {stored}') from error
        return [(q, got[q.id]) for q in questions]

    def take(
        self, replies: Iterable[tuple[Question, Reply]], software: Mapping[str, str]
    ) -> dict[str, Answer]:
        """Judge and store replies; return the answers by question id.

        software: versions that gave the replies, see `Engine.software`.
        """
        origin = {"software": dict(software), "seed": self.settings.seed}
        rows = [(q, self._judge(q, reply, origin)) for q, reply in replies]
        self._record(rows)
        return {q.id: answer for q, answer in rows}

    def _record(self, rows: Sequence[tuple[Question, Answer]]) -> None:
        if rows and self.store is not None and self.run is not None:
            self.store.record(self.run, rows)

    def _judge(
        self, question: Question, reply: Reply | Answer, origin: Mapping[str, Any]
    ) -> Answer:
        verdict, more = self._verdict(question, reply), dict[str, Any]()
        if question.cluster:
            more[CLUSTER] = f"{self.suite.name} {question.cluster}"
        if self.baselines is not None:
            more[BASELINES] = self.baselines.right(self.suite.name, question)
        return Answer.of(reply, replace(verdict, facts={**verdict.facts, **more}), origin)

    @property
    def _key(self) -> RunKey:
        sizes = self.settings.chunk_sizes_of(self.suite)
        identity = {**self.engine.identity, **(sizes.key if sizes else {})}
        identity |= {"wording": self.wording} if self.wording else {}
        usual = EvalSettings().wording
        identity |= {k: v for k, v in self.settings.wording.items() if v != usual[k]}
        return RunKey.of(identity, self.suite.name, self.suite.version)

    @property
    def _reader(self) -> Engine | Conversations:
        return reader_of(self.engine, self.suite, self.settings)

    def _open_run(self) -> dict[tuple[str, str], StoredAnswer]:
        """Open the run in the store; return its final answers by question id and digest."""
        if self.store is None:
            return {}
        self.run = self.store.open_run(
            self._key, model=self.name, path=self.path, merge=self.merge, rerun=self.rerun
        )
        self.runs[self.run] = None
        return {
            (row.question.id, row.digest): row
            for row in self.store.answers(self.run)
            if row.answer.is_final
        }

    def _verdict(self, question: Question, reply: Reply | Answer) -> Verdict:
        if reply.finish in NO_ANSWER:
            return Verdict(False, f"{reply.finish.replace('_', ' ')}: {reply.note}")
        if question.must_end and reply.finish == "length":
            return Verdict(False, reply.note)
        text = reply.text if question.is_raw else visible(reply.text)
        verdict = self.suite.judge(question, text, self.settings.code)
        notes = "; ".join(note for note in (verdict.note, reply.note) if note)
        return Verdict(verdict.is_correct, notes, verdict.facts)

    def _stored_text(self, count: int, questions: Sequence[Question]) -> str:
        of = f"{count} of {len(questions)} answers to suite {self.suite.name}"
        if self.store is None:
            return f"{of} were done; they are lost, as no store was given."
        return f"{of} are stored; run the same again to continue."


def reader_of(engine: Engine, suite: Suite, settings: EvalSettings) -> Engine | Conversations:
    """Return the engine for a suite's questions: as it is, or wrapped to lead conversations."""
    if sizes := settings.chunk_sizes_of(suite):
        return ChunkReader(engine, sizes)
    if (converse := suite.converse) is None:
        return engine
    return Conversations(engine, lambda question: converse(question, settings.code))


def ask_suites(
    runs: Sequence[SuiteRun],
    asked: QuestionsBySuite,
    on_progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
) -> list[tuple[Question, Answer]]:
    """Return one model's first answers to several suites, with the verdicts on all samples.

    Where there are several wordings, also with the verdicts on them.

    Args: runs: of one model, with equal settings. asked: questions by suite.

    Raises: what `SuiteRun.answers` raises.
    """
    found: list[list[list[tuple[Question, Answer]]]] = [[] for _ in runs]
    plans = [rounds_of(run) for run in runs]
    stored = [_count_stored(run, plan, asked) for run, plan in zip(runs, plans, strict=True)]
    for decoding, wording in dict.fromkeys(one for plan in plans for one in plan):
        runs[0].engine.decoding = decoding
        for run, plan, rows, known in zip(runs, plans, found, stored, strict=True):
            if (decoding, wording) not in plan:
                continue
            own, questions = _in_wording(run, wording, asked)
            later = sum(known[len(rows) + 1 :], Counter[str]())
            progress = _of_all_rounds(on_progress, len(plan), len(rows), later)
            rows.append(own.answers(questions, progress, should_stop))
    answered: list[tuple[Question, Answer]] = []
    for plan, rows in zip(plans, found, strict=True):
        drawn = sum(not wording for _, wording in plan)
        first = with_marks(rows[0], SAMPLES, rows[:drawn])
        answered += with_marks(first, PARAPHRASES, [rows[0], *rows[drawn:]])
    return answered


def rounds_of(run: SuiteRun) -> list[tuple[Decoding, int]]:
    """Return the rounds of a suite's questions, each a decoding and an index of the wording."""
    drawn = run.settings.decodings[: 1 if run.suite.draws_samples else None]
    wordings = range(1, run.settings.paraphrases if run.suite.name in SUITES else 1)
    return [*((decoding, 0) for decoding in drawn), *((drawn[0], n) for n in wordings)]


def _of_all_rounds(
    on_progress: Progress | None, rounds: int, before: int, later: Counter[str]
) -> Progress | None:
    """Return a callback for the progress of one round, which reports that of all rounds.

    before: number of complete rounds. later: stored answers of later rounds, by domain.
    """
    if on_progress is None:
        return None

    def report(model: str, domain: str, done: int, total: int) -> None:
        on_progress(model, domain, before * total + done + later[domain], rounds * total)

    return report


def _in_wording(
    run: SuiteRun, wording: int, asked: QuestionsBySuite
) -> tuple[SuiteRun, Sequence[Question]]:
    """Return the run that asks a suite's questions in a wording, and the reworded questions."""
    questions = asked[run.suite.name]
    if not wording:
        return run, questions
    other = replace(run, wording=wording, baselines=None, on_marks=None)
    return other, [reword_question(question, wording) for question in questions]


def _count_stored(
    run: SuiteRun, plan: Sequence[tuple[Decoding, int]], asked: QuestionsBySuite
) -> list[Counter[str]]:
    """Return the number of stored answers of each of several rounds, by domain.

    Empty for a single round, whose own progress counts them, and with ``rerun``.
    """
    if len(plan) == 1 or run.rerun:
        return []
    counts = []
    for decoding, wording in plan:
        run.engine.decoding = decoding
        own, questions = _in_wording(run, wording, asked)
        left = Counter(q.domain for q in own.find_unanswered(questions))
        counts.append(Counter(q.domain for q in questions) - left)
    return counts


def marks_of(questions: Sequence[Question], domain: str, got: Mapping[str, Answer]) -> str:
    """Return a letter for each question of a domain, in order.

    "1" right, "0" wrong, "x" not asked or not answered, "." pending.
    """

    def mark(answer: Answer | None) -> str:
        if answer is None:
            return "."
        return str(int(answer.is_correct)) if answer.is_scored else "x"

    return "".join(mark(got.get(q.id)) for q in questions if q.domain == domain)
