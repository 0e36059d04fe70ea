"""What an experiment found, or how far it is: rows, their order, sentences, JSON and a table.

A sweep and a comparison have the same result. A sweep looks for the best of many settings and
checks it on held-out questions; a comparison puts every row beside one reference row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, InstanceOf, computed_field
from pydantic.dataclasses import dataclass

from ram_studio.algorithm.analysis import BASE
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import has_lambda
from ram_studio.checkpoints.read.describe import plural, shown_list
from ram_studio.checkpoints.record.provenance import not_checked
from ram_studio.evals.experiment.draws import Spread
from ram_studio.evals.experiment.race import ERROR, Loss
from ram_studio.evals.experiment.search import Surrogate
from ram_studio.evals.report.comparison import Comparison, PairedCounts
from ram_studio.evals.report.damage import Damage, find_inherited
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.eval_result import Reproducibility
from ram_studio.evals.report.score import (
    Average,
    DomainScore,
    ParaphraseScores,
    SampleScores,
    sample_rows,
)
from ram_studio.evals.until import StopDecision

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["sweep", "comparison"]
Status = Literal[
    "waiting", "running", "partial", "finished", "worse", "dropped", "duplicate", "unfinished",
    "failed",
]  # fmt: skip
STATUS_TEXTS: dict[Status, str] = {
    "waiting": "waiting",
    "running": "being asked",
    "partial": "still compared",
    "finished": "no significant difference",
    "worse": "clearly worse",
    "dropped": "dropped",
    "duplicate": "same merge",
    "unfinished": "not finished",
    "failed": "failed",
}
Ending = Literal["running", "done", "out_of_time", "stopped"]
_AGAINST = {
    "better": "Better than",
    "worse": "Worse than",
    "inconclusive": "Not significantly different from",
}
_MOST_NAMED = 6
_STOPPED = "the comparison was stopped; run the same again to continue."


@dataclass
class Row:
    """One merge, or the base or an agent itself. A result holds copies, which nobody changes.

    method, settings, merged_agents: of a merge, with all settings; weights: by agent, a list over
    the layers, 1 where left out. values: by axis of a sweep.
    status: "partial" answered some stages, "finished" all of them; "dropped" lost clearly on the
    way, "worse" at the end; "duplicate" is the same merge as `same_as`, whose score it has;
    "unfinished" ran out of time or was stopped; "failed" cannot be merged, see `note`. is_start:
    where a sweep starts. domains: scores on the questions answered; average: of the skills.
    samples, paraphrases: what several samples and wordings show, by domain. merge_draws,
    answer_draws: what chance makes of a comparison's row; its domains and average are the mean over
    all draws then. versus: against a comparison's reference over all skills, corrected for the
    number of rows. loss: why a sweep dropped it. agents: by name rho, lambda, effective_lambda,
    ...; before the merge was made, lambda alone. merge_seconds: None until it was merged; seconds:
    spent on it in this run, answers included.
    """

    label: str
    kind: Literal["merge", "agent", "base"] = "merge"
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    merged_agents: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    status: Status = "waiting"
    same_as: str | None = None
    is_start: bool = False
    note: str = ""
    domains: dict[str, DomainScore] = field(default_factory=dict)
    average: Average = field(default_factory=lambda: Average.over(()))
    samples: dict[str, SampleScores] = field(default_factory=dict)
    paraphrases: dict[str, ParaphraseScores] = field(default_factory=dict)
    merge_draws: Spread | None = None
    answer_draws: Spread | None = None
    versus: Comparison | None = None
    loss: Loss | None = None
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)
    merge_seconds: float | None = None
    seconds: float = 0.0

    @property
    def n(self) -> int:
        """Skill questions answered."""
        return self.average.n

    @property
    def correct(self) -> int:
        """Skill questions answered right."""
        return self.average.correct

    @property
    def is_out(self) -> bool:
        return self.status in ("dropped", "worse")

    @property
    def is_over(self) -> bool:
        """Whether nothing more is asked of it."""
        return self.status not in ("waiting", "running", "partial")

    @property
    def has_lambda(self) -> bool:
        return has_lambda(self.method)

    @property
    def factors(self) -> dict[str, float | None]:
        """Requested lambda by agent; empty where it is not known, or the method has none."""
        return {n: own.get("lambda") for n, own in self.agents.items() if self.has_lambda}

    @property
    def is_default(self) -> bool:
        """Whether it is a merge at its method's default settings."""
        method = METHODS.get(self.method)
        usual = method.settings().model_dump(mode="json") if method else None
        return self.settings == usual and not self.weights


@dataclass(frozen=True)
class Recheck:
    """The winner and the start on questions that nothing was chosen by.

    winner, start: the mean over the skills. domains: by "winner" and "start", every held-out
    domain, retention included; the start's are the winner's when they are one setting. counts:
    winner against start over the skill domains, None when they are one.
    """

    winner: Average
    start: Average
    domains: dict[str, dict[str, DomainScore]]
    counts: PairedCounts | None

    @staticmethod
    def of(report: EvalReport) -> Recheck:
        """Return the re-check of a report's "winner" and "start", without it when they are one."""
        winner = report.models["winner"]
        start = report.models.get("start")
        both = {"winner": winner.domains, "start": (start or winner).domains}
        counts = None if start is None else report.compare("winner", "start")["skills"]
        return Recheck(winner.average, (start or winner).average, both, counts)


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment at one moment; the last one is its result.

    suite: names of suites, with commas. search: how a sweep chooses settings. rows: in the order
    they were begun. reference: label of the row that the others of a comparison are compared with;
    winner: of a sweep's best so far, None before the first score. questions, held_out: how many
    skill questions rows are compared on, and the winner is checked with. settings: distinct rows
    planned; tests: made so far; level: of each of a sweep's tests. total_answers: what is to be
    asked at most, answers: how many came (stored ones included). now: what is being asked. skills:
    the domains that make the average. until: how asking until decided ended. surrogate: what SLIM
    fitted. damage: what agents lost off their own skills, where a comparison asked them. report:
    the finished rows of a comparison with all answers, which the JSON leaves out.
    """

    kind: Kind
    suite: str
    seed: int
    search: Literal["grid", "optuna", "slim"] = "grid"
    reference: str | None = None
    ending: Ending = "running"
    winner: str | None = None
    questions: int = 0
    held_out: int = 0
    settings: int = 0
    tests: int = 0
    level: float = ERROR
    rows: tuple[Row, ...] = ()
    recheck: Recheck | None = None
    skills: tuple[str, ...] = ()
    chance_levels: dict[str, float] = field(default_factory=dict)
    reproducibility: Reproducibility | None = None
    until: StopDecision | None = None
    surrogate: Surrogate | None = None
    damage: tuple[Damage, ...] = ()
    answers: int = 0
    total_answers: int = 0
    seconds: float = 0.0
    now: str = ""
    report: InstanceOf[EvalReport] | None = Field(default=None, exclude=True, repr=False)

    def row(self, label: str) -> Row:
        return next(row for row in self.rows if row.label == label)

    @property
    def best(self) -> Row | None:
        return None if self.winner is None else self.row(self.winner)

    @property
    def best_agent(self) -> Row | None:
        """The row of the agent that scores best alone; the first of equals."""
        agents = [row for row in self.rows if row.kind == "agent" and row.n]
        return max(agents, key=lambda row: row.average.score, default=None)

    @property
    def is_sweep(self) -> bool:
        """Whether it looks for the best of many settings."""
        return self.kind == "sweep"

    @property
    def measured(self) -> tuple[Row, ...]:
        """Rows with a score of their own."""
        return tuple(row for row in self.rows if row.n and row.status != "duplicate")

    @property
    def ranked(self) -> tuple[Row, ...]:
        """A sweep's rows with the winner first, then by score, losers last; else as begun."""

        def rank(row: Row) -> tuple[bool, bool, float]:
            return row.label != self.winner, row.is_out, -row.average.score if row.n else 1.0

        return tuple(sorted(self.rows, key=rank)) if self.is_sweep else self.rows

    @property
    def domains(self) -> list[str]:
        """The domains that rows have scores in: skills, then what stands beside them."""
        return list(dict.fromkeys(chain(self.skills, *(row.domains for row in self.rows))))

    @computed_field
    @property
    def not_worse(self) -> tuple[str, ...]:
        """The settings that the questions do not show to be worse than a sweep's winner."""
        alive = ("finished", "partial", "unfinished") if self.is_sweep else ()
        return tuple(row.label for row in self.rows if row.status in alive and row.n)

    @property
    def unfinished(self) -> dict[str, str]:
        """Why rows of a comparison have no score, by label."""
        missing = ("unfinished", "failed")
        return {row.label: row.note or _STOPPED for row in self.rows if row.status in missing}

    @property
    def lines(self) -> tuple[str, ...]:
        """What is needed to make the table again, a sentence each; empty before its end."""
        found = self.reproducibility
        return () if found is None else found.lines(self.chance_levels)

    @property
    def sample_rows(self) -> list[tuple[str, list[str]]]:
        """What several samples and wordings show, a row for each figure."""
        return sample_rows((row.samples, row.paraphrases) for row in self.ranked)

    @computed_field
    @property
    def not_checked(self) -> tuple[str, ...]:
        """As in `EvalResult`."""
        return not_checked(self.suite.split(","))

    @computed_field
    @property
    def statements(self) -> tuple[str, ...]:
        """What was found, one sentence each, with what it rests on."""
        sentences = _sweep_sentences(self) if self.is_sweep else _comparison_sentences(self)
        return tuple(sentences)

    def to_frame(self) -> DataFrame:
        """Return the rows as a table; what is not known is missing."""
        from pandas import DataFrame

        axes = dict.fromkeys(name for row in self.rows for name in row.values if name != "method")
        agents = dict.fromkeys(name for row in self.rows for name in row.agents)
        flat = (_columns(row, self.domains, axes, agents) for row in self.rows)
        # Counts, though the reference itself has none.
        return DataFrame(flat).astype({"gained": "Int64", "lost": "Int64"})


def _columns(
    row: Row, domains: list[str], axes: Mapping[str, None], agents: Mapping[str, None]
) -> dict[str, Any]:
    flat: dict[str, Any] = {
        **{key: getattr(row, key) for key in ("label", "kind", "method", "status", "same_as")},
        "settings": json.dumps(row.settings) if row.settings else None,
        "weights": json.dumps(row.weights) if row.weights else None,
        **{axis: row.values.get(axis) for axis in axes},
        "n": row.n,
        "correct": row.correct,
        **{f"average{end}": value for end, value in _ends(row.average)},
    }
    for domain in domains:
        score = row.domains.get(domain, DomainScore(0, 0))
        flat |= {f"{domain}{end}": value for end, value in _ends(score)}
    for agent in agents:
        own = row.agents.get(agent, {})
        flat |= {f"{k}_{agent}": own.get(k) for k in ("rho", "lambda", "effective_lambda")}
    versus = row.versus
    return flat | {
        "draw_spread": None if row.merge_draws is None else row.merge_draws.spread,
        "sample_spread": None if row.answer_draws is None else row.answer_draws.spread,
        "merge_seconds": row.merge_seconds,
        "seconds": row.seconds,
        "gained": None if versus is None else versus.counts.wins,
        "lost": None if versus is None else versus.counts.losses,
        "p": None if versus is None else versus.counts.p_value,
        "p_adjusted": None if versus is None else versus.p_adjusted,
        "versus_reference": None if versus is None else versus.outcome,
    }


def _ends(score: DomainScore) -> list[tuple[str, float | None]]:
    return list(zip(("", "_low95", "_high95"), score.columns().values(), strict=True))


# ---------------------------------------------------------------------------- a comparison


def _comparison_sentences(result: ExperimentResult) -> list[str]:
    """Return which other merges, and the best agent alone, differ from the reference."""
    rows = {row.label: row.domains for row in result.rows}
    # The control is one agent alone.
    merges = [row.domains for row in result.rows if len(row.merged_agents) > 1]
    lost = find_inherited(result.damage, rows.get(BASE, {}), merges)
    sentences = [one.sentence() for one in lost]
    best, found = result.best_agent, dict[str, list[str]]()
    for row in result.rows:
        if row.versus is not None and (row.kind == "merge" or row is best):
            who = f"{row.label} (the best single agent)" if row is best else row.label
            found.setdefault(row.versus.outcome, []).append(who)
    for outcome, words in _AGAINST.items():
        if who := ", ".join(found.get(outcome, ())):
            sentences.append(f"{words} {result.reference} on all skill questions: {who}.")
    if usual := [row.label for row in result.rows if row.is_default]:
        named = shown_list(usual, _MOST_NAMED, ", ")
        sentences.append(f"At default settings, not tuned: {named}.")
    for row in result.rows:
        for what, drawn in (("merge", row.merge_draws), ("answers", row.answer_draws)):
            if drawn is not None and row.status != "duplicate":
                sentences.append(drawn.sentence(row.label, what))
    if result.until:
        sentences.append(result.until.sentence)
    if result.ending != "running":
        for why in dict.fromkeys(result.unfinished.values()):
            labels = ", ".join(name for name, own in result.unfinished.items() if own == why)
            sentences.append(f"No score for {labels}: {why}")
    return sentences


# ---------------------------------------------------------------------------- a sweep


def _sweep_sentences(result: ExperimentResult) -> list[str]:
    """Return what a sweep tried, its winner, the re-check, and what is not shown to be worse."""
    best = result.best
    if best is None:
        reasons = {
            "out_of_time": "No setting was scored before time was up; allow more minutes or ask "
            "fewer questions.",
            "stopped": "No setting was scored before the sweep was stopped.",
            "done": "No setting could be merged.",
        }
        return [reasons.get(result.ending, "No setting has been scored yet.")]
    sentences = [_trials_text(result), _winner_text(result, best), *_prediction_texts(result)]
    if result.until:
        sentences.append(result.until.sentence)
    if result.recheck is not None:
        sentences += _recheck_texts(result.recheck, best)
    elif result.ending == "running":
        return sentences + _at_chance(result, best)
    elif result.held_out == 0:
        sentences.append("No questions were held out, so the optimism was not measured.")
    else:
        why = "stopped" if result.ending == "stopped" else "out of time"
        sentences.append(
            f"It was not checked on held-out questions, because the sweep was {why}; run the same "
            "again to continue."
        )
    sentences += _at_chance(result, best)
    return sentences if result.ending == "running" else [*sentences, _not_worse(result)]


def _trials_text(result: ExperimentResult) -> str:
    rows = [row.status for row in result.rows]
    open_rows = sum(rows.count(one) for one in ("waiting", "partial", "unfinished"))
    parts = [f"{_were(len(result.measured), 'setting')} compared"]
    if same := rows.count("duplicate"):
        parts.append(f"{same} more gave the same merge as one of them")
    if dropped := rows.count("dropped"):
        parts.append(f"{_were(dropped, 'clear loser')} dropped early")
    if open_rows and result.ending != "running":
        parts.append(f"{open_rows} {'was' if open_rows == 1 else 'were'} not finished")
    return f"{'; '.join(parts)}; {_were(result.tests, 'test')} made."


def _winner_text(result: ExperimentResult, best: Row) -> str:
    score, settings = _interval(best.average), len(result.measured)
    text = f"Best on the {best.n} questions it was chosen by: {best.label}, {score}."
    # A race that is stopped within a stage compares by what all that are in it have answered.
    common = min((row.n for row in result.measured if not row.is_out), default=best.n)
    if result.search == "grid" and common < best.n:
        by = f"{common} questions that all open settings have answered"
        text = f"Best on the {by}: {best.label}, {score} on its {best.n}."
    return f"{text} As the best of {settings} this score is optimistic." if settings > 1 else text


def _prediction_texts(result: ExperimentResult) -> list[str]:
    """Return how well SLIM's surrogate predicted what it was not fitted to."""
    surrogate = result.surrogate
    if surrogate is None:
        failed = [row.label for row in result.rows if row.status == "failed"]
        named = shown_list(failed, _MOST_NAMED, ", ")
        lacks = f"SLIM predicts nothing: it needs the scores of {named}, which did not merge."
        return [lacks] if result.search == "slim" and failed else []
    predictions = []
    rows = {"the start": next((r for r in result.rows if r.is_start), None)}
    best = dict(zip(surrogate.agents, surrogate.weights(surrogate.best()), strict=True))
    rows["its best"] = next((r for r in result.rows if r.weights.items() >= best.items()), None)
    for name, row in rows.items():
        shares = None if row is None else surrogate.shares_of(row.weights)
        if row is not None and row.n and shares is not None:
            predicted = surrogate.predict(shares)
            predictions.append(f"{predicted:.3f} at {name} (measured: {row.average.score:.3f})")
    if not predictions:  # its best is still asked, and the start has no shares
        return []
    singles = plural(len(surrogate.singles), "single")
    pairs = plural(len(surrogate.pairs), "pair")
    return [f"SLIM predicts from {singles} and {pairs}: {', '.join(predictions)}."]


def _recheck_texts(recheck: Recheck, best: Row) -> list[str]:
    sentences = [
        f"On {recheck.winner.n} held-out questions {best.label} scores {_interval(recheck.winner)} "
        f"({100 * (recheck.winner.score - best.average.score):+.1f} points)."
    ]
    counts = recheck.counts
    if best.is_start or counts is None:
        return [*sentences, "It is the setting the sweep started from."]
    outcome = counts.outcome(counts.p_value)
    return [
        *sentences,
        f"There the setting it started from scores {_interval(recheck.start)}: "
        f"{'no significant difference' if outcome == 'inconclusive' else outcome} "
        f"({counts.wins} gained, {counts.losses} lost, p {counts.p_value:.2g}; one comparison, on "
        "questions not used for choosing).",
    ]


def _at_chance(result: ExperimentResult, best: Row) -> list[str]:
    levels = result.chance_levels
    low = [d for d, one in best.domains.items() if d in levels and one.n and one.score <= levels[d]]
    if not low:
        return []
    return [
        f"On {', '.join(low)} the best is not above the chance level: no choice there means "
        "anything."
    ]


def _not_worse(result: ExperimentResult) -> str:
    others = [label for label in result.not_worse if label != result.winner]
    if not others:
        return "Every other finished setting lost clearly."
    shown = shown_list(others, _MOST_NAMED, ", ")
    text = f"These questions do not show {result.winner} to be better than {shown}."
    if result.search != "grid":
        return (
            f"{text} Settings were proposed by earlier answers to the same questions, so drops "
            "are a guide, not a proof."
        )
    if result.ending != "done":
        return text
    return (
        f"{text} The best setting tried is among these {len(others) + 1} with "
        f"{100 * (1 - ERROR):.0f} % confidence."
    )


def _interval(score: Average) -> str:
    low, high = score.ci95
    return f"{score.score:.3f} [{low:.3f}, {high:.3f}]"


def _were(number: int, noun: str) -> str:
    return f"{plural(number, noun)} {'was' if number == 1 else 'were'}"
