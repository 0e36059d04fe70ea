"""Ask until decided: add questions of a family until all intervals are narrow.

After 50, 100, 200, ... questions every model's score in every skill is checked. Asking ends when
all intervals are as narrow as requested, or when the budget of questions is spent. With repeated
looks a 95 % interval would be wrong in more than 5 % of cases; so each look uses an interval at
level 1 - 0.05 / looks (Bonferroni over all possible looks): the chance that the interval at the end
misses the truth stays at most 5 % for each score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import computed_field
from pydantic.dataclasses import dataclass

from ram_studio.errors import EvaluationError
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.suites import generated

FIRST = 50
MOST = 1600
ERROR = 0.05


@dataclass(frozen=True)
class StopDecision:
    """The outcome of asking until decided.

    questions: asked of each skill; looks: made, of at most `most_looks`; width: of the widest
    interval, at `level`; wanted: the requested width.
    """

    questions: int
    looks: int
    most_looks: int
    width: float
    wanted: float
    level: float

    @computed_field
    @property
    def is_decided(self) -> bool:
        """Whether all intervals are as narrow as requested."""
        return self.width <= self.wanted

    @computed_field
    @property
    def sentence(self) -> str:
        """The outcome, and the level of the intervals."""
        ending = "Decided" if self.is_decided else "The budget of questions ended undecided"
        return (
            f"{ending} after {self.questions} questions per skill: the widest interval spans "
            f"{100 * self.width:.1f} points ({100 * self.wanted:g} were wanted), at "
            f"{100 * self.level:.2f} % each, so that all {self.most_looks} possible looks together "
            f"keep 95 %; {self.looks} were made."
        )


@dataclass(frozen=True)
class Until:
    """The rule to stop asking: width: of intervals, between 0 and 1; most: questions per skill."""

    width: float
    most: int = MOST

    def check(self, suites: Sequence[str]) -> None:
        """Raise EvaluationError for suites without unlimited questions, or too small a limit."""
        known = {made.name for made in generated.SUITES}
        if set(suites) - known:
            raise EvaluationError(
                f"Only generated suites have unlimited questions; requested: {', '.join(suites)}. "
                f"Choose from: {', '.join(sorted(known))}."
            )
        if self.most < FIRST:
            raise EvaluationError(
                f"Asking until the width is reached takes {FIRST} questions or more, not at most "
                f"{self.most} questions. Choose a larger limit."
            )

    @property
    def sizes(self) -> list[int]:
        """Numbers of questions per skill at each look: 50, 100, 200, ... and most."""
        sizes = [FIRST]
        while sizes[-1] < self.most:
            sizes.append(min(2 * sizes[-1], self.most))
        return sizes

    def decide(self, number: int, scores: Iterable[DomainScore]) -> StopDecision:
        """Return the decision after a look (the first is 1), from all scores."""
        sizes = self.sizes
        level = 1 - ERROR / len(sizes)
        ends = [score.interval_at(level) for score in scores]
        widest = max((high - low for low, high in ends), default=1.0)
        return StopDecision(sizes[number - 1], number, len(sizes), widest, self.width, level)
