"""The finished table of a comparison: rows, what of them is within noise, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ram_studio.engine.in_memory import AppliedMerge
from ram_studio.evals.report.statistics import holm
from ram_studio.evals.report.tables import SIGNIFICANCE, EvalReport, PairedCounts, compare


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
    """A finished comparison.

    report: every row's answers, by label; merges: what each merge row asked for and stored;
    agents: the rows that are agents (the base's row is "base"); reference: label of the row that
    all others are compared with.
    """

    report: EvalReport
    merges: Mapping[str, AppliedMerge]
    agents: tuple[str, ...]
    reference: str

    def kind(self, label: str) -> str:
        """Return "merge", "agent" or "base"."""
        if label in self.merges:
            return "merge"
        return "agent" if label in self.agents else "base"

    def versus(self) -> dict[str, Versus]:
        """Return every other row against the reference, over all skill prompts."""
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
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """Return the table ready for JSON: suite, seed, n, reference and one object per row."""
        versus = self.versus()
        scores = self.report.to_dict()["models"]
        rows = []
        for label, score in scores.items():
            applied = self.merges.get(label)
            rows.append(
                {
                    "row": label,
                    "kind": self.kind(label),
                    "method": None if applied is None else applied.recipe.method,
                    "settings": None if applied is None else dict(applied.recipe.settings),
                    "merged_agents": None if applied is None else list(applied.recipe.agents),
                    "domains": score["domains"],
                    "average": _finite(score["average"]),
                    "retention": _finite(score["retention"]),
                    "merge_seconds": None if applied is None else applied.seconds,
                    "evaluation_seconds": score["seconds"],
                    "agents": {} if applied is None else _agents(applied),
                    "versus": versus[label].to_dict() if label in versus else None,
                }
            )
        return {
            "suite": self.report.suite,
            "seed": self.report.seed,
            "n": self.report.n,
            "reference": self.reference,
            "rows": rows,
            "statements": list(self.statements()),
        }

    def to_csv(self) -> str:
        """Return the table as CSV with a header; unknown values are empty."""
        table = self.to_dict()
        agents = list(dict.fromkeys(name for row in table["rows"] for name in row["agents"]))
        domains = list(table["rows"][0]["domains"]) if table["rows"] else []
        columns = ["row", "kind", "method", "settings"]
        columns += [f"{d}{part}" for d in domains for part in ("", "_low95", "_high95")]
        columns += ["average", "retention", "merge_seconds", "evaluation_seconds"]
        columns += [f"{part}_{a}" for a in agents for part in ("rho", "lambda", "effective_lambda")]
        columns += ["gained", "lost", "p", "p_adjusted", "versus_reference"]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for row in table["rows"]:
            cells = [row["row"], row["kind"], row["method"]]
            cells.append("" if row["settings"] is None else json.dumps(row["settings"]))
            for domain in domains:
                score = row["domains"][domain]
                cells += [score["score"], *score["ci95"]]
            cells += [row[k] for k in ("average", "retention", "merge_seconds")]
            cells.append(row["evaluation_seconds"])
            for agent in agents:
                numbers = row["agents"].get(agent, {})
                cells += [numbers.get(k) for k in ("rho", "lambda", "effective_lambda")]
            against = row["versus"] or {}
            keys = ("wins", "losses", "p_value", "p_adjusted", "outcome")
            cells += [against.get(k) for k in keys]
            writer.writerow("" if cell is None else cell for cell in cells)
        return out.getvalue()


def _agents(applied: AppliedMerge) -> dict[str, dict[str, float | None]]:
    return {
        name: {
            "rho": _finite(a.rho),
            "lambda": a.scaling_factor,
            "effective_lambda": a.effective_scaling_factor,
        }
        for name, a in applied.agents.items()
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
