"""The protocol between an evaluation and whatever answers, and how a question becomes text."""

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
"""Between the seeds of a question's draws: more than there are samples."""


@dataclass(frozen=True)
class Decoding:
    """How answers are written.

    temperature: 0 takes the likeliest token. top_p: of the likeliest tokens, as many as together
    have this probability may be drawn. seed: of the draws, each question's own. think_tokens: most
    tokens between `<think>` and `</think>`, apart from those of the answer; 0 gives thinking no
    room of its own.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    think_tokens: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """What of it shapes answers, for the store; empty where answers are greedy and plain."""
        found: dict[str, Any] = {}
        if self.temperature:
            found = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        return {**found, "think_tokens": self.think_tokens} if self.think_tokens else found

    def seed_of(self, question: Question) -> int:
        """Return the seed of a request to what draws itself: another for each draw."""
        return self.seed + DRAW_STEP * question.draw


class Engine(Protocol):
    """One model that answers questions. decoding: how; it may be set between questions."""

    decoding: Decoding

    @property
    def path(self) -> str | Path:
        """Where the model is: a folder, or a URL with the model's name."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What shapes the answers: "fingerprint" and JSON-ready settings; never a secret."""

    @property
    def software(self) -> Mapping[str, str]:
        """Versions of what answers, by name, see `versions`."""

    def count_tokens(self, text: str) -> int:
        """Return the length of a text in the model's tokens (an estimate where that is all)."""

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return why not one of these questions can be asked; "" where one can, or none knows."""

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield finished questions with their replies as they come, each question once.

        Raises:
            Stopped: `should_stop` returned True; what was yielded before stays valid.
            EvaluationError: the model cannot be asked at all.
        """

    def close(self) -> None:
        """Let go of memory and connections."""


@cache
def versions(*libraries: str) -> Mapping[str, str]:
    """Return the versions of this program and of those of these libraries that are installed."""
    found = {"ram-studio": __version__}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def request_text(question: Question) -> str:
    """Return what the user says, with any functions on offer written out in words."""
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
    """Return messages for those who know user and assistant alone: what functions returned is said.

    Results that follow one another are one message.
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
    """Return whether a prompt ends where thinking begins, as those of some chat templates do."""
    return prompt.rstrip().endswith("<think>")


def is_thinking(prompt: str, text: str) -> bool:
    """Return whether an answer so far is thinking without an end; a prompt may have begun it."""
    return bool(_THINKS.match(text) or begins_thinking(prompt)) and "</think>" not in text


def reason_of(error: BaseException) -> str:
    """Return what a library's error says, as the middle of a sentence of ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:296]} ..."


def finish_reason(
    text: str, ended: bool, limit: int
) -> tuple[Literal["end", "length", "empty"], str]:
    """Return (finish, note) of an answer that came back."""
    if not ended:
        silent = "" if text.strip() else " before it said anything"
        return "length", f"cut off after {limit} tokens{silent}"
    return ("end", "") if text.strip() else ("empty", "the model said nothing")
