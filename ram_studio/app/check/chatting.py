"""The work behind the chat: one question to several models in turn, told token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ram_studio.app import markup, wording
from ram_studio.app.check import wording as words
from ram_studio.app.check.scoring import (
    Candidate,
    candidates,
    open_model,
    time_limit,
    without_folders,
)
from ram_studio.app.jobs import Job, Report
from ram_studio.app.session import Chat, Said, Session
from ram_studio.engine.events import CancelToken
from ram_studio.errors import RamStudioError, SettingsError, Stopped

if TYPE_CHECKING:
    from ram_studio.app.workspace import Workspace
    from ram_studio.evals.answering.local import LocalEngine

MOST_CHARACTERS = 20_000
_TELL_SECONDS = 0.1
# An answer of so many tokens and more is judged for repetition.
_ENOUGH_TOKENS = 24
_REPEATED = 0.6
_UNREADABLE = 0.3


def ask(
    engine: LocalEngine,
    said: Said,
    question: str,
    limit: int,
    *,
    uses_template: bool,
    tell: Callable[[Said], None],
    should_stop: Callable[[], bool],
) -> Said:
    """Return a model's whole answer with its verdict, telling it as it grows.

    limit: most tokens; fewer where the model's context ends sooner.

    Raises: EvaluationError when the model or its chat template fails.
    """
    from ram_studio.evals.question import Question

    is_chat = engine.is_chat and uses_template
    said = replace(said, state="reading", is_chat=is_chat)
    tell(said)
    asked = Question("chat", "chat", "chat", question, "", None, limit, is_raw=not is_chat)
    if engine.context is not None:
        room = engine.context - engine.count_tokens(engine.prompt_of(asked))
        if 0 < room < limit:
            limit = room
            asked = replace(asked, max_new_tokens=limit)
    ids: list[int] = []
    times: list[float] = []

    def text() -> str:
        return str(engine.tokenizer.decode(ids, skip_special_tokens=True))

    def speed() -> float | None:
        span = times[-1] - times[0] if times else 0.0
        return (len(times) - 1) / span if span > 0 else None

    told = 0.0

    def on_tokens(step: Mapping[int, int]) -> None:
        nonlocal told, said
        ids.append(step[0])
        times.append(time.monotonic())
        if times[-1] - told > _TELL_SECONDS:
            told = times[-1]
            said = replace(said, state="writing", text=text(), tokens=len(ids), speed=speed())
            tell(said)

    engine.on_tokens = on_tokens
    try:
        ((_, reply),) = [pair for batch in engine.answer([asked], should_stop) for pair in batch]
    except Stopped:
        verdict = words.CHAT_STOPPED
        return replace(said, state="done", text=text(), tokens=len(ids), verdict=verdict)
    verdict, tone = judge(reply, ids, limit)
    return replace(
        said,
        state="done",
        text=reply.text,
        tokens=len(ids),
        speed=speed(),
        verdict=verdict,
        tone=tone,
    )


def judge(reply: Any, ids: Sequence[int], limit: int) -> tuple[str, markup.Tone]:
    """Return how an answer ended and what is plainly wrong with it, in words, and a tone."""
    from ram_studio.evals.suites.health.health import repeated_share

    if reply.finish == "too long":
        return words.CHAT_TOO_LONG.format(note=reply.note), "warn"
    if reply.finish == "refused":
        return words.CHAT_REFUSED.format(note=reply.note), "warn"
    if reply.finish == "empty":
        return words.CHAT_NOTHING.format(n=len(ids)), "warn"
    ended = reply.finish == "end"
    parts = [words.CHAT_ENDED if ended else words.CHAT_CUT.format(n=limit)]
    odd = sum(c == "\ufffd" or not (c.isprintable() or c.isspace()) for c in reply.text)
    if odd > _UNREADABLE * len(reply.text):
        parts.append(words.CHAT_GARBAGE)
    elif len(ids) >= _ENOUGH_TOKENS and repeated_share([ids]) > _REPEATED:
        parts.append(words.CHAT_REPEATS)
    return " ".join(parts), "plain" if len(parts) == 1 else "warn"


def ask_all(
    models: Mapping[str, Candidate],
    question: str,
    limit: int,
    uses_template: bool,
    session: Session,
    workspace: Workspace,
    report: Report,
    cancel: CancelToken,
) -> Chat:
    """Ask one model after the other; a model that fails leaves the others their turn."""
    answers = {name: Said(name) for name in models}

    def tell(said: Said) -> None:
        answers[said.model] = said
        report(Chat(question, tuple(answers.values())))

    is_over = time_limit(workspace.settings, cancel)
    for name, model in models.items():
        said = answers[name]
        if is_over():
            tell(replace(said, state="done", verdict=words.CHAT_SKIPPED))
            continue
        tell(replace(said, state="loading"))
        folders = {name: model.path}
        try:
            checkpoint = open_model(model.path, name, cancel)
            folders[name] = str(checkpoint.folder)
            with workspace.engines.lent(checkpoint) as engine:
                said = ask(
                    engine,
                    said,
                    question,
                    limit,
                    uses_template=uses_template,
                    tell=tell,
                    should_stop=is_over,
                )
        except Stopped:
            said = replace(said, state="done", verdict=words.CHAT_STOPPED)
        except RamStudioError as error:
            text = str(error)
            if workspace.settings.is_space:
                text = without_folders(text, folders, session)
            said = replace(answers[name], state="done", verdict=text, tone="bad")
        tell(said)
    return Chat(question, tuple(answers.values()))


def run_chat(
    names: Sequence[str],
    question: str,
    limit: float,
    uses_template: bool,
    session: Session,
    workspace: Workspace,
) -> Iterator[tuple[str, Chat | None]]:
    """Ask; yield (status HTML, the chat so far or None) as it goes."""
    chosen = {n: model for n, model in candidates(session).items() if n in set(names)}
    try:
        if session.loaded is None:
            raise SettingsError(wording.NEED_LOAD)
        if not chosen:
            raise SettingsError(wording.NO_MODEL_CHOSEN)
        if not question.strip():
            raise SettingsError(words.CHAT_EMPTY)
        if len(question) > MOST_CHARACTERS:
            raise SettingsError(words.CHAT_TOO_MUCH.format(n=len(question), most=MOST_CHARACTERS))
        if session.is_busy:
            raise SettingsError(wording.BUSY)
    except SettingsError as error:
        yield markup.callout(str(error), "warn"), None
        return
    most = min(max(1, int(limit or 1)), workspace.settings.max_chat_tokens)
    job = Job(
        lambda report, cancel: ask_all(
            chosen, question, most, uses_template, session, workspace, report, cancel
        )
    )
    session.job = job
    yield "", Chat(question, tuple(Said(name) for name in chosen))
    for chat in job.updates():
        yield "", chat
    chat, error = job.outcome()
    if chat is None:
        yield markup.failure(error, wording.STOPPED), None
        return
    session.chat = chat
    yield "", chat
