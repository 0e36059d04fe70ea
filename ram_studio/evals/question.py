"""The records that pass between suites, engines, store and reports.

An engine gives a reply to a question, a suite gives a verdict, and both together are an answer.

Plain data: no model, no file, no torch.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Finish = Literal["end", "length", "empty", "timed_out", "too_long", "refused", "failed"]
UNSCORED: tuple[Finish, ...] = ("too_long", "refused", "failed")
"""Endings that are not a model's answer; they are neither right nor wrong."""
NO_ANSWER: tuple[Finish, ...] = ("timed_out", *UNSCORED)
"""Endings without a text to judge; one that timed out counts as wrong."""
TIMED_OUT = "timed_out"
"""The key in `Verdict.facts`: true where the judge ran out of time, which counts as wrong."""
CLUSTER = "cluster"
"""The key in `Answer.facts`: equal for questions that share a document or a template."""
PARAPHRASES = "paraphrases"
"""The key in `Answer.facts`: whether the answer to each wording of the question is right."""
SAMPLES = "samples"
"""The key in `Answer.facts`: whether each of the samples that was answered is right."""


@dataclass(frozen=True)
class Question:
    """One question, asked of every model.

    id: unique and stable within a suite, e.g. "parallel-03". domain: the report's column.
    category: the kind of question within it. prompt: the user's message, without tools. gold: one
    right answer, for display. spec: data for the checker, JSON-ready, in the suite's own form.
    max_new_tokens: limit of an answer. tools: JSON schemas of the available functions. is_raw: the
    model continues the prompt unchanged, without a chat template. must_end: an answer that was cut
    off is wrong; for questions that are passed by not doing something, which an endless answer
    would pass. reading: (text, question about it) where the prompt is both together, for models
    that read in chunks. messages: those after the prompt,
    {"role": "assistant", "tool" or "user", "content"}, and for an assistant that called functions
    "calls", each {"name", "arguments"}. draw: index of a sampled answer. cluster: equal for
    questions of a suite that share a document, a template or functions, and so carry less
    information than independent ones; "" where it shares nothing.
    """

    id: str
    domain: str
    category: str
    prompt: str
    gold: str
    spec: Any = field(repr=False)
    max_new_tokens: int
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    is_raw: bool = False
    is_hard: bool = False
    must_end: bool = False
    reading: tuple[str, str] | None = field(default=None, repr=False)
    messages: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    draw: int = 0
    cluster: str = field(default="", repr=False)

    @property
    def digest(self) -> str:
        """32 hex digits that change with the model's input or its limits."""
        seen = [self.domain, self.prompt, list(self.tools), self.max_new_tokens, self.is_raw]
        seen += [list(self.messages), self.draw] if self.messages or self.draw else []
        return hashlib.blake2b(json.dumps(seen).encode(), digest_size=16).hexdigest()


QuestionsBySuite = Mapping[str, Sequence[Question]]
"""Questions by suite."""


@dataclass(frozen=True)
class Reply:
    """An engine's reply to one question.

    text: the answer, possibly empty. prompt: the exact text (or chat messages as JSON) that was
    sent. finish: "end" the model ended its answer; "length" it was cut off, even before any text;
    "empty" it ended without text; "timed_out" it did not end within the time for one answer;
    "too_long" the prompt does not fit the model's context and was not sent; "refused" the server
    rejected the request; "failed" no valid reply came, a retry may help. note: the reason in words.
    tokens: length of the answer, None when unknown. seconds: this question's share of the time.
    """

    text: str
    prompt: str
    finish: Finish
    note: str = ""
    tokens: int | None = None
    seconds: float = 0.0


Conversation = Generator[Question, Reply, Reply]
"""A question that takes several requests to the model, led by a suite.

It yields the next request and is sent the model's reply; its return value is the reply to the whole
question.
"""


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, why not (in words), and the checker's counts."""

    is_correct: bool
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One model output with its verdict.

    note: why it is wrong or unusual, in words ("cut off after 48 tokens"); often empty. facts: the
    checker's counts, e.g. single constraints. seconds: the item's share of its batch. finish,
    prompt, tokens: see `Reply`. origin: {"software": versions by name, "seed": of the questions} at
    the time of asking; empty where not recorded.
    """

    text: str
    is_correct: bool
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    finish: Finish = "end"
    origin: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = field(default="", repr=False)
    tokens: int | None = None

    @staticmethod
    def of(reply: "Reply | Answer", verdict: Verdict, origin: Mapping[str, Any]) -> "Answer":
        """Return the answer of a verdict and a reply, or another version's answer."""
        judged = (verdict.is_correct, verdict.note, verdict.facts, reply.seconds, reply.finish)
        return Answer(reply.text, *judged, origin, reply.prompt, reply.tokens)

    @property
    def is_final(self) -> bool:
        """Whether asking again would not change it."""
        return self.finish not in ("failed", "timed_out")

    @property
    def is_reported(self) -> bool:
        """Whether reports include it; a failed one counts as not asked."""
        return self.finish != "failed"

    @property
    def is_scored(self) -> bool:
        """Whether it is right or wrong: a question not asked, refused or failed is neither."""
        return self.finish not in UNSCORED

    @property
    def has_timed_out(self) -> bool:
        """Whether it is wrong because the model or the judge ran out of time."""
        return self.finish == "timed_out" or bool(self.facts.get(TIMED_OUT))
