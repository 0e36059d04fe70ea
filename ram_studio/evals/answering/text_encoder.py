"""Texts to tokens, where a regular expression of a tokenizer cannot hold this process for ever.

A `tokenizer.json` may bring any expression. One that backtracks computes for hours inside a single
call of the library, which nothing can stop, and one that is too deep ends in a panic. So texts are
encoded by a worker with a limit of computing time; it keeps the last few tokenizers and takes some
0.1 ms a text from this process.
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

All models share the worker: a tokenizer that is slow with each text keeps the others waiting.
"""
USUAL = 2e-5
"""Seconds a character, of 50 or more, that count for nothing; Qwen2's takes a twentieth of it."""

WORKER = Worker(
    "tokens", "turns texts into tokens", "tokenizers", SECONDS, memory_bytes=4_000_000_000
)


class TokenizerError(EvaluationError):
    """A tokenizer does not turn a text into tokens."""


def encoder_of(tokenizer: Any, path: Path) -> Callable[[str, bool], list[int]]:
    """Return what encodes texts as a tokenizer of transformers would; see `TextEncoder.encode`.

    Those that are written in Python bring no expressions, and answer in this process.
    """
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        return TextEncoder(backend, path, splits=tokenizer.split_special_tokens).encode
    return lambda text, special: list(tokenizer.encode(text, add_special_tokens=special))


class TextEncoder:
    """Encodes texts as a tokenizer of the library would.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        path: the model's folder, for errors.
        splits: whether special tokens in a text are taken as text.
    """

    def __init__(self, tokenizer: Any, path: Path, *, splits: bool = False) -> None:
        self._tokenizer, self._path, self._splits = tokenizer, path, splits
        self._spare = WORKER.seconds
        self._key = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return a text's tokens; special: with those that the tokenizer puts around a text.

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
