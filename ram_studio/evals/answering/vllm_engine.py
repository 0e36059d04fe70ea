"""The engine for a model folder through vLLM: for more questions or larger models than a laptop's.

Prompts, chat templates and context checks are `LocalEngine`'s; vLLM decodes, greedily, in this
process. vLLM is an extra (`pip install "ram-studio[vllm]"`, Linux with a GPU) and is imported at
the first question. Written against its documented offline API: `LLM(...)`, `LLM.generate` of
prompts given as token ids, `SamplingParams`, and the request outputs' text, token ids and finish
reason.
"""

import gc
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.engine import ShouldStop, reason_of, versions
from ram_studio.evals.answering.local import ContextFit, Generation, LocalEngine

DEFAULT_MEMORY_SHARE = 0.85


class VllmEngine(LocalEngine):
    """Answers with the model in a local folder, decoded by vLLM.

    Args:
        path: folder with config, safetensors weights and tokenizer files.
        device: "auto" or "cuda"; vLLM chooses among its own otherwise.
        memory_share: share of the GPU's memory that vLLM may use, more than 0 and at most 1.
        options: chat, batch_size, batch_tokens as for `LocalEngine`.

    Raises: EvaluationError: vLLM is not installed; whatever `LocalEngine` raises.
    """

    has_logits = False

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "auto",
        memory_share: float = DEFAULT_MEMORY_SHARE,
        **options: Any,
    ) -> None:
        if find_spec("vllm") is None:
            raise EvaluationError(
                "vLLM is not installed, and the engine 'vllm' needs it. Install it with: "
                'pip install "ram-studio[vllm]" (Linux with a GPU), or use the engine '
                "'transformers'."
            )
        super().__init__(path, device=device, **options)
        self._memory_share = memory_share

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `LocalEngine`'s; vLLM's kernels differ, so its answers are stored separately."""
        return {**super().identity, "engine": "vllm", "dtype": "stored"}

    @property
    def software(self) -> Mapping[str, str]:
        return versions("torch", "transformers", "vllm")

    def _generate(
        self, batch: list[ContextFit], limit: int, should_stop: ShouldStop | None
    ) -> Iterator[dict[int, Generation]]:
        # vLLM cannot be interrupted inside a batch.
        if should_stop and should_stop():
            raise Stopped("The evaluation was stopped; finished answers were stored.")
        from vllm import SamplingParams

        how = self.decoding
        shared = {"temperature": how.temperature, "max_tokens": limit + how.think_tokens}
        drawn = [
            {"top_p": how.top_p, "seed": how.seed_of(q)} if how.temperature else {}
            for q, _, _ in batch
        ]
        try:
            outputs = self.model.generate(
                [{"prompt_token_ids": ids} for _, _, ids in batch],
                [SamplingParams(**shared, **own) for own in drawn],
                use_tqdm=False,
            )
        except (RuntimeError, ValueError) as error:
            raise EvaluationError(
                f"{self.path} failed while vLLM answered: {reason_of(error)} If memory ran out, "
                "leave more of it free; else try the engine 'transformers'."
            ) from error
        answers = [output.outputs[0] for output in outputs]
        written = [
            Generation(a.text, a.finish_reason != "length", len(a.token_ids)) for a in answers
        ]
        yield dict(enumerate(written))

    @property
    def model(self) -> Any:
        """The model in vLLM, loaded at the first use."""
        if self._loaded is not None:
            return self._loaded
        from vllm import LLM

        try:
            self._loaded = LLM(
                model=str(self.path),
                dtype="auto",
                seed=0,
                trust_remote_code=False,
                gpu_memory_utilization=self._memory_share,
            )
        # vLLM starts processes and compiles kernels: it fails in many ways.
        except Exception as error:
            raise EvaluationError(
                f"vLLM does not load {self.path}: {reason_of(error)} Check that a GPU is free, or "
                "use the engine 'transformers'."
            ) from error
        return self._loaded

    def close(self) -> None:
        self._loaded = None
        gc.collect()
