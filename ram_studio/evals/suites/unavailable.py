"""Find suites that do not fit a model's context, before any question or weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.engine import plain_text
from ram_studio.evals.answering.text_encoder import TextEncoder, TokenizerError
from ram_studio.evals.sandbox.worker import WorkerError
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings

# Enough to find one that fits, if any does: questions on long texts have the given lengths.
_LOOKED_AT = 8


def find_unavailable(
    folder: str | Path, suites: Iterable[str], shortest: int, data: str | Path | None = None
) -> dict[str, str]:
    """Return why suites cannot be asked of a folder's model: no question fits or is available.

    Reads the context length in the folder's config and counts with its tokenizer.json, without the
    chat template, which only adds tokens. Where one of the two cannot be read, all suites may fit.

    Args:
        shortest: the memory suite's least prompt length, in tokens. data: see `SuiteSettings`.
    """
    from tokenizers import Tokenizer

    try:
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        context = int(config.get("text_config", config)["max_position_embeddings"])
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        encoder = TextEncoder(tokenizer, Path(folder))
    # tokenizers raises plain Exception for a file that it does not read.
    except Exception:
        return {}

    def count(text: str) -> int:
        return len(encoder.encode(text))

    found = {}
    for name in suites:
        suite = ALL_SUITES[name]
        if why := suite.absent(data):
            found[name] = why
            continue
        limit = _LOOKED_AT if suite.has_texts else None
        try:
            questions = suite.make(SuiteSettings(count, limit, 0, (shortest,), data=data))
            needed = (count(plain_text(q)) + q.max_new_tokens for q in questions)
            # Counting stops at the first one that fits.
            too_long = list(takewhile(lambda tokens: tokens > context, needed))
        except (TokenizerError, WorkerError):
            return {}
        except EvaluationError as error:
            # If this length is too short for texts, longer ones may fit.
            if not suite.has_texts:
                found[name] = str(error)
            continue
        if len(too_long) == len(questions):
            least = min(too_long, default=0)
            found[name] = f"its shortest question takes {least} tokens, the context has {context}"
    return found
