"""Write what pages quote from the shipped records and from the models: `make docs`.

A page marks a block with ``<!-- name -->`` and ``<!-- /name -->``; what stands between is written.
`--check` only tells which pages would change. A test fails when one would.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from result_fields import result_fields
from set_figures import (
    RETAINED,
    SET_BLOCKS,
    SKILLS,
    SOURCES,
    TITLES,
    listed,
    record_of,
    share,
    table_of,
)

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.algorithm.meters.relation_preview import rounding_preview
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path

ROOT = Path(__file__).parents[1]
GENTLE = 0.02
"""The r of the scene on rounding."""
FEW = (1, 100, 10_000, 300_000)
"""Numbers of changes in the table of few weights."""


class Counts:
    """Right answers of a set's skill table, by method and settings."""

    def __init__(self, name: str) -> None:
        table = load_table(asset_path(name, "skills.json.gz"))
        self.n = table["n"]
        self.rows = {(r["method"], json.dumps(r["settings"])): r["right"] for r in table["rows"]}

    def of(self, method: str, **settings: Any) -> list[int]:
        """Return right answers a skill, of so many prompts each."""
        return self._counts(method, settings)[:SKILLS]

    def retained(self, method: str, **settings: Any) -> int:
        """Return right answers in what the base can do already."""
        return self._counts(method, settings)[-1]

    def _counts(self, method: str, settings: Mapping[str, Any]) -> list[int]:
        right = self.rows[method, json.dumps(settings)]
        return [right[i : i + self.n].count("1") for i in range(0, len(right), self.n)]


RAM = {"epsilon": 1e-5}
RAM_PLUS = {**RAM, "r": 0.1, "alpha": 2.0}


def answers() -> str:
    """Return what each scene of the lesson reveals."""
    shared, dense = Counts("shared-style"), Counts("dense")
    agents = record_of("shared-style")["agents"]
    least = min(SOURCES, key=lambda name: agents[name]["unique_share"])
    own = [shared.of(name)[i] for i, name in enumerate(SOURCES)]
    average, total = (
        shared.of("task-arithmetic", scale=None),
        shared.of("task-arithmetic", scale=1.0),
    )
    ram, plus = shared.of("ram", **RAM), shared.of("ram+", **RAM_PLUS)
    lost, all_dense = swallowed(), SKILLS * dense.n
    moves = ", ".join(
        f"{name} {a} to {b}" for name, a, b in zip(SOURCES.values(), own, average, strict=True)
    )
    few = thriftiest("independent")
    solved = listed([str(right) for right in own])
    alone = (
        f"Alone {listed(list(SOURCES))} solve {solved} of {shared.n} prompts of their own skill. "
        f"The base solves {shared.retained('base')} of {shared.n} of `{RETAINED}`, learned by none."
    )
    return f"{alone}\n\n" + table_of(
        [
            ["scene", "question", "answer"],
            [
                "1",
                f"of the weights that {least} changed, how many did nobody else?",
                f"{agents[least]['unique_share']:.1%} (it changed {agents[least]['density']:.1%} "
                "of all)",
            ],
            [
                "2",
                "how much does the average solve?",
                f"{sum(average)} of {SKILLS * shared.n}, the agents alone {sum(own)}; {moves}",
            ],
            [
                "3",
                "and the sum?",
                f"{sum(total)} of {SKILLS * shared.n}; the untrained base {sum(shared.of('base'))}",
            ],
            ["4", "and RAM?", f"{sum(ram)} of {SKILLS * shared.n}, RAM+ {sum(plus)}"],
            ["5", "how few weights carry a skill?", few],
            ["6", f"λ 1 + {GENTLE} · 2 asked, how much is stored in bfloat16?", lost],
            [
                "last word",
                "dense agents: RAM+ and the sum?",
                f"RAM+ {sum(dense.of('ram+', **RAM_PLUS))} of {all_dense}, the sum "
                f"{sum(dense.of('task-arithmetic', scale=1.0))}",
            ],
        ]
    )


def thriftiest(name: str) -> str:
    """Return with how few of its largest changes an agent does as well as with all of them.

    As well: its own score lies in the interval, here and with any more of them.
    """
    record = record_of(name)["few_weights"]
    found = {}
    for agent, own in record["agents"].items():
        enough: dict[str, Any] | None = None
        for row in reversed(own["rows"]):
            n = record["n"]
            _, high = DomainScore(n, round(row["largest"] * n)).ci95
            if high < own["whole"]:
                break
            enough = row
        if enough:
            found[agent] = (enough["k"] / own["changed"], enough, own)
    agent, (_, row, own) = min(found.items(), key=lambda item: item[1][0])
    return (
        f"{agent}: {row['k']} of {own['changed']} changes solve {row['largest']:.1%} (all of them "
        f"{own['whole']:.1%}), as many at random {fmean(row['random']):.1%}"
    )


def swallowed() -> str:
    """Return what bfloat16 keeps of a small push of the dense agents, of who loses most."""
    analysis = load_analysis(asset_path("dense", "analysis.safetensors"))
    agents = analysis.preview(DEFAULT_INDEX, "ram+", GENTLE, 2.0)["agents"]
    asked = {name: agent["lambda"] for name, agent in agents.items()}
    kept = rounding_preview(analysis, DEFAULT_INDEX, asked)
    assert kept is not None, "shipped analyses have relations"
    name, own = min(kept["bfloat16"].items(), key=lambda item: item[1]["nearest"])
    return f"{name}: {own['nearest']:.3f} of {asked[name]:.2f} (expected)"


def curves() -> str:
    """Return both curves of the mechanism, for the shared-style agents."""
    found = record_of("shared-style")["mechanism"]
    lines: list[list[str]] = []
    widest = max(len(found[name]) for name in ("overshoot", "dilution"))
    for name, title in (("overshoot", "what is shared"), ("dilution", "what is unique")):
        points = found[name]
        for row in (
            ["", *(f"x {point['scale']:.3g}" for point in points)],
            [title, *(share(point["average"]) for point in points)],
        ):
            lines.append(row + [""] * (1 + widest - len(row)))
    return table_of(lines)


def few() -> str:
    """Return scores of agents with few of their changes, largest or random, of two sets."""
    lines = [["agents", "skill", "all changes", "k", "k largest", "k random"]]
    for name in ("independent", "shared-style"):
        found = record_of(name)["few_weights"]["agents"]
        for own in (found[agent] for agent in SOURCES):
            for row in (r for r in own["rows"] if r["k"] in FEW):
                lines.append(
                    [
                        TITLES[name],
                        own["domain"],
                        f"{own['changed']} ({share(own['whole'])})",
                        str(row["k"]),
                        share(row["largest"]),
                        share(fmean(row["random"])),
                    ]
                )
    return table_of(lines)


def room() -> str:
    """Return what a room of thirty takes, from the page that has the measurement."""
    lines = (ROOT / "docs" / "spaces.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (head,) = (row for row in rows if row[0] == "users")
    (thirty,) = (row for row in rows if row[0] == "30")
    return table_of([head, thirty])


BLOCKS: dict[str, Callable[[], str]] = {
    "answers": answers,
    "curves": curves,
    "few": few,
    "results": result_fields,
    "room": room,
    **SET_BLOCKS,
}
PAGES = ("docs/teaching.md", "docs/results.md", "docs/formats.md", "assets/independent/README.md")


def written(text: str) -> str:
    """Return a page with its blocks written anew."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{BLOCKS[match[1]]()}\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", block, text, flags=re.S)


def main() -> int:
    """Write the pages, or with --check tell which differ; 1 if any does."""
    differing = 0
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        new = written(text)
        if new != text:
            differing += 1
            print(f"{page}: {'differs' if '--check' in sys.argv else 'written'}")
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    return int(bool(differing) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
