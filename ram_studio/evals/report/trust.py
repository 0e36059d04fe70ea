"""What a table rests on, in one line: floors, what went unanswered, prompts, template, software."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ram_studio._version import __version__
from ram_studio.evals.report.tables import EvalReport, ModelResult, outcomes

_GRAM = 4
_LIBRARIES = ("torch", "transformers", "vllm")
_COUNTED = ("too long", "cut off", "empty", "refused", "failed")


def trust(report: EvalReport) -> dict[str, Any]:
    """Return what a report rests on, JSON-ready.

    {"floors", "seed", "questions" (how many), "prompts" (12 hex digits that are equal for equal
    questions), "software" (of this report; stored answers may be older), "models": {NAME: {"too
    long", "cut off", "empty", "refused", "failed", "repetition" (share of four-word runs that
    occurred before in their answer), "template", "asked" (the settings it was asked with)}}}
    """
    questions = [item for items in report.items.values() for item in items]
    digest = hashlib.blake2b(digest_size=6)
    # In an order of their own: the store keeps another than a check does.
    for prompt in sorted(item.prompt for item in questions):
        digest.update(f"{prompt}\0".encode("utf-8", "replace"))
    return {
        "floors": dict(report.floors),
        "seed": report.seed,
        "questions": len(questions),
        "prompts": digest.hexdigest(),
        "software": _software(),
        "models": {name: _of(row) for name, row in report.models.items()},
    }


def trust_lines(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what `trust` found as sentences: one on the table, one on each model."""
    software = ", ".join(f"{name} {number}" for name, number in found["software"].items())
    seed = "not kept" if found["seed"] is None else found["seed"]
    floors = ", ".join(f"{domain} {100 * floor:.0f} %" for domain, floor in found["floors"].items())
    asked = f"hash {found['prompts']}, seed {seed}"
    parts = [f"{found['questions']} questions ({asked})", f"floor: {floors or 'not known'}"]
    said = [f"{'; '.join([*parts, software])}."]
    for name, row in found["models"].items():
        counts = ", ".join(f"{row[key]} {key}" for key in _COUNTED if row[key])
        how = ", ".join(f"{key} {value}" for key, value in row["asked"].items() if key != "chat")
        parts = [
            counts or "every question answered to its end",
            f"{100 * row['repetition']:.0f} % repeated",
            f"template: {row['template']}",
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


def _software() -> dict[str, str]:
    found = {"ram-studio": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
