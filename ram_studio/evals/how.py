"""How models are asked: what evaluations, sweeps and comparisons all say, in the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.engine import ChatMode, Decoding, Engine
from ram_studio.evals.pieces import Pieces
from ram_studio.evals.sandbox import CodeSwitch, check_code_allowed
from ram_studio.evals.suites import ALL_SUITES, DEFAULT_LENGTHS, Suite, SuiteSettings, is_a
from ram_studio.evals.suites.suite import DEFAULT_DIFFICULTY, Budget

DEFAULT_SEED = 2026
MOST_SAMPLES = 64
GREEDY = Decoding()


def by_suite(what: str, given: Budget, names: Sequence[str]) -> Iterable[int | None]:
    """Return the numbers given for all suites, or suite by suite.

    Raises: EvaluationError for a suite that is none of these names.
    """
    if not isinstance(given, Mapping):
        return [given]
    for name in given:
        if name not in names:
            raise EvaluationError(
                f"A {what} is given for suite {name!r}, which is not asked. Choose from: "
                f"{', '.join(names)}."
            )
    return given.values()


@dataclass(frozen=True, kw_only=True)
class HowToAsk:
    """How every model of an evaluation or experiment is asked.

    seed: for the suites that are generated (demo, memory). lengths: prompt lengths of suites about
    long texts, in tokens of the first model. chat: "auto", "template" or "none", see `LocalEngine`.
    code: whether code that a model wrote may run, see `sandbox.check_code_allowed`. max_tokens:
    where answers are cut off, of all suites or by suite; the suite's own where left out. decoding:
    how they are written; its seed counts from `seed`. samples: answers to each question, see
    `report.score`. difficulty: of generated families, 1 to 5. data: folder with the rows of
    suites that are a data set; None: the Hub's cache, or the Hub. pieces: how suites about long
    texts are read piece by piece; None: whole.
    """

    seed: int = DEFAULT_SEED
    lengths: Sequence[int] = DEFAULT_LENGTHS
    chat: ChatMode = "auto"
    code: CodeSwitch = "auto"
    max_tokens: Budget = None
    decoding: Decoding = GREEDY
    samples: int = 1
    difficulty: int = DEFAULT_DIFFICULTY
    data: str | Path | None = None
    pieces: Pieces | None = None

    def check_asking(self, names: Sequence[str]) -> None:
        """Raise EvaluationError for what cannot be asked of suites, before any model is opened."""
        for most in by_suite("budget of tokens", self.max_tokens, names):
            if most is not None and most < 1:
                raise EvaluationError(f"An answer may take {most} tokens. Choose 1 or more.")
        self._check_draws()
        if self.pieces is not None:
            self.pieces.check()
            if not any(is_a(name, "has_texts") for name in names):
                known = [name for name in ALL_SUITES if is_a(name, "has_texts")]
                raise EvaluationError(
                    f"None of these suites has texts to read in pieces: {', '.join(names)}. Ask "
                    f"{', '.join(known)}, or leave the mode out."
                )
        if any(is_a(name, "runs_code") for name in names):
            check_code_allowed(self.code)

    def _check_draws(self) -> None:
        self.decoding.check()
        if not 1 <= self.samples <= MOST_SAMPLES:
            raise EvaluationError(
                f"The number of samples is {self.samples}. Choose 1 to {MOST_SAMPLES}."
            )
        if self.samples > 1 and not self.decoding.temperature:
            raise EvaluationError(
                "Several samples of the likeliest answer are all the same. Give a temperature "
                "above 0, such as the paper's 1.0 with top-p 0.95."
            )

    def draws(self) -> tuple[Decoding, ...]:
        """Return how each sample is written: the same but for the seed."""
        return tuple(replace(self.decoding, seed=self.seed + i) for i in range(self.samples))

    def drawing(self, count_tokens: Callable[[str], int], limit: int | None) -> SuiteSettings:
        """Return what shapes questions; count_tokens: text -> length in the first model's own."""
        shaped = (self.seed, tuple(self.lengths), self.difficulty, self.data, self.max_tokens)
        return SuiteSettings(count_tokens, limit, *shaped)

    def pieces_of(self, suite: Suite) -> Pieces | None:
        """Return how the texts of a suite are read in pieces; None: whole, or there are none."""
        return self.pieces if suite.has_texts else None

    def asked_of(self, engine: Engine, suites: Sequence[Suite]) -> dict[str, object]:
        """Return the settings under which an engine is asked these suites, for a report.

        They are those of the first draw; "samples" is told where there are several.
        """
        engine.decoding = self.draws()[0]
        found = {name: value for name, value in engine.identity.items() if name != "fingerprint"}
        for pieces in filter(None, map(self.pieces_of, suites)):
            found |= pieces.key
        return {**found, "samples": self.samples} if self.samples > 1 else found


AS_USUAL = HowToAsk()
