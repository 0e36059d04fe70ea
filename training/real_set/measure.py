"""Measure the updates and ask every merge: `python -m training.real_set.measure`.

Written to `measure/` beside the agents: `answers.jsonl` (every answer, one line each),
`merges.jsonl` (rho, requested and effective lambda of each merge), `updates.json` (density,
overlap, rho and effective lambda in 16 bits) and `analysis` files for the app. Stored answers are
reused, so it may be stopped at any time. Merges are made in memory, in the model that answers; each
process has one and computes with one thread, so that answers do not depend on the number of
processes. `report.py` makes the tables.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

import ram_studio as rs
from ram_studio.algorithm.meters.relation_preview import rounding_preview
from ram_studio.engine.analyze import load
from ram_studio.engine.in_memory import InMemoryMerger
from training.real_set.grpo import answers
from training.real_set.merges import Merge, merges
from training.real_set.model import default_folder, of_seed, open_model
from training.real_set.tasks import SKILLS, Question, Split, draw, is_right

QUESTIONS: dict[Split, int] = {"test": 100, "validation": 40}
EPSILONS = (0.0, 1e-5)
DTYPES = ("bfloat16", "float32")


def main() -> None:
    """Read the command line; measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--base", type=Path, help="a folder of the base; FOLDER/base when left out")
    parser.add_argument("--seed", type=int, default=0, help="of the agents; in measure-seedN")
    known = {merge.label: merge for merge in merges()}
    parser.add_argument(
        "--merge",
        action="append",
        choices=known,
        metavar="LABEL",
        help="measure this merge only; may be given again",
    )
    parser.add_argument("--split", choices=QUESTIONS, help="ask these questions only")
    add_processes(parser)
    args = parser.parse_args()
    wanted = [known[label] for label in args.merge or known]
    sources = Sources(args.base or args.folder / "base", args.folder / "agents", args.seed)
    out = args.folder / of_seed("measure", args.seed)
    out.mkdir(exist_ok=True)
    measure_updates(sources, out)
    for split in [args.split] if args.split else QUESTIONS:
        for dtype in DTYPES:
            own = [merge for merge in wanted if merge.dtype == dtype]
            ask_merges(sources, out, own, split, dtype, args.processes)


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of parallel models."""
    is_cpu = os.environ.get("DEVICE", "cpu") == "cpu"
    parser.add_argument(
        "--processes",
        type=int,
        default=min(4, os.cpu_count() or 1) if is_cpu else 1,
        help="models that answer side by side, 5 GB each",
    )


class Sources:
    """The base, and the agents by name: `math` in bfloat16, `math-float32` as trained.

    others: agents by SFT, which are in no merge.
    """

    def __init__(self, base: Path, agents: Path, seed: int = 0) -> None:
        self.base = base
        names = {skill: of_seed(skill, seed) for skill in SKILLS}
        self.agents = {skill: str(agents / name) for skill, name in names.items()}
        self.exact = {skill: str(agents / f"{name}-float32") for skill, name in names.items()}
        found = sorted(agents.glob(of_seed("[!.]*-sft", seed)))
        self.others = {folder.name: str(folder) for folder in found}

    def recipe(self, merge: Merge) -> Any:
        """Return the package's recipe of a merge."""
        values = {"base": str(self.base), "agents": self.agents, "method": merge.method}
        return rs.make_recipe({**values, "settings": merge.settings, **merge.output})


def measure_updates(sources: Sources, out: Path) -> None:
    """Write the analyses of the agents as stored and as trained, and their numbers."""
    if (out / "updates.json").exists():
        return
    found = {}
    for name, agents in (("bfloat16", sources.agents), ("float32", sources.exact)):
        analysis = rs.analyze(sources.base, agents)
        rs.save_analysis(analysis, out / f"{name}.analysis")
        rs.save_analysis(analysis.compact(), out / f"{name}-compact.analysis")
        found[name] = figures(analysis)
    _write(out / "updates.json", found)


def figures(analysis: Any) -> dict[str, Any]:
    """Return by epsilon the numbers of the model, and of each layer and kind of module."""
    found = {}
    for epsilon in EPSILONS:
        point = rs.EPSILON_GRID.index(epsilon)
        by_layer, by_module = (analysis.preview(point, by=by) for by in ("layer", "module"))
        by_layer["by_layer"] = by_layer.pop("groups")
        by_layer["by_module"] = by_module["groups"]
        factors = {name: agent["lambda"] for name, agent in by_layer["agents"].items()}
        by_layer["stored_lambda"] = rounding_preview(analysis, point, factors)
        found[f"{epsilon:g}"] = by_layer
    return found


def ask_merges(
    sources: Sources, out: Path, wanted: list[Merge], split: Split, dtype: str, processes: int
) -> None:
    """Ask base, agents (in bfloat16 only) and merges the questions of a split."""
    store = AnswerFile(out / "answers.jsonl")
    subjects: dict[str, Merge | None] = dict.fromkeys(
        ["base", *SKILLS, *sources.others] if dtype == "bfloat16" else []
    )
    subjects |= {merge.label: merge for merge in wanted}
    jobs = []
    for name, merge in subjects.items():
        counts = {k: QUESTIONS[split] for k in SKILLS if not store.has(name, split, k)}
        if counts:
            jobs.append(Job(name, merge, split, counts))
    for job, facts, texts in ask_all(sources, dtype, jobs, processes):
        for skill, own in texts.items():
            store.add(job.name, split, skill, draw(skill, split, len(own)), own)
        if facts and split == "test":
            with (out / "merges.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"model": job.name, **facts}) + "\n")
        scores = ", ".join(f"{k} {store.score(job.name, split, k):.2f}" for k in job.counts)
        print(f"{job.name}: {split} {scores}", flush=True)


class Job(NamedTuple):
    """A model to ask: the base or an agent by its name, or a merge. counts: questions by skill."""

    name: str
    merge: Merge | None
    split: Split
    counts: Mapping[str, int]


Asked = tuple[Job, dict[str, Any], dict[str, list[str]]]
"""A job, the numbers of its merge, and its answers by skill."""


def ask_all(
    sources: Sources, dtype: str, jobs: Sequence[Job], processes: int = 1
) -> Iterator[Asked]:
    """Yield the jobs as they finish, by this many parallel models. dtype: for computing."""
    return side_by_side(Asker, (sources, dtype), jobs, processes)


def side_by_side(
    make: Callable[..., Callable[[Any], Any]], args: tuple, jobs: Sequence[Any], processes: int
) -> Iterator[Any]:
    """Yield make(*args)(job) of each job as it finishes; each process has its own make(*args)."""
    if processes == 1 and jobs:
        yield from map(make(*args), jobs)
    elif jobs:
        count, spawn = min(processes, len(jobs)), multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, spawn, _start, (make, args)) as pool:
            asked = [pool.submit(_do, job) for job in jobs]
            try:
                # Raises if a process died, for example out of memory: run again to continue.
                yield from (future.result() for future in as_completed(asked))
            finally:
                pool.shutdown(cancel_futures=True)


_made: list[Callable[[Any], Any]] = []


def _start(make: Callable[..., Callable[[Any], Any]], args: tuple) -> None:
    _made.append(make(*args))


def _do(job: Any) -> Any:
    return _made[0](job)


class Asker:
    """One loaded model that takes the weights of one merge after the other."""

    def __init__(self, sources: Sources, dtype: str) -> None:
        from transformers import AutoTokenizer

        torch.set_num_threads(1)
        self.sources = sources
        self.model = open_model(sources.base, torch.float32 if dtype == "float32" else None).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(sources.base, local_files_only=True)
        agents = sources.agents | sources.others
        self.merger = InMemoryMerger(self.model, load(sources.base, agents), threads=1)

    def __call__(self, job: Job) -> Asked:
        """Apply a job's weights to the model, and answer."""
        facts = self._put(job.name, job.merge)
        questions = {skill: draw(skill, job.split, count) for skill, count in job.counts.items()}
        texts = {
            skill: answers(self.model, self.tokenizer, asked) for skill, asked in questions.items()
        }
        return job, facts, texts

    def _put(self, name: str, merge: Merge | None) -> dict[str, Any]:
        if merge is None:
            self.merger.restore()
            if name != "base":
                self.merger.apply_agent(name)
            return {}
        made = self.merger.apply(self.sources.recipe(merge))
        agents = {agent: result.to_dict() for agent, result in made.agents.items()}
        return {"seconds": round(made.seconds, 1), "agents": agents}


class AnswerFile:
    """Every answer by model, split and skill; a skill's answers are added in one call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._right: dict[tuple[str, str, str], dict[int, bool]] = {}
        # An incomplete last line of a killed run is removed; its skill is asked again.
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        for line in read_lines(path):
            self._note(line)

    def _note(self, line: Mapping[str, Any]) -> None:
        key = (line["model"], line["split"], line["skill"])
        self._right.setdefault(key, {})[line["question"]] = line["right"]

    def has(self, model: str, split: Split, skill: str) -> bool:
        """Return whether all questions of a skill were asked."""
        return len(self._right.get((model, split, skill), ())) == QUESTIONS[split]

    def right(self, model: str, split: Split, skill: str) -> list[bool]:
        """Return whether each answer is right, in the order of the questions."""
        own = self._right[model, split, skill]
        return [own[number] for number in range(QUESTIONS[split])]

    def right_by_skill(self, model: str, split: Split) -> dict[str, list[bool]]:
        """Return `right` of every skill."""
        return {skill: self.right(model, split, skill) for skill in SKILLS}

    def score(self, model: str, split: Split, skill: str) -> float:
        """Return the share of right answers."""
        right = self.right(model, split, skill)
        return sum(right) / len(right)

    def models(self, split: Split) -> list[str]:
        """Return the models that answered all skills, in the order of their start."""
        names = dict.fromkeys(model for model, *_ in self._right)
        return [name for name in names if all(self.has(name, split, skill) for skill in SKILLS)]

    def add(
        self, model: str, split: Split, skill: str, asked: list[Question], answers: list[str]
    ) -> None:
        """Judge and write the answers to all questions of a skill."""
        text = ""
        for number, (question, answer) in enumerate(zip(asked, answers, strict=True)):
            line = {"model": model, "split": split, "skill": skill, "question": number}
            line |= {"right": is_right(question, answer), "answer": answer}
            self._note(line)
            text += json.dumps(line) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the values of a JSONL file without an incomplete last line."""
    if path.exists():
        data = path.read_bytes()
        yield from map(json.loads, data[: data.rfind(b"\n") + 1].splitlines())


def _write(path: Path, values: Any) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


if __name__ == "__main__":
    main()
