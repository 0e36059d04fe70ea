"""``ram-studio presets``."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.tables import print_table
from ram_studio.errors import CompatibilityError, HubError

if TYPE_CHECKING:
    from ram_studio.engine.reading.preset_check import PresetReport


def presets(
    key: Annotated[
        str | None, typer.Argument(help="One set; fails if its files differ from the list.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List published sets of agents, each checked on the Hub from headers before any download.

    Reports models whose base, shape, license or dtype differs from the list, the bytes and time
    that an analysis takes, and the disk space that a merge needs.
    """
    from ram_studio.checkpoints.hub import presets as listed
    from ram_studio.engine.reading.preset_check import check_preset

    chosen = list(listed.presets().values()) if key is None else [listed.find_preset(key)]
    reports = [check_preset(preset) for preset in chosen]
    if as_json:
        print(json.dumps({"presets": [report.to_dict() for report in reports]}))
    else:
        for report in reports:
            _print(report)
    if key is not None and not reports[0].is_fine:
        if reports[0].problem is not None:
            raise HubError(reports[0].problem)
        raise CompatibilityError(" ".join(reports[0].refusals))


def _print(report: PresetReport) -> None:
    from ram_studio.checkpoints.read.describe import shown_bytes
    from ram_studio.engine.reading.preset_check import BYTES_PER_SECOND

    print(f"{report.preset.key}: {report.preset.title}")
    if report.models:
        print_table(
            ("model", "commit", "license", "dtypes", "size", "changed, by a sample"),
            [
                (
                    f"{model.listed.name}  {model.listed.repository}",
                    model.revision[:8] + ("" if model.listed.revision else " (now)"),
                    model.license,
                    ", ".join(model.dtypes),
                    shown_bytes(model.nbytes),
                    f"{report.sampled[model.listed.name]:.2%}"
                    if report.sampled and model.listed.name in report.sampled
                    else "-",
                )
                for model in report.models
            ],
        )
    if report.problem is not None:
        print(f"  cannot be checked: {report.problem}")
    for text in report.refusals:
        print(f"  refused: {text}")
    if not report.is_fine:
        return
    if not all(model.listed.revision for model in report.models):
        print("  (now): the list has no commit; the command below pins this one.")
    minutes = report.seconds / 60
    print(
        f"  An analysis reads {shown_bytes(report.fetch_bytes)} from the Hub (about "
        f"{minutes:.0f} min at {BYTES_PER_SECOND / 1e6:.0f} MB/s) and stores nothing; a merge "
        f"needs {shown_bytes(report.merge_bytes)} on the disk, {shown_bytes(report.free_bytes)} "
        "are free."
    )
    base, *agents = report.models
    words = ["ram-studio", "analyze", "--base", base.source]
    for agent in agents:
        words += ["--agent", f"{agent.listed.name}={agent.source}"]
    print(f"  {shlex.join([*words, '--analysis', f'{report.preset.key}.analysis'])}")
