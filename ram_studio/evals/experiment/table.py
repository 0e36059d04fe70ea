"""How far a sweep is and what it found: rows, winner, re-check, sentences, JSON and a table.

Plain data: no model, no file, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ram_studio.evals.experiment.race import ERROR, Loss
from ram_studio.evals.report.score import Average, DomainScore
from ram_studio.evals.report.tables import EvalReport, PairedCounts, compare

if TYPE_CHECKING:
    from pandas import DataFrame

Status = Literal[
    "waiting", "running", "open", "kept", "behind", "dropped", "same", "unfinished", "failed"
]
Ending = Literal["running", "done", "out of time", "stopped"]


@dataclass
class SweepRow:
    """One setting. A state holds copies, which nobody changes.

    status: "open" answered some stages, "kept" all of them; "dropped" lost clearly on the way,
    "behind" at the end; "same" is the same merge as `same_as`, whose score it has; "unfinished"
    ran out of time or was stopped; "failed" cannot be merged, see `note`.
    domains: the skills' scores on the items answered; score: their mean.
    loss: why it is out. factors: lambda asked for by agent; empty until it was merged.
    merge_seconds: None until it was merged; seconds: spent on it in this run, answers included.
    samples: what several draws show, by domain, see `report.score`.
    """

    label: str
    values: Mapping[str, Any]
    method: str
    settings: Mapping[str, Any]
    status: Status = "waiting"
    same_as: str | None = None
    is_start: bool = False
    domains: Mapping[str, DomainScore] = field(default_factory=dict)
    loss: Loss | None = None
    note: str = ""
    factors: Mapping[str, float | None] = field(default_factory=dict)
    merge_seconds: float | None = None
    seconds: float = 0.0
    samples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def score(self) -> Average:
        """The mean over the skills with its interval."""
        return Average.over(self.domains.values())

    @property
    def n(self) -> int:
        """Items answered."""
        return self.score.n

    @property
    def correct(self) -> int:
        """Items answered right."""
        return self.score.correct

    @property
    def is_out(self) -> bool:
        """Whether it lost clearly."""
        return self.status in ("dropped", "behind")

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {
            "setting": self.label,
            "values": dict(self.values),
            "method": self.method,
            "settings": dict(self.settings),
            "status": self.status,
            "same_as": self.same_as,
            "is_start": self.is_start,
            **self.score.to_dict(),
            "domains": {name: score.to_dict() for name, score in self.domains.items()},
            "loss": None if self.loss is None else vars(self.loss),
            "note": self.note,
            "lambda": dict(self.factors),
            "merge_seconds": self.merge_seconds,
            "seconds": self.seconds,
            **({"samples": dict(self.samples)} if self.samples else {}),
        }


@dataclass(frozen=True)
class Recheck:
    """The winner and the start on questions that nothing was chosen by.

    winner, start: the mean over the skills. domains: by "winner" and "start", every held-out
    domain, retention included; the start's are the winner's when they are one setting. counts:
    winner against start over the skill domains, None when they are one.
    """

    winner: Average
    start: Average
    domains: Mapping[str, Mapping[str, DomainScore]]
    counts: PairedCounts | None

    @staticmethod
    def of(report: EvalReport) -> Recheck:
        """Return the re-check of a report's "winner" and "start", without it when they are one."""
        winner = report.models["winner"]
        start = report.models.get("start")
        both = {"winner": winner.domains, "start": (start or winner).domains}
        counts = None if start is None else compare(report, "winner", "start")["skills"]
        return Recheck(winner.over_skills, (start or winner).over_skills, both, counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the scores and the comparison as JSON-ready values."""
        return {
            "winner": self.winner.to_dict(),
            "start": self.start.to_dict(),
            "domains": {
                side: {name: score.to_dict() for name, score in scores.items()}
                for side, scores in self.domains.items()
            },
            "winner_against_start": None if self.counts is None else self.counts.to_dict(),
        }


@dataclass(frozen=True)
class SweepState:
    """A sweep at one moment; the last one is its result.

    rows: in the order they were begun; winner: label of the best so far, None before the first
    score; floors: by domain the chance level; trust: of the finished table, all its rows, see
    `report.trust`; until: how asking ended, see `until.Decided`; settings: distinct merges
    planned; comparisons: tests made so far; level: of each test;
    chosen_by, held_out: how many skill questions; total_answers: what is to be asked at most,
    answers: how many came (stored ones included); is_search: whether later settings were chosen by
    earlier scores.
    """

    suites: str
    seed: int
    is_search: bool = False
    chosen_by: int = 0
    held_out: int = 0
    settings: int = 0
    level: float = ERROR
    rows: tuple[SweepRow, ...] = ()
    winner: str | None = None
    comparisons: int = 0
    answers: int = 0
    total_answers: int = 0
    seconds: float = 0.0
    now: str = ""
    recheck: Recheck | None = None
    floors: Mapping[str, float] = field(default_factory=dict)
    trust: Mapping[str, Any] = field(default_factory=dict)
    until: Mapping[str, Any] = field(default_factory=dict)
    ending: Ending = "running"

    def row(self, label: str) -> SweepRow:
        """Return a row by its label."""
        return next(row for row in self.rows if row.label == label)

    @property
    def best(self) -> SweepRow | None:
        """The winner's row."""
        return None if self.winner is None else self.row(self.winner)

    @property
    def measured(self) -> tuple[SweepRow, ...]:
        """Rows with a score of their own."""
        return tuple(row for row in self.rows if row.n and row.status != "same")

    @property
    def ranked(self) -> tuple[SweepRow, ...]:
        """The rows: the winner, then by score, those that are out at the end."""

        def rank(row: SweepRow) -> tuple[bool, bool, float]:
            return row.label != self.winner, row.is_out, -row.score.score if row.n else 1.0

        return tuple(sorted(self.rows, key=rank))

    @property
    def not_worse(self) -> tuple[str, ...]:
        """The settings that the items do not show to be worse than the winner."""
        alive = ("kept", "open", "unfinished")
        return tuple(row.label for row in self.rows if row.status in alive and row.n)

    def statements(self) -> tuple[str, ...]:
        """Return what was found, one sentence each, with what it rests on."""
        best = self.best
        if best is None:
            reasons = {
                "out of time": "No setting was scored before time was up; allow more minutes or "
                "ask fewer items.",
                "stopped": "No setting was scored before the sweep was stopped.",
                "done": "No setting could be merged.",
            }
            return (reasons.get(self.ending, "No setting has been scored yet."),)
        said = [self._tried(), _chosen(best, len(self.measured))]
        if self.until:
            said.append(str(self.until["sentence"]))
        if self.recheck is not None:
            said += _rechecked(self.recheck, best)
        elif self.ending == "running":
            pass
        elif self.held_out == 0:
            said.append("No questions were held out, so how optimistic that is stays unknown.")
        else:
            said.append(
                "It was not checked on held-out questions, because the sweep was "
                f"{'stopped' if self.ending == 'stopped' else 'out of time'}; run the same again "
                "to go on."
            )
        low = [
            domain
            for domain, score in best.domains.items()
            if domain in self.floors and score.n and score.score <= self.floors[domain]
        ]
        if low:
            said.append(
                f"On {', '.join(low)} the best is not above the chance level: no choice there "
                "means anything."
            )
        if self.ending != "running":
            said.append(self._told_apart())
        return tuple(said)

    def _tried(self) -> str:
        same = sum(row.status == "same" for row in self.rows)
        dropped = sum(row.status == "dropped" for row in self.rows)
        open_rows = sum(row.status in ("waiting", "open", "unfinished") for row in self.rows)
        parts = [f"{_count(len(self.measured), 'setting was', 'settings were')} compared"]
        if same:
            parts.append(f"{same} more gave the same merge as one of them")
        if dropped:
            parts.append(f"{dropped} clearly losing were dropped early")
        if open_rows and self.ending != "running":
            parts.append(f"{open_rows} were not finished")
        tests = _count(self.comparisons, "test was", "tests were")
        return f"{'; '.join(parts)}; {tests} made."

    def _told_apart(self) -> str:
        others = [label for label in self.not_worse if label != self.winner]
        if not others:
            return "Every other finished setting lost clearly."
        more = f" and {len(others) - 6} more" if len(others) > 6 else ""
        shown = ", ".join(others[:6]) + more
        text = f"These items do not show {self.winner} to be better than {shown}."
        if self.is_search:
            return (
                f"{text} Settings were proposed by earlier answers to the same items, so what was "
                "dropped is a guide and no proof."
            )
        if self.ending != "done":
            return text
        return (
            f"{text} The best setting tried is among these {len(others) + 1} with "
            f"{100 * (1 - ERROR):.0f} % confidence."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            "suite": self.suites,
            "seed": self.seed,
            "search": "optuna" if self.is_search else "grid",
            "ending": self.ending,
            "n_chosen_by": self.chosen_by,
            "n_held_out": self.held_out,
            "settings": len(self.measured),
            "comparisons": self.comparisons,
            "level": self.level,
            "winner": self.winner,
            "not_worse": list(self.not_worse),
            "floors": dict(self.floors),
            "trust": dict(self.trust),
            **({"until": dict(self.until)} if self.until else {}),
            "recheck": None if self.recheck is None else self.recheck.to_dict(),
            "rows": [row.to_dict() for row in self.rows],
            "seconds": self.seconds,
            "statements": list(self.statements()),
        }

    def to_frame(self) -> DataFrame:
        """Return the rows as a table, one setting each; what is not known is missing."""
        from pandas import DataFrame

        axes = list(dict.fromkeys(name for row in self.rows for name in row.values))
        agents = list(dict.fromkeys(name for row in self.rows for name in row.factors))
        domains = list(dict.fromkeys(name for row in self.rows for name in row.domains))
        return DataFrame(
            {
                "setting": row.label,
                **{axis: row.values.get(axis) for axis in axes},
                "status": row.status,
                "same_as": row.same_as,
                "n": row.n,
                "correct": row.correct,
                **row.score.interval(),
                **{d: row.domains[d].score if d in row.domains else None for d in domains},
                **{f"lambda_{agent}": row.factors.get(agent) for agent in agents},
                "merge_seconds": row.merge_seconds,
                "seconds": row.seconds,
            }
            for row in self.rows
        )


def _chosen(best: SweepRow, settings: int) -> str:
    text = f"Best on the {best.n} items it was chosen by: {best.label}, {_interval(best.score)}."
    if settings > 1:
        text += f" As the best of {settings} this figure is optimistic."
    return text


def _rechecked(recheck: Recheck, best: SweepRow) -> list[str]:
    said = [
        f"On {recheck.winner.n} held-out items {best.label} scores {_interval(recheck.winner)} "
        f"({100 * (recheck.winner.score - best.score.score):+.1f} points)."
    ]
    counts = recheck.counts
    if best.is_start or counts is None:
        said.append("It is the setting the sweep started from.")
        return said
    if counts.is_within_noise:
        verdict = "no difference shown"
    else:
        verdict = "better" if counts.wins > counts.losses else "worse"
    said.append(
        f"There the setting it started from scores {_interval(recheck.start)}: {verdict} "
        f"({counts.wins} gained, {counts.losses} lost, p {counts.p_value:.2g}; one comparison, on "
        "items that nothing was chosen by)."
    )
    return said


def _interval(score: Average) -> str:
    low, high = score.ci95
    return f"{score.score:.3f} [{low:.3f}, {high:.3f}]"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
