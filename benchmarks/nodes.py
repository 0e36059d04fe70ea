"""Time of a merge in parts on many machines: the table of docs/many_machines.md.

    python benchmarks/nodes.py                       print the table
    python benchmarks/nodes.py --read 5 --cores 128  for other machines

A model, not a measurement: the time per element was measured on one machine (RESULTS.md), the rates
of storage are assumed and can be set. Each step takes as long as its slowest resource.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import measuring

GB = 1e9
HEADER = ("model", "nodes", "analyze", "merge", "finish", "in all", "node-hours", "bound by")

COUNT_NS = 0.85
"""One core, an element of 3 agents at a density of 10 %, counts only (RESULTS.md, signs, ...)."""
MERGE_NS = 1.54
"""One core, an element merged, counted and measured, from memory (RESULTS.md, plain loops)."""
HASH_NS = 0.35
"""One core, a byte hashed: 0.7 s on two cores for 4 GB (RESULTS.md, hashing the sources)."""
START_SECONDS = 1.5
"""A command with almost no work: the tiny merge (RESULTS.md)."""


@dataclass(frozen=True)
class Cluster:
    """The nodes' resources; rates in GB/s.

    read, write: of one node; shared_read, shared_write: of the file system, for all nodes together.
    """

    cores: int = 32
    read: float = 2.0
    write: float = 1.0
    shared_read: float = 40.0
    shared_write: float = 20.0


def steps(
    elements: float, nodes: int, cluster: Cluster, models: int = 4
) -> dict[str, tuple[float, str]]:
    """Return seconds of each step, and its bottleneck, for bfloat16 and one part per node."""
    size = 2 * elements
    work = {
        "analyze": (models * size, 0.0, COUNT_NS * elements, nodes),
        "merge": (
            models * size,
            size,
            MERGE_NS * elements + HASH_NS * (models + 1) * size,
            nodes,
        ),
        # One process reads the whole output again; BLAKE3 uses every core.
        "finish": (size, 0.0, HASH_NS * size, 1),
    }
    found = {}
    for step, (read, written, core_ns, n) in work.items():
        bounds = {
            "reading": read / GB / (n * cluster.read),
            "shared reading": read / GB / cluster.shared_read,
            "writing": written / GB / (n * cluster.write),
            "shared writing": written / GB / cluster.shared_write,
            "cores": core_ns * 1e-9 / (n * cluster.cores),
        }
        bound = max(bounds, key=lambda name: bounds[name])
        found[step] = (bounds[bound] + START_SECONDS, bound)
    return found


def table(cluster: Cluster | None = None) -> str:
    """Return the table as Markdown."""
    cluster = cluster or Cluster()
    rows: list[tuple[object, ...]] = []
    for name, elements in (("8 B", 8e9), ("70 B", 70e9), ("671 B", 671e9)):
        for nodes in (1, 8, 64):
            found = steps(elements, nodes, cluster)
            seconds = {step: value for step, (value, _) in found.items()}
            total = sum(seconds.values())
            busy = nodes * (seconds["analyze"] + seconds["merge"]) + seconds["finish"]
            times = map(_time, (*seconds.values(), total))
            bound = ", ".join(dict.fromkeys(bound for _, bound in found.values()))
            rows.append((name, nodes, *times, f"{busy / 3600:.2g}", bound))
    return measuring.table(HEADER, rows)


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main() -> None:
    """Print the table for a cluster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in fields(Cluster):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default)
    print(table(Cluster(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
