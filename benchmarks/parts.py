"""A merge in parts by several workers on this machine, compared with the same merge by one process.

Every number is for whole commands, as in a job array: their starts, and repeated reads by
independent commands, are the overhead of interest. Both outputs are checked to have the same bytes.
Both ways alternate.

    python benchmarks/parts.py [--size 0.5b] [--workers 2] [--rounds 3] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from measuring import Run, machine_facts, run_process, table
from zoo import SIZES, agent_names, make_zoo

STEPS = ("plan", "analyze", "analysis add", "merge", "finish")
PROGRAM = (sys.executable, "-m", "ram_studio")


def write_recipe(zoo: Path, agents: int, path: Path) -> Path:
    """Write the recipe of a zoo's RAM+ merge."""
    sources = {name: str(zoo / name) for name in agent_names(agents)}
    path.write_text(yaml.safe_dump({"base": str(zoo / "base"), "agents": sources}))
    return path


def together(commands: Sequence[Sequence[str]]) -> Run:
    """Run commands at the same time; wall: until the last has ended; peak: of one of them."""
    with ThreadPoolExecutor(len(commands)) as pool:
        runs = list(pool.map(run_process, commands))
    cpu = sum(run.cpu for run in runs)
    return Run(max(r.wall for r in runs), cpu, max(r.peak_bytes for r in runs))


def in_parts(recipe: Path, workers: int, shard: str, folder: Path) -> dict[str, Run]:
    """Merge in one part per worker, of one thread each; return each step's measurements."""
    plan, whole = str(folder / "plan.json"), str(folder / "whole.analysis")
    numbers = [str(i) for i in range(1, workers + 1)]
    analyses = [str(folder / f"{i}.analysis") for i in numbers]
    one = ("--plan", plan, "--threads", "1", "--part")
    out = ("--out", str(folder / "parts"))
    commands = {
        "plan": [
            ("plan", str(recipe), "--parts", str(workers), "--out", plan, "--max-shard-size", shard)
        ],
        "analyze": [
            ("analyze", *one, i, "--analysis", analysis)
            for i, analysis in zip(numbers, analyses, strict=True)
        ],
        "analysis add": [("analysis", "add", *analyses, "--out", whole)],
        "merge": [("merge", *one, i, "--analysis", whole, *out) for i in numbers],
        "finish": [("finish", plan, *out)],
    }
    return {step: together([(*PROGRAM, *own) for own in commands[step]]) for step in STEPS}


def same_files(one: Path, other: Path) -> bool:
    """Return whether two folders contain the same files."""
    names = {path.name for path in one.iterdir()}
    return names == {path.name for path in other.iterdir()} and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def compare(zoo: Path, agents: int, workers: int, rounds: int, shard: str = "500MB") -> str:
    """Return the table of both ways."""
    rows = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=zoo.parent) as scratch:
            folder = Path(scratch)
            recipe = write_recipe(zoo, agents, folder / "recipe.yaml")
            out = ("--out", str(folder / "one"), "--max-shard-size", shard)
            alone = run_process([*PROGRAM, "merge", str(recipe), *out])
            steps = in_parts(recipe, workers, shard, folder)
            if not same_files(folder / "one", folder / "parts"):
                raise RuntimeError("the merge in parts differs from the one of one process")
            shutil.rmtree(folder / "one")
        wall, cpu = (sum(getattr(r, what) for r in steps.values()) for what in ("wall", "cpu"))
        cells = [f"{alone.wall:.2f}", f"{alone.cpu:.2f}", f"{wall:.2f}", f"{cpu:.2f}"]
        each = [f"{steps[step].wall:.2f}" for step in STEPS]
        rows.append([number + 1, *cells, f"{wall / alone.wall:.2f}", *each])
        print(f"round {number + 1}: {alone.wall:.2f} s, {wall:.2f} s in parts", file=sys.stderr)
    several = f"{workers} workers"
    header = ("round", "one process s", "cpu s", f"{several} s", "cpu s", "wall / one", *STEPS)
    return table(header, rows)


def main() -> None:
    """Read the command line, make the zoo, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "ram-studio-bench"
    )
    options = parser.parse_args()
    name = f"{options.size}-{options.agents}"
    zoo = make_zoo(options.folder / name, options.size, options.agents)
    run_process([*PROGRAM, "--version"])
    print(f"{options.size}, {options.agents} agents\n")
    print(compare(zoo, options.agents, options.workers, options.rounds))
    print(f"\n{machine_facts()}")


if __name__ == "__main__":
    main()
