"""One loaded model that answers as one merge after another, and each merge's answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.algorithm.analysis import BASE, Analysis
from ram_studio.algorithm.epsilon_grid import float32_threshold
from ram_studio.algorithm.methods import Need, get_method, make_settings
from ram_studio.algorithm.methods.ram import RamSettings
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport
from ram_studio.checkpoints.own_methods import own_record
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.engine.events import CancelToken
from ram_studio.engine.in_memory import InMemoryMerger
from ram_studio.engine.job import MergeJob
from ram_studio.engine.passes.driver import RunOptions
from ram_studio.errors import CheckpointError, EvaluationError, SettingsError
from ram_studio.evals.answering.engine import ShouldStop
from ram_studio.evals.answering.local import MergedEngine
from ram_studio.evals.asking import SuiteRun, ask_suites, rounds_of
from ram_studio.evals.experiment.plan import Items, Plan
from ram_studio.evals.experiment.presets import full_recipe
from ram_studio.evals.experiment.result import Row
from ram_studio.evals.experiment.space import Candidate, setting_label
from ram_studio.evals.fisher import with_fisher_files
from ram_studio.evals.question import Answer, QuestionsBySuite
from ram_studio.evals.report.chance_level import TrivialBaselines
from ram_studio.evals.store import AnswerStore
from ram_studio.evals.suites import ALL_SUITES, Suite


class MergeIdentity(NamedTuple):
    """digest: 32 hex digits; factors: lambda by agent where it is one number, else empty."""

    digest: str
    factors: Mapping[str, float | None]


def identify(
    report: CompatibilityReport,
    recipe: Recipe,
    *,
    analysis: Analysis | None = None,
    device: str = "auto",
    cancel: CancelToken | None = None,
) -> MergeIdentity:
    """Return a digest that is equal for recipes whose merges are the same weights, and lambda.

    For RAM, RAM+ and RAM+s it covers the threshold and every lambda, not the settings behind them:
    RAM+ with r = 0 equals RAM, and all alphas above every rho are equal. For other methods it
    covers the settings, and for a user's method its file. All digests cover fingerprints of base
    and agents (in order), dtype, rounding and seed. Different digests do not prove different
    weights.

    Reads no tensors when the analysis has the recipe's epsilon, or the method needs no counts.

    Args: report: of the base and exactly the recipe's agents. analysis: of the same files.
    """
    settings = make_settings(recipe.method, recipe.settings)
    rule: Any
    known: dict[str, float | None] = {}
    own = own_record(recipe.method)
    if own is None and isinstance(settings, RamSettings):
        job = MergeJob(report, recipe, RunOptions.of(device, cancel=cancel))
        prepared = job.plan(analysis).prepared
        assert prepared.factors is not None, "the family's lambda"
        factors = hashlib.blake2b(prepared.factors.tobytes(), digest_size=16).hexdigest()
        is_uniform = job.choices is None and (prepared.factors == prepared.factors[:1]).all()
        if len(prepared.factors) and is_uniform:
            known = dict(zip(job.names, prepared.factors[0].tolist(), strict=True))
        epsilon = float(float32_threshold(settings.epsilon))
        rule = ["ram", epsilon, factors, settings.shared == "ties"]
    else:
        values = settings.model_dump(mode="json")
        if values.get("files") is not None:
            values["files"] = _files(Path(values["files"]))
        rule = [recipe.method, values, *([] if own is None else [own.sha256])]
    parts: list[Any] = [
        report.base.fingerprint,
        [[agent.name, agent.fingerprint] for agent in report.agents],
        [recipe.dtype, recipe.rounding, recipe.seed, recipe.missing, recipe.extra, recipe.rows],
        rule,
    ]
    where = recipe.model_dump(mode="json", include={"weights", "densities", "filters"})
    # A weight of 1 changes nothing.
    where["weights"] = {name: w for name, w in where["weights"].items() if w != 1}
    if any(where.values()):
        parts.append(where)
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    return MergeIdentity(digest, known)


def _files(folder: Path) -> list[Any]:
    """Return a record of a folder of Fisher files that changes with it, without reading them."""
    found = sorted(folder.glob("*.safetensors"))
    return [[file.name, (stat := file.stat()).st_size, stat.st_mtime_ns] for file in found]


Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setup:
    """Inputs and options of an experiment.

    analysis: of base and agents, else they are counted once where a method needs it. store, rerun:
    see `evaluate`. fisher_folder: of estimated Fisher files, a temporary one when left out.
    on_progress: called with (label, answers of this stage, total).
    """

    analysis: Analysis | None = None
    store: AnswerStore | None = None
    rerun: bool = False
    fisher_folder: str | Path | None = None
    on_progress: Progress | None = None


@dataclass(eq=False)
class Entry(Row):
    """A row of a running experiment.

    digest: see `identity`; duplicate_of: the entry whose answers it shares; answers: by question
    id; stages: number answered; merge: recipe and numbers as in the store, without numbers before
    the merge was made; opened: suites asked in this run.
    """

    _: KW_ONLY
    candidate: Candidate
    digest: str = ""
    duplicate_of: Entry | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    stages: int = 0
    merge: Mapping[str, Any] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, candidate: Candidate, *, is_start: bool = False) -> Entry:
        """Return a new row for a candidate."""
        if candidate.recipe is None:
            kind: Any = "base" if candidate.label == BASE else "agent"
            return cls(candidate.label, kind, candidate=candidate)
        recipe = full_recipe(candidate.recipe)
        return cls(
            candidate.label,
            method=recipe["method"],
            settings=recipe["settings"],
            weights=recipe["weights"],
            merged_agents=tuple(recipe["agents"]),
            values=dict(candidate.values),
            is_start=is_start,
            candidate=candidate,
            merge={"recipe": recipe},
        )

    @property
    def whole_label(self) -> str:
        """A label with all digits of the varied values."""
        varied = {name: value for name, value in self.values.items() if name != "method"}
        return setting_label(self.method, varied, digits=12)

    @property
    def is_alive(self) -> bool:
        """Whether it can still be the best."""
        return self.duplicate_of is None and not self.is_out and self.status != "failed"

    @property
    def source(self) -> Entry:
        """The entry whose answers count: itself, or the one it duplicates."""
        return self.duplicate_of or self

    def note_merge(self, known: Mapping[str, Any]) -> None:
        """Store the numbers of the merge: by agent rho and lambda, and its seconds."""
        self.merge = {**known, "recipe": self.merge["recipe"]}
        self.agents = dict(self.merge.get("agents", {})) or self.agents
        self.merge_seconds = self.merge.get("seconds")

    def snapshot(self) -> Row:
        """Return a copy of the row; a duplicate has the other's scores."""
        shown = {known.name: getattr(self, known.name) for known in fields(Row)}
        if self.duplicate_of is not None:
            same = ("domains", "average", "loss", "agents", "merge_seconds", "samples",
                    "paraphrases", "merge_draws", "answer_draws")  # fmt: skip
            shown |= {name: getattr(self.duplicate_of, name) for name in same}
            shown["same_as"] = self.duplicate_of.label
        return Row(**shown)


class Answers:
    """The checkpoints, the questions and the model of an experiment, open until it ends.

    Args: is_over: polled before each batch and token; work then ends with Stopped.

    Raises: what `engine.analyze.load`, counting and `LocalEngine` raise.
    """

    def __init__(self, plan: Plan, is_over: ShouldStop, setup: Setup) -> None:
        self._plan, self._is_over, self._setup = plan, is_over, setup
        settings = self._settings = plan.settings
        self._device = settings.device
        self._cancel = CancelToken(is_over)
        self._asked, self._seconds, self._is_warm = 0, 0.0, False
        recipe = plan.recipe
        self._report = load(
            recipe.base, recipe.agents, missing=recipe.missing, extra=recipe.extra, rows=recipe.rows
        )
        self._merger = InMemoryMerger(
            None,
            self._report,
            analysis=self._analysis(),
            device=settings.device,
            cancel=self._cancel,
        )
        self._engine = MergedEngine(self._report.base, **settings.engine_options)
        with contextlib.ExitStack() as closing:
            closing.callback(self._engine.close)
            self._fisher = setup.fisher_folder or closing.enter_context(
                tempfile.TemporaryDirectory(prefix="ram-studio-fisher-")
            )
            self.items: Items = plan.draw(self._engine.count_tokens)
            every = [self.items.chosen_by, self.items.held_out]
            self._baselines = TrivialBaselines(
                {name: [q for part in every for q in part.get(name, ())] for name in every[0]},
                settings.code,
            )
            for name, questions in self.items.chosen_by.items():
                SuiteRun(BASE, None, self._engine, ALL_SUITES[name], settings).check(questions)
            self._closing = closing.pop_all()

    def _analysis(self) -> Analysis | None:
        """Return an analysis with the facts that the methods need, None when they need none."""
        needs = {
            need
            for recipe in self._plan.recipes()
            for need in get_method(recipe.method).needs(
                make_settings(recipe.method, recipe.settings)
            )
        }
        given, by_magnitude = self._setup.analysis, Need.MAGNITUDE_RATIOS in needs
        if given is not None and not (by_magnitude and not given.has_magnitudes):
            return given
        if not needs & {Need.RATIOS, Need.MAGNITUDES}:
            return None
        return analyze_report(
            self._report, device=self._device, relations=by_magnitude, cancel=self._cancel
        )

    def identify(self, candidate: Candidate) -> MergeIdentity:
        """Return the identity of a candidate's weights.

        Raises: SettingsError when the settings do not suit these agents.
        """
        if candidate.recipe is None:
            return MergeIdentity(self._weights_of(candidate.label), {})
        return identify(
            self._merger.report_of(candidate.recipe),
            candidate.recipe,
            analysis=self._merger.analysis_of(candidate.recipe),
            device=self._device,
            cancel=self._cancel,
        )

    def change_norm(self, recipe: Recipe) -> float:
        """Return the norm of a recipe's change, |merge - base|."""
        return self._merger.change_norm(self._with_files(recipe))

    def _with_files(self, recipe: Recipe) -> Recipe:
        """Return the recipe with its Fisher files, which are estimated where it needs them.

        Raises: SettingsError where they cannot be estimated; other merges of the agents may work.
        """
        try:
            return with_fisher_files(
                recipe, self._fisher, device=self._device, should_stop=self._is_over
            )
        except (CheckpointError, EvaluationError) as error:
            raise SettingsError(str(error)) from error

    def _weights_of(self, name: str) -> str:
        """Return the fingerprint of the base or an agent, equal to that of its folder."""
        recipe, base = self._plan.recipe, self._report.base
        if name == BASE:
            return base.fingerprint
        own = next(agent.fingerprint for agent in self._report.agents if agent.name == name)
        filled = [recipe.missing, recipe.extra, recipe.rows]
        if filled == ["error", "error", "exact"]:
            return own
        # Files that the agent lacks are the base's.
        parts = json.dumps([own, base.fingerprint, filled])
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()

    @property
    def recorded_settings(self) -> Mapping[str, Any]:
        """The settings of all entries, as stored."""
        return self._settings.recorded_settings(self._engine)

    @property
    def seconds_each(self) -> float:
        """Seconds per answer, merging included; 0 while only the first merge was asked.

        The first one also loads the model, and stored answers take no time: both are left out.
        """
        return self._seconds / self._asked if self._asked else 0.0

    def ask(self, entry: Entry, questions: QuestionsBySuite) -> dict[str, Answer]:
        """Return question id -> answer of one entry; each batch is stored as it arrives.

        Args: questions: by suite.

        Raises: Stopped; SettingsError when the setting cannot be merged.
        """
        self._cancel.raise_if_cancelled()
        began = time.monotonic()
        runs = {name: self._run_of(entry, ALL_SUITES[name]) for name in questions}
        total = sum(len(rounds_of(run)) * len(questions[name]) for name, run in runs.items())
        parts: dict[str, int] = {}

        def report(_: str, domain: str, answered: int, of: int) -> None:
            # Suites asked together have no domain in common.
            parts[domain] = answered
            if self._setup.on_progress:
                self._setup.on_progress(entry.label, sum(parts.values()), total)

        self._engine.hold(entry.digest, lambda model: self._put(entry, model))
        found: dict[str, Answer] = {}
        for name, run in runs.items():
            entry.opened.add(name)
            answers = ask_suites([run], questions, report, self._is_over)
            found |= {question.id: answer for question, answer in answers}
            self._note(entry, run)
        seconds = time.monotonic() - began
        entry.seconds += seconds
        if self._engine.was_asked:
            if self._is_warm:
                self._asked, self._seconds = self._asked + total, self._seconds + seconds
            self._is_warm = True
        return found

    def _run_of(self, entry: Entry, suite: Suite) -> SuiteRun:
        folders = {BASE: self._plan.recipe.base, **self._plan.recipe.agents}
        path = str(folders[entry.label]) if entry.candidate.recipe is None else None
        rerun = self._setup.rerun and suite.name not in entry.opened
        shared = (self._settings, self._setup.store, rerun, entry.merge or None, self._baselines)
        return SuiteRun(entry.label, path, self._engine, suite, *shared)

    def _note(self, entry: Entry, run: SuiteRun) -> None:
        """Store a merge's numbers, or read them from the store when it was not made now."""
        if self._setup.store is None or run.run is None or entry.candidate.recipe is None:
            return
        if "agents" in entry.merge:
            for known in run.runs:
                self._setup.store.set_merge(known, entry.merge)
        else:
            # Equal weights may have been stored under another recipe.
            entry.note_merge(self._setup.store.merge_of(run.run) or {})

    def _put(self, entry: Entry, model: Any) -> None:
        recipe = entry.candidate.recipe
        if not self._merger.has_model:
            self._merger.use(model)
        if recipe is None and entry.label == BASE:
            self._merger.restore()
        elif recipe is None:
            self._merger.apply_agent(entry.label)
        else:
            applied = self._merger.apply(self._with_files(recipe))
            agents = {name: a.to_dict() for name, a in applied.agents.items()}
            entry.note_merge({"agents": agents, "seconds": applied.seconds})

    def close(self) -> None:
        self._merger.use(None)
        self._closing.close()
