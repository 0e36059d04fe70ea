"""The work behind the chat: one question to several models in turn, reported by token."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ram_studio.app.check.work import Candidate, open_model, time_limit, without_folders
from ram_studio.app.session.jobs import Report, Work
from ram_studio.app.session.session import Chat, ChatReply, Session
from ram_studio.app.templates import Tone
from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError, SettingsError, Stopped

if TYPE_CHECKING:
    from ram_studio.app.session.workspace import Workspace
    from ram_studio.evals.answering.local import LocalEngine

MOST_CHARACTERS = 20_000
_REPORT_SECONDS = 0.1
# An answer with at least this many tokens is judged for repetition.
_ENOUGH_TOKENS = 24
_REPEATED = 0.6
_UNREADABLE = 0.3
_STOPPED = "Stopped here."


def ask_model(
    engine: LocalEngine,
    answer: ChatReply,
    question: str,
    limit: int,
    *,
    uses_template: bool,
    report: Callable[[ChatReply], None],
    should_stop: Callable[[], bool],
) -> ChatReply:
    """Return a model's whole answer with its verdict, reporting it as it grows.

    limit: most tokens; fewer where the model's context is shorter.

    Raises: EvaluationError when the model or its chat template fails.
    """
    from ram_studio.evals.question import Question

    is_chat = engine.is_chat and uses_template
    answer = replace(answer, state="reading", is_chat=is_chat)
    report(answer)
    query = Question("chat", "chat", "chat", question, "", None, limit, is_raw=not is_chat)
    if engine.context is not None:
        room = engine.context - engine.count_tokens(engine.prompt_of(query))
        if 0 < room < limit:
            limit = room
            query = replace(query, max_new_tokens=limit)
    ids: list[int] = []
    times: list[float] = []

    def text() -> str:
        return str(engine.tokenizer.decode(ids, skip_special_tokens=True))

    def speed() -> float | None:
        span = times[-1] - times[0] if times else 0.0
        return (len(times) - 1) / span if span > 0 else None

    reported_at = -math.inf

    def on_tokens(step: Mapping[int, int]) -> None:
        nonlocal reported_at, answer
        ids.append(step[0])
        times.append(time.monotonic())
        if times[-1] - reported_at > _REPORT_SECONDS:
            reported_at = times[-1]
            answer = replace(answer, state="writing", text=text(), tokens=len(ids), speed=speed())
            report(answer)

    engine.on_tokens = on_tokens
    try:
        ((_, reply),) = [pair for batch in engine.answer([query], should_stop) for pair in batch]
    except Stopped:
        return replace(answer, state="done", text=text(), tokens=len(ids), verdict=_STOPPED)
    verdict, tone = judge(reply, ids, limit)
    return replace(
        answer,
        state="done",
        text=reply.text,
        tokens=len(ids),
        speed=speed(),
        verdict=verdict,
        tone=tone,
    )


def judge(reply: Any, ids: Sequence[int], limit: int) -> tuple[str, Tone]:
    """Return an answer's ending and clear faults, in words, and a tone."""
    from ram_studio.evals.suites.suite import repeated_share

    if reply.finish == "too_long":
        return f"Not asked: {reply.note}. Shorten the question.", "warn"
    if reply.finish == "refused":
        return f"Not asked: {reply.note}.", "warn"
    if reply.finish == "empty":
        return "Empty answer: it ends at token 1.", "warn"
    ended = reply.finish == "end"
    parts = ["Ended by itself." if ended else f"Cut off after {limit} tokens (the limit)."]
    unreadable = sum(c == "\ufffd" or not (c.isprintable() or c.isspace()) for c in reply.text)
    if unreadable > _UNREADABLE * len(reply.text):
        parts.append("Mostly unreadable characters: the model or its tokenizer is broken.")
    elif len(ids) >= _ENOUGH_TOKENS and repeated_share([ids]) > _REPEATED:
        parts.append("It repeats itself.")
    return " ".join(parts), "plain" if len(parts) == 1 else "warn"


def chat_work(
    models: Mapping[str, Candidate],
    question: str,
    limit: float,
    uses_template: bool,
    session: Session,
    workspace: Workspace,
) -> Work[Chat]:
    """Return the work of asking one model after the other, which reports the chat as it grows.

    If a model fails, the others are still asked.

    Raises: SettingsError for a question that is empty or too long.
    """
    if not question.strip():
        raise SettingsError("There is no question yet. Write one, or choose an example.")
    if len(question) > MOST_CHARACTERS:
        raise SettingsError(
            f"The question has {len(question)} characters; the limit is {MOST_CHARACTERS}."
        )
    settings = workspace.settings
    most = min(max(1, int(limit or 1)), settings.max_chat_tokens)

    def work(report: Report, cancel: CancelToken) -> Chat:
        answers = {name: ChatReply(name) for name in models}

        def report_answer(answer: ChatReply) -> None:
            answers[answer.model] = answer
            report(Chat(question, tuple(answers.values())))

        is_over = time_limit(settings, cancel)
        for name, model in models.items():
            answer = answers[name]
            if is_over():
                report_answer(
                    replace(answer, state="done", verdict="Not asked: the run was stopped.")
                )
                continue
            report_answer(replace(answer, state="loading"))
            folders = {name: model.path}
            try:
                checkpoint = open_model(model.path, name, cancel, lambda event: None)
                folders[name] = str(checkpoint.folder)
                with workspace.engines.borrow(checkpoint) as engine:
                    answer = ask_model(
                        engine,
                        answer,
                        question,
                        most,
                        uses_template=uses_template,
                        report=report_answer,
                        should_stop=is_over,
                    )
            except Stopped:
                answer = replace(answer, state="done", verdict=_STOPPED)
            except RamStudioError as error:
                text = str(error)
                if settings.is_public:
                    text = without_folders(text, folders, session)
                answer = replace(answers[name], state="done", verdict=text, tone="bad")
            report_answer(answer)
        return Chat(question, tuple(answers.values()))

    return work
