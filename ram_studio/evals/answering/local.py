"""A model folder, answered through transformers: batches, left padding, KV cache, greedy.

The tokenizer is read at once, the weights when the first question comes: an evaluation whose
answers are all stored never loads them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.checkpoints.hub.open import open_checkpoint
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.chat_template import RENDERER
from ram_studio.evals.answering.decode import (
    FLOAT32_BELOW_BYTES,
    OnTokens,
    decode,
    ending_ids,
    load_model,
    load_tokenizer,
    padding_id,
    resolve_device,
    transformers,
)
from ram_studio.evals.answering.engine import (
    ChatMode,
    ShouldStop,
    finished,
    plain_text,
    reason_of,
    request_text,
)
from ram_studio.evals.question import Question, Reply

DEFAULT_BATCH_SIZE = 128
# Prompts and answers of a batch take at most this many tokens together: the KV cache of a 7 B model
# needs some 60 kB for each.
DEFAULT_BATCH_TOKENS = 65_536

COLLECT_ABOVE_BYTES = 200_000_000
"""Only for a larger model is all garbage collected at once: that stops every thread for a third of
a second, and what little a small one leaves goes with the next collection anyway."""


class Written(NamedTuple):
    """An answer: its text, whether it ended by itself, its tokens."""

    text: str
    ended: bool
    tokens: int


class LocalEngine:
    """Answers with the model in a local folder.

    Args:
        path: folder with config, safetensors weights and tokenizer files.
        device: "auto", "cpu", "cuda" or "cuda:N".
        chat: "template" uses the tokenizer's chat template, "none" continues plain text, "auto" the
            template if there is one. Raw questions are never put into a template.
        batch_size: most prompts decoded together. batch_tokens: most tokens in a batch.
        on_tokens: called while answering, see `decode`; a row is a place in the batch.

    Raises:
        EvaluationError: the folder is unusable, or chat is "template" and there is none.
        CheckpointError: the weights cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "auto",
        chat: ChatMode = "auto",
        batch_size: int = DEFAULT_BATCH_SIZE,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        on_tokens: OnTokens | None = None,
    ) -> None:
        self.path = Path(path)
        self.device = resolve_device(device)
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.on_tokens = on_tokens
        self.tokenizer = load_tokenizer(self.path)
        has_template = bool(getattr(self.tokenizer, "chat_template", None))
        if chat == "template" and not has_template:
            raise EvaluationError(
                f"{self.path} has no chat template. Use chat 'none' to continue plain text, or put "
                "a chat_template.jinja beside its tokenizer."
            )
        self.is_chat = has_template and chat != "none"
        self._loaded: Any = None

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Fingerprint of weights, tokenizer and template; engine, device, dtype, chat."""
        checkpoint = open_checkpoint(str(self.path), name=self.path.name or "model")
        if checkpoint.adapter is not None:
            raise EvaluationError(
                f"{self.path} is a LoRA adapter, which only answers with its base: merge it first "
                "(ram-studio merge --method task-arithmetic --set scale=1), and evaluate that."
            )
        return self._identity(checkpoint.fingerprint, checkpoint.nbytes)

    def _identity(self, weights: str, nbytes: int) -> dict[str, Any]:
        """Return the identity of weights with this fingerprint beside this folder's other files."""
        return {
            "fingerprint": model_fingerprint(self.path, weights),
            "engine": "transformers",
            "device": self.device.split(":")[0],
            "dtype": "float32" if nbytes < FLOAT32_BELOW_BYTES else "stored",
            "chat": self.is_chat,
        }

    @property
    def model(self) -> Any:
        """The model in eval mode on its device, loaded at the first use."""
        if self._loaded is None:
            self._loaded = load_model(self.path, self.device)[0]
        return self._loaded

    def count_tokens(self, text: str) -> int:
        """Return the length of a text in the model's tokens."""
        return len(self._encode(text))

    def _encode(self, text: str, special: bool = True) -> list[int]:
        # verbose=False: texts beyond the context are expected here and handled below.
        return list(self.tokenizer.encode(text, add_special_tokens=special, verbose=False))

    def prompt_of(self, question: Question) -> str:
        """Return the exact text given to the model.

        Raises:
            EvaluationError: the chat template fails, or leaves the question out.
        """
        if question.is_raw or not self.is_chat:
            return plain_text(question)
        # A template that knows about tools writes them as the model has learnt to read them.
        native = bool(question.tools) and "tools" in str(self.tokenizer.chat_template)
        said = question.prompt if native else request_text(question)
        try:
            tools = [dict(tool) for tool in question.tools] if native else None
            text = RENDERER.render(
                self.tokenizer.get_chat_template(tools=tools),
                [{"role": "user", "content": said}],
                tools=tools,
                special=self.tokenizer.special_tokens_map,
            )
        except (EvaluationError, ValueError) as error:
            raise EvaluationError(
                f"The chat template of {self.path} fails: {reason_of(error)}. Repair it, or use "
                "chat 'none'."
            ) from error
        if said.strip() not in text:
            raise EvaluationError(
                f"The chat template of {self.path} leaves out what the user says: the text "
                f"{said[:60]!r} does not occur in its output {text[:60]!r}. It belongs to another "
                "model; repair it, or use chat 'none'."
            )
        return str(text)

    @cached_property
    def context(self) -> int | None:
        """Return the most tokens the model was made for; None when its config does not say."""
        if self._loaded is not None:
            config = self._loaded.config
        else:
            config = transformers().AutoConfig.from_pretrained(
                self.path, local_files_only=True, trust_remote_code=False
            )
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        value = getattr(config, "max_position_embeddings", None)
        return int(value) if value else None

    def misfit(self, questions: Sequence[Question]) -> str:
        """Return why no question fits the context with its answer, "" where one does."""
        if self.context is None or not questions:
            return ""
        context, least = self.context, 0
        for question in questions:
            needed = len(self._ids_of(question)[1]) + question.max_new_tokens
            if needed <= context:
                return ""
            least = min(least or needed, needed)
        return (
            f"its shortest question takes {least} tokens with the answer, the model's context is "
            f"{context}"
        )

    def _ids_of(self, question: Question) -> tuple[str, list[int]]:
        prompt = self.prompt_of(question)
        # A rendered template brings its own special tokens.
        return prompt, self._encode(prompt, special=question.is_raw or not self.is_chat)

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield batch after batch; see `Engine.answer`. Prompts that do not fit come first."""
        context = self.context
        fitting, refused = [], []
        for question in questions:
            if should_stop is not None and should_stop():
                raise Stopped("Stopped as asked; answers that were complete are kept.")
            prompt, ids = self._ids_of(question)
            needed = len(ids) + question.max_new_tokens
            if not ids:
                refused.append((question, Reply("", prompt, "refused", "the prompt has no token")))
            elif context is not None and needed > context:
                note = f"prompt and answer take {needed} tokens, the model's context is {context}"
                refused.append((question, Reply("", prompt, "too long", note)))
            else:
                fitting.append((question, prompt, ids))
        if refused:
            yield refused
        for batch in self._batches(fitting):
            yield from self._answer_batch(batch, should_stop)

    def _batches(
        self, rows: list[tuple[Question, str, list[int]]]
    ) -> Iterator[list[tuple[Question, str, list[int]]]]:
        """Cut the rows, alike in answer limit and length, into batches that fit in memory."""
        rows = sorted(rows, key=lambda row: (row[0].max_new_tokens, len(row[2])))
        batch: list[tuple[Question, str, list[int]]] = []
        for row in rows:
            width = len(row[2]) + row[0].max_new_tokens
            full = len(batch) == self.batch_size or (len(batch) + 1) * width > self.batch_tokens
            if batch and (full or row[0].max_new_tokens != batch[0][0].max_new_tokens):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _answer_batch(
        self, batch: list[tuple[Question, str, list[int]]], should_stop: ShouldStop | None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield a batch's replies; when stopped, those that were complete, before Stopped."""
        limit = batch[0][0].max_new_tokens
        start = time.perf_counter()
        heard: list[list[int]] = [[] for _ in batch]

        def told(written: Sequence[Written | None]) -> list[tuple[Question, Reply]]:
            seconds = (time.perf_counter() - start) / len(batch)
            result = []
            for (question, prompt, _), row in zip(batch, written, strict=True):
                if row is not None:
                    finish, note = finished(row.text, row.ended, limit)
                    reply = Reply(row.text, prompt, finish, note, row.tokens, seconds)
                    result.append((question, reply))
            return result

        def on_tokens(step: dict[int, int]) -> None:
            for row, token in step.items():
                heard[row].append(token)
            if self.on_tokens is not None:
                self.on_tokens(step)

        try:
            written = self._written([ids for _, _, ids in batch], limit, should_stop, on_tokens)
        except Stopped:
            kept = told([self._complete(row, limit) for row in heard])
            if kept:
                yield kept
            raise
        yield told(written)

    def _complete(self, row: list[int], limit: int) -> Written | None:
        """Return a row as it is when nothing can follow it any more, else None."""
        ended = bool(row) and row[-1] in ending_ids(self.model, self.tokenizer)
        if not ended and len(row) < limit:
            return None
        return Written(self.tokenizer.decode(row, skip_special_tokens=True), ended, len(row))

    def _written(
        self,
        prompts: list[list[int]],
        limit: int,
        should_stop: ShouldStop | None,
        on_tokens: OnTokens,
    ) -> list[Written]:
        """Return what was written to every prompt; on_tokens: see `decode`."""
        model = self.model
        ends = ending_ids(model, self.tokenizer)
        try:
            rows = decode(
                model,
                prompts,
                pad_id=padding_id(self.tokenizer),
                end_ids=ends,
                max_new_tokens=limit,
                should_stop=should_stop,
                on_tokens=on_tokens,
            )
        # Torch says both "out of memory" and "ids outside the embedding" this way.
        except (RuntimeError, IndexError) as error:
            raise EvaluationError(
                f"{self.path} failed while answering: {reason_of(error)} Check that its tokenizer "
                "fits its vocabulary; if memory ran out, use a smaller batch size."
            ) from error
        texts = [self.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
        ended = [bool(row) and row[-1] in ends for row in rows]
        return list(map(Written, texts, ended, map(len, rows)))

    def close(self) -> None:
        """Let go of the model; two large ones may not fit beside each other."""
        model, self._loaded = self._loaded, None
        is_large = model is not None and model.get_memory_footprint() > COLLECT_ABOVE_BYTES
        del model
        if is_large:
            gc.collect()
