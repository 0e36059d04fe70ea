"""Prepare a merge for a push, without pushing: `python -m training.real_set.publish`.

Merges the agents as one of the measured merges, writes cards of agents and merge with their license
and measurements, and prints the push command.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

import ram_studio as rs
from ram_studio.checkpoints.record.card import model_card
from ram_studio.checkpoints.record.provenance import Provenance
from training.real_set.measure import Sources
from training.real_set.merges import merges
from training.real_set.model import CARD, HUB_ID, default_folder
from training.real_set.ship import Results, read_training, tuned_rival

NAME = HUB_ID.partition("/")[2]
BESIDE = ("task-arithmetic scale=0.3333", "task-arithmetic scale=1", "ram", "ram+")
"""Merges that a card shows for comparison."""


def main() -> None:
    """Read the command line, merge and write cards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--merge", default="ram+", help="as report.py names it (default: ram+)")
    args = parser.parse_args()
    known = {merge.label: merge for merge in merges()}
    if args.merge not in known:
        raise SystemExit(f"There is no merge {args.merge!r}; use one of {', '.join(known)}.")
    measured = Results(args.folder / "measure")
    sources = Sources(args.folder / "base", args.folder / "agents")
    for agent, folder in sources.agents.items():
        training = read_training(args.folder / "log" / f"{agent}.jsonl")
        text = agent_card(agent, training, measured.scores("test"))
        (Path(folder) / "README.md").write_text(text, encoding="utf-8")
    out = args.folder / "merged" / re.sub(r"[^a-z0-9.]+", "-", args.merge.replace("+", "-plus"))
    out.parent.mkdir(exist_ok=True)
    names = {str(sources.base): NAME, **{path: f"agents/{a}" for a, path in sources.agents.items()}}
    made = rs.merge(sources.recipe(known[args.merge]), out, names=names)
    (out / "README.md").write_text(merge_card(made.provenance, args.merge, measured), "utf-8")
    print(f"{out}: merged in {made.seconds:.0f} s with {made.peak_rss_bytes / 1e9:.1f} GB")
    analysis = args.folder / "measure" / "bfloat16-compact.analysis"
    print(f"Read the card. Then: ram-studio push {out} OWNER/NAME --analysis {analysis}")


def agent_card(
    agent: str, training: Mapping[str, Any], scores: Mapping[str, Mapping[str, float]]
) -> str:
    """Return the card of an agent."""
    card = ModelCard(f"---\nlicense: apache-2.0\n---\n\n# {NAME}, trained for {agent}\n")
    card.data.base_model, card.data.tags = HUB_ID, ["grpo", "ram-studio"]
    rate = training["settings"].get("learning_rate", "unknown")
    score, before = scores[agent][agent], scores["base"][agent]
    return (
        f"{card}\n{training['steps']} steps of GRPO on all weights, learning rate {rate}. It "
        f"solves {score:.1%} of its skill's test questions, the base {before:.1%}.\n\n"
        f"{_base_text()}\n"
    )


def merge_card(provenance: Provenance, label: str, measured: Results) -> str:
    """Return the package's card with the measurements, instead of the note that there are none."""
    text = model_card(provenance)
    place = "## Reproduce and verify"
    assert text.count(place) == 1, "card.md.j2 has that heading"
    lines = text.replace(place, f"{measured_text(label, measured)}\n{place}").splitlines()
    left = [line for line in lines if not line.startswith("- The merge was not evaluated by")]
    card = ModelCard("\n".join(left) + "\n")
    card.data.base_model, card.data.base_model_relation = HUB_ID, "merge"
    return str(card)


def measured_text(label: str, measured: Results) -> str:
    """Return the section with scores: base, agents, this merge and others."""
    scores = measured.scores("test")
    alone = [*measured.analysis.agents, *measured.others]
    rival = tuned_rival(measured.scores("validation"), alone)
    means = {name: sum(own.values()) / len(own) for name, own in scores.items()}
    sources = ["base", *measured.analysis.agents]
    others = [*BESIDE, *([rival] if rival else []), label]
    rows = [*sources, *(name for name in dict.fromkeys(others) if name in scores)]
    head = ["model", *measured.skills, "mean"]
    lines = [" | ".join(head), " | ".join(["---", *["---:"] * (len(head) - 1)])]
    for name in rows:
        shown = f"**{name} (this model)**" if name == label else name
        cells = [f"{scores[name][skill]:.2f}" for skill in measured.skills]
        lines.append(" | ".join([shown, *cells, f"{means[name]:.3f}"]))
    table = "\n".join(f"| {line} |" for line in lines)
    asked = ", ".join(f"{skill} {measured.count('test', skill)}" for skill in measured.skills)
    tail = f" {rival} is the rival chosen on validation questions." if rival else ""
    return (
        f"## Measured\n\nShare of test questions solved ({asked} questions, greedy answers, no "
        f"question was trained on).{tail}\n\n{table}\n\n{_base_text()} One base, one training "
        "recipe: other models may differ.\n"
    )


def _base_text() -> str:
    return f"The base is {CARD.rstrip('.')}. It is close to the published model, not equal to it."


if __name__ == "__main__":
    main()
