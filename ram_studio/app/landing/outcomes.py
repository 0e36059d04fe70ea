"""What the measured merges of a shipped set solve: for the landing page and for links' pictures.

Read from the set's skill table; nothing is interpolated. A setting that was not measured shows the
nearest one that was, by the rule of assets/canvas/model/nearest.js, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ram_studio.algorithm import scaling
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.algorithm.meters.part_factors import PartFactors
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.numbers import epsilon_text
from ram_studio.app.session.deep_link import AVERAGE, PLACES, SUM, method_title
from ram_studio.app.session.sets import TITLES, load_set, shipped_table
from ram_studio.app.session.shared import TuneSettings
from ram_studio.errors import AnalysisError, EvaluationError
from ram_studio.evals.report.score import DomainScore

_BELOW_GRID = -8.5
"""Where epsilon 0 stands among log10 of epsilons, as in nearest.js."""

_EXACT = 1e-6


class Skill(NamedTuple):
    """A domain that an agent learned: its place in the table, and the agent's index."""

    name: str
    place: int
    agent: int


@dataclass(frozen=True)
class Outcome:
    """What one row of a table solves.

    number: the row's place in the table. title: its method. settings: in words, "" for none.
    solved: questions, by skill. n: questions of each skill. is_exact: measured at what was
    asked.
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
        """The domains in which some agent is better than the base beyond noise."""
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
        """How often merges apply each agent's own and shared changes.

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
        """Return how many questions of the domain at a place a row solves."""
        n = self.table["n"]
        return int(row["right"][place * n : (place + 1) * n].count("1"))

    def outcome(self, number: int, *, is_exact: bool = True) -> Outcome:
        """Return what the row of this number solves.

        Raises: IndexError where there is no such row.
        """
        if not 0 <= number < len(self.table["rows"]):
            raise IndexError(number)
        row = self.table["rows"][number]
        method = shown_method(row, len(self.analysis.agents))
        # Of the base or an agent the method is its name.
        title = method_title(method) if method in (*METHODS, *PLACES) else method
        solved = tuple(self.solved_by(row, skill.place) for skill in self.skills)
        settings = "" if method in (AVERAGE, SUM) else settings_text(row["settings"])
        return Outcome(number, title, settings, solved, self.table["n"], is_exact)

    def find(self, rule: str) -> Outcome:
        """Return a method without epsilon (Average, Sum, TIES at its usual setting), or the base.

        Raises: KeyError where it was not measured.
        """
        for number, row in enumerate(self.table["rows"]):
            if row["method"] == rule or shown_method(row, len(self.analysis.agents)) == rule:
                return self.outcome(number)
        raise KeyError(rule)

    def _nearest_of(self, rule: str, given: Mapping[str, float]) -> Outcome:
        """Return the measured row nearest to settings of a method outside the RAM family."""
        wanted = self._complete_settings(rule, given)

        def distance(row: Mapping[str, Any]) -> float:
            own = self._complete_settings(rule, row["settings"])
            return sum(abs(own[name] - wanted[name]) for name in own.keys() & wanted.keys())

        rows = enumerate(self.table["rows"])
        found = [(distance(row), number) for number, row in rows if row["method"] == rule]
        if not found:
            raise KeyError(rule)
        away, number = min(found)
        return self.outcome(number, is_exact=away < _EXACT)

    def _complete_settings(self, rule: str, given: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers among a method's settings; one that is not given has its default."""
        fields = METHODS[rule].settings.model_fields
        known = {name: given.get(name, field.default) for name, field in fields.items()}
        # No scale is 1/N, no density trims nothing.
        usual = {"scale": 1 / len(self.analysis.agents), "density": 1.0}
        known |= {name: usual[name] for name in usual if name in known and known[name] is None}
        return {name: float(v) for name, v in known.items() if isinstance(v, (int, float))}

    @cached_property
    def _ram_rows(self) -> list[tuple[int, str, float, list[float]]]:
        """Rows of the RAM family: number, counts at its epsilon, log10 of it, and lambdas."""
        return [
            (number, self._counts[row["k"]], _place(row["k"]), self._lambdas(tuned))
            for number, row in enumerate(self.table["rows"])
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
        """Return the measured row that settings of Tune show.

        In the RAM family those with the same counts and lambdas are the same weights; otherwise the
        nearest by log10 of epsilon and by lambda. Of another method the nearest by its dials.

        Raises: KeyError where the method was not measured.
        """
        if tuned.method not in scaling.RULES:
            return self._nearest_of(tuned.method, tuned.own)
        shared = self.analysis.model.shared[0][tuned.point]
        if not shared.any():
            return self.find("base")
        lambdas, place = self._lambdas(tuned), _place(tuned.point)
        best, number = math.inf, -1
        for found, counts, at, own in self._ram_rows:
            far = sum(
                abs(mine - wanted)
                for mine, wanted, unique in zip(own, lambdas, shared[:, 0], strict=True)
                if unique
            )
            away = 0.0 if counts == self._counts[tuned.point] else abs(at - place)
            distance = 4 * away + 3 * far
            if distance < best - 1e-9:
                best, number = distance, found
        return self.outcome(number, is_exact=best < _EXACT)


def _place(point: int) -> float:
    return math.log10(EPSILON_GRID[point]) if point else _BELOW_GRID


def _tune_settings_of(row: Mapping[str, Any]) -> TuneSettings:
    own = row["settings"]
    return TuneSettings(row["method"], row["k"], own.get("r", 0.0), own.get("alpha", 2.0))


def shown_method(row: Mapping[str, Any], n_agents: int) -> str:
    """Return the method of a row: task arithmetic of N agents is the average at scale 1/N, and the
    sum at 1.
    """
    method = str(row["method"])
    if method == "task-arithmetic":
        scale = row["settings"].get("scale") or 1 / n_agents
        for name, wanted in ((AVERAGE, 1 / n_agents), (SUM, 1.0)):
            if math.isclose(scale, wanted):
                return name
    return method


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

    Raises: CheckpointError, EvaluationError, AnalysisError where its files lack or are damaged.
    """
    table = shipped_table(set_name)
    if table is None:
        raise EvaluationError(f"The set {set_name} has no skill table; install the package again.")
    return Outcomes(table, load_set(set_name).analysis)
