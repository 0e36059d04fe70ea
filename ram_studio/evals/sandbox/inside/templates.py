"""Renders chat templates; see `answering.chat_template` and `serve`."""

from __future__ import annotations

import time
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

MAX_CHARACTERS = 8_000_000


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return {"text", "seconds"} or {"error"} for {"template", "messages", "tools", "special"}.

    seconds: of computing.
    """
    began = time.process_time()
    try:
        texts, _ = render_jinja_template(
            conversations=[message["messages"]],
            tools=message["tools"],
            chat_template=message["template"],
            add_generation_prompt=True,
            **message["special"],
        )
    # Templates are programs and can raise any error.
    except BaseException as error:
        return {"error": f"{error}" or type(error).__name__}
    size = len(texts[0])
    if size > MAX_CHARACTERS:
        return {"error": f"its output has {size} characters, the most is {MAX_CHARACTERS}"}
    return {"text": texts[0], "seconds": time.process_time() - began}
