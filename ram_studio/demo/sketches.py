"""Make the sketches that ship beside the example agents: ``python -m ram_studio.demo.sketches``.

With them the app shows live previews of the examples without reading a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ram_studio.algorithm.sketch import Sketch
from ram_studio.checkpoints.record.sketch_file import save_sketch
from ram_studio.demo.agents import read_record
from ram_studio.engine.analyse import analyze
from ram_studio.resources import asset_path

SETS = ("house", "example", "dense")
SKETCH_FILE = "sketch.safetensors"


def example_sketch(
    name: str, agents: Sequence[str] | None = None, root: Path | None = None
) -> Sketch:
    """Return the sketch of a set of agents, analyzed anew.

    agents: None for those in the set's record. root: the folder with the sets, None for the shipped
    ones. Sources are given relative to it: where it is differs by installation.
    """
    root = root or asset_path()
    agents = agents or list(read_record(root / name)["agents"])
    sketch = analyze(root / "example" / "base", {agent: root / name / agent for agent in agents})
    sources = {"base": "example/base", **{agent: f"{name}/{agent}" for agent in agents}}
    return replace(sketch, sources=sources)


def main() -> None:
    """Write every sketch into the assets folder."""
    for name in SETS:
        path = save_sketch(example_sketch(name), Path(asset_path(name)) / SKETCH_FILE, packed=True)
        print(f"{path.name} of {name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
