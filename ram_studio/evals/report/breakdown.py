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


def missing(report: EvalReport) -> list[str]:
    """Return sentences on what keeps scores from resting on all questions, model by model."""
    said = []
    for name, row in report.models.items():
        for domain, answers in row.answers.items():
            found = outcomes(answers)
            words = {
                "too long": "do not fit its context with their answers and were not asked",
                "refused": "were refused",
                "failed": "got no answer, run the same again to ask them again",
            }
            parts = [f"{found[key]} {text}" for key, text in words.items() if found[key]]
            if parts:
                said.append(
                    f"{name}, {domain}: of {found['questions']} questions {'; '.join(parts)}. "
                    "They are in no score and no comparison."
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
        result[name] = {
            # They count nowhere, and asking again may help.
            "unanswered": sum(outcomes(own)["failed"] for own in row.answers.values()),
            "categories": {
                domain: {
                    category: score.to_dict()
                    for category, score in categories(report, name, domain).items()
                }
                for domain in report.items
            },
        }
        found = result[name]["categories"]
        figures = {d: own for d in found if (own := _summary(d, found[d], row.answers[d]))}
        if figures:
            result[name]["summary"] = figures
        draws = {d: found for d, own in row.answers.items() if (found := sample_scores(own))}
        if draws:
            result[name]["samples"] = draws
        facts = [answer.facts for answer in row.answers.get("instructions", ())]
        found = accuracies(fact for fact in facts if "strict" in fact)
        if found:
            result[name]["accuracies"] = found
    return result


def _summary(
    domain: str, scores: Mapping[str, Mapping[str, Any]], answers: Sequence[Answer]
) -> dict[str, float]:
    suite = ALL_SUITES.get(domain)
    if suite is None or suite.summary is None:
        return {}
    tally = {name: (own["correct"], own["n"]) for name, own in scores.items()}
    return dict(suite.summary(tally, [answer.facts for answer in answers if answer.is_scored]))


def drawn_rows(parts: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what several draws show, from a `breakdown`: (what, a text for each model).

    Empty without draws: "math: mean of 4", "math: pass@2", ...; "-" where a model has none.
    """
    domains = {d: found for part in parts.values() for d, found in part.get("samples", {}).items()}
    rows = []
    for domain, first in domains.items():
        own = [part.get("samples", {}).get(domain) for part in parts.values()]
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
