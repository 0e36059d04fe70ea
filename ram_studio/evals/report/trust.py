"""What a table rests on, in one line: floors, what went unanswered, prompts, template, software."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.tables import EvalReport, ModelResult, outcomes
from ram_studio.evals.store.records import joined

_GRAM = 4
_COUNTED = ("timed_out", "too long", "cut off", "empty", "refused", "failed")


def trust(report: EvalReport) -> dict[str, Any]:
    """Return what a report rests on, JSON-ready.

    {"floors", "seed" (of the questions: a number, several, or None where it was not recorded),
    "questions" (how many), "prompts" (12 hex digits that are equal for equal questions), "software"
    (versions by name that gave the answers, several parted by commas), "models": {NAME:
    {"timed_out", "too long", "cut off", "empty", "refused", "failed", "repetition" (share of
    four-word runs that occurred before in their answer), "template", "software", "asked" (the
    settings it was asked with)}}}. A sweep adds "held_out": {"questions", "prompts"}.
    """
    every = [a for row in report.models.values() for own in row.answers.values() for a in own]
    return {
        "floors": dict(report.floors),
        "seed": _seed(every) if report.seed is None else report.seed,
        **questions_told(item for items in report.items.values() for item in items),
        "software": joined(answer.origin for answer in every),
        "models": {name: _of(row) for name, row in report.models.items()},
    }


def questions_told(questions: Iterable[Question]) -> dict[str, Any]:
    """Return {"questions": how many, "prompts": their hash}, see `trust`."""
    # In an order of their own: the store keeps another than a check does.
    prompts = sorted(question.prompt for question in questions)
    told = "".join(f"{prompt}\0" for prompt in prompts).encode("utf-8", "replace")
    digest = hashlib.blake2b(told, digest_size=6).hexdigest()
    return {"questions": len(prompts), "prompts": digest}


def trust_lines(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what `trust` found as sentences: one on the table, one on each model."""
    seed = found["seed"]
    seeds = seed if isinstance(seed, list) else ["not recorded" if seed is None else seed]
    told = " and ".join(map(str, seeds))
    floors = ", ".join(f"{domain} {100 * floor:.0f} %" for domain, floor in found["floors"].items())
    parts = [
        f"{found['questions']} questions (hash {found['prompts']}, seed {told})",
        f"chance level: {floors or 'not known'}",
        _told(found["software"]),
    ]
    if held := found.get("held_out"):
        parts.insert(1, f"{held['questions']} held out (hash {held['prompts']})")
    said = [f"{'; '.join(parts)}."]
    for name, row in found["models"].items():
        counts = ", ".join(f"{row[key]} {key.replace('_', ' ')}" for key in _COUNTED if row[key])
        how = ", ".join(f"{key} {value}" for key, value in row["asked"].items() if key != "chat")
        own = [_told(row["software"])] if row["software"] not in ({}, found["software"]) else []
        parts = [
            counts or "every question answered to its end",
            f"{100 * row['repetition']:.0f} % repeated",
            f"template: {row['template']}",
            *own,
        ]
        said.append(f"{name}: {'; '.join([*parts, how] if how else parts)}.")
    return tuple(said)


def _of(row: ModelResult) -> dict[str, Any]:
    answers = [answer for own in row.answers.values() for answer in own]
    tally = outcomes(answers)
    known = {True: "the model's own", False: "none, plain text"}
    chat = row.asked.get("chat")
    return {
        **{key: tally[key] for key in _COUNTED},
        "repetition": _repetition(answer.text for answer in answers if answer.is_scored),
        "template": known[chat] if isinstance(chat, bool) else "not known",
        "software": joined(answer.origin for answer in answers),
        "asked": dict(row.asked),
    }


def _repetition(texts: Iterable[str]) -> float:
    total = repeated = 0
    for text in texts:
        words = text.lower().split()
        runs = [tuple(words[i : i + _GRAM]) for i in range(len(words) - _GRAM + 1)]
        total += len(runs)
        repeated += len(runs) - len(set(runs))
    return repeated / total if total else 0.0


def _seed(answers: Iterable[Answer]) -> int | list[int] | None:
    """Return the seed that these answers' questions were made with, all where there are several."""
    seeds = {answer.origin["seed"] for answer in answers if answer.origin.get("seed") is not None}
    return next(iter(seeds), None) if len(seeds) < 2 else sorted(seeds)


def _told(software: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in software.items())
