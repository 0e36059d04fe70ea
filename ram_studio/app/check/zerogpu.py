"""Answers on ZeroGPU; everything else runs on the processor.

ZeroGPU runs a function in another process, so little is passed: it gets a folder and questions and
returns batches of replies, which are judged and stored here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from ram_studio.app.public.machine import with_zerogpu
from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.engine import Decoding, ShouldStop
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Question, Reply

ZEROGPU_SECONDS = 120
"""The longest run for which a GPU is requested; answers are stored when it ends earlier."""

Batch = list[tuple[Question, Reply]]


@with_zerogpu(ZEROGPU_SECONDS)
def _answers(
    folder: str, batch_size: int, decoding: Decoding, questions: list[Question]
) -> Iterator[Batch]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = LocalEngine(folder, device=device, batch_size=batch_size)
    engine.decoding = decoding
    yield from engine.answer(questions)


class ZeroGpuEngine(LocalEngine):
    """A model folder that answers on ZeroGPU. batch_size: most prompts in one batch."""

    def __init__(self, folder: str | Path, *, batch_size: int) -> None:
        super().__init__(folder, device="cpu", batch_size=batch_size)

    def _identity(self, weights: str, nbytes: int) -> dict[str, Any]:
        return {**super()._identity(weights, nbytes), "device": "zerogpu"}

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[Batch]:
        """Yield replies batch by batch; see `Engine.answer`.

        Raises: EvaluationError when no GPU is available: quota used up, or all are busy.
        """
        try:
            for batch in _answers(str(self.path), self.batch_size, self.decoding, list(questions)):
                yield batch
                if should_stop is not None and should_stop():
                    raise Stopped("Stopped; complete answers are stored.")
        except gr.Error as error:
            raise EvaluationError(
                f"No GPU was available ({printable(error.message, 200)}). Complete answers are "
                "stored. Sign in, wait, or run RAM Studio on your own machine."
            ) from error
