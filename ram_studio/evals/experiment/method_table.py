"""The finished table of a comparison: rows, what of them is within noise, JSON and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.evals.report.statistics import holm
from ram_studio.evals.report.tables import SIGNIFICANCE, EvalReport, PairedCounts, compare

if TYPE_CHECKING:
    from pandas import DataFrame


class Merged(NamedTuple):
    """How a row was merged. settings: all of the method's; agents: by name rho, lambda and
    effective_lambda; seconds: of merging it.
    """

    recipe: Recipe
    settings: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, float | None]]
    seconds: float | None


@dataclass(frozen=True)
class Versus:
    """A row against the reference row over all skill prompts.

    p_adjusted: McNemar's p after Holm's correction over all rows of the table.
    """

    counts: PairedCounts
    p_adjusted: float

    @property
    def is_within_noise(self) -> bool:
        """Whether the difference could well be chance, given how many rows were compared."""
        return self.p_adjusted >= SIGNIFICANCE

    @property
    def outcome(self) -> str:
        """ "better", "worse" or "within noise"."""
        if self.is_within_noise:
            return "within noise"
        return "better" if self.counts.wins > self.counts.losses else "worse"

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, both p-values and the outcome."""
        return {
            **self.counts.to_dict(),
            "p_adjusted": self.p_adjusted,
            "is_within_noise": self.is_within_noise,
            "outcome": self.outcome,
        }


@dataclass(frozen=True)
class MethodTable:
    """A comparison, finished or stopped on its way.

    report: the finished rows' answers, by label; merges: how each row that is a merge was made;
    agents: the rows that are agents (the base's row is "base"); reference: label of the row that
    all others are compared with; it may be missing when the comparison was stopped.
    unfinished: label -> why there is no score. is_stopped: stopped before all rows were finished.
    """

    report: EvalReport
    merges: Mapping[str, Merged]
    agents: tuple[str, ...]
    reference: str
    unfinished: Mapping[str, str] = field(default_factory=dict)
    is_stopped: bool = False

    def kind(self, label: str) -> str:
        """Return "merge", "agent" or "base"."""
        if label in self.merges:
            return "merge"
        return "agent" if label in self.agents else "base"

    def versus(self) -> dict[str, Versus]:
        """Return every other row against the reference, over all skill prompts."""
        if self.reference not in self.report.models:
            return {}
        others = [label for label in self.report.models if label != self.reference]
        counts = [compare(self.report, label, self.reference)["skills"] for label in others]
        adjusted = holm([pair.p_value for pair in counts])
        return {
            label: Versus(pair, p) for label, pair, p in zip(others, counts, adjusted, strict=True)
        }

    def statements(self) -> tuple[str, ...]:
        """Return one sentence per other merge on how it compares with the reference."""
        said = []
        for label, versus in self.versus().items():
            if label not in self.merges:
                continue
            counts = versus.counts
            verdict = (
                f"within noise of {self.reference}"
                if versus.is_within_noise
                else f"{versus.outcome} than {self.reference}"
            )
            said.append(
                f"{label} is {verdict}: on {counts.wins + counts.losses + counts.ties} skill "
                f"prompts {counts.wins} gained, {counts.losses} lost "
                f"(adjusted p {versus.p_adjusted:.2g})."
            )
        for why in dict.fromkeys(self.unfinished.values()):
            labels = ", ".join(label for label, own in self.unfinished.items() if own == why)
            said.append(f"No score for {labels}: {why}")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """Return the table ready for JSON: suite, seed, n, reference and one object per row."""
        versus = self.versus()
        rows = []
        for label, result in self.report.models.items():
            score, merged = result.to_dict(), self.merges.get(label)
            rows.append(
                {
                    "row": label,
                    "kind": self.kind(label),
                    "method": None if merged is None else merged.recipe.method,
                    "settings": None if merged is None else dict(merged.settings),
                    "merged_agents": None if merged is None else list(merged.recipe.agents),
                    "domains": score["domains"],
                    "average": score["average"],
                    "retention": score["retention"],
                    "merge_seconds": None if merged is None else merged.seconds,
                    "evaluation_seconds": score["seconds"],
                    "agents": {} if merged is None else dict(merged.agents),
                    "versus": versus[label].to_dict() if label in versus else None,
                }
            )
        return {
            "suite": self.report.suite,
            "seed": self.report.seed,
            "n": self.report.n,
            "reference": self.reference,
            "ending": "stopped" if self.is_stopped else "done",
            "rows": rows,
            "unfinished": dict(self.unfinished),
            "statements": list(self.statements()),
        }

    def to_frame(self) -> DataFrame:
        """Return one row per label: scores with intervals, seconds, lambda, and the comparison."""
        from pandas import DataFrame

        versus = self.versus()
        agents = list(dict.fromkeys(name for m in self.merges.values() for name in m.agents))
        rows = []
        for label, result in self.report.models.items():
            merged, against = self.merges.get(label), versus.get(label)
            row: dict[str, Any] = {
                "row": label,
                "kind": self.kind(label),
                "method": None if merged is None else merged.recipe.method,
                "settings": None if merged is None else json.dumps(dict(merged.settings)),
            }
            for domain, score in result.domains.items():
                known = score.interval()
                row[domain] = known.pop("score")
                row |= {f"{domain}_{end}": value for end, value in known.items()}
            row |= {
                "average": result.average,
                "retention": result.retention,
                "merge_seconds": None if merged is None else merged.seconds,
                "evaluation_seconds": result.seconds,
            }
            for agent in agents:
                numbers = {} if merged is None else merged.agents.get(agent, {})
                for key in ("rho", "lambda", "effective_lambda"):
                    row[f"{key}_{agent}"] = numbers.get(key)
            row |= {
                "gained": None if against is None else against.counts.wins,
                "lost": None if against is None else against.counts.losses,
                "p": None if against is None else against.counts.p_value,
                "p_adjusted": None if against is None else against.p_adjusted,
                "versus_reference": None if against is None else against.outcome,
            }
            rows.append(row)
        frame = DataFrame(rows)
        # Counts, though the reference itself has none.
        return frame.astype({"gained": "Int64", "lost": "Int64"})
