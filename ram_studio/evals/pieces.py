r"""Read long texts piece by piece, as MemAgent does: a bounded memory is all that goes along.

The text is cut into pieces; with each, the model sees what is asked, its memory so far and the
piece, and writes the memory anew. At the end it answers from what is asked and the memory alone;
where the answer stands in a `\boxed{}`, as it is told, the box is the answer. So a text of any
length is read in a context of fixed size. The loop, its tags and its sizes are MemAgent's (arXiv
2507.02259); the wording is our own, pieces end between words, and where a model writes no memory
the old one stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ram_studio.evals.answering.conversations import Conversations
from ram_studio.evals.answering.engine import Engine
from ram_studio.evals.prompts import fill
from ram_studio.evals.question import NO_ANSWER, Question, Reply
from ram_studio.evals.suites.suite import find_box, visible

MODE = "memagent"
NO_MEMORY = "(nothing yet)"
READ = """A long text is read one section at a time to solve a problem. Below stand the problem, \
what was noted from the sections before, and the next section. Write the notes anew: \
keep what matters for the problem, add what this section tells about it, and leave the rest out.

<problem>
{question}
</problem>

<memory>
{memory}
</memory>

<section>
{chunk}
</section>

The new notes:
"""
ANSWER = """A long text was read to solve a problem. Below stand the problem and what was noted \
from the text. Answer from the notes, with the answer in \\boxed{}.

<problem>
{question}
</problem>

<memory>
{memory}
</memory>

The answer:
"""
_WORD = re.compile(r"\s*\S+\s*$|\s*\S+")


@dataclass(frozen=True)
class Pieces:
    """How texts are read: most tokens of a piece, the memory and the answer; MemAgent's own.

    read, answer: templates of what is said with each piece, and at the end, see `prompts`.
    """

    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    read: str = READ
    answer: str = ANSWER

    @property
    def key(self) -> dict[str, Any]:
        """What of it shapes answers, for the store."""
        own = {"mode": MODE, **vars(self)}
        # Templates of one's own go by what tells their file, see `EvalSettings.wording`.
        return {name: value for name, value in own.items() if name not in ("read", "answer")}


@dataclass
class _Reading:
    """A question that is being read for: pieces left, and the memory so far.

    A question without a text is asked as it is.
    """

    question: Question
    sizes: Pieces
    pieces: list[str]
    memory: str = NO_MEMORY
    read: int = 0

    def next(self) -> Question:
        """Return what the model is asked next: to read a piece, or to answer."""
        if self.question.reading is None:
            return self.question
        told = {"question": self.question.reading[1], "memory": self.memory}
        asked = replace(self.question, reading=None)
        if self.read == len(self.pieces):
            prompt = fill(self.sizes.answer, told)
            return replace(asked, prompt=prompt, max_new_tokens=self.sizes.answer_tokens)
        prompt = fill(self.sizes.read, {**told, "chunk": self.pieces[self.read]})
        most = self.sizes.memory_tokens
        return replace(asked, prompt=prompt, max_new_tokens=most, must_end=False)

    def take(self, reply: Reply) -> Reply | None:
        """Take what the model said; return the reply to the question once it is there."""
        if self.question.reading is None:
            return reply
        if self.read == len(self.pieces):
            box = find_box(visible(reply.text))
            return replace(reply, text=reply.text if box is None else box)
        if reply.finish in NO_ANSWER:
            note = f"at piece {self.read + 1} of {len(self.pieces)}: {reply.note}"
            return replace(reply, note=note)
        self.memory = visible(reply.text).strip() or self.memory
        self.read += 1
        return None


class PieceReader(Conversations):
    """Answers questions about long texts by reading them with an engine, in pieces.

    Questions without a text (`Question.reading`) go to the engine as they are.
    """

    def __init__(self, engine: Engine, pieces: Pieces) -> None:
        super().__init__(engine, self._opened)
        self._pieces = pieces

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return why no piece, or no answer, fits the context with a full memory.

        The length of texts is free.
        """
        most = self._pieces.memory_tokens
        reading, answering = [], []
        for question in questions:
            state = self._opened(question)
            if state.pieces:
                # Any text of that many tokens.
                state.memory = cut(state.pieces[0], most, self._engine.count_tokens)[0]
            reading.append(state.next())
            state.read = len(state.pieces)
            answering.append(state.next())
        return self._engine.context_overflow(reading) or self._engine.context_overflow(answering)

    def _opened(self, question: Question) -> _Reading:
        text = "" if question.reading is None else question.reading[0]
        pieces = cut(text, self._pieces.chunk_tokens, self._engine.count_tokens)
        return _Reading(question, self._pieces, pieces)


def cut(text: str, most: int, count_tokens: Callable[[str], int]) -> list[str]:
    """Return a text in pieces of at most `most` tokens, together the text; cut between words.

    A word that is longer is a piece of its own. A text without a word gives no piece.
    """
    words = [found.group() for found in _WORD.finditer(text)]
    if not words:
        return []
    words_each = len(words) / max(1, count_tokens(text))
    pieces, start = [], 0
    while start < len(words):
        low, high = start + 1, len(words)
        middle = min(start + max(1, int(most * words_each)), high)
        while low < high:
            count = count_tokens("".join(words[start:middle]))
            if count <= most:
                low = middle
            else:
                high = middle - 1
            # Newton's step with the usual length of a word: a few trials suffice.
            middle = max(low + 1, min(middle + int((most - count) * words_each), high))
        pieces.append("".join(words[start:low]))
        start = low
    return pieces
