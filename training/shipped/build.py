"""Build the example step by step: tokenizer, base, RL agents, and all their measurements.

A stage whose folder exists is skipped, so an interrupted build can continue. Folders
are written under a temporary name and renamed when complete.
"""

import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.algorithm.analysis import Analysis
from ram_studio.checkpoints.record.analysis_file import save_analysis
from ram_studio.evals.experiment.run import compare_methods
from ram_studio.evals.experiment.space import with_method
from ram_studio.evals.settings import DEFAULT_SEED
from training.shipped import skill_tables
from training.shipped.agents import (
    Say,
    StyleStage,
    Training,
    read_record,
    stage,
    train_common,
    train_set,
    update_record,
)
from training.shipped.analyses import ANALYSIS_FILE, example_analysis
from training.shipped.evidence import SIZES, few_weights, from_common, mechanism
from training.shipped.pretrain import Architecture, PretrainSettings, pretrain, save_model
from training.shipped.reinforce import ReinforceSettings
from training.shipped.rivals import BEYOND, TUNED, Rival, compare_with_rivals, recipe_of, rounded
from training.shipped.searches import SEARCHES, Searched, search_settings
from training.shipped.skill_tables import SETTINGS
from training.shipped.tokenizer import train_tokenizer

BASE_SET = "independent"
MERGES: dict[str, tuple[str, dict[str, float]]] = {
    "task-arithmetic 1/N": ("task-arithmetic", {}),
    "task-arithmetic 1": ("task-arithmetic", {"scale": 1.0}),
    "ties 0.2 / 1": ("ties", {"density": 0.2, "scale": 1.0}),
    "ram": ("ram", {}),
    "ram+": ("ram+", {}),
}
"""A set's merge table: method and settings by row."""


@dataclass(frozen=True)
class BuildPlan:
    """The plan of a build.

    sets: the training of agents by a set's folder; all sets share one base. seeds: number of seeds
    with which a set is trained and compared with rivals, see `compare_with_rivals`; tried: training
    variants, measured in the same way but neither shipped nor in the set's record. limit: held-out
    prompts per domain; validation: prompts per domain to tune `rivals`; few: numbers of changes to
    which agents are cut, see `few_weights`; searches: see `search_settings`; table: number of
    settings in a set's table of measured skills, see `skill_tables`; 0 for none.
    """

    architecture: Architecture = field(default_factory=Architecture)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    sets: Mapping[str, Training] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    tried: Mapping[str, Mapping[str, Training]] = field(default_factory=dict)
    limit: int = 300
    validation: int = 60
    few: Sequence[int] = SIZES
    table: int = SETTINGS
    rivals: Mapping[str, Rival] = field(default_factory=lambda: TUNED | BEYOND)
    searches: Mapping[str, Searched] = field(default_factory=lambda: SEARCHES)


# Each learns its skill after the shared style: a strong common update, and a weak one of its own.
SKILLS = {
    "coding": ReinforceSettings("code", "sgd", 0.01, steps=40, stop_at=0.95, shared_style=True),
    "tool": ReinforceSettings("tool", "sgd", 0.02, steps=12, shared_style=True),
    "memory": ReinforceSettings("memory", "sgd", 0.04, steps=60, stop_at=0.95, shared_style=True),
}
FOLLOWING = ReinforceSettings("follow", "sgd", 0.01, steps=12, shared_style=True)
COMMON = StyleStage(is_common=True)
LONGER = ReinforceSettings("follow", "adam", 3e-3, steps=60, blocks=(2, 3), shared_style=True)

FULL_PLAN = BuildPlan(
    sets={
        "shared-style": Training(SKILLS, StyleStage()),
        # Sparse and uneven: coding is learned in a few steps, memory in dozens; tool trains well
        # past its plateau, as long runs do.
        "independent": Training(
            {
                "coding": ReinforceSettings("code", "sgd", 0.01, steps=12, stop_at=0.9),
                "tool": ReinforceSettings("tool", "sgd", 0.02, steps=25),
                "memory": ReinforceSettings("memory", "sgd", 0.03, steps=80, stop_at=0.95),
            }
        ),
        # Dense: nearly every element moves, so almost nothing is unique to one agent.
        "dense": Training(
            {
                "coding": ReinforceSettings("code", "adam", 1e-4, steps=16),
                "tool": ReinforceSettings("tool", "adam", 1e-4, steps=31),
                "memory": ReinforceSettings("memory", "adam", 2e-4, steps=80, stop_at=0.95),
            }
        ),
    },
    seeds={"shared-style": 3, "independent": 1},
    tried={
        "shared-style": {
            "four agents": Training({**SKILLS, "following": FOLLOWING}, StyleStage()),
            "common stage": Training(SKILLS, COMMON),
            "60 steps": Training(SKILLS, StyleStage(reinforce=LONGER)),
            "common stage, 60 steps": Training(SKILLS, replace(COMMON, reinforce=LONGER)),
        }
    },
)


@dataclass(frozen=True)
class _Job:
    """Output folders and options of a build."""

    out: Path
    plan: BuildPlan
    seed: int
    force: bool
    say: Say
    trials: Path | None = None

    @property
    def base(self) -> Path:
        return self.out / BASE_SET / "base"


def build(
    out: Path,
    plan: BuildPlan = FULL_PLAN,
    *,
    seed: int = 0,
    force: bool = False,
    threads: int = 1,
    jobs: int = 1,
    trials: Path | None = None,
    say: Say = lambda text: None,
) -> None:
    """Train everything of the plan under `out`; write a record, an analysis and a table per set.

    Args:
        out: folder that gets example/ (with the base) and one folder per other set.
        seed: drives weights, corpus, prompts and sampling.
        force: train existing stages again.
        threads: torch threads; sums, and so the weights, may depend on it.
        jobs: processes that share the work after the base; more than one needs a picklable `say`.
        trials: also measure the training variants, into the record of this folder.
        say: called with one line of text per important step.
    """
    job = _Job(out, plan, seed, force, say, trials)
    _with_threads(threads, partial(_train_base, job))
    steps = [partial(_build_set, job, set_name) for set_name in plan.sets]
    for name, shipped in plan.sets.items():
        ways = {"": shipped, **(plan.tried.get(name, {}) if trials is not None else {})}
        seeds = range(seed, seed + plan.seeds.get(name, 0))
        for own, (title, training) in product(seeds, ways.items()):
            if own != seed or title:  # the shipped one is part of building the set
                steps.append(partial(_beside_rivals, job, name, training, own, title))
    if jobs == 1:
        for step in steps:
            _with_threads(threads, step)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for future in [pool.submit(_with_threads, threads, step) for step in steps]:
            future.result()


def _with_threads(threads: int, step: Callable[[], None]) -> None:
    """Run a step with this many torch threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        step()
    finally:
        torch.set_num_threads(before)


def _train_base(job: _Job) -> None:
    with stage(job.base, job.force, job.say) as folder:
        if folder is None:
            return
        model, record = pretrain(
            train_tokenizer(folder, seed=job.seed),
            architecture=job.plan.architecture,
            settings=job.plan.pretrain,
            seed=job.seed,
            on_step=lambda step, loss, _: (
                job.say(f"base: step {step}, loss {loss:.3f}") if step % 100 == 0 else None
            ),
        )
        save_model(model, folder)
        update_record(job.out / BASE_SET, {"base": record})


def _build_set(job: _Job, set_name: str) -> None:
    """Train a set, score it, measure the mechanism of its merges, and its table."""
    plan, folder = job.plan, job.out / set_name
    training = plan.sets[set_name]
    common = _work(job, set_name, "", job.seed) / "common"
    train_set(
        job.base, folder, training, common=common, seed=job.seed, force=job.force, say=job.say
    )
    analysis = example_analysis(set_name, tuple(training.skills), job.out)
    save_analysis(analysis, folder / ANALYSIS_FILE)
    job.say(f"{set_name}: scoring base, agents and merges")
    news = {"seed": job.seed, "versions": _versions(), **_measure(job, set_name, analysis)}
    update_record(folder, news)
    _explain(job, set_name)
    if plan.seeds.get(set_name):
        _beside_rivals(job, set_name, training, job.seed)
    shutil.rmtree(common.parent, ignore_errors=True)
    if plan.table and skill_tables.distinct_points(analysis):
        job.say(f"{set_name}: table of measured settings")
        items = min(skill_tables.ITEMS, plan.limit)
        table = folder / skill_tables.TABLE_FILE
        skill_tables.build(set_name, table, items=items, limit=plan.table, root=job.out)


def _work(job: _Job, set_name: str, title: str, seed: int) -> Path:
    """Return the temporary folder."""
    words = f"{set_name} {title} seed {seed}".replace(",", "").split()
    return job.out / f".{'-'.join(words)}"


def _explain(job: _Job, set_name: str) -> None:
    """Measure the mechanism of methods on this set; parts in the record are not repeated."""
    folder, skills = job.out / set_name, job.plan.sets[set_name].skills
    paths = {name: folder / name for name in skills}
    learned = {name: (folder / name, own.domain) for name, own in skills.items()}
    asked = {"seed": DEFAULT_SEED, "limit": job.plan.limit}
    found_by = {"validation": job.plan.validation, "searches": job.plan.searches, "say": job.say}
    for key, measured in (
        ("mechanism", partial(mechanism, job.base, paths, **asked)),
        ("few_weights", partial(few_weights, job.base, learned, sizes=job.plan.few, **asked)),
        ("searches", partial(search_settings, job.base, paths, **found_by, **asked)),
    ):
        if key in read_record(folder) and not job.force:
            job.say(f"{set_name}: {key} is in the record, skipped")
            continue
        job.say(f"{set_name}: {key}")
        update_record(folder, {key: measured()})


def _beside_rivals(
    job: _Job, set_name: str, training: Training, seed: int, title: str = ""
) -> None:
    """Compare the set, trained with a seed, with rivals; only the job's own seed is shipped.

    The result is in the set's record under "seeds". Training variants are in the record of the
    trials, under "tried", the set and the title. Existing results are not repeated.
    """
    book = job.trials if title and job.trials is not None else job.out / set_name
    record = read_record(book)
    found_there = record.get("tried", {}).get(set_name, {}).get(title, {})
    known = found_there if title else record.get("seeds", {})
    what = f"{set_name}{f', {title}' if title else ''}: seed {seed}"
    if str(seed) in known and not job.force:
        job.say(f"{what} is in the record, skipped")
        return
    work = _work(job, set_name, title, seed)
    is_stored = seed == job.seed and not title
    folder, common = job.out / set_name if is_stored else work / "agents", work / "common"
    asked: dict[str, Any] = {"seed": seed, "force": job.force and not is_stored, "say": job.say}
    train_set(job.base, folder, training, common=common, **asked)
    job.say(f"{what} beside rivals")
    agents = {name: folder / name for name in training.skills}
    found = compare_with_rivals(
        job.base,
        agents,
        seed=DEFAULT_SEED,
        limit=job.plan.limit,
        validation=job.plan.validation,
        tuned=job.plan.rivals,
        say=job.say,
    )
    if training.common is not None:
        train_common(job.base, common, training.common, **{**asked, "force": False})
        limit = job.plan.limit
        found["common"] = from_common(common, agents, seed=DEFAULT_SEED, limit=limit)
    own = {str(seed): found}
    update_record(book, {"tried": {set_name: {title: own}}} if title else {"seeds": own})
    shutil.rmtree(work, ignore_errors=True)


def _measure(job: _Job, set_name: str, analysis: Analysis) -> dict[str, Any]:
    """Return scores, per-item verdicts, overlap numbers and the merge table of one set."""
    folder = job.out / set_name
    recipe = recipe_of(job.base, {name: folder / name for name in analysis.agents})
    rows = {label: with_method(recipe, *method) for label, method in MERGES.items()}
    report = compare_methods(rows, limit=job.plan.limit, analysis=analysis, device="cpu").report
    counted = analysis.preview()
    sources = {name: own for name, own in report.models.items() if name not in rows}
    return {
        "evaluation": {"suite": report.suite, "seed": report.seed, "n": report.n},
        "epsilon": counted["epsilon"],
        "agents": {
            name: {
                "density": own["density"],
                "changed": own["active"],
                "unique": own["unique"],
                "unique_share": own["unique"] / own["active"] if own["active"] else 0.0,
                "rho": own["rho"],
                "lambda": own["lambda"],
            }
            for name, own in counted["agents"].items()
        },
        "scores": {name: rounded(own) for name, own in sources.items()},
        "merges": {name: rounded(report.models[name]) for name in rows},
        "verdicts": {
            name: {
                domain: "".join("01"[answer.is_correct] for answer in answers)
                for domain, answers in own.answers.items()
            }
            for name, own in sources.items()
        },
    }


def _versions() -> dict[str, str]:
    installed = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    return {"ram_studio": __version__, "python": platform.python_version(), **installed}
