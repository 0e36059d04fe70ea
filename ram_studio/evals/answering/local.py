"""The engine for a model folder, through transformers: batches, left padding, KV cache.

Tokenizer and weights are loaded when they are first needed: an evaluation whose answers are all
stored needs neither.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ram_studio.checkpoints.opening import open_checkpoint, why_no_model
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.content_hash import model_fingerprint
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.chat_template import SlowPrompts, render_chat, template_errors
from ram_studio.evals.answering.decode import OnTokens, Sampling, decode_steps
from ram_studio.evals.answering.engine import (
    ChatMode,
    Decoding,
    ShouldStop,
    begins_thinking,
    finish_reason,
    in_words,
    is_thinking,
    plain_text,
    reason_of,
    request_text,
    versions,
)
from ram_studio.evals.answering.load import (
    FLOAT32_BELOW_BYTES,
    check_folder,
    ending_ids,
    has_chat_template,
    load_config,
    load_model,
    load_tokenizer,
    padding_id,
    resolve_device,
)
from ram_studio.evals.answering.text_encoder import encoder_of
from ram_studio.evals.question import Question, Reply
from ram_studio.evals.sandbox.worker import WorkerError

DEFAULT_BATCH_SIZE = 128
# Most tokens of a batch, prompts and answers together: the KV cache of a 7 B model needs about 60
# kB for each.
DEFAULT_BATCH_TOKENS = 65_536
# Only larger models trigger a full garbage collection: it stops every thread for a third of a
# second, and a small model's memory is freed by the next collection anyway.
COLLECT_ABOVE_BYTES = 200_000_000
# The end of thinking is searched for in the text of this many last tokens.
_LOOKED_AT = 12


ContextFit = tuple[Question, str, list[int]]
"""A question that fits the context, its prompt and the prompt's tokens."""


class Generation(NamedTuple):
    """A generated answer: its text, whether the model ended it, its tokens."""

    text: str
    ended: bool
    tokens: int


class LocalEngine:
    """Answers with the model in a local folder.

    Args:
        path: folder with config, safetensors weights and tokenizer files.
        device: "auto", "cpu", "cuda" or "cuda:N".
        chat: "template" uses the tokenizer's chat template, "none" continues plain text, "auto" the
            template if there is one. Raw questions never use a template.
        batch_size: most prompts decoded together. batch_tokens: most tokens in a batch.
        on_tokens: called with each step, see `decode_steps`; a row is a place in the batch.

    Raises:
        EvaluationError: the folder is unusable, or chat is "template" and there is none.
        CheckpointError: the weights cannot be read.
    """

    has_logits = True  # the model runs in this process, so all logits are available

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
        self.path = check_folder(path)
        self.decoding = Decoding()
        self.device = resolve_device(device)
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.on_tokens = on_tokens
        has_template = has_chat_template(self.path)
        if chat == "template" and not has_template:
            raise EvaluationError(
                f"{self.path} has no chat template. Use chat 'none' to continue plain text, or put "
                "a chat_template.jinja beside its tokenizer."
            )
        self.is_chat = has_template and chat != "none"
        self._loaded: Any = None
        self._slow = SlowPrompts()

    @cached_property
    def tokenizer(self) -> Any:
        """The folder's tokenizer, loaded at the first use."""
        return load_tokenizer(self.path)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Fingerprint of weights, tokenizer and template; engine, device, dtype, chat, decoding."""
        return {**self._weights_identity, **self.decoding.key}

    @cached_property
    def _weights_identity(self) -> Mapping[str, Any]:
        checkpoint = open_checkpoint(str(self.path), name=self.path.name or "model")
        if (why := why_no_model(checkpoint)) is not None:
            raise EvaluationError(f"{self.path} {why}")
        return self._identity(checkpoint.fingerprint, checkpoint.nbytes)

    def _identity(self, weights: str, nbytes: int) -> dict[str, Any]:
        """Return the identity of weights with this fingerprint and this folder's other files."""
        return {
            "fingerprint": model_fingerprint(self.path, weights),
            "engine": "transformers",
            "device": self.device.split(":")[0],
            "dtype": "float32" if nbytes < FLOAT32_BELOW_BYTES else "stored",
            "chat": self.is_chat,
        }

    @property
    def software(self) -> Mapping[str, str]:
        return versions("torch", "transformers")

    @property
    def model(self) -> Any:
        """The model in eval mode on its device, loaded at the first use."""
        if self._loaded is None:
            self._loaded = load_model(self.path, self.device)[0]
        return self._loaded

    def count_tokens(self, text: str) -> int:
        """Return the length of a text in the model's tokens."""
        return len(self.encode(text))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return a text's tokens; special: with the tokenizer's special tokens around it."""
        return self._encoder(text, special)

    @cached_property
    def _encoder(self) -> Callable[[str, bool], list[int]]:
        return encoder_of(self.tokenizer, self.path)

    def prompt_of(self, question: Question) -> str:
        """Return the exact text given to the model.

        Raises: EvaluationError: the chat template fails, or leaves the question out.
        """
        if question.is_raw or not self.is_chat:
            return plain_text(question)
        # A template with tool support formats them as the model was trained to read them.
        native = bool(question.tools) and "tools" in str(self.tokenizer.chat_template)
        if native and question.messages:
            try:
                messages = [{k: str(m[k]) for k in ("role", "content")} for m in question.messages]
                return self._render_prompt(question, native, messages)
            except WorkerError:
                raise
            except EvaluationError:
                pass  # a template without support for function results
        return self._render_prompt(question, native, in_words(question.messages))

    def _render_prompt(
        self, question: Question, native: bool, messages: list[dict[str, str]]
    ) -> str:
        """Return the prompt by the chat template; messages: those after the first."""
        request = question.prompt if native else request_text(question)
        tools = [dict(tool) for tool in question.tools] if native else None
        with template_errors(self.path, "Repair it, or use chat 'none'."):
            text = render_chat(
                self.tokenizer.get_chat_template(tools=tools),
                [{"role": "user", "content": request}, *messages],
                tools=tools,
                special=self.tokenizer.special_tokens_map,
                slow=self._slow,
            )
        for words in (
            request,
            *(m["content"] for m in messages if m["role"] != "assistant"),
        ):
            if words.strip() not in text:
                raise EvaluationError(
                    f"The chat template of {self.path} drops the user's message: the text "
                    f"{words[:60]!r} does not occur in its output {text[:60]!r}. It belongs to "
                    "another model; repair it, or use chat 'none'."
                )
        return str(text)

    @cached_property
    def context(self) -> int | None:
        """The model's context length in tokens; None when its config does not give one."""
        config = load_config(self.path)
        value = getattr(config.get_text_config(), "max_position_embeddings", None)
        return int(value) if value else None

    def context_overflow(self, questions: Sequence[Question]) -> str:
        """Return why no question fits the context with its answer, "" where one does."""
        if self.context is None or not questions:
            return ""
        context, least = self.context, 0
        for question in questions:
            needed = len(self.encode_prompt(question)[1]) + self._room(question)
            if needed <= context:
                return ""
            least = min(least or needed, needed)
        return (
            f"its shortest question takes {least} tokens with the answer, the model's context is "
            f"{context}"
        )

    def _room(self, question: Question) -> int:
        """Return the most tokens that an answer takes, thinking included."""
        return question.max_new_tokens + self.decoding.think_tokens

    def encode_prompt(self, question: Question) -> tuple[str, list[int]]:
        """Return the exact text given to the model, and its tokens."""
        prompt = self.prompt_of(question)
        # A rendered template brings its own special tokens.
        return prompt, self.encode(prompt, special=question.is_raw or not self.is_chat)

    def answer(
        self, questions: Sequence[Question], should_stop: ShouldStop | None = None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield replies batch by batch; see `Engine.answer`. Prompts that do not fit come first."""
        context = self.context
        fitting, refused = [], []
        for question in questions:
            if should_stop is not None and should_stop():
                raise Stopped("Stopped; complete answers are stored.")
            prompt, ids = self.encode_prompt(question)
            needed = len(ids) + self._room(question)
            if not ids:
                refused.append((question, Reply("", prompt, "refused", "the prompt has no token")))
            elif context is not None and needed > context:
                note = f"prompt and answer take {needed} tokens, the model's context is {context}"
                refused.append((question, Reply("", prompt, "too_long", note)))
            else:
                fitting.append((question, prompt, ids))
        if refused:
            yield refused
        for batch in self._batches(fitting):
            yield from self._answer_batch(batch, should_stop)

    def _batches(self, rows: list[ContextFit]) -> Iterator[list[ContextFit]]:
        """Yield batches that fit in memory, of rows with similar answer limits and lengths."""
        rows = sorted(rows, key=lambda row: (row[0].max_new_tokens, len(row[2])))
        batch: list[ContextFit] = []
        for row in rows:
            width = len(row[2]) + self._room(row[0])
            full = len(batch) == self.batch_size or (len(batch) + 1) * width > self.batch_tokens
            if batch and (full or row[0].max_new_tokens != batch[0][0].max_new_tokens):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _answer_batch(
        self, batch: list[ContextFit], should_stop: ShouldStop | None
    ) -> Iterator[list[tuple[Question, Reply]]]:
        """Yield a batch's replies as they finish, so that finished ones survive a later failure."""
        limit = batch[0][0].max_new_tokens
        start, counted, left = time.perf_counter(), 0.0, len(batch)
        for group in self._generate(batch, limit, should_stop):
            # Every answer's share of the time; the shares add up to the total.
            share = (time.perf_counter() - start - counted) / left
            counted, left = counted + share * len(group), left - len(group)
            replies = []
            for row, written in group.items():
                (question, prompt, _), (text, ended, tokens) = batch[row], written
                finish, note = finish_reason(text, ended, limit)
                if self.decoding.think_tokens and not ended and is_thinking(prompt, text):
                    note = f"cut off while thinking, after {tokens} tokens"
                # Added as a model writes it whose prompt does not begin thinking.
                text = f"<think>{text}" if text.strip() and begins_thinking(prompt) else text
                replies.append((question, Reply(text, prompt, finish, note, tokens, share)))
            yield replies

    def _generate(
        self, batch: list[ContextFit], limit: int, should_stop: ShouldStop | None
    ) -> Iterator[dict[int, Generation]]:
        """Yield generated answers, by index in the batch, as they finish."""
        model, tokenizer = self.model, self.tokenizer
        ends = ending_ids(model, tokenizer)
        rows: list[list[int]] = [[] for _ in batch]
        budgets = [_Budget(self, prompt, limit) for _, prompt, _ in batch]
        sampling = None
        if self.decoding.temperature:
            seeds = [f"{self.decoding.seed}/{question.digest}" for question, _, _ in batch]
            streams = [Random(seed) for seed in seeds]
            sampling = Sampling(1, self.decoding.temperature, None, streams, self.decoding.top_p)

        def has_ended(row: int) -> bool:
            return rows[row][-1] in ends or budgets[row].is_spent(rows[row])

        steps = decode_steps(
            model,
            [ids for _, _, ids in batch],
            pad_id=padding_id(tokenizer),
            end_ids=ends,
            max_new_tokens=limit + self.decoding.think_tokens,
            sampling=sampling,
            should_stop=should_stop,
            is_done=has_ended,
        )

        def generation(row: int) -> Generation:
            text = tokenizer.decode(rows[row], skip_special_tokens=True)
            return Generation(text, rows[row][-1] in ends, len(rows[row]))

        try:
            with closing(steps):
                for step in steps:
                    for row, token in step.items():
                        rows[row].append(token)
                    if self.on_tokens is not None:
                        self.on_tokens(step)
                    if done := {row: generation(row) for row in step if has_ended(row)}:
                        yield done
        # Torch raises this both for "out of memory" and for ids outside the embedding.
        except (RuntimeError, IndexError) as error:
            raise EvaluationError(
                f"{self.path} failed while answering: {reason_of(error)} Check that its tokenizer "
                "fits its vocabulary; if memory ran out, use a smaller batch size."
            ) from error

    def close(self) -> None:
        """Free the model: two large ones may not fit in memory together."""
        model, self._loaded = self._loaded, None
        is_large = model is not None and model.get_memory_footprint() > COLLECT_ABOVE_BYTES
        del model
        if is_large:
            gc.collect()


class _Budget:
    """The remaining token budget of an answer: its own tokens, and separately those of thinking."""

    def __init__(self, engine: LocalEngine, prompt: str, limit: int) -> None:
        self._tokenizer, self._limit = engine.tokenizer, limit
        self._thinking = engine.decoding.think_tokens
        self._prompt = prompt
        # Number of thinking tokens; None until thinking ends.
        self._thought: int | None = None if self._thinking else 0

    def is_spent(self, row: list[int]) -> bool:
        """Return whether an answer's budget is spent."""
        if self._thought is None:
            # Thinking tags are special tokens in some tokenizers.
            ending = self._tokenizer.decode(row[-_LOOKED_AT:], skip_special_tokens=False)
            may_begin = "<think>".startswith(ending.strip()[:7]) or begins_thinking(self._prompt)
            if "</think>" in ending:
                self._thought = len(row)
            elif len(row) <= _LOOKED_AT and not may_begin:
                self._thought = 0
            else:
                return len(row) >= self._thinking
        return len(row) - self._thought >= self._limit


class MergedEngine(LocalEngine):
    """Answers with the merge that `hold` set last.

    The model is loaded, and the merge applied, only when a question has to be asked: a setting
    whose answers are all stored needs neither. base: gives the tokenizer and chat template of all
    merges; options: as for `LocalEngine`.
    """

    def __init__(self, base: Checkpoint, **options: Any) -> None:
        super().__init__(base.folder, **options)
        self._nbytes = base.nbytes
        self._weights: str | None = None
        self._apply: Callable[[Any], None] | None = None

    def hold(self, weights: str, apply: Callable[[Any], None]) -> None:
        """Set the weights to answer with by their digest, see `experiment.answers.identify`.

        apply: writes them into the loaded model, over any earlier weights.
        """
        self._weights, self._apply = weights, apply

    @property
    def was_asked(self) -> bool:
        """Whether the current merge was applied to the model, so that it answered a question."""
        return self._weights is not None and self._apply is None

    @property
    def identity(self) -> Mapping[str, Any]:
        """As `LocalEngine`'s, with the fingerprint of the current merge."""
        if self._weights is None:
            raise EvaluationError("The engine has no merge to answer with. Call `hold` first.")
        return {**self._identity(self._weights, self._nbytes), **self.decoding.key}

    @property
    def model(self) -> Any:
        """The model with the current merge's weights."""
        model = super().model
        if self._apply is not None:
            apply, self._apply = self._apply, None
            try:
                apply(model)
            except BaseException:
                self._apply = apply
                raise
        return model
