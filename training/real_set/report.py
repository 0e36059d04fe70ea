"""Tables of the results of `measure.py`: `python -m training.real_set.report`.

Scores with 95 % Wilson intervals; each model is compared with RAM+ at the paper's setting by paired
exact tests over all skills' questions, corrected together by Holm's method. Questions about one
text are a cluster in both. The best of each method is chosen on validation questions and shown
with its test score. `measure/curves.html` plots validation and density over training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from ram_studio.evals.report.comparison import PairedCounts, holm
from ram_studio.evals.report.score import DomainScore, as_json
from training.real_set.measure import AnswerFile, read_lines
from training.real_set.model import default_folder, of_seed
from training.real_set.tasks import SKILLS, draw, text_of

RIVAL = "ram+"
STORED = (
    ("ram+", "ram"),
    ("ram+ dtype=float32", "ram dtype=float32"),
    ("ram+ rounding=stochastic", "ram"),
    ("ram+ rounding=stochastic", "ram+"),
)
"""Comparisons that show whether lambda helps: RAM+ and RAM in different dtypes and roundings."""


def main() -> None:
    """Print the tables as Markdown and write `measure/results.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--seed", type=int, default=0, help="of the agents")
    args = parser.parse_args()
    folder, measured = args.folder, args.folder / of_seed("measure", args.seed)
    answers = AnswerFile(measured / "answers.jsonl")
    rows, tuned = table(answers), best_of_each(answers)
    results = {"rows": rows, "best_of_each": tuned}
    (measured / "results.json").write_text(json.dumps(results, indent=1), "utf-8")
    curves_of(folder / "log").write_html(measured / "curves.html")
    print(training_tables(folder / "log"))
    print(markdown(rows))
    print("\n".join(storing_tables(folder)))
    if tuned:
        print("\nBest of each method by validation:\n")
        print(markdown([row for row in rows if row["model"] in tuned.values()]))


def table(answers: AnswerFile) -> list[dict[str, Any]]:
    """Return a row for every model: scores, intervals, mean, and tests against `RIVAL`."""
    rows = []
    right = {name: answers.right_by_skill(name, "test") for name in answers.models("test")}
    for name, by_skill in right.items():
        scores = {skill: answers.score(name, "test", skill) for skill in SKILLS}
        spans = {skill: score_of(skill, own).ci95 for skill, own in by_skill.items()}
        mean = sum(scores.values()) / len(SKILLS)
        rows.append({"model": name, "scores": scores, "intervals": spans, "mean": mean})
    if RIVAL in right:
        others = [row for row in rows if row["model"] != RIVAL]
        pairs = [compare(right[row["model"]], right[RIVAL]) for row in others]
        adjusted = holm([pair.p_value for pair in pairs])
        for row, pair, p in zip(others, pairs, adjusted, strict=True):
            row["against"] = {**as_json(pair), "rival": RIVAL, "p_adjusted": p}
    return rows


def compare(own: Mapping[str, list[bool]], rival: Mapping[str, list[bool]]) -> PairedCounts:
    """Return the paired counts of two models on the same test questions, given by skill."""
    return PairedCounts.over(
        PairedCounts.of(zip(right, rival[skill], strict=True), clusters_of(skill, len(right)))
        for skill, right in own.items()
    )


def storing_tables(folder: Path) -> list[str]:
    """Return comparisons of RAM+ and RAM by dtype and rounding, over all seeds with both."""
    files = [AnswerFile(own / "answers.jsonl") for own in sorted(folder.glob("measure*"))]
    lines = []
    for name, rival in STORED:
        asked = [own for own in files if {name, rival} <= {*own.models("test")}]
        if asked:
            found = over_seeds(asked, name, rival)
            pair = f"{found.wins} : {found.losses}, p {found.p_value:.2g}"
            lines.append(f"{name} against {rival}, seeds: {len(asked)}: {pair}")
    return lines


def over_seeds(files: Sequence[AnswerFile], name: str, rival: str) -> PairedCounts:
    """Return the paired counts of two merges on the test questions over several training seeds.

    A question is asked once per seed: its answers are one cluster, with those about its text.
    """
    return PairedCounts.over(
        PairedCounts.of(
            [
                pair
                for own in files
                for pair in zip(*(own.right(m, "test", skill) for m in (name, rival)), strict=True)
            ],
            clusters_of(skill, len(files[0].right(name, "test", skill))) * len(files),
        )
        for skill in SKILLS
    )


def score_of(skill: str, right: list[bool]) -> DomainScore:
    """Return the score of the test's answers, clustered by text."""
    marks = ([one] for one in right)
    return DomainScore.of_clusters(zip(clusters_of(skill, len(right)), marks, strict=True))


def clusters_of(skill: str, count: int) -> list[str]:
    """Return the cluster of each test question: its text, or the question alone."""
    return [text_of(question) or question.prompt for question in draw(skill, "test", count)]


def best_of_each(answers: AnswerFile) -> dict[str, str]:
    """Return each method's merge with the highest mean on validation; of equal ones the earlier."""
    best: dict[str, tuple[float, str]] = {}
    for name in answers.models("validation"):
        mean = sum(answers.score(name, "validation", skill) for skill in SKILLS) / len(SKILLS)
        method = name.split()[0]
        if mean > best.get(method, (-1.0, ""))[0]:
            best[method] = (mean, name)
    return {method: name for method, (_, name) in best.items()}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table, the highest mean first."""
    lines = [
        f"| model | {' | '.join(SKILLS)} | mean | wins : losses against {RIVAL} | adjusted p |",
        f"|{' --- |' * (len(SKILLS) + 4)}",
    ]
    for row in sorted(rows, key=lambda row: -row["mean"]):
        scores = " | ".join(f"{row['scores'][skill]:.2f}" for skill in SKILLS)
        test = row.get("against")
        pair = f"{test['wins']} : {test['losses']} | {test['p_adjusted']:.2g}" if test else "|"
        lines.append(f"| {row['model']} | {scores} | {row['mean']:.3f} | {pair} |")
    return "\n".join(lines)


def curves_of(logs: Path) -> go.Figure:
    """Return each training run's share of right validation answers and density by step."""
    titles = ("Validation questions solved", "Weights that differ from the base, in bfloat16")
    figure = make_subplots(cols=2, subplot_titles=titles, x_title="step")
    for run, log in enumerate(sorted(logs.glob("*.jsonl"))):
        points = [line for line in read_lines(log) if "validation" in line]
        lines = [("validation", 1, ""), ("density", 2, ""), ("density_1e-5", 2, ", above 1e-5")]
        for key, col, note in lines:
            figure.add_scatter(
                x=[point["step"] for point in points],
                y=[point[key] for point in points],
                name=f"{log.stem}{note}",
                line={"color": qualitative.Plotly[run], "dash": "dot" if note else "solid"},
                showlegend=key != "density",
                row=1,
                col=col,
            )
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure.update_layout(template="plotly_white", width=1000, height=340, margin_t=40)


def training_tables(logs: Path) -> str:
    """Return the checks of each training run as Markdown tables."""
    parts = []
    for log in sorted(logs.glob("*.jsonl")):
        lines = ["| step | reward | validation | KL | density | above 1e-5 |", "|" + " --- |" * 6]
        points = [line for line in read_lines(log) if "step" in line]
        for at, point in enumerate(points):
            if "validation" in point:
                recent = [p["reward"] for p in points[max(0, at - 5) : at + 1] if "reward" in p]
                reward = f"{sum(recent) / len(recent):.2f}" if recent else ""
                lines.append(
                    f"| {point['step']} | {reward} | "
                    f"{point['validation']:.3f} | {point['kl']:.4f} | {point['density']:.2%} | "
                    f"{point['density_1e-5']:.2%} |"
                )
        seconds = sum(p["seconds"] + p.get("check_seconds", 0.0) for p in points)
        title = f"{log.stem}: {len(points)} steps, {seconds / 60:.0f} minutes"
        parts += [title, "", *lines, ""]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
