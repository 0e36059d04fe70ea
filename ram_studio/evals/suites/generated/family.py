"""How a family draws: question by question, each from a source of numbers of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question
from ram_studio.evals.suites.suite import SuiteSettings

USUAL_LIMIT = 60
HARDEST = 5
_FRUITLESS = 200

Draw = Callable[[Random, int, str], Question]


def family(name: str, draw: Draw) -> Callable[[SuiteSettings], tuple[Question, ...]]:
    """Return the `make` of a family.

    Args:
        draw: (source of numbers, difficulty, id) -> question; may repeat itself.
    """

    def make(settings: SuiteSettings) -> tuple[Question, ...]:
        if not 1 <= settings.difficulty <= HARDEST:
            raise EvaluationError(
                f"The difficulty is {settings.difficulty}. Choose 1 to {HARDEST}."
            )
        start = f"{name}-{settings.difficulty}-{settings.seed}"
        found: dict[str, Question] = {}
        wanted = USUAL_LIMIT if settings.limit is None else settings.limit
        for number in range(wanted):
            drawn = Random(f"{start}/{number}")
            for _ in range(_FRUITLESS):
                question = draw(drawn, settings.difficulty, f"{start}-{number:05d}")
                if question.prompt not in found:
                    break
            else:
                raise EvaluationError(
                    f"Suite {name} has no more than {number} different questions of difficulty "
                    f"{settings.difficulty}. Ask fewer, or harder ones."
                )
            found[question.prompt] = question
        return tuple(found.values())

    return make
