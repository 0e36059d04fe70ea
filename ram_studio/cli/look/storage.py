"""The storage report as text, for ``inspect`` and ``analyze``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ram_studio.cli.tables import print_table, ratio

if TYPE_CHECKING:
    from ram_studio.algorithm.meters.storage import Share
    from ram_studio.checkpoints.fit.storage_report import StorageReport


def print_storage(report: StorageReport) -> None:
    """Print heads, densities side by side where they are known, findings and verdicts."""
    if report.heads:
        print_table(
            ("checkpoint", "head and embedding", "one matrix", "config says"),
            [
                (name, h.stored, _yes_no(h.is_tied), _yes_no(h.config))
                for name, h in report.heads.items()
            ],
        )
    print_shares(report)
    for finding in report.findings:
        print(f"{'warning' if finding.level == 'warn' else 'note'}: {finding.text}")
    if report.is_complete:
        warned = {finding.text for finding in report.findings}
        for agent in report.agents.values():
            if agent.text not in warned:
                print(agent.text)


def print_shares(report: StorageReport) -> None:
    """Print what each agent changed as stored and as if in the base's dtype, where they differ."""
    if not any(agent.rounded is not None for agent in report.agents.values()):
        return
    print_table(
        ("agent", "density", "rounded", "rho", "rounded", "verdict"),
        [
            (
                name,
                *_pair(agent.stored, agent.rounded, lambda s: f"{s.density:.2%}"),
                *_pair(agent.stored, agent.rounded, lambda s: ratio(s.rho)),
                agent.verdict,
            )
            for name, agent in report.agents.items()
        ],
        title="As stored, and rounded to the base's dtype",
    )


def _pair(stored: Share | None, rounded: Share | None, show: Callable[[Share], str]) -> list[str]:
    return ["-" if share is None else show(share) for share in (stored, rounded)]


def _yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[value]
