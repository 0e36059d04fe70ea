"""The wording of questions: a suite's own or a template's, and few-shot examples.

A template is a text with names in braces: {question} (or {prompt}, {query}), {context} of a long
text, {tests} of a program. For texts read in chunks there are also {memory} and {chunk}. All other
braces stay. Papers' templates are given in a file by suite; here are only two minimal ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.errors import EvalSettingsError, EvaluationError

OWN = "own"
HARNESS_PROMPTS = "lm-eval"
NAMED = {"plain": "{question}", "qa": "Question: {question}\nAnswer:"}
CHUNKS = "memagent"
"""A file's key for its templates for texts read in chunks, "read" and "answer"."""
MOST_BYTES = 1_000_000
_SAME = {"prompt": "question", "query": "question", "task": "question", "text": "context",
         "section": "chunk"}  # fmt: skip
_NAME = re.compile(r"\{(\w+)\}")

Templates = Mapping[str, Any]
"""Templates by suite; for CHUNKS two, "read" and "answer"."""


def fill(template: str, fields: Mapping[str, str]) -> str:
    """Return a template with the fields in place of their names; other braces stay."""
    return _NAME.sub(lambda found: fields.get(_SAME.get(found[1], found[1]), found[0]), template)


def word(name: str, own: str, fields: Mapping[str, str], templates: Templates) -> str:
    """Return a question's text, by the suite's template among these or by its own."""
    bare = templates.get("")
    if bare is not None:
        return fill(bare, {"question": "\n\n".join(fields.values())})
    return fill(templates.get(name, own), fields)


def after_examples(prompt: str, examples: Sequence[tuple[str, str]]) -> str:
    """Return a question after few-shot examples, each a question in this wording and an answer."""
    worked = [
        f"{asked}{' ' if asked.endswith(':') else chr(10) * 2}{answer.strip()}\n\n"
        for asked, answer in examples
    ]
    return "".join([*worked, prompt])


def load_templates(prompts: str, suites: Collection[str]) -> Templates:
    """Return the templates of a name or a file; under "" the one for every suite.

    Args: suites: those that may have a template.

    Raises: EvaluationError for an unknown name, or a file in another form.
    """
    if prompts in (OWN, HARNESS_PROMPTS):
        return {}
    if prompts in NAMED:
        return {"": NAMED[prompts]}
    if not Path(prompts).is_file():
        raise EvalSettingsError(
            f"The prompts are {prompts!r}, which is not a file. Choose {OWN}, {HARNESS_PROMPTS}, "
            f"{', '.join(NAMED)}, or a YAML file with a template for each suite."
        )
    from ram_studio.checkpoints.record.strict_yaml import load_plain

    found = load_plain(_read_file(prompts), prompts)
    if not isinstance(found, dict) or not found:
        raise EvaluationError(f"{prompts} holds no templates. Give `SUITE: text` for each suite.")
    for name, own in found.items():
        parts = own if name == CHUNKS and isinstance(own, dict) else {"": own}
        if name == CHUNKS and parts.keys() != {"read", "answer"}:
            raise EvaluationError(f"{prompts}: {CHUNKS} needs two templates, read and answer.")
        if name != CHUNKS and name not in suites:
            raise EvaluationError(
                f"{prompts}: suite {name!r} takes no template. Choose from: "
                f"{', '.join((*suites, CHUNKS))}."
            )
        for part, text in parts.items():
            wanted = {"read": {"question", "memory", "chunk"}, "answer": {"question", "memory"}}
            lacking = wanted.get(part, {"question"}) - _names(text)
            if lacking:
                raise EvaluationError(
                    f"{prompts}: the template {' '.join(filter(None, (name, part)))} has no "
                    f"{{{min(lacking)}}}. Put the name in braces where it belongs."
                )
    return found


def _names(text: Any) -> set[str]:
    found = _NAME.findall(text) if isinstance(text, str) else ()
    return {_SAME.get(name, name) for name in found}


def _read_file(file: str) -> bytes:
    from ram_studio.checkpoints.read.json_files import read_bounded

    return read_bounded(Path(file), "", limit=MOST_BYTES)


def stored_wording(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return prompts and shots of a stored run, whose settings leave out the defaults."""
    usual: dict[str, Any] = {"prompts": OWN, "shots": 0}
    if settings.get("engine") == HARNESS_PROMPTS:
        usual = {"prompts": HARNESS_PROMPTS, "shots": "each task's own"}
    return {name: settings.get(name, value) for name, value in usual.items()}


def prompts_name(prompts: str) -> str:
    """Return the prompts' name in results: for a file its name and a digest of its content."""
    if prompts in (OWN, HARNESS_PROMPTS, *NAMED):
        return prompts
    return f"{Path(prompts).name} {hashlib.blake2b(_read_file(prompts), digest_size=4).hexdigest()}"
