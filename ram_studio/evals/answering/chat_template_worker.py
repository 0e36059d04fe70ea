"""The inside of a process that renders chat templates; see `chat_template`. Imports nothing of this
package: it is run by its path, with the limits as JSON in its first argument.

A line in: {"template", "messages", "tools", "special"}; a line out: {"text"} or {"error"}.
"""

import contextlib
import json
import signal
import sys

from transformers.utils.chat_template_utils import render_jinja_template


def _limit(memory_bytes: int) -> None:
    # Not on every system; the caller's clock holds everywhere.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _render(asked: dict, most_characters: int) -> dict:
    try:
        texts, _ = render_jinja_template(
            conversations=[asked["messages"]],
            tools=asked["tools"],
            chat_template=asked["template"],
            add_generation_prompt=True,
            **asked["special"],
        )
    # Templates are programs of their own and fail in ways of their own.
    except BaseException as error:
        return {"error": f"{error}" or type(error).__name__}
    if len(texts[0]) > most_characters:
        return {
            "error": f"its output has {len(texts[0])} characters, the most is {most_characters}"
        }
    return {"text": texts[0]}


def main() -> None:
    """Answer line by line until there are no more; a timer ends a loop that has no end."""
    limits = json.loads(sys.argv[1])
    _limit(limits["memory_bytes"])
    print("{}", flush=True)
    for line in sys.stdin:
        if hasattr(signal, "setitimer"):
            # Of computing, not of waiting for it. Its signal ends the process, also when nobody is
            # left to end it.
            signal.setitimer(signal.ITIMER_PROF, limits["seconds"])
        answer = json.dumps(_render(json.loads(line), limits["characters"]))
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
