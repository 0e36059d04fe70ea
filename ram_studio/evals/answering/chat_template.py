"""Chat templates of models, rendered where they can be ended.

A chat template comes with a model and is a program: nested loops in it run for ever, a repeated
string fills the memory. transformers renders it (in Jinja's sandbox: it reaches no file), in a
worker process with a limit on its computing time, memory and output: a machine that is busy with
other things takes longer and makes no template a broken one. One worker serves all models of a
process; it starts with the first template and takes some 0.1 ms a prompt from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.sandbox.worker import Job, OutOfTime, Worker, WorkerEnded

SECONDS = 5.0
"""Longest computing time for one prompt."""

_JOB = Job("templates", "renders chat templates", "transformers", memory_bytes=1_000_000_000)


class TemplateRenderer:
    """Renders templates in one worker.

    Args: seconds: of computing that a prompt may take.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.worker = Worker(_JOB, seconds)

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, str]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt that a template makes of messages, ready for the model's answer.

        Args: tools: as JSON schemas, for a template that knows about tools. special: the
            tokenizer's special tokens by name.

        Raises: EvaluationError with the reason, to be put after "The chat template of ... fails:";
            WorkerError, a whole sentence, where the template was not come to.
        """
        message = {
            "template": template,
            "messages": [dict(one) for one in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "special": dict(special or {}),
        }
        try:
            answer = self.worker.ask(message)
        except OutOfTime as error:
            raise EvaluationError(f"{error} for one prompt") from None
        except WorkerEnded:
            reason = "the process that renders it ended, probably out of memory"
            raise EvaluationError(reason) from None
        if "text" not in answer:
            raise EvaluationError(" ".join(str(answer["error"]).split())[:200])
        return str(answer["text"])


RENDERER = TemplateRenderer()
"""The renderer of this process."""
