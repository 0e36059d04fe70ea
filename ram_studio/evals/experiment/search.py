"""Optuna as the engine that proposes settings: ask for one, tell how it scored.

Optuna is imported when a search begins. The same space, seed and scores give the same proposals,
so that a search taken up again asks for what it has answers to.
"""

from __future__ import annotations

from typing import Any

from ram_studio.algorithm.ladder import LADDER, snap
from ram_studio.evals.experiment.space import Axis, Candidate, Space


class OptunaSearch:
    """A seeded TPE search (tree-structured Parzen estimator) over a space.

    Args:
        space: what may be proposed; ranges are continuous, their counts are not used.
        seed: of the sampler.
        trials: how many proposals are planned; the first quarter (4 to 10) are drawn at random.
    """

    def __init__(self, space: Space, *, seed: int, trials: int) -> None:
        import optuna

        # Its own progress lines would come between ours.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._pruned = optuna.trial.TrialState.PRUNED
        sampler = optuna.samplers.TPESampler(
            seed=seed % 2**32, n_startup_trials=min(10, max(4, trials // 4))
        )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._open: Any = None

    def ask(self) -> Candidate:
        """Return the next proposal; one is open at a time."""
        self._open = trial = self._study.ask()
        methods = self._space.methods
        method = trial.suggest_categorical("method", methods) if len(methods) > 1 else methods[0]
        values = {
            axis.name: _suggest(trial, f"{method}.{axis.name}", axis)
            for axis in self._space.axes_of(method)
        }
        return self._space.candidate(method, values)

    def tell(self, score: float, *, is_dropped: bool, stage: int) -> None:
        """Say how the open proposal scored, 0 to 1, and whether it was dropped on the way."""
        if is_dropped:
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
        return LADDER[snap(value)]
    return float(f"{value:.4g}")
