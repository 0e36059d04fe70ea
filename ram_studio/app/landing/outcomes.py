"""Scores of the measured merges of a shipped set, for the landing page and link previews.

Read from the set's skill table; nothing is interpolated. A setting that was not measured shows the
nearest measured one, by the rule of assets/canvas/model/nearest.js, with a note.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ram_studio.algorithm import scaling
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.algorithm.meters.part_factors import PartFactors
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.numbers import epsilon_text
from ram_studio.app.session.deep_link import (
    AVERAGE,
    PLACES,
    SUM,
    TUNE_DIALS,
    method_title,
    shown_method,
)
from ram_studio.app.session.sets import TITLES, load_set, shipped_table
from ram_studio.app.session.shared import TuneSettings
from ram_studio.errors import AnalysisError, EvaluationError
from ram_studio.evals.report.canvas_page import can_show
from ram_studio.evals.report.score import DomainScore

_BELOW_GRID = -8.5
"""The position of epsilon 0 on the scale of log10 of epsilon, as in nearest.js."""

_EXACT = 1e-6
_ENDS = {"scale": 2.0, "density": 1.0}
"""Largest values of the dials with a square-root scale."""


class Skill(NamedTuple):
    """A domain that an agent learned: its index in the table, and the agent's index."""

    name: str
    place: int
    agent: int


@dataclass(frozen=True)
class Outcome:
    """The solved questions of one row of a table.

    number: the row's index. title: its method. settings: in words, "" for none. solved: questions,
    by skill. n: questions of each skill. is_exact: measured at the requested setting.
    """

    number: int
    title: str
    settings: str
    solved: tuple[int, ...]
    n: int
    is_exact: bool = True

    @property
    def total(self) -> int:
        """Questions solved of all skills."""
        return sum(self.solved)

    @property
    def prompts(self) -> int:
        """Questions of all skills."""
        return self.n * len(self.solved)

    @property
    def interval(self) -> tuple[int, int]:
        """The 95 % interval of the total, in questions."""
        low, high = DomainScore(self.prompts, self.total).ci95
        return round(low * self.prompts), round(high * self.prompts)


class Outcomes:
    """The measured merges of one shipped set."""

    def __init__(self, table: Mapping[str, Any], analysis: Analysis) -> None:
        self.table, self.analysis = table, analysis

    @cached_property
    def skills(self) -> tuple[Skill, ...]:
        """The domains in which an agent is significantly better than the base."""
        found = []
        n = self.table["n"]
        for place, name in enumerate(self.table["domains"]):
            scores = [self.solved_by(self.source(agent), place) for agent in self.analysis.agents]
            _, high = DomainScore(n, self.solved_by(self.source("base"), place)).ci95
            if max(scores) / n > high:
                found.append(Skill(name, place, scores.index(max(scores))))
        return tuple(found)

    @property
    def factors(self) -> PartFactors:
        """The factors of each agent's own and shared changes in merges.

        Raises: AnalysisError where the analysis lacks them.
        """
        factors = self.analysis.part_factors
        if factors is None:
            raise AnalysisError("The analysis has no factors of parts; analyze the models again.")
        return factors

    def source(self, name: str) -> Mapping[str, Any]:
        """Return the row of the base or of an agent."""
        rows = self.table["rows"]
        return next(row for row in rows if (row["kind"], row["method"]) == ("source", name))

    def solved_by(self, row: Mapping[str, Any], place: int) -> int:
        """Return the number of questions that a row solves of the domain at an index."""
        n = self.table["n"]
        return int(row["right"][place * n : (place + 1) * n].count("1"))

    def outcome(self, number: int, *, is_exact: bool = True) -> Outcome:
        """Return the outcome of the row with this number.

        Raises: IndexError where there is no such row.
        """
        if not 0 <= number < len(self.table["rows"]):
            raise IndexError(number)
        row = self.table["rows"][number]
        method = self._method_of(row)
        # For the base or an agent the method is its name.
        title = method_title(method) if method in (*METHODS, *PLACES) else method
        solved = tuple(self.solved_by(row, skill.place) for skill in self.skills)
        settings = "" if method in (AVERAGE, SUM) else settings_text(row["settings"])
        return Outcome(number, title, settings, solved, self.table["n"], is_exact)

    def find(self, rule: str) -> Outcome:
        """Return the outcome of a method without epsilon (Average, Sum, default TIES), or the base.

        Raises: KeyError where it was not measured.
        """
        for number, row in enumerate(self.table["rows"]):
            if rule in (row["method"], self._method_of(row)):
                return self.outcome(number)
        raise KeyError(rule)

    def _method_of(self, row: Mapping[str, Any]) -> str:
        return shown_method(row["method"], row["settings"], len(self.analysis.agents))

    def _closest(self, distances: Iterable[tuple[int, float]]) -> Outcome:
        """Return the outcome of the nearest row, of (number, distance); of equal ones the first.

        Raises: KeyError where there is none.
        """
        best, number = math.inf, -1
        for found, distance in distances:
            if distance < best - 1e-9:
                best, number = distance, found
        if number < 0:
            raise KeyError("No such merge was measured.")
        return self.outcome(number, is_exact=best < _EXACT)

    def _nearest_of(self, rule: str, given: Mapping[str, float]) -> Outcome:
        """Return the measured row nearest to settings of a method outside the RAM family."""
        if rule == "task-arithmetic" and given.get("scale") == 0:
            return self.find("base")
        wanted = self._dial_places(rule, given)
        return self._closest(
            (number, sum(abs(x - y) for x, y in zip(places, wanted, strict=True)))
            for number, row in self._shown_rows
            if row["method"] == rule
            for places in [self._dial_places(rule, row["settings"])]
        )

    def _dial_places(self, rule: str, given: Mapping[str, Any]) -> list[float]:
        """Return the positions of settings on Tune's dials of a method, see methods.js.

        Missing settings have their default; a missing scale is 1/N.
        """
        fields = METHODS[rule].settings.model_fields
        known = {n: given.get(n, fields[n].default) for n in TUNE_DIALS if n in fields}
        usual = 1 / len(self.analysis.agents)
        return [_dial_place(name, usual if v is None else v) for name, v in known.items()]

    @cached_property
    def _shown_rows(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Merges that Tune can show, with their numbers."""
        return [
            (number, row)
            for number, row in enumerate(self.table["rows"])
            if row["kind"] == "merge" and can_show(row["method"], row["settings"])
        ]

    @cached_property
    def _ram_rows(self) -> list[tuple[int, tuple[str, float, list[float]]]]:
        """Rows of the RAM family: number, and counts at its epsilon, log10 of it, and lambdas."""
        return [
            (number, (self._counts[row["k"]], _place(row["k"]), self._lambdas(tuned)))
            for number, row in self._shown_rows
            if row["method"] in scaling.RULES and row["k"] is not None
            for tuned in [_tune_settings_of(row)]
        ]

    @cached_property
    def _counts(self) -> list[str]:
        return [str(at.tolist()) for at in self.analysis.model.shared[0]]

    def _lambdas(self, tuned: TuneSettings) -> list[float]:
        rule, point, r, alpha, *_ = tuned
        if rule == scaling.MAGNITUDE_RULE:  # its ratio is not of counts
            agents = self.analysis.preview(point, rule, r, alpha)["agents"]
            return [float(agent["lambda"]) for agent in agents.values()]
        counts = self.analysis.model.shared[0][point].tolist()
        ratios = (scaling.overlap_unique_ratio(sum(own[1:]), own[0]) for own in counts)
        return [scaling.scaling_factor(rho, rule, r, alpha) for rho in ratios]

    def nearest(self, tuned: TuneSettings) -> Outcome:
        """Return the measured row for settings of Tune.

        In the RAM family equal counts and lambdas mean equal weights; otherwise the nearest row by
        log10 of epsilon and by lambda counts. For another method the nearest by its dials.

        Raises: KeyError where the method was not measured.
        """
        if tuned.method not in scaling.RULES:
            return self._nearest_of(tuned.method, tuned.own)
        shared = self.analysis.model.shared[0][tuned.point]
        if not shared.any():
            return self.find("base")
        lambdas, place = self._lambdas(tuned), _place(tuned.point)

        def distance(counts: str, at: float, own: list[float]) -> float:
            far = sum(
                abs(mine - wanted)
                for mine, wanted, unique in zip(own, lambdas, shared[:, 0], strict=True)
                if unique
            )
            away = 0.0 if counts == self._counts[tuned.point] else abs(at - place)
            return 4 * away + 3 * far

        return self._closest((number, distance(*row)) for number, row in self._ram_rows)


def _dial_place(name: str, value: float) -> float:
    """Return a value's position on its dial, from 0 to 1, as in methods.js."""
    if name == "drop_rate":
        return value
    return math.sqrt(min(1.0, value / _ENDS[name]))


def _place(point: int) -> float:
    return math.log10(EPSILON_GRID[point]) if point else _BELOW_GRID


def _tune_settings_of(row: Mapping[str, Any]) -> TuneSettings:
    own = row["settings"]
    return TuneSettings(row["method"], row["k"], own.get("r", 0.0), own.get("alpha", 2.0))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in words: "epsilon 10⁻⁵, r 0.1, alpha 2"."""
    return ", ".join(
        f"{name.replace('_', ' ')} {epsilon_text(value) if name == 'epsilon' else f'{value:g}'}"
        for name, value in settings.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    )


@lru_cache(maxsize=len(TITLES))
def outcomes_of(set_name: str) -> Outcomes:
    """Return the measured merges of a shipped set; read from disk once.

    Raises: CheckpointError, EvaluationError, AnalysisError where its files are missing or damaged.
    """
    table = shipped_table(set_name)
    if table is None:
        raise EvaluationError(f"The set {set_name} has no skill table; install the package again.")
    return Outcomes(table, load_set(set_name).analysis)
