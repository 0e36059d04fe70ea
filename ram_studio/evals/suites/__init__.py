"""The suites for any causal language model, by name; each has a version.

A new suite is one file here with a `SUITE` (see `suite.Suite`), listed in `_GENERAL` below. `demo`
is the example agents' own suite; `published` benchmarks have their questions elsewhere; `generated`
families have any number of questions; `health` (numbers without right answers) is not a suite of
questions, see `ram_studio.evals.suites.health`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from ram_studio.checkpoints.record.provenance import FORGETTING_TASKS
from ram_studio.errors import EvalSettingsError, EvaluationError
from ram_studio.evals.suites import code, generated, instructions, memory, published, refusal
from ram_studio.evals.suites.demo import tasks as demo
from ram_studio.evals.suites.suite import DEFAULT_LENGTHS, Suite, SuiteSettings, visible

_GENERAL = (generated.TOOL, memory.SUITE, code.SUITE, generated.MATH, instructions.SUITE)

HEALTH = "health"
HARNESS_SUITES: dict[str, tuple[str, ...]] = {"forgetting": FORGETTING_TASKS}
"""Suites that only lm-eval asks, by its tasks. forgetting: knowledge from before the agent's
training, by log-likelihood only, so that answer format and chat template do not matter."""
GENERAL_SUITES: dict[str, Suite] = {suite.name: suite for suite in _GENERAL}
ALL_SUITES: dict[str, Suite] = {
    demo.SUITE.name: demo.SUITE,
    **GENERAL_SUITES,
    **{suite.name: suite for suite in (*published.SUITES, *generated.SUITES, refusal.SUITE)},
}

__all__ = [
    "ALL_SUITES",
    "DEFAULT_LENGTHS",
    "GENERAL_SUITES",
    "HARNESS_SUITES",
    "HEALTH",
    "Suite",
    "SuiteSettings",
    "apart",
    "check_suites",
    "is_a",
    "offer_suite",
    "visible",
]


@contextmanager
def offer_suite(suite: Suite) -> Iterator[None]:
    """Add a suite in this process while the block runs.

    Raises: EvaluationError for a name that is taken.
    """
    if suite.name in (*ALL_SUITES, HEALTH):
        raise EvaluationError(f"There is a suite {suite.name!r} already. Choose another name.")
    GENERAL_SUITES[suite.name] = ALL_SUITES[suite.name] = suite
    try:
        yield
    finally:
        del GENERAL_SUITES[suite.name], ALL_SUITES[suite.name]


def is_a(
    name: str, what: Literal["runs_code", "has_texts", "has_template", "has_shots", "harness"]
) -> bool:
    """Return a suite's property: runs model-written code, has long texts, ...; False for health."""
    return name in ALL_SUITES and bool(getattr(ALL_SUITES[name], what))


def apart(suites: Iterable[str]) -> frozenset[str]:
    """Return the domains of these suites outside the average."""
    return frozenset(d for name in suites if name in ALL_SUITES for d in ALL_SUITES[name].apart)


def check_suites(names: Sequence[str], *, health: bool = False) -> None:
    """Raise EvaluationError for an unknown suite, no suite, or demo together with others.

    health: whether health, and suites that only lm-eval asks, may be among them.
    """
    known = [*ALL_SUITES, HEALTH, *HARNESS_SUITES] if health else list(ALL_SUITES)
    choose = f"Choose from: {', '.join(known)}."
    for name in names:
        if name not in known:
            raise EvalSettingsError(f"Suite {name!r} cannot be asked here. {choose}")
    if not names:
        raise EvalSettingsError(f"No suite was named. {choose}")
    if demo.SUITE.name in names and len(names) > 1:
        raise EvalSettingsError(
            "Suite demo belongs to the example agents, and its domains bear the names of other "
            "suites. Evaluate it on its own."
        )
