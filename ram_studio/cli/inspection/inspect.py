"""``ram-studio inspect``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.inspection.counts import print_shares
from ram_studio.cli.tables import print_table

if TYPE_CHECKING:
    from ram_studio.checkpoints.fit.storage_report import StorageReport


@options.expand_groups
def inspect(
    *,
    base: options.Base = None,
    agent: options.Agents = None,
    policies: options.Policies,
    analysis: Annotated[
        Path | None, typer.Option(help="Analysis of the same files: adds findings from its counts.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check that base and agents fit together, and how each is stored.

    Reads only headers, before any download, and samples local files to estimate how much each
    agent changed; with an analysis also reports what the counts say of storage and training.
    """
    from ram_studio.checkpoints.fit.compatibility import check_compatibility
    from ram_studio.checkpoints.fit.storage_report import storage_report
    from ram_studio.checkpoints.fit.tokenizers import compare_templates
    from ram_studio.checkpoints.opening import open_checkpoint
    from ram_studio.checkpoints.read.describe import BASE_NAME, printable, shown_bytes
    from ram_studio.engine.reading.sampling import sample_changes, sample_findings

    sources = {"base": options.require_base(base), **options.parse_agents(agent)}
    loaded = options.known_analysis(analysis)
    opened = {n: open_checkpoint(s, name=n, headers_only=True) for n, s in sources.items()}
    report = check_compatibility(opened.pop("base"), list(opened.values()), **policies.fit())
    storage = storage_report(report, loaded)
    # An analysis has exact counts; without one a sample of the files estimates the changes.
    found = sample_changes(report) if loaded is None else {}
    warned = sample_findings(found, report.counted_elements)
    storage = replace(storage, findings=(*storage.findings, *warned))
    sampled = {name: own.changed for name, own in found.items()}
    templates = {
        agent.name: compare_templates(report.base, agent)
        for agent in report.agents
        if any(f.kind == "chat-template" and agent.name in f.agents for f in storage.findings)
    }
    if as_json:
        extra = {"sampled": sampled, "storage": storage.to_dict(), "chat_templates": templates}
        print(json.dumps(report.to_dict() | extra))
        return
    print_table(
        ("checkpoint", "tensors", "size", "dtypes", *["changed, by a sample"] * bool(sampled)),
        [
            (
                c.name,
                str(len(c.tensors)),
                shown_bytes(c.nbytes),
                ", ".join(report.dtypes[c.name]),
                *[f"{sampled[c.name]:.2%}" if c.name in sampled else "-"] * bool(sampled),
            )
            for c in report.checkpoints
        ],
    )
    _print_storage(storage)
    for name, rows in templates.items():
        shown = [tuple(printable(line, 300) for line in row) for row in rows]
        print_table((f"chat template: {BASE_NAME}", name), shown)
    print("The models are compatible.")


def _print_storage(report: StorageReport) -> None:
    """Print heads, densities as stored and as rounded where known, findings and verdicts."""
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


def _yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[value]
