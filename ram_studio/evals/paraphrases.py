"""Other wordings of the shipped suites' questions: how much does a score depend on the wording?

The fixed sentences around a question are replaced by others, and a question without them gets a
sentence before or after it. The task and the right answer stay the same.
"""

from __future__ import annotations

from dataclasses import replace

from ram_studio.evals.question import Question
from ram_studio.evals.suites import GENERAL_SUITES, generated

MOST = 3
"""Wordings of a question, its own included."""
SUITES = frozenset([*GENERAL_SUITES, *(suite.name for suite in generated.SUITES)])
_OTHERWISE = {
    "Think step by step. End with a line of": (
        "Work it out one step at a time. Finish with a line of",
        "Show how you get there. Close with a line of",
    ),
    "Please ": ("I would like you to ", "Could you "),
    "Reply with the complete Python": (
        "Give the whole Python",
        "Your reply should hold the entire Python",
    ),
    "Do not write the function itself. Reply with": (
        "The function itself is not wanted. Give",
        "Leave the function itself out. Your reply should hold",
    ),
    "Read the text and answer the question after it.": (
        "Below is a text, and after it a question about it. Answer the question.",
        "Answer the question that follows this text.",
    ),
    "Do what I ask and nothing else.": (
        "Do no more than I ask for.",
        "Only do what I ask you to.",
    ),
    "When all is done, say so without a call.": (
        "Once everything is done, tell me so and call nothing.",
        "Tell me, without a call, when you have done it all.",
    ),
}
_AROUND = ("Here is what I would like from you.\n\n{}", "{}\n\nThank you.")


def reword_question(question: Question, number: int) -> Question:
    """Return a question in one of its other wordings, number 1 to `MOST` - 1."""
    prompt, reading = _replace_phrases(question.prompt, number), question.reading
    if prompt == question.prompt:
        prompt = _AROUND[number - 1].format(prompt)
    if reading is not None:
        reading = (reading[0], _AROUND[number - 1].format(reading[1]))
    return replace(question, prompt=prompt, reading=reading)


def _replace_phrases(text: str, number: int) -> str:
    for usual, others in _OTHERWISE.items():
        text = text.replace(usual, others[number - 1], 1)
    return text
