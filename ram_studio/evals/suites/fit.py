"""Which suites a model's context has no room for: told before anything is asked or loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ram_studio.evals.answering.engine import plain_text
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings

# Enough to find one that fits, where any does: those about long texts are as long as lengths say.
_LOOKED_AT = 8


def misfits(
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
    # tokenizers raises plain Exception for a file that it does not read.
    except Exception:
        return {}

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    found = {}
    for name in suites:
        if why := ALL_SUITES[name].absent(data):
            found[name] = why
            continue
        settings = SuiteSettings(
            count, _LOOKED_AT if ALL_SUITES[name].has_texts else None, 0, (shortest,), data=data
        )
        least = 0
        for question in ALL_SUITES[name].make(settings):
            needed = count(plain_text(question)) + question.max_new_tokens
            least = min(least or needed, needed)
            if needed <= context:
                break
        else:
            found[name] = f"its shortest question takes {least} tokens, the context has {context}"
    return found
