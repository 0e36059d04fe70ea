"""The skill table: which settings solve which questions, with every answer, small enough to ship.

Settings with equal weights have one row. The page looks settings up in it while sliders move, and
never interpolates.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.algorithm.epsilon_grid import find_grid_index
from ram_studio.algorithm.methods import METHODS
from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Answer, Question

TABLE_FORMAT = 1
TUNED = ("epsilon", "r", "alpha")
"""Settings with a slider in Tune, which every row has."""


class MeasuredRow(NamedTuple):
    """One row: a measured model, and its answers by question id.

    method: of a merge, else the name of the base or an agent, with kind "source"; point: the
    epsilon grid's index of the settings' epsilon, None without one or off the grid.
    """

    kind: str
    method: str
    settings: Mapping[str, Any]
    point: int | None
    answers: Mapping[str, Answer]


def merge_row(recipe: Mapping[str, Any], answers: Mapping[str, Answer]) -> MeasuredRow:
    """Return the row of a merge, with its chosen settings and `TUNED`.

    recipe: with "method", "settings" and "weights".
    """
    method, settings = recipe["method"], recipe["settings"]
    usual = METHODS[method].settings.model_fields
    own = {n: v for n, v in settings.items() if n in TUNED or v != usual[n].default}
    if weights := recipe.get("weights"):
        own["weights"] = weights
    epsilon = settings.get("epsilon")
    point = None if epsilon is None else find_grid_index(float(epsilon))
    return MeasuredRow("merge", method, own, point, answers)


def skill_table(questions: Sequence[Question], measured: Sequence[MeasuredRow]) -> dict[str, Any]:
    """Return the table as JSON data, the same for the same answers.

    Keys: format; n (questions per domain); domains; prompts, gold, hard and answers, by question,
    domain by domain (answers: the different texts that any row gave); rows: kind, method, settings,
    k (the grid point), right (a digit 0 or 1 per question), answers (per question, the index of its
    text), factors (own and shared by agent, measured where no formula gives them).

    Raises: EvaluationError when domains have different numbers of questions, or a row lacks one.
    """
    domains = list(dict.fromkeys(q.domain for q in questions))
    by_domain = {d: [q for q in questions if q.domain == d] for d in domains}
    sizes = {d: len(own) for d, own in by_domain.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{d} {n}" for d, n in sizes.items())
        raise EvaluationError(
            f"A skill table needs as many questions in every domain, not {counts}."
        )
    asked = [q for own in by_domain.values() for q in own]
    texts: list[dict[str, int]] = [{} for _ in asked]
    rows = []
    for row in measured:
        if missing := sum(q.id not in row.answers for q in asked):
            raise EvaluationError(
                f"{row.method} lacks {missing} of {len(asked)} answers; a row of a skill table "
                "needs all of them."
            )
        own = [row.answers[q.id] for q in asked]
        rows.append(
            {
                "kind": row.kind,
                "method": row.method,
                "settings": dict(row.settings),
                "k": row.point,
                "right": "".join(str(int(a.is_correct)) for a in own),
                "answers": [t.setdefault(a.text, len(t)) for t, a in zip(texts, own, strict=True)],
                "factors": None,
            }
        )
    return {
        "format": TABLE_FORMAT,
        "n": max(sizes.values(), default=0),
        "domains": domains,
        "prompts": [q.prompt for q in asked],
        "gold": [q.gold for q in asked],
        "hard": [int(q.is_hard) for q in asked],
        "rows": rows,
        "answers": [list(known) for known in texts],
    }


def save_table(table: Mapping[str, Any], path: str | Path) -> Path:
    """Write a table as gzipped JSON: the same bytes for the same table."""
    data = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    path = Path(path)
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    return path


def load_table(path: str | Path) -> dict[str, Any]:
    """Read a table.

    Raises: EvaluationError when the file is missing, damaged or of another format.
    """
    where = f"The skill table {printable(Path(path))}"
    try:
        table = json.loads(gzip.decompress(Path(path).read_bytes()))
        found = table["format"]
    except FileNotFoundError as error:
        raise EvaluationError(
            f"{where} does not exist; make it with `python -m training.shipped.skill_tables`."
        ) from error
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(
            f"{where} is damaged or is not a skill table ({type(error).__name__}); make it again."
        ) from error
    if found != TABLE_FORMAT:
        raise EvaluationError(
            f"{where} has format {found}, this version reads {TABLE_FORMAT}; make it again."
        )
    return dict(table)
