r"""Read long texts in chunks, as MemAgent does, with a memory of bounded size.

The text is cut into chunks; with each, the model sees the question, its memory and the chunk, and
rewrites the memory. At the end it answers from the question and the memory alone; the prompt asks
for the answer in a `\boxed{}`, and the box is then the answer. So a text of any length is read in
a context of fixed size. The loop, its tags and its sizes are MemAgent's (arXiv 2507.02259); the
wording is our own, chunks end between words, and where a model writes no memory the old one stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ram_studio.evals.answering.conversations import Conversations
from ram_studio.evals.answering.engine import Engine
from ram_studio.evals.prompts import fill
from ram_studio.evals.question import NO_ANSWER, Conversation, Question
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
class ChunkSizes:
    """Sizes of chunked reading: most tokens of a chunk, the memory and the answer, as in MemAgent.

    read, answer: templates of the prompt with each chunk, and of the last one, see `prompts`.
    """

    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    read: str = READ
    answer: str = ANSWER

    @property
    def key(self) -> dict[str, Any]:
        """The settings that change answers, for the store."""
        own = {"mode": MODE, **vars(self)}
        # The user's templates are identified by their file's digest, see `EvalSettings.wording`.
        return {name: value for name, value in own.items() if name not in ("read", "answer")}


def _to_read(question: Question, sizes: ChunkSizes, memory: str, chunk: str) -> Question:
    """Return the request to read a chunk of a question's text."""
    assert question.reading is not None
    values = {"question": question.reading[1], "memory": memory, "chunk": chunk}
    return replace(
        question,
        prompt=fill(sizes.read, values),
        max_new_tokens=sizes.memory_tokens,
        reading=None,
        must_end=False,
    )


def _to_answer(question: Question, sizes: ChunkSizes, memory: str) -> Question:
    """Return the request to answer a question from the memory."""
    assert question.reading is not None
    prompt = fill(sizes.answer, {"question": question.reading[1], "memory": memory})
    return replace(question, prompt=prompt, max_new_tokens=sizes.answer_tokens, reading=None)


class ChunkReader(Conversations):
    """Answers questions about long texts by reading them with an engine, in chunks.

    Questions without a text (`Question.reading`) go to the engine unchanged.
    """

    def __init__(self, engine: Engine, sizes: ChunkSizes) -> None:
        super().__init__(engine, self._read_chunks)
        self._sizes = sizes

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return why no chunk, or no answer, fits the context with a full memory.

        The length of texts is not limited.
        """
        sizes, reading, answering = self._sizes, list[Question](), list[Question]()
        for question in questions:
            first = last = question
            if question.reading is not None:
                chunks, memory = self._chunks_of(question.reading[0]), NO_MEMORY
                if chunks:
                    # Any text of this length.
                    memory = cut(chunks[0], sizes.memory_tokens, self._engine.count_tokens)[0]
                last = _to_answer(question, sizes, memory)
                first = _to_read(question, sizes, memory, chunks[0]) if chunks else last
            reading.append(first)
            answering.append(last)
        return self._engine.context_overflow(reading) or self._engine.context_overflow(answering)

    def _read_chunks(self, question: Question) -> Conversation:
        """Read a question's text chunk by chunk, then answer from the memory."""
        if question.reading is None:
            return (yield question)
        chunks, memory = self._chunks_of(question.reading[0]), NO_MEMORY
        for number, chunk in enumerate(chunks, start=1):
            reply = yield _to_read(question, self._sizes, memory, chunk)
            if reply.finish in NO_ANSWER:
                return replace(reply, note=f"at chunk {number} of {len(chunks)}: {reply.note}")
            memory = visible(reply.text).strip() or memory
        reply = yield _to_answer(question, self._sizes, memory)
        box = find_box(visible(reply.text))
        return replace(reply, text=reply.text if box is None else box)

    def _chunks_of(self, text: str) -> list[str]:
        return cut(text, self._sizes.chunk_tokens, self._engine.count_tokens)


def cut(text: str, most: int, count_tokens: Callable[[str], int]) -> list[str]:
    """Return a text in chunks of at most `most` tokens, cut between words.

    Joined, the chunks are the text. A longer word is a chunk of its own; no words give no chunk.
    """
    words = [found.group() for found in _WORD.finditer(text)]
    if not words:
        return []
    words_each = len(words) / max(1, count_tokens(text))
    chunks, start = [], 0
    while start < len(words):
        low, high = start + 1, len(words)
        middle = min(start + max(1, int(most * words_each)), high)
        while low < high:
            count = count_tokens("".join(words[start:middle]))
            if count <= most:
                low = middle
            else:
                high = middle - 1
            # Newton's method from the average word length needs few trials.
            middle = max(low + 1, min(middle + int((most - count) * words_each), high))
        chunks.append("".join(words[start:low]))
        start = low
    return chunks
