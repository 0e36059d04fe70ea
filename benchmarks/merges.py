"""Whole merges against the I/O floor, and against mergekit where one is given.

Every number is for a whole process, including its start; tools alternate, and ratios are medians of
the ratios within a round. The page cache contains the models where memory allows.

Our merges record no hashes of the sources (for which the floor does not read them a third time
either), except for the one that says so.

    python benchmarks/merges.py [--size 0.1b] [--rounds 3] [--mergekit PATH/bin/mergekit-yaml]
                                [--mergekit-rounds 1] [--growth] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from measuring import Run, machine_facts, median_ratio, run_in_turns, run_process, table
from zoo import SIZES, agent_names, elements, make_zoo

METHODS = ("task-arithmetic", "ties", "dare-ta", "dare-ties")
RATIOS = (
    "wall / floor 1",
    "wall / floor 2",
    "wall / ram+",
    "cpu / floor 2",
    "cpu / ram+",
)
MERGEKIT = {
    "ramplus_tl": ({}, {"epsilon": 1e-5, "r": 0.1, "alpha": 2.0}),
    "task_arithmetic": ({"weight": 0.33}, {}),
    "ties": ({"weight": 1.0, "density": 0.2}, {}),
    "dare_ties": ({"weight": 1.0, "density": 0.5}, {}),
}
"""mergekit's methods with their parameters, per model and for the merge."""


def sources(zoo: Path, agents: int) -> list[str]:
    """Return the options that name the base and the first agents of a zoo."""
    options = ["--base", str(zoo / "base")]
    for name in agent_names(agents):
        options += ["--agent", f"{name}={zoo / name}"]
    return options


def merge_command(
    zoo: Path, agents: int, method: str, *more: str, hashes: bool = False
) -> Callable[[Path], list[str]]:
    """Return a merge's command line for an output folder."""
    kept = "--hash" if hashes else "--no-hash"

    def command(out: Path) -> list[str]:
        start = [sys.executable, "-m", "ram_studio", "merge", *sources(zoo, agents)]
        return [*start, "--method", method, "--out", str(out), kept, "--json", *more]

    return command


def floor_command(zoo: Path, agents: int, passes: int) -> Callable[[Path], list[str]]:
    """Return the I/O floor's command line for an output folder."""
    models = [str(zoo / name) for name in ("base", *agent_names(agents))]
    script = str(Path(__file__).with_name("floor.py"))
    return lambda out: [sys.executable, script, str(out), *models, "--passes", str(passes)]


def mergekit_command(
    program: str, zoo: Path, agents: int, method: str, scratch: Path
) -> Callable[[Path], list[str]]:
    """Write mergekit's configuration and return its command line for an output folder."""
    each, overall = MERGEKIT[method]
    config = {
        "merge_method": method,
        "base_model": str(zoo / "base"),
        "models": [
            {"model": str(zoo / name), **({"parameters": each} if each else {})}
            for name in agent_names(agents)
        ],
        "dtype": "bfloat16",
        **({"parameters": overall} if overall else {}),
    }
    path = scratch / f"{method}.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    start = [program]
    if Path(program).name.startswith("python"):
        start += ["-m", "mergekit.scripts.run_yaml"]
    return lambda out: [*start, str(path), str(out), "--quiet"]


def compare(
    zoo: Path,
    agents: int,
    rounds: int,
    mergekit: str | None,
    theirs: Sequence[str],
    their_rounds: int,
    scratch: Path,
) -> str:
    """Return the table of all tools on one zoo; theirs: mergekit's methods."""
    analysis = scratch / "analysis.safetensors"
    analyze = [sys.executable, "-m", "ram_studio", "analyze", *sources(zoo, agents)]
    run_process([*analyze, "--analysis", str(analysis)])
    commands: dict[str, Callable[[Path], Sequence[str]]] = {
        "I/O floor, 1 pass": floor_command(zoo, agents, 1),
        "I/O floor, 2 passes": floor_command(zoo, agents, 2),
        "ram+": merge_command(zoo, agents, "ram+"),
        "ram+ from a saved analysis": merge_command(
            zoo, agents, "ram+", "--analysis", str(analysis), "--r", "0.2", "--alpha", "1"
        ),
        "ram+, hashing the sources": merge_command(zoo, agents, "ram+", hashes=True),
        "ram": merge_command(zoo, agents, "ram"),
        **{method: merge_command(zoo, agents, method) for method in METHODS},
    }
    if mergekit:
        for method in theirs:
            name = f"mergekit {method}"
            commands[name] = mergekit_command(mergekit, zoo, agents, method, scratch)
    results = run_in_turns(
        commands,
        rounds,
        scratch,
        again=lambda name, number: number < their_rounds or not name.startswith("mergekit"),
        may_fail=lambda name: name.startswith("mergekit"),
    )
    one, two, ours = (
        results[name] for name in ("I/O floor, 1 pass", "I/O floor, 2 passes", "ram+")
    )
    rows = [
        [
            name,
            *_figures(runs),
            f"{median_ratio(runs, one):.2f}",
            f"{median_ratio(runs, two):.2f}",
            f"{median_ratio(runs, ours):.2f}",
            f"{median_ratio(runs, two, 'cpu'):.2f}",
            f"{median_ratio(runs, ours, 'cpu'):.2f}",
        ]
        for name, runs in results.items()
        if runs
    ]
    header = ("tool", "wall s", "cpu s", "peak MiB", *RATIOS)
    return table(header, rows)


def _figures(runs: list[Run]) -> list[str]:
    return [
        f"{statistics.median(run.wall for run in runs):.2f}",
        f"{statistics.median(run.cpu for run in runs):.2f}",
        f"{max(run.peak_bytes for run in runs) / 2**20:.0f}",
    ]


def growth(folder: Path, sizes: Sequence[str], most_agents: int, rounds: int, scratch: Path) -> str:
    """Return the table of RAM+ over sizes and numbers of agents: time per byte, memory."""
    rows = []
    cases = [(sizes[0], agents) for agents in range(2, most_agents + 1)]
    cases += [(size, 3) for size in sizes[1:]]
    for size, agents in cases:
        made = most_agents if size == sizes[0] else agents
        zoo = make_zoo(folder / f"{size}-{made}", size, made)
        name = f"{size}, {agents} agents"
        run_process(merge_command(zoo, agents, "ram+")(scratch / "out"))  # compiles, warms caches
        runs = run_in_turns({name: merge_command(zoo, agents, "ram+")}, rounds, scratch)[name]
        moved = elements(size) * 2 * (2 * (agents + 1) + 1)
        cpu = statistics.median(run.cpu for run in runs)
        rows.append(
            [size, agents, f"{moved / 1e9:.2f}", *_figures(runs), f"{cpu / moved * 1e9:.2f}"]
        )
    header = ("size", "agents", "GB moved", "wall s", "cpu s", "peak MiB", "cpu ns / byte")
    return table(header, rows)


def _compare_one(options: argparse.Namespace, scratch: Path) -> str:
    size, agents = options.size, options.agents
    zoo = make_zoo(options.folder / f"{size}-{agents}", size, agents)
    # Kernels are compiled once per machine, which is not measured here.
    run_process(merge_command(zoo, agents, "ram+")(scratch / "out"))
    mergekit = options.mergekit and os.path.abspath(options.mergekit)
    their_rounds = options.mergekit_rounds or options.rounds
    theirs = options.mergekit_methods
    title = f"{size}: {elements(size)} elements, {agents} agents, {options.rounds} rounds"
    found = compare(zoo, agents, options.rounds, mergekit, theirs, their_rounds, scratch)
    return f"{title}\n\n{found}"


def main() -> None:
    """Read the command line, make the zoo, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="0.1b")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mergekit", help="mergekit-yaml of an installed mergekit, or its python")
    parser.add_argument("--mergekit-rounds", type=int, help="rounds of mergekit, by default all")
    parser.add_argument("--mergekit-methods", nargs="+", choices=MERGEKIT, default=list(MERGEKIT))
    parser.add_argument("--growth", action="store_true", help="agents 2 to 6 and sizes instead")
    parser.add_argument("--growth-sizes", default="0.1b,0.5b,1.5b", help="sizes of that table")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "ram-studio-bench"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        if options.growth:
            sizes = options.growth_sizes.split(",")
            print(growth(options.folder, sizes, 6, options.rounds, Path(scratch)))
        else:
            print(_compare_one(options, Path(scratch)))
    print()
    print(machine_facts())


if __name__ == "__main__":
    main()
