"""Encodes texts as tokens; see `answering.text_encoder` and `serve`."""

from __future__ import annotations

import time
from typing import Any

from tokenizers import Tokenizer

_MOST = 4
_known: dict[str, Tokenizer] = {}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return {"ids", "seconds"}, {"error"} or {"is_unknown"} for {"key", "text", ...}.

    Message: key: of a tokenizer, which is sent as "tokenizer" when the key is unknown. splits:
    whether special tokens in the text are encoded as plain text. special: add those around it.
    """
    try:
        tokenizer = _tokenizer(message["key"], message.get("tokenizer"))
        if tokenizer is None:
            return {"is_unknown": True}
        tokenizer.encode_special_tokens = message["splits"]
        start = time.process_time()
        ids = tokenizer.encode(message["text"], None, False, message["special"]).ids
        return {"ids": ids, "seconds": time.process_time() - start}
    # A panic of the library is not an Exception.
    except BaseException as error:
        return {"error": f"{error}" or type(error).__name__}


def _tokenizer(key: str, content: str | None) -> Tokenizer | None:
    if content is not None:
        _known[key] = Tokenizer.from_str(content)
        _known[key].no_truncation()
        _known[key].no_padding()
    if (found := _known.pop(key, None)) is not None:
        _known[key] = found  # the last one used
        for oldest in list(_known)[:-_MOST]:
            del _known[oldest]
    return found
