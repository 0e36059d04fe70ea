"""Searches of a sweep: settings are proposed one after another, from the scores of earlier ones.

Optuna's TPE searches any space. SLIM (Simplex-Lattice Interpolation Merging, arXiv 2610.01037)
searches each agent's share: it fits a quadratic in the shares to the scores of each agent alone and
of every equal pair (a {N, 2} simplex lattice, Scheffe 1958).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations, pairwise
from typing import Any

from pydantic.dataclasses import dataclass

from ram_studio.algorithm.epsilon_grid import EPSILON_GRID, snap
from ram_studio.errors import SettingsError
from ram_studio.evals.experiment.space import Axis, Candidate, Space

MAX_LATTICE = 20_000
FINEST = 60
"""Shares are searched in steps of at least 1/FINEST."""


class OptunaSearch:
    """A seeded TPE search (tree-structured Parzen estimator) over a space, by Optuna.

    Optuna is imported when a search begins. The same space, seed and scores give the same
    proposals, so that a continued search finds its stored answers.

    Args:
        space: of the proposals; ranges are continuous, their counts are not used.
        seed: of the sampler.
        trials: number of planned proposals; the first quarter (4 to 10) are random.

    Raises: SettingsError without Optuna.
    """

    def __init__(self, space: Space, *, seed: int, trials: int) -> None:
        require_optuna()
        import optuna

        # Optuna's log lines would mix with ours.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._pruned = optuna.trial.TrialState.PRUNED
        sampler = optuna.samplers.TPESampler(
            seed=seed % 2**32, n_startup_trials=min(10, max(4, trials // 4))
        )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._open: Any = None

    def propose(self) -> Candidate:
        """Return the next proposal; one is open at a time."""
        self._open = trial = self._study.ask()
        methods = self._space.methods
        method = trial.suggest_categorical("method", methods) if len(methods) > 1 else methods[0]
        values = {
            axis.name: _suggest(trial, f"{method}.{axis.name}", axis)
            for axis in self._space.axes_of(method)
        }
        return self._space.candidate(method, values)

    def report_score(self, score: float | None, *, is_dropped: bool, stage: int) -> None:
        """Report the open proposal's score, 0 to 1, and whether it was dropped early.

        score: None where it could not be merged, which ranks below all dropped ones.
        """
        if is_dropped or score is None:
            if score is not None:
                self._open.report(score, stage)
            self._study.tell(self._open, state=self._pruned)
        else:
            self._study.tell(self._open, score)


def _suggest(trial: Any, name: str, axis: Axis) -> Any:
    if not axis.is_range:
        return trial.suggest_categorical(name, axis.values)
    assert axis.low is not None
    assert axis.high is not None
    value = float(trial.suggest_float(name, axis.low, axis.high, log=axis.is_log))
    if axis.name == "epsilon":
        return EPSILON_GRID[snap(value)]
    return float(f"{value:.4g}")


def require_optuna() -> None:
    if find_spec("optuna") is None:
        raise SettingsError(
            'Optuna is not installed; install it with `pip install "ram-studio[search]"`, or take '
            "every combination."
        )


@dataclass(frozen=True)
class Surrogate:
    """A quadratic in the agents' shares x (nonnegative, sum 1), fitted to measured scores.

    predict(x) = sum_i y_i x_i + sum_(i<j) (4 y_ij - 2 y_i - 2 y_j) x_i x_j

    agents: in order. singles: y_i, the score of agent i alone; pairs: y_ij, of two agents with
    equal shares, in the order of `itertools.combinations`. low, high: the weight of a share of 0,
    and of the largest share.
    """

    agents: tuple[str, ...]
    singles: tuple[float, ...]
    pairs: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def predict(self, shares: Sequence[float]) -> float:
        """Return the predicted score, 0 to 1 or slightly outside, for shares in order."""
        found = sum(y * x for y, x in zip(self.singles, shares, strict=True))
        y = self.singles
        for both, (i, j) in zip(self.pairs, combinations(range(len(y)), 2), strict=True):
            found += (4 * both - 2 * y[i] - 2 * y[j]) * shares[i] * shares[j]
        return found

    def weights(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return the agents' weights for shares; the largest share maps to the highest weight."""
        most = max(shares)
        ends = zip(self.low, self.high, shares, strict=True)
        return tuple(float(f"{a + (b - a) * x / most:.4g}") for a, b, x in ends)

    def shares_of(self, weights: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Return the shares of weights by agent (1 where left out), None where there are none."""
        own = [weights.get(name, 1.0) for name in self.agents]
        if not all(isinstance(w, (int, float)) for w in own):
            return None
        parts = [(w - a) / (b - a) for w, a, b in zip(own, self.low, self.high, strict=True)]
        is_there = min(parts) >= 0 and 0 < max(parts) <= 1
        return tuple(part / sum(parts) for part in parts) if is_there else None

    def best(self) -> tuple[float, ...]:
        """Return the shares of the highest prediction on a lattice; of equal ones the most even."""
        n = len(self.agents)
        steps = next(m for m in range(FINEST, 0, -1) if math.comb(m + n - 1, n - 1) <= MAX_LATTICE)
        return max(lattice(n, steps), key=lambda x: (round(self.predict(x), 9), -max(x)))


def lattice(n: int, steps: int) -> Iterator[tuple[float, ...]]:
    """Yield all n shares that are multiples of 1 / steps and sum to 1."""
    for bars in combinations(range(steps + n - 1), n - 1):
        edges = (-1, *bars, steps + n - 1)
        yield tuple((b - a - 1) / steps for a, b in pairwise(edges))


class SlimSearch:
    """SLIM over the agents' weights: singles, pairs, then the best of the surrogate.

    With a method that divides by the sum of weights (`normalize`) a single is the agent itself and
    a pair the mean of two, as published. Other methods use the shares as weights.

    Raises: SettingsError for a space that is not two or more weights of one method, or too many.
    """

    def __init__(self, space: Space) -> None:
        axes = [axis for axis in space.axes if axis.is_weight]
        others = [axis.key for axis in space.axes if not axis.is_weight and axis.name != "method"]
        others += ["method"] if len(space.methods) > 1 else []
        if len(axes) < 2 or others or not all(axis.is_range for axis in axes):
            raise SettingsError(
                "SLIM searches the weights of two or more agents, each with a range: --over "
                f"weight=0:1. {f'It cannot vary {others[0]}. ' if others else ''}Search the others "
                "by optuna or as a grid."
            )
        if any(axis.name.startswith("ramp.") for axis in axes):
            raise SettingsError("SLIM has one weight per agent; use optuna for ramps.")
        self._space, self._axes = space, axes
        self._ends = [(axis.low or 0.0, axis.high or 0.0) for axis in axes]
        n = len(axes)
        groups = [*combinations(range(n), 1), *combinations(range(n), 2)]
        self._design = [tuple((i in group) / len(group) for i in range(n)) for group in groups]
        self._scores: list[float | None] = []
        self.surrogate: Surrogate | None = None

    @property
    def trials(self) -> int:
        """Number of proposals: singles, pairs and the best."""
        return len(self._design) + 1

    def propose(self) -> Candidate | None:
        """Return the next proposal; None after the surrogate's best, or if a score is missing."""
        done = len(self._scores)
        if done > len(self._design):
            return None
        if done == len(self._design):
            known = [score for score in self._scores if score is not None]
            if len(known) < done:
                return None
            self.surrogate = self._fit_surrogate(known)
            return self._candidate(self.surrogate, self.surrogate.best())
        return self._candidate(self._fit_surrogate([0.0] * len(self._design)), self._design[done])

    def report_score(self, score: float | None, *, is_dropped: bool, stage: int) -> None:
        """Report the open proposal's score; if one score is missing, no surrogate is fitted."""
        self._scores.append(score)

    def _fit_surrogate(self, scores: Sequence[float]) -> Surrogate:
        n, (low, high) = len(self._axes), zip(*self._ends, strict=True)
        names = tuple(str(axis.agent) for axis in self._axes)
        return Surrogate(names, tuple(scores[:n]), tuple(scores[n:]), tuple(low), tuple(high))

    def _candidate(self, surrogate: Surrogate, shares: Sequence[float]) -> Candidate:
        weights = surrogate.weights(shares)
        values = {axis.name: w for axis, w in zip(self._axes, weights, strict=True)}
        return self._space.candidate(self._space.methods[0], values)
