"""Make the analyses that ship with the example agents: ``python -m training.shipped.analyses``.

With them the app shows live previews of the examples without reading a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.engine.analyze import analyze
from ram_studio.resources import asset_path
from training.shipped.agents import read_record

SETS = ("shared-style", "independent", "dense")
ANALYSIS_FILE = "analysis.safetensors"


def example_analysis(
    name: str, agents: Sequence[str] | None = None, root: Path | None = None
) -> Analysis:
    """Return a new analysis of a set of agents.

    agents: None for those in the set's record. root: the folder with the sets, None for the shipped
    ones. Sources are relative to it, as its path differs by installation.
    """
    root = root or asset_path()
    agents = agents or list(read_record(root / name)["agents"])
    analysis = analyze(
        root / "independent" / "base", {agent: root / name / agent for agent in agents}
    )
    sources = {"base": "independent/base", **{agent: f"{name}/{agent}" for agent in agents}}
    return replace(analysis, sources=sources)


def main() -> None:
    """Write every analysis into the assets folder."""
    for name in SETS:
        path = save_analysis(example_analysis(name), Path(asset_path(name)) / ANALYSIS_FILE)
        print(f"{path.name} of {name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
