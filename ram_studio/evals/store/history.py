"""Past evaluations out of the store: a report again, to compare and to export."""

from collections.abc import Sequence

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question
from ram_studio.evals.report.tables import Answer, EvalReport, ModelResult
from ram_studio.evals.store.answers import AnswerStore, StoredAnswer, StoredRun
from ram_studio.evals.suites.demo.tasks import SKILL_DOMAINS

HEALTH = "health"


def find_runs(store: AnswerStore, ids: Sequence[int]) -> list[StoredRun]:
    """Return the runs with these ids, in this order.

    Raises:
        EvaluationError: an id that the store does not have.
    """
    known = {run.id: run for run in store.runs()}
    for number in ids:
        if number not in known:
            raise EvaluationError(
                f"The store {store.path} has no run {number}. It has: "
                f"{', '.join(map(str, sorted(known))) or 'none'}."
            )
    return [known[number] for number in dict.fromkeys(ids)]


def stored_report(store: AnswerStore, runs: Sequence[StoredRun]) -> EvalReport:
    """Return a report of stored runs, holding the questions that all models of a suite answered.

    Runs of one model on several suites become one row. Two models of the same name are told apart
    by the beginning of their fingerprints. Health has no questions and is left out.

    Raises:
        EvaluationError: no runs, or models that have no question of a suite in common.
    """
    runs = [run for run in runs if run.suite != HEALTH]
    if not runs:
        raise EvaluationError("No stored run with questions was chosen. Choose one or more runs.")
    names = _names(runs)
    suites = list(dict.fromkeys(run.suite for run in runs))
    rows: dict[str, dict[str, dict[tuple[str, str], StoredAnswer]]] = {
        name: {} for name in names.values()
    }
    for run in runs:
        # Of two runs of a model on a suite (other settings), the one named first counts.
        rows[names[run.fingerprint]].setdefault(
            run.suite, {(a.item, a.question): a for a in store.answers(run.id) if a.reply.is_final}
        )
    items: dict[str, list[Question]] = {}
    answers: dict[str, dict[str, list[Answer]]] = {name: {} for name in rows}
    for suite in suites:
        missing = [name for name, held in rows.items() if suite not in held]
        if missing:
            raise EvaluationError(
                f"{missing[0]!r} has no chosen run of suite {suite!r}, others have. Choose runs of "
                "the same suites for every model."
            )
        for key in _common([held[suite] for held in rows.values()], suite):
            for name, held in rows.items():
                row = held[suite][key]
                answers[name].setdefault(row.domain, []).append(_answer(row))
            items.setdefault(row.domain, []).append(
                Question(row.item, row.domain, row.category, row.asked, row.gold, None, 0)
            )
    paths = {names[run.fingerprint]: run.path for run in runs}
    skills = SKILL_DOMAINS if suites == ["demo"] else tuple(items)
    models = {
        name: ModelResult(
            name,
            paths[name],
            {domain: tuple(parts) for domain, parts in held.items()},
            sum(answer.seconds or 0.0 for parts in held.values() for answer in parts),
            skills,
        )
        for name, held in answers.items()
    }
    asked = {domain: tuple(questions) for domain, questions in items.items()}
    return EvalReport(",".join(suites), 0, max(map(len, asked.values())), asked, models)


def _names(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Return fingerprint -> name, with the fingerprint's beginning where names clash."""
    labels = {run.fingerprint: run.model for run in runs}
    clashing = {label for label in labels.values() if list(labels.values()).count(label) > 1}
    return {
        print_: f"{label} ({print_[:6]})" if label in clashing else label
        for print_, label in labels.items()
    }


def _common(
    held: Sequence[dict[tuple[str, str], StoredAnswer]], suite: str
) -> list[tuple[str, str]]:
    keys = [key for key in held[0] if all(key in other for other in held[1:])]
    if not keys:
        raise EvaluationError(
            f"The chosen runs of suite {suite!r} have no question in common. Choose runs with the "
            "same seed, lengths and suite version."
        )
    return keys


def _answer(row: StoredAnswer) -> Answer:
    verdict = row.verdict
    return Answer(
        row.reply.text, verdict.is_correct, verdict.note, verdict.facts, row.reply.seconds
    )
