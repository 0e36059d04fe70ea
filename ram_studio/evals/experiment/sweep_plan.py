"""What a sweep is asked to do: the recipe it starts from, what is varied, the items, the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.errors import EvaluationError, SettingsError
from ram_studio.evals.answering.engine import ChatMode
from ram_studio.evals.experiment.sweep_space import Axis, Candidate, Space
from ram_studio.evals.run import DEFAULT_SEED
from ram_studio.evals.sandbox import CodeSwitch, check_code_allowed
from ram_studio.evals.suites import ALL_SUITES, DEFAULT_LENGTHS

Search = Literal["grid", "optuna"]

DEFAULT_ITEMS = 50
DEFAULT_TRIALS = 20
MAX_SETTINGS = 200


@dataclass(frozen=True)
class SweepPlan:
    """What to sweep and how far to go.

    recipe: base, agents and the setting to start from; axes: see `sweep_space`.
    suites: names with commas: demo (on its own) or any of tool, memory, code, math, instructions.
    items: most questions per suite (demo: per domain) that settings are chosen by; held_out: the
    same for the final check, None as many as items, 0 none.
    minutes: for all together; time for the final check is kept back. search: "grid" takes every
    combination, "optuna" proposes `trials` settings. max_settings: larger grids are refused.
    early_stop: whether clearly losing settings are dropped on the way, see `sweep_race`.
    seed: of items and search.
    """

    recipe: Recipe
    axes: tuple[Axis, ...]
    suites: str | Sequence[str] = "demo"
    items: int = DEFAULT_ITEMS
    held_out: int | None = None
    minutes: float | None = None
    search: Search = "grid"
    trials: int = DEFAULT_TRIALS
    max_settings: int = MAX_SETTINGS
    early_stop: bool = True
    seed: int = DEFAULT_SEED
    lengths: tuple[int, ...] = DEFAULT_LENGTHS
    chat: ChatMode = "auto"
    code: CodeSwitch = "auto"

    @property
    def held(self) -> int:
        """Held-out questions per suite."""
        return self.items if self.held_out is None else self.held_out

    @property
    def suite_names(self) -> tuple[str, ...]:
        """The suites' names, each once."""
        given = self.suites.split(",") if isinstance(self.suites, str) else self.suites
        return tuple(dict.fromkeys(name.strip() for name in given if name.strip()))

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that will be merged with, the starting one included."""
        return tuple(dict.fromkeys((self.recipe.method, *Space(self.recipe, self.axes).methods)))

    def candidates(self) -> list[Candidate]:
        """Check everything that needs no file; return the grid (for a search: none).

        Raises:
            SettingsError, EvaluationError: a budget, suite, axis or value that cannot be.
        """
        names = self.suite_names
        for name in names:
            if name not in ALL_SUITES:
                known = ", ".join(ALL_SUITES)
                raise EvaluationError(f"Suite {name!r} cannot be swept on. Choose from: {known}.")
        if not names or ("demo" in names and len(names) > 1):
            raise EvaluationError("Choose suite demo on its own, or any of the others.")
        for what, value, least in (
            ("items", self.items, 1),
            ("held-out items", self.held, 0),
            ("trials", self.trials, 1),
            ("settings", self.max_settings, 1),
        ):
            if value < least:
                raise SettingsError(f"The number of {what} is {value}. Choose {least} or more.")
        if self.minutes is not None and not self.minutes > 0:
            raise SettingsError(f"The budget is {self.minutes} minutes. Choose more than 0.")
        if self.search not in ("grid", "optuna"):
            raise SettingsError(f"The search is {self.search!r}; it must be grid or optuna.")
        if any(ALL_SUITES[name].runs_code for name in names):
            check_code_allowed(self.code)
        space = Space(self.recipe, self.axes)
        if self.search == "optuna":
            return []
        grid = space.grid()
        if len(grid) > self.max_settings:
            raise SettingsError(
                f"The grid has {len(grid)} settings, the budget is {self.max_settings}. Take "
                "fewer values, raise the budget, or let a search choose."
            )
        return grid
