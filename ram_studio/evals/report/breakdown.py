"""A report taken apart: scores by category, instruction accuracies, and replies that never came."""

from collections.abc import Mapping, Sequence
from typing import Any

from ram_studio.evals.question import Answer
from ram_studio.evals.report.score import DomainScore, sample_scores
from ram_studio.evals.report.tables import EvalReport, outcomes
from ram_studio.evals.suites import ALL_SUITES
from ram_studio.evals.suites.instructions import accuracies


def categories(report: EvalReport, model: str, domain: str) -> dict[str, DomainScore]:
    """Return a model's score in each category of a domain, in the order of the questions."""
    found: dict[str, list[Answer]] = {}
    answers = report.models[model].answers[domain]
    for item, answer in zip(report.items[domain], answers, strict=True):
        found.setdefault(item.category, []).append(answer)
    return {name: DomainScore.of(own) for name, own in found.items()}


_MISSING = {
    "too long": "do not fit its context with their answers and were not asked",
    "refused": "were refused",
    "failed": "got no answer, run the same again to ask them again",
}


def missing(report: EvalReport) -> list[str]:
    """Return sentences on questions without a whole answer, model by model."""
    said = []
    for name, row in report.models.items():
        for domain, answers in row.answers.items():
            found = outcomes(answers)
            parts = [f"{found[key]} {text}" for key, text in _MISSING.items() if found[key]]
            if parts:
                said.append(
                    f"{name}, {domain}: of {found['questions']} questions {'; '.join(parts)}. "
                    "They are in no score and no comparison."
                )
            if found["timed_out"]:
                said.append(
                    f"{name}, {domain}: {found['timed_out']} of {found['asked']} questions timed "
                    "out. They count as wrong."
                )
            if found["cut off"]:
                said.append(
                    f"{name}, {domain}: {found['cut off']} of {found['asked']} answers were cut "
                    "off at the limit of tokens."
                )
    return said


def breakdown(report: EvalReport) -> dict[str, Any]:
    """Return {model: {"unanswered", "categories": {domain: {...}}, ...}}.

    Where there are any, also "samples" (see `samples`), "accuracies" of instructions, and
    "summary": {domain: figures as the suite's publishers make them}.
    """
    result: dict[str, Any] = {}
    for name, row in report.models.items():
        scores = {domain: categories(report, name, domain) for domain in report.items}
        facts = [answer.facts for answer in row.answers.get("instructions", ())]
        extras: dict[str, Any] = {
            "summary": {d: own for d in scores if (own := _summary(d, scores[d], row.answers[d]))},
            "samples": {d: got for d in row.answers if (got := sample_scores(row.answers[d]))},
            "accuracies": accuracies(fact for fact in facts if "strict" in fact),
        }
        result[name] = {
            # They count nowhere, and asking again may help.
            "unanswered": sum(outcomes(own)["failed"] for own in row.answers.values()),
            "categories": {
                domain: {category: score.to_dict() for category, score in own.items()}
                for domain, own in scores.items()
            },
            **{what: found for what, found in extras.items() if found},
        }
    return result


def _summary(
    domain: str, scores: Mapping[str, DomainScore], answers: Sequence[Answer]
) -> dict[str, float]:
    suite = ALL_SUITES.get(domain)
    if suite is None or suite.summary is None:
        return {}
    tally = {name: (own.correct, own.n) for name, own in scores.items()}
    return dict(suite.summary(tally, [answer.facts for answer in answers if answer.is_scored]))


def drawn_rows(parts: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what several draws show, from a `breakdown`: (what, a text for each model).

    Empty without draws: "math: mean of 4", "math: pass@2", ...; "-" where a model has none.
    """
    drawn = [part.get("samples", {}) for part in parts.values()]
    rows = []
    for domain, first in {d: found for own in drawn for d, found in own.items()}.items():
        own = [found.get(domain) for found in drawn]
        rows.append((f"{domain}: mean of {first['samples']}", [_mean(found) for found in own]))
        rows += [
            (f"{domain}: pass@{k}", ["-" if f is None else f"{f['pass_at'][k]:.3f}" for f in own])
            for k in first["pass_at"]
            if k != "1"
        ]
    return rows


def _mean(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = found["ci95"]
    return f"{found['mean']:.3f} [{low:.2f}, {high:.2f}]"
