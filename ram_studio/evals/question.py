"""The records that pass between suites, engines, store and reports.

An engine gives a reply to a question, a suite its verdict, and both together are an answer.

Plain data: no model, no file, no torch.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Finish = Literal["end", "length", "empty", "timed_out", "too_long", "refused", "failed"]
UNSCORED: tuple[Finish, ...] = ("too_long", "refused", "failed")
"""How a question ends that says nothing about the model's skill: it is no wrong answer."""
NO_ANSWER: tuple[Finish, ...] = ("timed_out", *UNSCORED)
"""How a question ends without anything to judge; one that timed out counts as wrong."""
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
    """One thing asked of every model.

    id: unique and stable within a suite, e.g. "parallel-03". domain: the report's column.
    category: the kind of question within it. prompt: what the user says (tools apart). gold: one
    right answer, for people to read. spec: what the checker needs, JSON-ready; its form is private
    to the suite. max_new_tokens: where an answer is cut off. tools: JSON schemas of the functions
    on offer. is_raw: the model continues the prompt as it stands, without any chat template.
    must_end: an answer that was cut off is wrong; for questions that are passed by not doing
    something, which endless talk would pass. reading: (text, what is asked about it) where the
    prompt is both together, for models that read in pieces. messages: what was said since the
    prompt, {"role": "assistant", "tool" or "user", "content"}, of an assistant that called
    functions its "calls", {"name", "arguments"} each, too. draw: sampled answers to a question
    differ by it. cluster: equal for questions of a suite that share a document, a template or
    functions, so that they tell less than as many others; "" where it shares nothing.
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
        """32 hex digits that change when the model would see or may say something else."""
        seen = [self.domain, self.prompt, list(self.tools), self.max_new_tokens, self.is_raw]
        seen += [list(self.messages), self.draw] if self.messages or self.draw else []
        return hashlib.blake2b(json.dumps(seen).encode(), digest_size=16).hexdigest()


QuestionsBySuite = Mapping[str, Sequence[Question]]
"""Questions by suite."""


@dataclass(frozen=True)
class Reply:
    """What an engine got for one question.

    text: the answer, possibly empty. prompt: the exact text (or chat messages as JSON) that was
    sent. finish: "end" the model ended its answer; "length" it was cut off, be it before it said
    anything; "empty" it ended without a word; "timed_out" it did not end within the time for one
    answer; "too_long" the prompt does not fit the model's context, nothing was asked; "refused" the
    server turned this question down; "failed" no usable reply came, asking again may help. note:
    the reason in words. tokens: length of the answer, None when unknown. seconds: this question's
    share of the time.
    """

    text: str
    prompt: str
    finish: Finish
    note: str = ""
    tokens: int | None = None
    seconds: float = 0.0


Conversation = Generator[Question, Reply, Reply]
"""A question that takes several requests to the model, as a suite leads it.

It yields what the model is asked next and is sent the model's reply; what it returns is the reply
to the whole question.
"""


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, why not (in words), and what the checker counted."""

    is_correct: bool
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """One model output with its verdict.

    note: why it is wrong or remarkable, in words ("cut off after 48 tokens"); often empty. facts:
    what the checker counted, e.g. single constraints. seconds: the item's share of its batch.
    finish, prompt, tokens: see `Reply`. origin: {"software": versions by name, "seed": of the
    questions} of when it was asked; empty where that was not recorded.
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
        """Return the answer that a reply, or another version's answer, and a verdict make."""
        judged = (verdict.is_correct, verdict.note, verdict.facts, reply.seconds, reply.finish)
        return Answer(reply.text, *judged, origin, reply.prompt, reply.tokens)

    @property
    def is_final(self) -> bool:
        """Whether asking again would bring nothing new."""
        return self.finish not in ("failed", "timed_out")

    @property
    def is_reported(self) -> bool:
        """Whether reports hold it; a failed one is as good as not asked."""
        return self.finish != "failed"

    @property
    def is_scored(self) -> bool:
        """Whether it is right or wrong: what was not asked, refused or failed is neither."""
        return self.finish not in UNSCORED

    @property
    def has_timed_out(self) -> bool:
        """Whether it is wrong because the model or the judge ran out of time."""
        return self.finish == "timed_out" or bool(self.facts.get(TIMED_OUT))
