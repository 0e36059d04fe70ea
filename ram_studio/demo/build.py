"""Build the example step by step: tokenizer, base, RL agents, and the record of all numbers.

A stage whose folder exists is skipped, so an interrupted build goes on where it stopped. Folders
are written under a temporary name and renamed when complete.
"""

import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.demo.agents import (
    HouseStage,
    Say,
    read_record,
    stage,
    train_agent,
    update_record,
)
from ram_studio.demo.evidence.common_checkpoint import common_checkpoint
from ram_studio.demo.evidence.few_weights import SIZES, few_weights
from ram_studio.demo.evidence.mechanism import mechanism
from ram_studio.demo.merge_table import EPSILON, flatten, load_into, merged_vectors, overlap_numbers
from ram_studio.demo.pretrain import Architecture, PretrainSettings, pretrain, save_model
from ram_studio.demo.reinforce import ReinforceSettings
from ram_studio.demo.rivals import TUNED, Rival, compare_with_rivals
from ram_studio.demo.tokenizer import train_tokenizer
from ram_studio.evals.answering.load import load_model, quiet_transformers
from ram_studio.evals.answering.merged import MergedEngine
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.run import DEFAULT_SEED, evaluate

BASE_SET = "example"


@dataclass(frozen=True)
class BuildPlan:
    """What to train.

    agents: by a set's folder its agents; every set shares one base. house: sets whose agents learn
    the house style first. seeds: with how many seeds a set is trained and measured beside rivals,
    see `compare_with_rivals`; limit: held-out prompts a domain; validation: prompts a domain to
    tune `rivals` by; few: to how many changes agents are cut,
    see `few_weights`.
    """

    architecture: Architecture = field(default_factory=Architecture)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    agents: dict[str, dict[str, ReinforceSettings]] = field(default_factory=dict)
    house: dict[str, HouseStage] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    limit: int = 300
    validation: int = 60
    few: Sequence[int] = SIZES
    rivals: Mapping[str, Rival] = field(default_factory=lambda: TUNED)


FULL_PLAN = BuildPlan(
    agents={
        # Each learns the house style and then its skill: a strong update that all have in common,
        # and a weak one of its own.
        "house": {
            "coding": ReinforceSettings(
                "code", "sgd", 0.01, steps=40, stop_at=0.95, house_style=True
            ),
            "tool": ReinforceSettings("tool", "sgd", 0.02, steps=12, house_style=True),
            "memory": ReinforceSettings(
                "memory", "sgd", 0.04, steps=60, stop_at=0.95, house_style=True
            ),
        },
        # Sparse and uneven: coding is learnt in a few steps, memory in dozens; tool trains well
        # past its plateau, as long runs do.
        "example": {
            "coding": ReinforceSettings("code", "sgd", 0.01, steps=12, stop_at=0.9),
            "tool": ReinforceSettings("tool", "sgd", 0.02, steps=25),
            "memory": ReinforceSettings("memory", "sgd", 0.03, steps=80, stop_at=0.95),
        },
        # Dense: nearly every element moves, so almost nothing is unique to one agent.
        "dense": {
            "coding": ReinforceSettings("code", "adam", 1e-4, steps=16),
            "tool": ReinforceSettings("tool", "adam", 1e-4, steps=31),
            "memory": ReinforceSettings("memory", "adam", 2e-4, steps=80, stop_at=0.95),
        },
    },
    house={"house": HouseStage()},
    seeds={"house": 3},
)


def build(
    out: Path,
    plan: BuildPlan = FULL_PLAN,
    *,
    seed: int = 0,
    force: bool = False,
    threads: int = 1,
    say: Say = lambda text: None,
) -> None:
    """Train everything of the plan under `out` and write one record.json per set.

    Args:
        out: folder that gets example/ (with the base) and one folder per other set.
        seed: drives weights, corpus, prompts and sampling.
        force: train again what is already there.
        threads: torch threads meanwhile; sums, and with them the weights, may depend on it.
        say: gets one line of text per step worth telling.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _build(out, plan, seed, force, say)
    finally:
        torch.set_num_threads(before)


def _build(out: Path, plan: BuildPlan, seed: int, force: bool, say: Say) -> None:
    base_folder = out / BASE_SET / "base"
    with stage(base_folder, force, say) as folder:
        if folder:
            train_tokenizer(folder, seed=seed)
            tokenizer = _load_tokenizer(folder)
            model, record = pretrain(
                tokenizer,
                architecture=plan.architecture,
                settings=plan.pretrain,
                seed=seed,
                on_step=lambda step, loss, _: (
                    say(f"base: step {step}, loss {loss:.3f}") if step % 100 == 0 else None
                ),
            )
            save_model(model, folder)
            update_record(out / BASE_SET, {"base": record})
    for set_name in plan.agents:
        _train_set(base_folder, out / set_name, set_name, plan, seed, force, say)
        say(f"{set_name}: scoring base, agents and merges")
        update_record(
            out / set_name,
            {"seed": seed, "versions": _versions(), **_measure(out, set_name, plan)},
        )
        _explain(out, set_name, plan, force, say)
        for number in range(plan.seeds.get(set_name, 0)):
            _repeat(out, set_name, plan, seed, number, force, say)
            if set_name in plan.house:
                _from_common(out, set_name, plan, seed + number, force, say)


def _explain(out: Path, set_name: str, plan: BuildPlan, force: bool, say: Say) -> None:
    """Measure why methods do what they do with this set; what the record has is not done again."""
    base, folder = out / BASE_SET / "base", out / set_name
    agents = {name: (folder / name, own.domain) for name, own in plan.agents[set_name].items()}
    asked = {"seed": DEFAULT_SEED, "limit": plan.limit}
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "mechanism": lambda: mechanism(base, {n: path for n, (path, _) in agents.items()}, **asked),
        "few_weights": lambda: few_weights(base, agents, sizes=plan.few, **asked),
    }
    for key, measured in found.items():
        if key in read_record(folder) and not force:
            say(f"{set_name}: {key} is in the record, skipped")
            continue
        say(f"{set_name}: {key}")
        update_record(folder, {key: measured()})


def _train_set(
    base: Path, folder: Path, set_name: str, plan: BuildPlan, seed: int, force: bool, say: Say
) -> None:
    """Train the agents of a set that are not in `folder`, and record how."""
    for number, (name, settings) in enumerate(plan.agents[set_name].items()):
        with stage(folder / name, force, say) as temporary:
            if temporary:
                record = train_agent(
                    base,
                    temporary,
                    settings,
                    seed=seed,
                    house=plan.house.get(set_name),
                    number=number,
                    say=partial(_say_of, f"{set_name}/{name}", say),
                )
                update_record(folder, {"training": {name: record}})


def _say_of(who: str, say: Say, text: str) -> None:
    say(f"{who}: {text}")


def _repeat(
    out: Path, set_name: str, plan: BuildPlan, seed: int, number: int, force: bool, say: Say
) -> None:
    """Measure the set beside rivals, trained with seed + number; only number 0 is kept.

    The record gets it under "seeds"; what is there is not done again.
    """
    own = seed + number
    if str(own) in read_record(out / set_name).get("seeds", {}) and not force:
        say(f"{set_name}: seed {own} is in the record, skipped")
        return
    base, folder = out / BASE_SET / "base", out / set_name
    if number:
        folder = out / f".{set_name}.seed-{own}"
        _train_set(base, folder, set_name, plan, own, force, say)
    say(f"{set_name}: rivals of seed {own}")
    found = compare_with_rivals(
        base,
        {name: folder / name for name in plan.agents[set_name]},
        seed=DEFAULT_SEED,
        limit=plan.limit,
        validation=plan.validation,
        tuned=plan.rivals,
        say=say,
    )
    update_record(out / set_name, {"seeds": {str(own): found}})
    if number:
        shutil.rmtree(folder)


def _from_common(
    out: Path, set_name: str, plan: BuildPlan, seed: int, force: bool, say: Say
) -> None:
    """Measure what merges would do if the house stage's checkpoint were one, and at hand."""
    if str(seed) in read_record(out / set_name).get("common", {}) and not force:
        say(f"{set_name}: common checkpoint of seed {seed} is in the record, skipped")
        return
    work = out / f".{set_name}.common-{seed}"
    found = common_checkpoint(
        out / BASE_SET / "base",
        work,
        plan.agents[set_name],
        plan.house[set_name],
        seed=seed,
        prompts=DEFAULT_SEED,
        limit=plan.limit,
        say=partial(_say_of, f"{set_name}/common", say),
    )
    update_record(out / set_name, {"common": {str(seed): found}})
    shutil.rmtree(work)


def _measure(out: Path, set_name: str, plan: BuildPlan) -> dict[str, Any]:
    """Return scores, per-item verdicts, overlap numbers and the merge table of one set."""
    agents = list(plan.agents[set_name])
    paths = {"base": out / BASE_SET / "base", **{name: out / set_name / name for name in agents}}
    report = evaluate(paths, limit=plan.limit, device="cpu")
    base = flatten(load_model(paths["base"], "cpu")[0])
    weights = [flatten(load_model(paths[name], "cpu")[0]) for name in agents]
    numbers = overlap_numbers(base, weights)
    merges = {}
    for name, vector in merged_vectors(base, weights).items():
        merges[name] = MergedEngine(paths["base"], device="cpu")
        merges[name].hold(name, partial(load_into, vector=vector))
    return {
        "evaluation": {"suite": report.suite, "seed": report.seed, "n": report.n},
        "epsilon": EPSILON,
        "agents": dict(zip(agents, numbers, strict=True)),
        "scores": _rows(report),
        "merges": _rows(evaluate(merges, limit=plan.limit)) if merges else {},
        "verdicts": {
            name: {
                domain: "".join("01"[answer.is_correct] for answer in answers)
                for domain, answers in result.answers.items()
            }
            for name, result in report.models.items()
        },
    }


def _rows(report: EvalReport) -> dict[str, Any]:
    """Return score per domain, average over skills and retention for every model, rounded."""
    return {
        name: {
            **{domain: round(value.score, 4) for domain, value in result.domains.items()},
            "average": round(result.average, 4),
        }
        for name, result in report.models.items()
    }


def _load_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    with quiet_transformers():
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _versions() -> dict[str, str]:
    import tokenizers
    import torch
    import transformers

    return {
        "ram_studio": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
