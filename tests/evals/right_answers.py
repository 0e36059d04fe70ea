"""Right answers to a suite's questions, as a model would write them."""

import json

from ram_studio.evals.question import Question


def calls_of(question: Question) -> list[dict]:
    """Return the calls that a question drawn from templates wants."""
    return [
        {"name": call["name"], "arguments": {k: v[0] for k, v in call["arguments"].items()}}
        for call in question.spec
    ]


def right(question: Question) -> str:
    if question.tools:
        return json.dumps(calls_of(question))
    is_code = question.domain.startswith("code")
    return f"```python\n{question.gold}\n```" if is_code else question.gold
