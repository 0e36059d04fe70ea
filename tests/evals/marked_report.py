"""A report made of marks, for tests of what is concluded from right and wrong answers."""

from collections.abc import Mapping

from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers

ANSWERS = {"0": Answer("", False), "1": Answer("", True), "x": Answer("", False, finish="too_long")}


def marked_report(rows: Mapping[str, Mapping[str, str]], seed: int = 0) -> EvalReport:
    """Return models by name with marks by domain: 1 right, 0 wrong, x not asked; seconds 1.5."""
    items = {
        d: tuple(Question(f"{d} {i}", d, "c", f"{d} {i}", "!", None, 8) for i in range(len(marks)))
        for d, marks in next(iter(rows.values())).items()
    }
    models = {
        name: ModelAnswers(name, None, {d: tuple(ANSWERS[m] for m in own[d]) for d in items}, 1.5)
        for name, own in rows.items()
    }
    return EvalReport(",".join(items), seed, items, models)
