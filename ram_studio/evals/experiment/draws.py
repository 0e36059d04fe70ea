"""The effect of chance on a row: merges with several seeds, and answers sampled with several.

A row's score is the mean over its draws. Its interval is by questions, as answers to one question
are correlated; the spread of the draws is shown beside it. Tests between rows use the first draw
only, an unbiased sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import computed_field
from pydantic.dataclasses import dataclass

from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.score import Average, DomainScore, marks_of

Draw = Mapping[str, Answer]
"""A draw's answers by question id."""


@dataclass(frozen=True)
class Spread:
    """The score of each draw, averaged over the skills, by its seed."""

    scores: dict[str, float]

    @computed_field
    @property
    def spread(self) -> float:
        """The best draw's score less the worst's."""
        return max(self.scores.values()) - min(self.scores.values())

    def sentence(self, label: str, what: str) -> str:
        """Return the spread as a sentence; what: is drawn."""
        each = ", ".join(f"{score:.3f}" for score in self.scores.values())
        return (
            f"{label} is the mean of {len(self.scores)} draws of its {what} (seeds "
            f"{', '.join(self.scores)}: {each}). Their spread of {self.spread:.3f} comes on top of "
            "its interval."
        )


def mean_scores(questions: Sequence[Question], draws: Sequence[Draw]) -> dict[str, DomainScore]:
    """Return the score by domain over all draws and samples of these questions."""
    domains: dict[str, list[list[Answer]]] = {}
    for question in questions:
        domains.setdefault(question.domain, []).append([own[question.id] for own in draws])
    return {domain: DomainScore.over_draws(own) for domain, own in domains.items()}


def spread_over_merges(
    questions: Sequence[Question], draws: Mapping[int, Draw], skills: Sequence[str]
) -> Spread | None:
    """Return the spread of a score over the merges' seeds; None for a single draw."""
    if len(draws) < 2:
        return None
    means = {str(seed): mean_scores(questions, [own]) for seed, own in draws.items()}
    return Spread({seed: Average.over_skills(own, skills).score for seed, own in means.items()})


def spread_over_samples(
    questions: Sequence[Question], draws: Sequence[Draw], seed: int, skills: Sequence[str]
) -> Spread | None:
    """Return the spread of a score over the answers' seeds; None for one sample of each question.

    Questions without all of their samples are left out. seed: of the first sample.
    """
    marks = [(q.domain, marks_of(own[q.id])) for own in draws for q in questions]
    count = max((len(own) for _, own in marks), default=0)
    whole = [(domain, own) for domain, own in marks if len(own) == count]
    if count < 2:
        return None
    found = {}
    for place in range(count):
        parts = [
            DomainScore(len(own), sum(own))
            for d in skills
            if (own := [marks[place] for domain, marks in whole if domain == d])
        ]
        found[str(seed + place)] = Average.over(parts).score
    return Spread(found)
