"""Build the example step by step: tokenizer, base, RL agents, and the record of all numbers.

A stage whose folder exists is skipped, so an interrupted build goes on where it stopped. Folders
are written under a temporary name and renamed when complete.
"""

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.demo.merge_table import EPSILON, flatten, load_into, merged_vectors, overlap_numbers
from ram_studio.demo.pretrain import Architecture, PretrainSettings, pretrain, save_model
from ram_studio.demo.reinforce import ReinforceSettings, reinforce
from ram_studio.demo.tokenizer import TOKENIZER_FILES, train_tokenizer
from ram_studio.evals.answering.decode import load_model, quiet_transformers
from ram_studio.evals.answering.merged import MergedEngine
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.run import evaluate

BASE_SET = "example"


@dataclass(frozen=True)
class BuildPlan:
    """What to train. `agents` maps a set's folder to its agents; every set shares one base."""

    architecture: Architecture = field(default_factory=Architecture)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    agents: dict[str, dict[str, ReinforceSettings]] = field(default_factory=dict)
    limit: int = 300


FULL_PLAN = BuildPlan(
    agents={
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
)


def build(
    out: Path,
    plan: BuildPlan = FULL_PLAN,
    *,
    seed: int = 0,
    force: bool = False,
    threads: int = 1,
    say: Callable[[str], None] = lambda text: None,
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


def _build(out: Path, plan: BuildPlan, seed: int, force: bool, say: Callable[[str], None]) -> None:
    base_folder = out / BASE_SET / "base"
    with _stage(base_folder, force, say) as folder:
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
            _update_record(out / BASE_SET, {"base": record})
    for set_name, agents in plan.agents.items():
        for name, settings in agents.items():
            with _stage(out / set_name / name, force, say) as folder:
                if folder:
                    _train_agent(out / set_name, base_folder, folder, name, settings, seed, say)
        say(f"{set_name}: scoring base, agents and merges")
        _update_record(
            out / set_name,
            {"seed": seed, "versions": _versions(), **_measure(out, set_name, plan)},
        )


def _train_agent(
    set_folder: Path,
    base_folder: Path,
    folder: Path,
    name: str,
    settings: ReinforceSettings,
    seed: int,
    say: Callable[[str], None],
) -> None:
    model, tokenizer = load_model(base_folder, "cpu")
    record = reinforce(
        model,
        tokenizer,
        settings,
        seed=seed,
        on_step=lambda point: say(f"{set_folder.name}/{name}: {point}"),
    )
    save_model(model, folder)
    for file in TOKENIZER_FILES:
        shutil.copyfile(base_folder / file, folder / file)
    _update_record(set_folder, {"training": {name: record}})


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


@contextmanager
def _stage(folder: Path, force: bool, say: Callable[[str], None]) -> Iterator[Path | None]:
    """Yield a temporary folder that becomes `folder` at the end, or None when that exists."""
    if folder.exists() and not force:
        say(f"{folder.parent.name}/{folder.name}: there already, skipped")
        yield None
        return
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _load_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    with quiet_transformers():
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _update_record(set_folder: Path, news: dict[str, Any]) -> None:
    """Merge `news` into the set's record.json; "training" grows, other keys are replaced."""
    file = set_folder / "record.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    news = {**news}
    if "training" in news:
        news["training"] = {**record.get("training", {}), **news["training"]}
    record.update(news)
    temporary = file.with_suffix(".partial")
    temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, file)


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
