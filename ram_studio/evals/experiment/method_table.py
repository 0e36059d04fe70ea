"""The finished table of a comparison: rows, what of them is within noise, JSON and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ram_studio.evals.report.breakdown import breakdown, drawn_rows
from ram_studio.evals.report.statistics import Comparison, Pair, compare_pairs
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.report.trust import trust

if TYPE_CHECKING:
    from pandas import DataFrame


_VERSUS = {
    "gained": "wins",
    "lost": "losses",
    "p": "p_value",
    "p_adjusted": "p_adjusted",
    "versus_reference": "outcome",
}


@dataclass(frozen=True)
class MethodTable:
    """A comparison, finished or stopped on its way.

    report: the finished rows' answers, by label; merges: how each row that is a merge was made, by
    label the recipe with all settings, by agent rho, lambda and effective_lambda, and seconds;
    agents: the rows that are agents (the base's row is "base"); reference: label of the row that
    all others are compared with; it may be missing when the comparison was stopped.
    unfinished: label -> why there is no score. is_stopped: stopped before all rows were finished.
    """

    report: EvalReport
    merges: Mapping[str, Mapping[str, Any]]
    agents: tuple[str, ...]
    reference: str
    unfinished: Mapping[str, str] = field(default_factory=dict)
    is_stopped: bool = False

    def kind(self, label: str) -> str:
        """Return "merge", "agent" or "base"."""
        if label in self.merges:
            return "merge"
        return "agent" if label in self.agents else "base"

    def versus(self) -> dict[str, Comparison]:
        """Return every other row against the reference, over all skill prompts."""
        if self.reference not in self.report.models:
            return {}
        others = [label for label in self.report.models if label != self.reference]
        pairs: list[Pair] = [("skills", label, self.reference, "merge") for label in others]
        return dict(zip(others, compare_pairs(self.report, pairs), strict=True))

    def statements(self) -> tuple[str, ...]:
        """Return one sentence per other merge on how it compares with the reference."""
        said = []
        for label, versus in self.versus().items():
            if label not in self.merges:
                continue
            outcome = _outcome(versus)
            said.append(
                f"{label} is {outcome} {'of' if versus.is_within_noise else 'than'} "
                f"{self.reference}: on {versus.n} skill prompts {versus.counts.wins} gained, "
                f"{versus.counts.losses} lost (adjusted p {versus.p_adjusted:.2g})."
            )
        if self.report.until:
            said.append(str(self.report.until["sentence"]))
        for why in dict.fromkeys(self.unfinished.values()):
            labels = ", ".join(label for label, own in self.unfinished.items() if own == why)
            said.append(f"No score for {labels}: {why}")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """Return the table ready for JSON: suite, seed, n, reference and one object per row."""
        versus, parts = self.versus(), breakdown(self.report)
        rows = []
        for label, result in self.report.models.items():
            drawn = parts[label].get("samples")
            score, merged = result.to_dict(), self.merges.get(label, {})
            recipe = merged.get("recipe", {})
            rows.append(
                {
                    "row": label,
                    "kind": self.kind(label),
                    "method": recipe.get("method"),
                    "settings": recipe.get("settings"),
                    "merged_agents": list(recipe["agents"]) if recipe else None,
                    "domains": score["domains"],
                    "average": score["average"],
                    "retention": score["retention"],
                    "merge_seconds": merged.get("seconds"),
                    "evaluation_seconds": score["seconds"],
                    "agents": merged.get("agents", {}),
                    "versus": _versus(versus[label]) if label in versus else None,
                    **({"samples": drawn} if drawn else {}),
                }
            )
        return {
            "suite": self.report.suite,
            "seed": self.report.seed,
            "n": self.report.n,
            "skills": list(self.report.skills),
            "floors": dict(self.report.floors),
            "trust": trust(self.report),
            "reference": self.reference,
            "ending": "stopped" if self.is_stopped else "done",
            "rows": rows,
            "unfinished": dict(self.unfinished),
            "statements": list(self.statements()),
            "drawn": [[what, *texts] for what, texts in drawn_rows(parts)],
            **({"until": dict(self.report.until)} if self.report.until else {}),
        }

    def to_frame(self) -> DataFrame:
        """Return one row per label: scores with intervals, seconds, lambda, and the comparison."""
        from pandas import DataFrame

        described = self.to_dict()["rows"]
        agents = list(dict.fromkeys(name for row in described for name in row["agents"]))
        rows = []
        for row in described:
            versus, settings = row["versus"] or {}, row["settings"]
            flat = {key: row[key] for key in ("row", "kind", "method")}
            flat["settings"] = None if settings is None else json.dumps(settings)
            for domain, score in row["domains"].items():
                flat[domain] = score["score"]
                flat[f"{domain}_low95"], flat[f"{domain}_high95"] = score["ci95"]
            for key in ("average", "retention", "merge_seconds", "evaluation_seconds"):
                flat[key] = row[key]
            for agent in agents:
                for key in ("rho", "lambda", "effective_lambda"):
                    flat[f"{key}_{agent}"] = row["agents"].get(agent, {}).get(key)
            rows.append(flat | {name: versus.get(key) for name, key in _VERSUS.items()})
        # Counts, though the reference itself has none.
        return DataFrame(rows).astype({"gained": "Int64", "lost": "Int64"})


def _outcome(versus: Comparison) -> str:
    return "within noise" if versus.is_within_noise else versus.outcome


def _versus(versus: Comparison) -> dict[str, Any]:
    """Return the counts, both p-values and the outcome."""
    return {
        **versus.counts.to_dict(),
        "p_adjusted": versus.p_adjusted,
        "is_within_noise": versus.is_within_noise,
        "outcome": _outcome(versus),
    }
