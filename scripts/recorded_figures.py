"""Write the pages' numbers from the shipped records and from the models: `make docs`.

A page marks a block with ``<!-- name -->`` and ``<!-- /name -->``; the text between is generated. A
test fails when a page would change.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from result_fields import result_fields
from set_figures import (
    SET_BLOCKS,
    SOURCES,
    TITLES,
    record_of,
    share,
    table_of,
)

from ram_studio.app.lesson.scene_answers import alone_text, scene_answers

ROOT = Path(__file__).parents[1]
FEW = (1, 100, 10_000, 300_000)
"""Numbers of changes in the table of few weights."""


def answers() -> str:
    """Return the answer of each scene of the lesson, as in the app's teacher's kit."""
    lines = [["scene", "question", "answer"]]
    lines += [
        [one.scene.replace("+", "last word"), one.question, one.answer] for one in scene_answers()
    ]
    return f"{alone_text()}\n\n{table_of(lines)}"


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


BLOCKS: dict[str, Callable[[], str]] = {
    "answers": answers,
    "curves": curves,
    "few": few,
    "results": result_fields,
    **SET_BLOCKS,
}
PAGES = ("docs/teaching.md", "docs/results.md", "docs/formats.md", "assets/independent/README.md")


def written(text: str) -> str:
    """Return a page with its blocks rewritten."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{BLOCKS[match[1]]()}\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", block, text, flags=re.S)


def main() -> int:
    """Write the pages, or with --check print those that differ; return 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only print which pages would change")
    is_check, differing = parser.parse_args().check, 0
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        new = written(text)
        if new != text:
            differing += 1
            print(f"{page}: {'differs' if is_check else 'written'}")
            if not is_check:
                path.write_text(new, encoding="utf-8")
    return int(bool(differing) and is_check)


if __name__ == "__main__":
    sys.exit(main())
