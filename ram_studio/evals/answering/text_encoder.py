"""Encode texts in a worker, so that a tokenizer's regular expression cannot block this process.

A `tokenizer.json` may hold any expression. One that backtracks runs for hours inside a single
library call that cannot be interrupted, and one that nests too deeply panics. So a worker with a
limit on computing time encodes texts; it caches the last few tokenizers, at about 0.1 ms a text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.engine import reason_of
from ram_studio.evals.sandbox.worker import OutOfTime, Worker, WorkerEnded

SECONDS = 10.0
"""Longest computing time for one text, and for all of a model's beyond `USUAL`.

All models share the worker: a tokenizer that is slow at each text blocks the others.
"""
USUAL = 2e-5
"""Seconds per character (of at least 50) that are not counted; Qwen2's takes a twentieth of it."""

WORKER = Worker(
    "tokens", "turns texts into tokens", "tokenizers", SECONDS, memory_bytes=4_000_000_000
)


class TokenizerError(EvaluationError):
    """A tokenizer fails to encode a text."""


def encoder_of(tokenizer: Any, path: Path) -> Callable[[str, bool], list[int]]:
    """Return a function that encodes texts as a transformers tokenizer does, see `TextEncoder`.

    Tokenizers written in Python have no such expressions and run in this process.
    """
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        return TextEncoder(backend, path, splits=tokenizer.split_special_tokens).encode
    return lambda text, special: list(tokenizer.encode(text, add_special_tokens=special))


class TextEncoder:
    """Encodes texts as a tokenizer of the library does.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        path: the model's folder, for errors.
        splits: whether special tokens in a text are encoded as plain text.
    """

    def __init__(self, tokenizer: Any, path: Path, *, splits: bool = False) -> None:
        self._tokenizer, self._path, self._splits = tokenizer, path, splits
        self._spare = WORKER.seconds
        self._key = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return a text's tokens; special: with the tokenizer's special tokens around it.

        Raises: TokenizerError: it fails, or takes too long; WorkerError, see `Worker.ask`.
        """
        if self._spare < 0:
            raise self._error(f"it takes {WORKER.seconds:g} s more than is usual for its texts")
        asked = {"key": self._key, "text": text, "special": special, "splits": self._splits}
        try:
            answer = WORKER.ask(asked)
            if "is_unknown" in answer:
                answer = WORKER.ask({**asked, "tokenizer": self._tokenizer.to_str()})
        except OutOfTime as error:
            raise self._error(f"{error} for one text") from None
        except WorkerEnded:
            raise self._error("it ended its process, probably out of memory") from None
        if "ids" not in answer:
            raise self._error(reason_of(Exception(answer["error"])))
        self._spare -= max(0.0, answer["seconds"] - USUAL * max(50, len(text)))
        return list(answer["ids"])

    def _error(self, reason: str) -> TokenizerError:
        return TokenizerError(
            f"The tokenizer of {self._path} fails: {reason}. Copy the base model's tokenizer files "
            "into the folder."
        )
