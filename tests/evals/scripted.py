"""A conversation with a model that says what stands in a script."""

import json
from collections.abc import Iterable

from ram_studio.evals.question import Conversation, Reply


def end_of(conversation: Conversation, replies: Iterable[Reply]) -> Reply:
    """Return the reply to a whole conversation that takes no more than these replies."""
    next(conversation)
    try:
        for reply in replies:
            request = conversation.send(reply)
            # A server is sent it.
            json.dumps(request.messages, ensure_ascii=False).encode()
    except StopIteration as end:
        whole: Reply = end.value
        return whole
    raise AssertionError("the conversation goes on")
