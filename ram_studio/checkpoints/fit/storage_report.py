"""The storage report: how base and agents are stored, and how that affects measured changes.

One object, from headers and small files before any pass, and completed by the counts of a pass:
dtypes, equal files, configs, tokenizers and chat templates, tied heads; densities as stored and as
if in the base's dtype, and a verdict for each agent. The command line prints it, the app shows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.meters.storage import (
    AgentStorage,
    Finding,
    combine_findings,
    pass_findings,
    storage_verdicts,
    texts,
)
from ram_studio.errors import AnalysisError

if TYPE_CHECKING:
    from ram_studio.algorithm.analysis import Analysis
    from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
    from ram_studio.checkpoints.fit.tied import HeadStorage
    from ram_studio.checkpoints.read.checkpoint import Checkpoint


@dataclass(frozen=True)
class StorageReport:
    """How some checkpoints are stored, and the findings of a pass.

    Attributes:
        base_dtypes: {dtype: elements}; empty when only an analysis is known.
        agents: by name, in the order given.
        findings: warnings and notes, the more serious first within one source.
        heads: by checkpoint name ("base" too), how head and embedding are stored; empty where a
            model has no such pair, or only an analysis is known.
        counted_once: {head: embedding} where the base stores one matrix twice.
        epsilon: threshold of the shares.
        is_complete: a pass has counted.
    """

    base_dtypes: dict[str, int]
    agents: dict[str, AgentStorage]
    findings: tuple[Finding, ...]
    heads: dict[str, HeadStorage] = field(default_factory=dict)
    counted_once: dict[str, str] = field(default_factory=dict)
    epsilon: float = EPSILON_GRID[DEFAULT_INDEX]
    is_complete: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of all warnings, each once."""
        return texts(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "is_complete": self.is_complete,
            "epsilon": self.epsilon,
            "base": {"dtypes": self.base_dtypes},
            "agents": {name: agent.to_dict() for name, agent in self.agents.items()},
            "heads": {name: asdict(head) for name, head in self.heads.items()},
            "counted_once": self.counted_once,
            "findings": [asdict(finding) for finding in self.findings],
        }


def storage_report(
    fit: CompatibilityReport | None = None,
    analysis: Analysis | None = None,
    *,
    point: int = DEFAULT_INDEX,
) -> StorageReport:
    """Return the storage report of checkpoints that fit, of their analysis, or of both together.

    Args:
        fit: result of `check_compatibility`; without it nothing is known about files.
        analysis: of the same checkpoints; without it no agent has a verdict.
        point: index into the epsilon grid.

    Raises: AnalysisError when the analysis is of other checkpoints.
    """
    if fit is None:
        assert analysis is not None, "there is nothing to report on"
        known = texts(pass_findings(analysis, point))
        others = tuple(Finding("sources", w) for w in analysis.warnings if w not in known)
        report = StorageReport({}, {}, others)
    else:
        report = StorageReport(
            base_dtypes=fit.base.dtypes,
            agents={
                a.name: AgentStorage("unknown", _before(a, fit.base), dtypes=a.dtypes)
                for a in fit.agents
            },
            findings=fit.findings,
            heads=fit.heads,
            counted_once={t.name: t.tied_to for t in fit.tensors if t.tied_to is not None},
        )
    if analysis is None:
        return report
    if fit is not None:
        check_analysis(analysis, fit, only_local=True)
    dtypes = {name: agent.dtypes for name, agent in report.agents.items()}
    return replace(
        report,
        agents={
            name: replace(agent, dtypes=dtypes.get(name, {}))
            for name, agent in storage_verdicts(analysis, point).items()
        },
        findings=combine_findings(report.findings, pass_findings(analysis, point)),
        epsilon=EPSILON_GRID[point],
        is_complete=True,
    )


def check_analysis(
    analysis: Analysis, fit: CompatibilityReport, *, only_local: bool = False
) -> None:
    """Raise AnalysisError unless an analysis is of these checkpoints, agents in this order.

    only_local: compare only the names of files that are still on the Hub.
    """
    names = tuple(agent.name for agent in fit.agents)
    other = [
        c.name
        for c in fit.checkpoints
        if (c.is_local or not only_local) and not c.is_known_as(analysis.fingerprints.get(c.name))
    ]
    if analysis.agents != names or other:
        unlike = "their order" if sorted(analysis.agents) == sorted(names) else "their names"
        raise AnalysisError(
            f"The analysis is of agents {', '.join(analysis.agents)} and differs from the files "
            f"given for {', '.join(other) or unlike}; expected {', '.join(names)}. Analyze "
            "these checkpoints again, or leave the analysis out."
        )


def _before(agent: Checkpoint, base: Checkpoint) -> str:
    own, theirs = ("+".join(c.dtypes) or "nothing" for c in (agent, base))
    beside = "as the base is" if own == theirs else f"the base as {theirs}"
    return f"{agent.who}stored as {own}, {beside}; an analysis shows trained changes."
