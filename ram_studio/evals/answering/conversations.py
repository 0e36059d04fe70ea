"""Questions that take several requests each: in each round, every open question sends one request.

A suite, or chunked reading, leads each question's conversation (`question.Conversation`). They run
together, so that a model answers whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ram_studio.evals.answering.engine import Engine, ShouldStop
from ram_studio.evals.question import Conversation, Question, Reply


class Conversations:
    """Answers questions by conversations with an engine, and is itself an engine.

    Args: begin: returns the conversation that answers a question.
    """

    def __init__(self, engine: Engine, begin: Callable[[Question], Conversation]) -> None:
        self._engine, self._begin = engine, begin

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return why not one conversation can begin; see `Engine.context_overflow`."""
        return self._engine.context_overflow([next(self._begin(q)) for q in questions])

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield answers as conversations end; see `Engine.answer`.

        An answer's tokens and seconds are those of all its requests.
        """
        talks = {q.id: (q, self._begin(q), list[Reply]()) for q in questions}
        requests = {key: next(talk) for key, (_, talk, _) in talks.items()}
        while requests:
            for batch in self._engine.answer(list(requests.values()), should_stop):
                done = []
                for request, reply in batch:
                    question, talk, replies = talks[request.id]
                    replies.append(reply)
                    try:
                        requests[question.id] = talk.send(reply)
                    except StopIteration as end:
                        del requests[question.id]
                        done.append((question, _with_costs(end.value, replies)))
                if done:
                    yield done


def _with_costs(reply: Reply, replies: Sequence[Reply]) -> Reply:
    counted = [one.tokens for one in replies if one.tokens is not None]
    tokens = sum(counted) if len(counted) == len(replies) else None
    return replace(reply, tokens=tokens, seconds=sum(one.seconds for one in replies))
