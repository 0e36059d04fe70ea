"""A calibration record: one model, every question it was asked, right or wrong, and how.

JSON, one file a model. Keys: format; model; note (where the weights came from); weights (hash of
weights, tokenizer and template); settings (engine, device, dtype, template, decoding); template;
seed; software; began and ended (UTC); suites. By suite: version; prompts (hash, see `trust`);
domains, by name: n, correct, score, ci95, floor, and question by question in one order: questions
(the first 12 digits of each digest), right and nonsense (a digit 0 or 1 each; nonsense: whether the
answerer of nonsense that sets the floor has it right), outcomes (see `tables.outcomes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.floor import FACT, best_nonsense
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.report.tables import EvalReport, outcomes
from ram_studio.evals.report.trust import trust
from ram_studio.evals.suites import ALL_SUITES

FORMAT = 1
FOLDER = Path(__file__).with_name("records")
SLOTS = (
    "SmolLM2-135M-Instruct",
    "Qwen2.5-Coder-0.5B-Instruct",
    "Qwen2.5-Coder-1.5B-Instruct",
    "Qwen2.5-Coder-3B-Instruct",
    "Qwen2.5-Coder-7B-Instruct",
)
"""Models that are to be measured, from small to large; those without a record are not."""
DIGITS = 12


def make_record(
    reports: Mapping[str, EvalReport], *, began: str, ended: str, weights: str, note: str
) -> dict[str, Any]:
    """Return the record of the one model in these reports by suite.

    began, ended: when it was asked. weights: its fingerprint. note: where it came from.
    """
    suites = {name: _suite(name, report) for name, report in reports.items()}
    first = next(iter(reports.values()))
    name, row = next(iter(first.models.items()))
    basis = trust(first)
    return {
        "format": FORMAT,
        "model": name,
        "note": note,
        "weights": weights,
        "settings": dict(row.asked),
        "template": basis["models"][name]["template"],
        "seed": first.seed,
        "software": basis["software"],
        "began": began,
        "ended": ended,
        "suites": suites,
    }


def _suite(name: str, report: EvalReport) -> dict[str, Any]:
    (row,) = report.models.values()
    return {
        "version": ALL_SUITES[name].version,
        "prompts": trust(report)["prompts"],
        "domains": {d: _domain(items, row.answers[d]) for d, items in report.items.items()},
    }


def _domain(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    asked = [(q, a) for q, a in zip(questions, answers, strict=True) if a.is_scored]
    score = DomainScore.of(answer for _, answer in asked)
    luckiest, floor = best_nonsense(answer.facts for _, answer in asked) or ("", None)
    return {
        **{k: v for k, v in score.to_dict().items() if k != "stderr"},
        "floor": floor,
        "questions": [question.digest[:DIGITS] for question, _ in asked],
        "right": "".join(str(int(answer.is_correct)) for _, answer in asked),
        "nonsense": "".join(str(int(luckiest in a.facts.get(FACT, ()))) for _, a in asked),
        "outcomes": outcomes(answers),
    }


def save_record(record: Mapping[str, Any], path: str | Path) -> Path:
    """Write a record: the same bytes for the same record."""
    path = Path(path)
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def load_record(path: str | Path) -> dict[str, Any]:
    """Read a record.

    Raises: EvaluationError when the file is missing, damaged or of another format.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        found = record["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(
            f"The calibration record {path} cannot be read ({type(error).__name__}); make it anew "
            "with `python -m ram_studio.evals.calibration.measure`."
        ) from error
    if found != FORMAT:
        raise EvaluationError(
            f"The calibration record {path} has format {found}, this version reads {FORMAT}; make "
            "it anew."
        )
    return dict(record)


@lru_cache(maxsize=2)
def shipped_records(folder: Path = FOLDER) -> tuple[dict[str, Any], ...]:
    """Return the records in a folder, in the order of `SLOTS`, others after them by name."""
    found = [load_record(path) for path in sorted(folder.glob("*.json"))]
    place = {name: i for i, name in enumerate(SLOTS)}
    return tuple(sorted(found, key=lambda record: place.get(record["model"], len(place))))


def not_measured(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the slots without a record."""
    known = {record["model"] for record in records}
    return [name for name in SLOTS if name not in known]


def calibrated(records: Sequence[Mapping[str, Any]], domain: str) -> dict[str, dict[str, bool]]:
    """Return by model its marks in a domain, by the questions' digests (12 digits).

    Answers to another version of a suite are left out: they were judged otherwise.
    """
    found = {}
    for record in records:
        marks: dict[str, bool] = {}
        for name, suite in record["suites"].items():
            own, known = suite["domains"].get(domain), ALL_SUITES.get(name)
            if own and known and suite["version"] == known.version:
                pairs = zip(own["questions"], own["right"], strict=True)
                marks |= {digest: right == "1" for digest, right in pairs}
        if marks:
            found[record["model"]] = marks
    return found
