"""RAM Studio: look into, merge and check RL-trained LLM agents.

    import ram_studio as rs

    sketch = rs.analyze("base", {"coding": "coding-agent", "memory": "memory-agent"})
    print(sketch.preview(rule="ram+", r=0.1, alpha=2.0)["agents"]["coding"]["lambda"])
    recipe = rs.make_recipe({"base": "base", "agents": {...}, "method": "ram+"})
    result = rs.merge(recipe, "merged", sketch=sketch)

Names are imported when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ram_studio._version import __version__

if TYPE_CHECKING:
    from ram_studio.algorithm.ladder import LADDER as LADDER
    from ram_studio.algorithm.methods import METHODS as METHODS
    from ram_studio.algorithm.scaling import overlap_unique_ratio as overlap_unique_ratio
    from ram_studio.algorithm.scaling import scaling_factor as scaling_factor
    from ram_studio.algorithm.sketch import Sketch as Sketch
    from ram_studio.algorithm.verdict import verdict as verdict
    from ram_studio.checkpoints.fit.storage_report import storage_report as storage_report
    from ram_studio.checkpoints.record.recipe import Recipe as Recipe
    from ram_studio.checkpoints.record.recipe import dump_recipe as dump_recipe
    from ram_studio.checkpoints.record.recipe import load_recipe as load_recipe
    from ram_studio.checkpoints.record.recipe import make_recipe as make_recipe
    from ram_studio.checkpoints.record.sketch_file import load_sketch as load_sketch
    from ram_studio.checkpoints.record.sketch_file import save_sketch as save_sketch
    from ram_studio.engine.analyse import analyze as analyze
    from ram_studio.engine.events import CancelToken as CancelToken
    from ram_studio.engine.events import Progress as Progress
    from ram_studio.engine.merge import merge as merge
    from ram_studio.engine.microscope.view import microscope as microscope
    from ram_studio.engine.resident import ResidentMerge as ResidentMerge
    from ram_studio.engine.result import MergeResult as MergeResult
    from ram_studio.engine.verify import verify as verify
    from ram_studio.errors import RamStudioError as RamStudioError
    from ram_studio.evals.experiment.run import sweep as sweep
    from ram_studio.evals.run import evaluate as evaluate
    from ram_studio.evals.store.history import history as history
    from ram_studio.resources import asset_path as asset_path

_HOME_OF = {
    "LADDER": "algorithm.ladder",
    "METHODS": "algorithm.methods",
    "overlap_unique_ratio": "algorithm.scaling",
    "scaling_factor": "algorithm.scaling",
    "Sketch": "algorithm.sketch",
    "verdict": "algorithm.verdict",
    "Recipe": "checkpoints.record.recipe",
    "dump_recipe": "checkpoints.record.recipe",
    "load_recipe": "checkpoints.record.recipe",
    "make_recipe": "checkpoints.record.recipe",
    "load_sketch": "checkpoints.record.sketch_file",
    "save_sketch": "checkpoints.record.sketch_file",
    "storage_report": "checkpoints.fit.storage_report",
    "analyze": "engine.analyse",
    "CancelToken": "engine.events",
    "Progress": "engine.events",
    "MergeResult": "engine.result",
    "merge": "engine.merge",
    "microscope": "engine.microscope.view",
    "ResidentMerge": "engine.resident",
    "verify": "engine.verify",
    "RamStudioError": "errors",
    "evaluate": "evals.run",
    "history": "evals.store.history",
    "sweep": "evals.experiment.run",
    "asset_path": "resources",
}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"ram_studio.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'ram_studio' has no attribute {name!r}")
