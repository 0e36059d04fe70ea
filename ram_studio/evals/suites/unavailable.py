"""Which suites a model's context has no room for: told before anything is asked or loaded."""

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

# Enough to find one that fits, where any does: those about long texts are as long as lengths say.
_LOOKED_AT = 8


def find_unavailable(
    folder: str | Path, suites: Iterable[str], shortest: int, data: str | Path | None = None
) -> dict[str, str]:
    """Return why suites cannot be asked of the model in a folder: no question fits, or is here.

    Looks at the context in the folder's config and counts with its tokenizer.json, before any chat
    template, which only adds to it. Where one of the two cannot be read, everything may fit.

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
            # Only as many are counted as it takes to find one that fits.
            too_long = list(takewhile(lambda tokens: tokens > context, needed))
        except (TokenizerError, WorkerError):
            return {}
        except EvaluationError as error:
            # A length too short for texts says nothing of longer ones.
            if not suite.has_texts:
                found[name] = str(error)
            continue
        if len(too_long) == len(questions):
            least = min(too_long, default=0)
            found[name] = f"its shortest question takes {least} tokens, the context has {context}"
    return found
