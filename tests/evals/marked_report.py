"""A report made of marks, for tests of what is concluded from right and wrong answers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from ram_studio.evals.question import CLUSTER, Answer, Question
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers

ANSWERS = {"0": Answer("", False), "1": Answer("", True), "x": Answer("", False, finish="too_long")}


@cache
def answer_about(mark: str, document: int) -> Answer:
    """Return the answer with a mark to a question about a document."""
    return replace(ANSWERS[mark], facts={CLUSTER: str(document)})


def marked_report(
    rows: Mapping[str, Mapping[str, str]], seed: int = 0, *, document: int = 0
) -> EvalReport:
    """Return models by name with marks by domain: 1 right, 0 wrong, x not asked; seconds 1.5.

    document: so many questions in turn are about one; 0: each stands alone.
    """

    def answers(marks: str) -> tuple[Answer, ...]:
        if document:
            return tuple(answer_about(mark, place // document) for place, mark in enumerate(marks))
        return tuple(ANSWERS[mark] for mark in marks)

    items = {
        d: tuple(Question(f"{d} {i}", d, "c", f"{d} {i}", "!", None, 8) for i in range(len(marks)))
        for d, marks in next(iter(rows.values())).items()
    }
    models = {
        name: ModelAnswers(name, None, {d: answers(own[d]) for d in items}, 1.5)
        for name, own in rows.items()
    }
    return EvalReport(",".join(items), seed, items, models)
