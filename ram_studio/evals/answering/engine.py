"""The protocol between an evaluation and a model, and how a question becomes text."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

from ram_studio._version import __version__
from ram_studio.evals.question import Question, Reply

ChatMode = Literal["auto", "template", "none"]
ShouldStop = Callable[[], bool]

_TOOLS = """You can call these functions (JSON schemas):

{schemas}

Reply with a JSON list of the calls to make, and nothing else:
[{{"name": "<function>", "arguments": {{"<argument>": <value>}}}}]
If none of the functions fits the request, reply with [].

Request: {request}"""

_RESULTS = "The functions returned, in this order:"

DRAW_STEP = 1000
"""Distance between the seeds of a question's draws: more than the number of samples."""


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded.

    temperature: 0 takes the likeliest token. top_p: nucleus sampling, from the likeliest tokens
    that together have this probability. seed: of sampling, different for each question.
    think_tokens: most tokens between `<think>` and `</think>`, apart from those of the answer; 0
    counts thinking as part of the answer.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    think_tokens: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """The settings that change answers, for the store; empty for the defaults."""
        found: dict[str, Any] = {}
        if self.temperature:
            found = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        return {**found, "think_tokens": self.think_tokens} if self.think_tokens else found

    def seed_of(self, question: Question) -> int:
        """Return the seed for an engine that samples by itself: another for each draw."""
        return self.seed + DRAW_STEP * question.draw


class Engine(Protocol):
    """One model that answers questions. decoding: may be set between questions."""

    decoding: Decoding

    @property
    def path(self) -> str | Path:
        """The model's location: a folder, or a URL with the model's name."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What determines the answers: "fingerprint" and JSON-ready settings; never a secret."""

    @property
    def software(self) -> Mapping[str, str]:
        """Versions of the software that answers, by name, see `versions`."""

    def count_tokens(self, text: str) -> int:
        """Return the length of a text in the model's tokens, or an estimate."""

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return why none of these questions fits the context; "" if one does or may."""

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield questions with their replies as they finish, each question once.

        Raises:
            Stopped: `should_stop` returned True; earlier replies stay valid.
            EvaluationError: the model cannot answer any question.
        """

    def close(self) -> None:
        """Free memory and close connections."""


@cache
def versions(*libraries: str) -> Mapping[str, str]:
    """Return the versions of this program and of the installed ones among these libraries."""
    found = {"ram-studio": __version__}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def request_text(question: Question) -> str:
    """Return the user's message, with any functions written out in the text."""
    if not question.tools:
        return question.prompt
    schemas = "\n".join(json.dumps(tool["function"]) for tool in question.tools)
    return _TOOLS.format(schemas=schemas, request=question.prompt)


def plain_text(question: Question) -> str:
    """Return the prompt for a model without a chat format: it continues the text."""
    if question.is_raw:
        return question.prompt
    paragraphs = [request_text(question)]
    for message in in_words(question.messages):
        paragraphs.append(
            message["content"] if message["role"] == "user" else f"Answer:\n{message['content']}"
        )
    return "\n\n".join([*paragraphs, "Answer:\n"])


def in_words(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return messages with the roles user and assistant only: function results are the user's.

    Adjacent results are one message.
    """
    found: list[dict[str, str]] = []
    for message in messages:
        role, content = str(message["role"]), str(message["content"])
        if role != "tool":
            found.append({"role": role, "content": content})
        elif found and found[-1]["content"].startswith(_RESULTS):
            found[-1]["content"] += f"\n{content}"
        else:
            found.append({"role": "user", "content": f"{_RESULTS}\n{content}"})
    return found


_THINKS = re.compile(r"\s*<think>")


def begins_thinking(prompt: str) -> bool:
    """Return whether a prompt ends with a thinking tag, as some chat templates end theirs."""
    return prompt.rstrip().endswith("<think>")


def is_thinking(prompt: str, text: str) -> bool:
    """Return whether an unfinished answer is still thinking; the prompt may have begun it."""
    return bool(_THINKS.match(text) or begins_thinking(prompt)) and "</think>" not in text


def reason_of(error: BaseException) -> str:
    """Return a library's error message, for use inside a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:296]} ..."


def finish_reason(
    text: str, ended: bool, limit: int
) -> tuple[Literal["end", "length", "empty"], str]:
    """Return (finish, note) of a received answer."""
    if not ended:
        silent = "" if text.strip() else " before it said anything"
        return "length", f"cut off after {limit} tokens{silent}"
    return ("end", "") if text.strip() else ("empty", "the model said nothing")
