"""Chat templates of models, rendered in a process that can be stopped.

A chat template comes with a model and is a program: nested loops may run forever, a repeated string
may fill the memory. transformers renders it (in Jinja's sandbox: it reaches no file), in a worker
process with a limit on its computing time, memory and output. Computing time, since a template is
not at fault when the machine is busy. One worker serves all models of a process; it starts with the
first template and takes some 0.1 ms a prompt from then on. A template that is slow at every prompt
fails when its slow prompts together take too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.engine import reason_of
from ram_studio.evals.sandbox.worker import OutOfTime, Worker, WorkerEnded, WorkerError

SECONDS = 5.0
"""Longest computing time for one prompt."""
SLOW_SECONDS = 0.25
"""Computing time above which a prompt is slow: a thousand times what real templates take."""
ALL_SLOW_SECONDS = 30.0
"""Longest computing time for all slow prompts of a model."""

WORKER = Worker(
    "templates", "renders chat templates", "transformers", SECONDS, memory_bytes=1_000_000_000
)


@dataclass
class SlowPrompts:
    """The seconds of computing that a model's slow prompts took."""

    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a prompt. Raises: EvaluationError when the slow ones took too long together."""
        if seconds > SLOW_SECONDS:
            self.seconds += seconds
        if self.seconds > ALL_SLOW_SECONDS:
            raise EvaluationError(
                f"prompts of more than {SLOW_SECONDS:g} s each took longer than "
                f"{ALL_SLOW_SECONDS:g} s together"
            )


@contextmanager
def template_errors(folder: str | Path, advice: str) -> Iterator[None]:
    """Raise errors of a template with the model's name and advice: what to do about it."""
    try:
        yield
    except WorkerError:
        raise
    except (EvaluationError, ValueError) as error:
        raise EvaluationError(
            f"The chat template of {folder} fails: {reason_of(error)}. {advice}"
        ) from error


def render_chat(
    template: str,
    messages: list[dict[str, str]],
    *,
    tools: list[dict[str, Any]] | None = None,
    special: dict[str, Any] | None = None,
    slow: SlowPrompts | None = None,
) -> str:
    """Return the prompt that a template makes of messages, ready for the model's answer.

    Args: tools: as JSON schemas, for a template that knows about tools. special: the
        tokenizer's special tokens by name. slow: the time of the same model's earlier slow prompts.

    Raises: EvaluationError with the reason, see ``template_errors``;
        WorkerError, a whole sentence, where the worker never reached the template.
    """
    message = {"template": template, "messages": messages, "tools": tools}
    try:
        answer = WORKER.ask({**message, "special": special or {}})
    except OutOfTime as error:
        raise EvaluationError(f"{error} for one prompt") from None
    except WorkerEnded:
        reason = "the process that renders it ended, probably out of memory"
        raise EvaluationError(reason) from None
    if "text" not in answer:
        raise EvaluationError(" ".join(str(answer["error"]).split())[:200])
    if slow is not None:
        slow.add(answer["seconds"])
    return str(answer["text"])
