"""Ask models the questions of suites: stored as answered, resumed, the same prompts for all."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.decode import OnTokens
from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.answering.engine import ChatMode, Engine, EngineName
from ram_studio.evals.answering.local import DEFAULT_BATCH_SIZE, LocalEngine
from ram_studio.evals.answering.vllm_engine import VllmEngine
from ram_studio.evals.question import Question, Reply, Verdict
from ram_studio.evals.report.tables import Answer, EvalReport, ModelResult
from ram_studio.evals.sandbox import CodeSwitch, check_code_allowed
from ram_studio.evals.store.answers import AnswerStore, RunKey
from ram_studio.evals.suites import ALL_SUITES, DEFAULT_LENGTHS, Suite, SuiteSettings, visible
from ram_studio.evals.suites.demo.tasks import SKILL_DOMAINS
from ram_studio.evals.suites.health.run import HealthRun

DEFAULT_SEED = 2026
HEALTH = "health"

Progress = Callable[[str, str, int, int], None]
ShouldStop = Callable[[], bool]
Answered = tuple[Question, Reply, Verdict]


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible URL, to be opened like a folder.

    token is sent to this URL only; it is not shown, stored or compared.
    """

    url: str
    model: str | None = None
    token: str | None = None
    seconds: float = 300.0

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.model!r})"

    def __str__(self) -> str:
        return f"{self.url}#{self.model}" if self.model else self.url


def evaluate_suites(
    models: Mapping[str, str | Path | Endpoint],
    suites: str | Sequence[str],
    *,
    limit: int | Mapping[str, int] | None = None,
    seed: int = DEFAULT_SEED,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    chat: ChatMode = "auto",
    code: CodeSwitch = "auto",
    engine: EngineName = "transformers",
    device: str = "auto",
    batch_size: int = DEFAULT_BATCH_SIZE,
    base: str | None = None,
    store: AnswerStore | None = None,
    fresh: bool = False,
    on_progress: Progress | None = None,
    on_tokens: OnTokens | None = None,
    should_stop: ShouldStop | None = None,
) -> EvalReport:
    """Ask every model in turn the same questions, greedily, and return all answers with verdicts.

    Questions are made once, with the first model's tokenizer, and asked of all. With a store, each
    batch of answers is committed before the next is begun; final answers found there under the same
    model, suite version and settings are not asked again, so a stopped run is taken up by calling
    this again. Replies that failed (a broken connection) count as wrong and are asked again.

    Args:
        models: name -> local folder or `Endpoint`; rows come out in this order.
        suites: names, as a sequence or one text with commas: demo (on its own) or any of tool,
            memory, code, math, instructions, and health.
        limit: most questions per suite (demo: per domain), evenly over its categories; None: all.
            A mapping gives each suite its own; suites it does not name are asked in full.
        seed: for the suites that are generated (demo, memory).
        lengths: prompt lengths of the memory suite, in tokens of the first model.
        chat: "auto", "template" or "none", see `LocalEngine`.
        code: whether code that a model wrote may run, see `sandbox.check_code_allowed`.
        engine: what answers for a local folder, "transformers" or "vllm".
        base: the model that health measures the others against; None: no comparison.
        fresh: forget stored answers to these questions and ask anew.
        on_progress: called with (model, domain, done, total); the first call for a model and domain
            tells how many answers were stored already.
        on_tokens: called while a local model answers, see `generation.decode`.
        should_stop: polled before each batch and token.

    Raises:
        EvaluationError: unusable settings, a model that cannot be asked, code that may not run.
        Stopped: `should_stop` returned True; stored answers are kept.
    """
    names = _suite_names(suites)
    chosen = [ALL_SUITES[name] for name in names if name != HEALTH]
    _check(models, limit, batch_size, base)
    if any(suite.runs_code for suite in chosen):
        check_code_allowed(code)
    if engine == "vllm" and HEALTH in names:
        raise EvaluationError(
            "Health needs the model's logits, which the engine 'vllm' does not hand out. Leave the "
            "suite out, or use the engine 'transformers' for it."
        )
    health = HealthRun(store, fresh) if HEALTH in names else None
    asked: dict[str, tuple[Question, ...]] | None = None
    results: dict[str, ModelResult] = {}
    # The base first: health compares with it.
    order = sorted(models, key=lambda name: name != base)
    try:
        for name in order:
            start = time.perf_counter()
            opened = open_engine(
                models[name],
                chat=chat,
                engine=engine,
                device=device,
                batch_size=batch_size,
                on_tokens=on_tokens,
            )
            try:
                if asked is None:
                    asked = {
                        suite.name: tuple(
                            suite.make(
                                SuiteSettings(
                                    opened.count_tokens,
                                    _limit_of(suite.name, limit),
                                    seed,
                                    tuple(lengths),
                                    code,
                                )
                            )
                        )
                        for suite in chosen
                    }
                answered: dict[str, list[Answer]] = {}
                for suite in chosen:
                    run = SuiteRun(name, str(models[name]), opened, suite, code, store, fresh)
                    for question, answer in run.answers(
                        asked[suite.name], on_progress, should_stop
                    ):
                        answered.setdefault(question.domain, []).append(answer)
                measured = None
                if health:
                    if on_progress:
                        on_progress(name, HEALTH, 0, 1)
                    measured = health.measure(name, opened, is_base=name == base)
                    if on_progress:
                        on_progress(name, HEALTH, 1, 1)
            finally:
                opened.close()
            results[name] = ModelResult(
                name,
                str(models[name]),
                {domain: tuple(answers) for domain, answers in answered.items()},
                time.perf_counter() - start,
                SKILL_DOMAINS if names == ["demo"] else tuple(answered),
                measured,
            )
    finally:
        if health:
            health.close()
    items = _by_domain([question for suite in (asked or {}).values() for question in suite])
    n = max((len(questions) for questions in items.values()), default=0)
    return EvalReport(",".join(names), seed, n, items, {name: results[name] for name in models})


def open_engine(
    source: str | Path | Endpoint,
    *,
    chat: ChatMode = "auto",
    engine: EngineName = "transformers",
    device: str = "auto",
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_tokens: OnTokens | None = None,
) -> Engine:
    """Open what answers: a local folder, through transformers or vLLM, or an endpoint."""
    if isinstance(source, Endpoint):
        return EndpointEngine(
            source.url, source.model, token=source.token, chat=chat, seconds=source.seconds
        )
    if engine == "vllm":
        return VllmEngine(source, device=device, chat=chat, batch_size=batch_size)
    return LocalEngine(source, device=device, chat=chat, batch_size=batch_size, on_tokens=on_tokens)


def _by_domain(questions: Sequence[Question]) -> dict[str, tuple[Question, ...]]:
    domains = dict.fromkeys(question.domain for question in questions)
    return {d: tuple(question for question in questions if question.domain == d) for d in domains}


def _suite_names(suites: str | Sequence[str]) -> list[str]:
    given = suites.split(",") if isinstance(suites, str) else list(suites)
    names = list(dict.fromkeys(name.strip() for name in given if name.strip()))
    known = [*ALL_SUITES, HEALTH]
    for name in names:
        if name not in known:
            raise EvaluationError(f"Unknown suite {name!r}. Choose from: {', '.join(known)}.")
    if not names:
        raise EvaluationError(f"No suite was named. Choose from: {', '.join(known)}.")
    if "demo" in names and len(names) > 1:
        raise EvaluationError(
            "Suite demo belongs to the example agents, and its domains bear the names of other "
            "suites. Evaluate it on its own."
        )
    return names


def _limit_of(suite: str, limit: int | Mapping[str, int] | None) -> int | None:
    return limit.get(suite) if isinstance(limit, Mapping) else limit


def _check(
    models: Mapping[str, object],
    limit: int | Mapping[str, int] | None,
    batch_size: int,
    base: str | None,
) -> None:
    if not models:
        raise EvaluationError("No model to evaluate was given. Name at least one model folder.")
    given = limit.values() if isinstance(limit, Mapping) else () if limit is None else (limit,)
    for one in given:
        if one < 1:
            raise EvaluationError(f"The limit is {one} questions per suite. Choose 1 or more.")
    if batch_size < 1:
        raise EvaluationError(f"The batch size is {batch_size}. Choose 1 or more.")
    if base is not None and base not in models:
        raise EvaluationError(f"The base {base!r} is none of the models: {', '.join(models)}.")


@dataclass
class SuiteRun:
    """One model on one suite: asks, judges and stores; what is stored already is not asked."""

    name: str
    path: str
    engine: Engine
    suite: Suite
    code: CodeSwitch
    store: AnswerStore | None
    fresh: bool

    def answers(
        self,
        questions: tuple[Question, ...],
        on_progress: Progress | None,
        should_stop: ShouldStop | None,
    ) -> list[tuple[Question, Answer]]:
        """Return every question with its answer, in order; asks only what is not stored."""
        run = self._open()
        known = {} if run is None or self.store is None else _final(self.store, run)
        got = {q.id: known[q.id, q.digest] for q in questions if (q.id, q.digest) in known}
        open_questions = [question for question in questions if question.id not in got]

        def report(domains: set[str]) -> None:
            for domain in dict.fromkeys(q.domain for q in questions):
                if on_progress and domain in domains:
                    ids = [q.id for q in questions if q.domain == domain]
                    on_progress(self.name, domain, sum(i in got for i in ids), len(ids))

        report({question.domain for question in questions})
        try:
            for batch in self.engine.answer(open_questions, should_stop) if open_questions else ():
                rows = [
                    (question, reply, self._verdict(question, reply)) for question, reply in batch
                ]
                if self.store is not None and run is not None:
                    self.store.record(run, rows)
                got.update({question.id: (reply, verdict) for question, reply, verdict in rows})
                report({question.domain for question, _ in batch})
        except Stopped:
            raise Stopped(
                f"The evaluation was stopped; {self._kept(len(got), questions)}"
            ) from None
        except EvaluationError as error:
            kept = self._kept(len(got), questions)
            raise EvaluationError(f'Model "{self.name}": {error} So far {kept}') from error
        return [(q, _answer(*got[q.id])) for q in questions]

    def _open(self) -> int | None:
        if self.store is None:
            return None
        identity = dict(self.engine.identity)
        key = RunKey(
            str(identity.pop("fingerprint")), self.suite.name, self.suite.version, identity
        )
        run = self.store.open_run(key, model=self.name, path=self.path)
        if self.fresh:
            self.store.forget(run)
        return run

    def _verdict(self, question: Question, reply: Reply) -> Verdict:
        if reply.finish in ("too long", "refused", "failed"):
            return Verdict(False, f"{reply.finish}: {reply.note}")
        text = reply.text if question.is_raw else visible(reply.text)
        verdict = self.suite.judge(question, text, self.code)
        notes = "; ".join(note for note in (verdict.note, reply.note) if note)
        return Verdict(verdict.is_correct, notes, verdict.facts)

    def _kept(self, count: int, questions: Sequence[Question]) -> str:
        of = f"{count} of {len(questions)} answers to suite {self.suite.name}"
        if self.store is None:
            return f"{of} were in, and as no store was given they are gone."
        return f"{of} are stored; run the same again to go on from there."


def _final(store: AnswerStore, run: int) -> dict[tuple[str, str], tuple[Reply, Verdict]]:
    return {
        (row.item, row.question): (row.reply, row.verdict)
        for row in store.answers(run)
        if row.reply.is_final
    }


def _answer(reply: Reply, verdict: Verdict) -> Answer:
    facts = dict(verdict.facts)
    if reply.finish == "failed":
        facts["failed"] = True
    return Answer(reply.text, verdict.is_correct, verdict.note, facts, reply.seconds)
