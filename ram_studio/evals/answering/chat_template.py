"""Chat templates of models, rendered where they can be ended.

A chat template comes with a model and is a program: nested loops in it run for ever, a repeated
string fills the memory. transformers renders it (in Jinja's sandbox: it reaches no file), in a
worker process with a limit on its computing time, memory and output: a machine that is busy with
other things takes longer and makes no template a broken one. One worker serves all models of a
process; it starts with the first template and takes some 0.1 ms a prompt from then on.
"""

from __future__ import annotations

from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.sandbox.worker import OutOfTime, Worker, WorkerEnded

SECONDS = 5.0
"""Longest computing time for one prompt."""

WORKER = Worker(
    "templates", "renders chat templates", "transformers", SECONDS, memory_bytes=1_000_000_000
)


def render_chat(
    template: str,
    messages: list[dict[str, str]],
    *,
    tools: list[dict[str, Any]] | None = None,
    special: dict[str, Any] | None = None,
) -> str:
    """Return the prompt that a template makes of messages, ready for the model's answer.

    Args: tools: as JSON schemas, for a template that knows about tools. special: the
        tokenizer's special tokens by name.

    Raises: EvaluationError with the reason, to be put after "The chat template of ... fails:";
        WorkerError, a whole sentence, where the template was not come to.
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
    return str(answer["text"])
