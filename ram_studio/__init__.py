"""RAM Studio: look into, merge and check RL-trained LLM agents.

    import ram_studio as rs

    analysis = rs.analyze("base", {"coding": "coding-agent", "memory": "memory-agent"})
    print(analysis.preview(rule="ram+", r=0.1, alpha=2.0)["agents"]["coding"]["lambda"])
    recipe = rs.make_recipe({"base": "base", "agents": {...}, "method": "ram+"})
    result = rs.merge(recipe, "merged", analysis=analysis)

Names are imported when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ram_studio._version import __version__

if TYPE_CHECKING:
    from ram_studio.algorithm.analysis import Analysis as Analysis
    from ram_studio.algorithm.epsilon_grid import EPSILON_GRID as EPSILON_GRID
    from ram_studio.algorithm.methods import METHODS as METHODS
    from ram_studio.algorithm.methods.base import BlockInput as BlockInput
    from ram_studio.algorithm.methods.base import BlockOutput as BlockOutput
    from ram_studio.algorithm.methods.base import Method as Method
    from ram_studio.algorithm.methods.base import MethodSettings as MethodSettings
    from ram_studio.algorithm.partial import add_partial as add_partial
    from ram_studio.algorithm.scaling import overlap_unique_ratio as overlap_unique_ratio
    from ram_studio.algorithm.scaling import scaling_factor as scaling_factor
    from ram_studio.algorithm.verdict import verdict as verdict
    from ram_studio.checkpoints.fit.storage_report import storage_report as storage_report
    from ram_studio.checkpoints.own_methods import use_method as use_method
    from ram_studio.checkpoints.record.analysis_file import load_analysis as load_analysis
    from ram_studio.checkpoints.record.analysis_file import save_analysis as save_analysis
    from ram_studio.checkpoints.record.part_plan import load_plan as load_plan
    from ram_studio.checkpoints.record.part_plan import save_plan as save_plan
    from ram_studio.checkpoints.record.recipe import Recipe as Recipe
    from ram_studio.checkpoints.record.recipe import dump_recipe as dump_recipe
    from ram_studio.checkpoints.record.recipe import load_recipe as load_recipe
    from ram_studio.checkpoints.record.recipe import make_recipe as make_recipe
    from ram_studio.engine.analyze import analyze as analyze
    from ram_studio.engine.analyze import inspect as inspect
    from ram_studio.engine.diff import Diff as Diff
    from ram_studio.engine.diff import diff as diff
    from ram_studio.engine.events import CancelToken as CancelToken
    from ram_studio.engine.events import Progress as Progress
    from ram_studio.engine.in_memory import ResidentMerge as ResidentMerge
    from ram_studio.engine.merge import merge as merge
    from ram_studio.engine.microscope.view import microscope as microscope
    from ram_studio.engine.parts.finishing import finish as finish
    from ram_studio.engine.parts.planning import make_plan as make_plan
    from ram_studio.engine.parts.steps import analyze_part as analyze_part
    from ram_studio.engine.parts.steps import merge_part as merge_part
    from ram_studio.engine.result import MergeResult as MergeResult
    from ram_studio.engine.verify import verify as verify
    from ram_studio.errors import RamStudioError as RamStudioError
    from ram_studio.evals.experiment.run import compare as compare
    from ram_studio.evals.experiment.run import sweep as sweep
    from ram_studio.evals.report.history import history as history
    from ram_studio.evals.run import evaluate as evaluate
    from ram_studio.resources import asset_path as asset_path

_NAMES = {
    "algorithm.epsilon_grid": ("EPSILON_GRID",),
    "algorithm.methods": ("METHODS",),
    "algorithm.methods.base": ("BlockInput", "BlockOutput", "Method", "MethodSettings"),
    "algorithm.scaling": ("overlap_unique_ratio", "scaling_factor"),
    "algorithm.analysis": ("Analysis",),
    "algorithm.partial": ("add_partial",),
    "algorithm.verdict": ("verdict",),
    "checkpoints.own_methods": ("use_method",),
    "checkpoints.record.recipe": ("Recipe", "dump_recipe", "load_recipe", "make_recipe"),
    "checkpoints.record.part_plan": ("load_plan", "save_plan"),
    "checkpoints.record.analysis_file": ("load_analysis", "save_analysis"),
    "checkpoints.fit.storage_report": ("storage_report",),
    "engine.analyze": ("analyze", "inspect"),
    "engine.diff": ("Diff", "diff"),
    "engine.events": ("CancelToken", "Progress"),
    "engine.parts.finishing": ("finish",),
    "engine.parts.planning": ("make_plan",),
    "engine.parts.steps": ("analyze_part", "merge_part"),
    "engine.result": ("MergeResult",),
    "engine.merge": ("merge",),
    "engine.microscope.view": ("microscope",),
    "engine.in_memory": ("ResidentMerge",),
    "engine.verify": ("verify",),
    "errors": ("RamStudioError",),
    "evals.run": ("evaluate",),
    "evals.report.history": ("history",),
    "evals.experiment.run": ("compare", "sweep"),
    "resources": ("asset_path",),
}
_HOME_OF = {name: home for home, names in _NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __dir__() -> list[str]:
    return __all__  # what notebooks complete


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"ram_studio.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'ram_studio' has no attribute {name!r}")
