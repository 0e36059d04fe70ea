"""Answers from a GPU that is lent for each run (ZeroGPU): all else stays on the processor.

There a function with a GPU runs in a process of its own. So what crosses is small: a folder and
questions go in, batches of replies come out, and are judged and stored here as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from ram_studio.app.public.machine import with_lent_gpu
from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.engine import Decoding, ShouldStop
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Question, Reply

LENT_SECONDS = 120
"""The longest run for which a GPU is asked; its answers are kept when it ends before."""

Batch = list[tuple[Question, Reply]]


@with_lent_gpu(LENT_SECONDS)
def _answers(
    folder: str, batch_size: int, decoding: Decoding, questions: list[Question]
) -> Iterator[Batch]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = LocalEngine(folder, device=device, batch_size=batch_size)
    engine.decoding = decoding
    yield from engine.answer(questions)


class LentGpuEngine(LocalEngine):
    """A model folder whose answers come from a lent GPU. batch_size: most prompts at once."""

    def __init__(self, folder: str | Path, *, batch_size: int) -> None:
        super().__init__(folder, device="cpu", batch_size=batch_size)

    def _identity(self, weights: str, nbytes: int) -> dict[str, Any]:
        return {**super()._identity(weights, nbytes), "device": "lent"}

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[Batch]:
        """Yield batch after batch; see `Engine.answer`.

        Raises: EvaluationError when no GPU is lent: the visitor's share is used up, all are busy.
        """
        try:
            for batch in _answers(str(self.path), self.batch_size, self.decoding, list(questions)):
                yield batch
                if should_stop is not None and should_stop():
                    raise Stopped("Stopped as asked; answers that were complete are kept.")
        except gr.Error as error:
            raise EvaluationError(
                f"No GPU was lent ({printable(error.message, 200)}). Answers that were complete "
                "are kept; sign in, wait, or run RAM Studio on a machine of your own."
            ) from error
