"""A report taken apart: scores by category, instruction accuracies, and replies that never came."""

from typing import Any

from ram_studio.evals.report.tables import DomainScore, EvalReport
from ram_studio.evals.suites.instructions import accuracies


def categories(report: EvalReport, model: str, domain: str) -> dict[str, DomainScore]:
    """Return a model's score in each category of a domain, in the order of the questions."""
    counts: dict[str, list[bool]] = {}
    answers = report.models[model].answers[domain]
    for item, answer in zip(report.items[domain], answers, strict=True):
        counts.setdefault(item.category, []).append(answer.is_correct)
    return {name: DomainScore(len(marks), sum(marks)) for name, marks in counts.items()}


def unanswered(report: EvalReport, model: str) -> int:
    """Return how many replies failed: they count as wrong, and asking again may help."""
    answers = report.models[model].answers.values()
    return sum(bool(answer.facts.get("failed")) for domain in answers for answer in domain)


def breakdown(report: EvalReport) -> dict[str, Any]:
    """Return {model: {"unanswered", "categories": {domain: {...}}, "accuracies" if any}}."""
    result: dict[str, Any] = {}
    for name, row in report.models.items():
        result[name] = {
            "unanswered": unanswered(report, name),
            "categories": {
                domain: {
                    category: score.to_dict()
                    for category, score in categories(report, name, domain).items()
                }
                for domain in report.items
            },
        }
        facts = [answer.facts for answer in row.answers.get("instructions", ())]
        found = accuracies(fact for fact in facts if "strict" in fact)
        if found:
            result[name]["accuracies"] = found
    return result
