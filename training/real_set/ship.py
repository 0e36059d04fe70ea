"""Make the set `real` from the measurements: `python -m training.real_set.ship`.

Written to `assets/real`, without any weights: the compact analysis, the skill table with every
answer to the test questions, and the record of training and measuring. Factors of merges without a
formula are measured once and stored in `measure/factors.jsonl`, so this can be stopped too.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.methods import make_settings
from ram_studio.checkpoints.record.analysis_file import load_analysis, save_analysis
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.skill_table import (
    TUNED,
    MeasuredRow,
    load_table,
    merge_row,
    save_table,
    skill_table,
)
from training.real_set.measure import (
    DTYPES,
    Job,
    Sources,
    add_processes,
    ask_all,
    read_lines,
    side_by_side,
)
from training.real_set.merges import Merge, merges
from training.real_set.model import CARD, GGUF_SHA256, HUB_ID, default_folder, of_seed
from training.real_set.tasks import MAX_NEW_TOKENS, Split, draw, is_right, text_of
from training.shipped.table_factors import FactorMeter, has_formula

OUT = Path(__file__).resolve().parents[2] / "assets" / "real"
MOST_BYTES = 4_000_000
"""Most bytes of analysis and skill table together."""

Lines = Mapping[int, Mapping[str, Any]]
"""The answers of one model to a skill's questions, by the question's number."""


def main() -> None:
    """Read the command line and write the set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--note", action="append", default=[], help="a sentence on what was left out"
    )
    parser.add_argument(
        "--no-factors",
        action="store_true",
        help="measure no factors; those that are there are used",
    )
    parser.add_argument(
        "--again", type=int, metavar="N", help="ask N random rows again instead and compare"
    )
    parser.add_argument("--items", type=int, help="number of first questions per skill")
    parser.add_argument("--seed", type=int, default=0, help="of the agents whose rows are asked")
    add_processes(parser)
    args = parser.parse_args()
    if args.again:
        wrong, of = differing(
            args.folder, args.out, args.again, args.seed, items=args.items, processes=args.processes
        )
        print(f"{wrong} of {of} answers differ from the table")
        return
    measured = Results(args.folder / "measure")
    args.out.mkdir(parents=True, exist_ok=True)
    table = build_table(measured)
    processes = 0 if args.no_factors else args.processes
    table = with_known_factors(table, args.folder, processes)
    analysis_file = save_analysis(measured.analysis, args.out / "analysis.safetensors")
    tables = [save_table(table, table_file(args.out))]
    other_seeds = {
        int(own.name.removeprefix("measure-seed")): Results(own)
        for own in sorted(args.folder.glob("measure-seed*"))
    }
    for seed, results in other_seeds.items():
        tables.append(save_table(build_table(results), table_file(args.out, seed)))
    record = build_record(measured, other_seeds, table, args.folder, args.note)
    (args.out / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    nbytes = sum(file.stat().st_size for file in (analysis_file, *tables))
    if nbytes > MOST_BYTES:
        raise SystemExit(f"Analysis and tables take {nbytes} bytes, expected at most {MOST_BYTES}.")
    print(f"{args.out}: {len(table['rows'])} rows, {table['n']} questions a skill, {nbytes} bytes")


def table_file(out: Path, seed: int = 0) -> Path:
    """Return the path of the skill table of a seed's agents; the app shows the first seed's."""
    return out / f"{of_seed('skills', seed)}.json.gz"


class Results:
    """The results of `measure.py`.

    analysis: compact, with relative paths of its sources. skills: in the order of asking. scores:
    by split, model and skill, of every model that answered all questions of a split. others: agents
    by SFT, which are in no merge and not in the table.
    """

    def __init__(self, folder: Path) -> None:
        analysis = load_analysis(folder / "bfloat16-compact.analysis")
        agents = {name: f"real_set/agents/{name}" for name in analysis.agents}
        self.analysis: Analysis = replace(analysis, sources={"base": "real_set/base", **agents})
        self._lines: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = {}
        for line in read_lines(folder / "answers.jsonl"):
            key = line["split"], line["model"], line["skill"]
            self._lines.setdefault(key, {})[line["question"]] = line
        names = dict.fromkeys(model for _, model, _ in self._lines)
        self.others = [m for m in names if m.startswith(tuple(f"{a}-" for a in analysis.agents))]
        self.skills = list(dict.fromkeys(skill for _, _, skill in self._lines))
        self.updates = json.loads((folder / "updates.json").read_text("utf-8"))
        self.merges = {line["model"]: line for line in read_lines(folder / "merges.jsonl")}

    def count(self, split: Split, skill: str) -> int:
        """Return the number of the base's questions of a skill."""
        return len(self._lines.get((split, "base", skill), ()))

    def models(self, split: Split) -> list[str]:
        """Return the models that answered all of the base's questions; base and agents first."""
        names = dict.fromkeys(model for s, model, _ in self._lines if s == split)
        whole = [
            name
            for name in names
            if all(len(self.lines(split, name, s)) == self.count(split, s) for s in self.skills)
        ]
        sources = ["base", *self.analysis.agents]
        if missing := [name for name in sources if name not in whole and split == "test"]:
            raise SystemExit(f"answers.jsonl lacks answers of {', '.join(missing)}.")
        return [*(s for s in sources if s in whole), *(m for m in whole if m not in sources)]

    def lines(self, split: Split, model: str, skill: str) -> Lines:
        """Return a model's answers to a skill's questions."""
        return self._lines.get((split, model, skill), {})

    def scores(self, split: Split) -> dict[str, dict[str, float]]:
        """Return the share of right answers by model and skill."""
        return {
            model: {
                skill: round(sum(line["right"] for line in own.values()) / len(own), 4)
                for skill in self.skills
                if (own := self.lines(split, model, skill))
            }
            for model in self.models(split)
        }

    def questions(self) -> list[Question]:
        """Return the test questions of the table, equally many of each skill.

        Skills with more questions give their first ones.

        Raises: SystemExit: an answer was judged differently, so it belongs to another question.
        """
        n, models = min(self.count("test", s) for s in self.skills), self.models("test")
        found = []
        for skill in self.skills:
            for number, question in enumerate(draw(skill, "test", n)):
                lines = [self.lines("test", model, skill)[number] for model in models]
                if any(is_right(question, line["answer"]) != line["right"] for line in lines):
                    raise SystemExit(
                        f"Question {number} of {skill} has an answer that was judged otherwise: "
                        "tasks.py changed since. Measure again."
                    )
                gold, most = question.solution or question.gold, MAX_NEW_TOKENS[skill]
                identity = f"{skill}-{number}"
                found.append(Question(identity, skill, skill, question.prompt, gold, None, most))
        return found


def build_table(measured: Results) -> dict[str, Any]:
    """Return the skill table: base, agents and every merge that answered all test questions."""
    asked = measured.questions()
    known = {merge.label: merge for merge in merges()}
    rows = []
    for model in measured.models("test"):
        if model in measured.others:
            continue
        answers = {
            q.id: Answer(line["answer"], line["right"])
            for q in asked
            for line in [measured.lines("test", model, q.domain)[int(q.id.rpartition("-")[2])]]
        }
        if model in ("base", *measured.analysis.agents):
            rows.append(MeasuredRow("source", model, {}, None, answers))
        elif model in known:
            rows.append(row_of(known[model], answers))
        else:
            raise SystemExit(f"{model!r} is not a merge that merges.py names.")
    return skill_table(asked, rows)


def row_of(merge: Merge, answers: Mapping[str, Answer]) -> MeasuredRow:
    """Return a merge's row; one with more settings than Tune's dials has no grid point."""
    settings = make_settings(merge.method, merge.settings).model_dump()
    row = merge_row({"method": merge.method, "settings": settings}, answers)
    own = {**row.settings, **merge.output}
    return row._replace(settings=own, point=None if set(own) - set(TUNED) else row.point)


def with_known_factors(table: Mapping[str, Any], folder: Path, processes: int) -> dict[str, Any]:
    """Return the table with own and shared factors of rows without a formula.

    processes: to measure missing ones, which needs the weights; 0 measures nothing.
    """
    file = folder / "measure" / "factors.jsonl"
    known = {line["row"]: line["factors"] for line in read_lines(file)}
    agents = [row["method"] for row in table["rows"] if row["kind"] == "source"]
    paths = {name: folder / "agents" / name for name in agents if name != "base"}
    # Other dtypes have the same factors up to rounding, and are not on the map.
    keys = [
        None if has_formula(row) or row["method"].startswith("ram") else factors_key(row)
        for row in table["rows"]
    ]
    wanted = [key for key in keys if processes and key and key not in known]
    args = folder / "base", paths
    for key, factors in side_by_side(_FactorsOf, args, wanted, processes):
        known[key] = factors
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"row": key, "factors": factors}) + "\n")
        print(f"factors of {key}", flush=True)
    pairs = zip(table["rows"], keys, strict=True)
    rows = [{**row, "factors": known.get(key) if key else None} for row, key in pairs]
    return {**table, "rows": rows}


class _FactorsOf:
    def __init__(self, base: Path, agents: Mapping[str, Path]) -> None:
        self._meter = FactorMeter(base, agents)

    def __call__(self, key: str) -> tuple[str, dict[str, Any]]:
        return key, self._meter.factors(*json.loads(key))


def factors_key(row: Mapping[str, Any]) -> str:
    """Return the key of a row's factors."""
    return json.dumps([row["method"], row["settings"]], sort_keys=True)


def differing(
    folder: Path,
    out: Path,
    number: int,
    seed: int = 0,
    *,
    items: int | None = None,
    processes: int = 1,
) -> tuple[int, int]:
    """Ask random rows of the table in `out` again; return numbers of differing answers and of all.

    folder: with the weights. seed: of the agents. items: the first questions per skill; None for
    all.
    """
    table = load_table(table_file(out, seed))
    n = table["n"]
    chosen = random.Random(seed).sample(table["rows"], min(number, len(table["rows"])))
    made = rows_of_merges()
    counts = dict.fromkeys(table["domains"], min(n, items or n))
    sources = Sources(folder / "base", folder / "agents", seed)
    wrong = of = 0
    for dtype in DTYPES:
        jobs, answered = [], {}
        for row in chosen:
            if row["settings"].get("dtype", DTYPES[0]) == dtype:
                merge = made.get((row["method"], str(row["settings"])))
                name = merge.label if merge else row["method"]
                jobs.append(Job(name, merge, "test", counts))
                answered[name] = row["answers"]
        for job, _, texts in ask_all(sources, dtype, jobs, processes):
            for place, skill in enumerate(table["domains"]):
                for i, text in enumerate(texts[skill], place * n):
                    of += 1
                    wrong += text != table["answers"][i][answered[job.name][i]]
    return wrong, of


def rows_of_merges() -> dict[tuple[str, str], Merge]:
    """Return the merges by method and settings of their rows in a table."""
    rows = ((row_of(merge, {}), merge) for merge in merges())
    return {(row.method, str(dict(row.settings))): merge for row, merge in rows}


def build_record(
    measured: Results,
    other_seeds: Mapping[int, Results],
    table: Mapping[str, Any],
    folder: Path,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the record of the set: training, measurements, and what was not done."""
    figures, validation = figures_of(measured), measured.scores("validation")
    training = {log.stem: read_training(log) for log in sorted((folder / "log").glob("*.jsonl"))}
    others_asked = read_other_suites(folder / "measure" / "other_suites.json")
    asked = {skill: measured.count("test", skill) for skill in measured.skills}
    left_out = {
        "No agent was trained with a second seed.": bool(other_seeds),
        "No agent was trained by SFT on the same questions.": any("-sft" in n for n in training),
        "Nothing but these skills was asked, so forgetting was not measured.": (
            bool(others_asked) or not set(measured.skills) <= set(figures["scores"])
        ),
    }
    return {
        "base": {"name": HUB_ID, "license": "apache-2.0", "origin": CARD, "gguf": GGUF_SHA256},
        "training": training,
        "evaluation": {
            "split": "test",
            "n": table["n"],
            "asked": asked,
            "texts": {
                skill: len(
                    {
                        text_of(question) or question.prompt
                        for question in draw(skill, "test", count)
                    }
                )
                for skill, count in asked.items()
            },
            "validation": {s: measured.count("validation", s) for s in measured.skills},
            "decoding": "greedy",
            "merges": len(figures["merges"]),
        },
        **figures,
        "other_seeds": {str(seed): figures_of(results) for seed, results in other_seeds.items()},
        "seconds": {name: line.get("seconds") for name, line in measured.merges.items()},
        "rival": tuned_rival(validation, {**figures["scores"], **figures["others"]}),
        "other_suites": others_asked,
        "not_done": [*(text for text, is_done in left_out.items() if not is_done), *notes],
    }


def figures_of(measured: Results) -> dict[str, Any]:
    """Return stored agents' numbers at epsilon 1e-5, and test scores: sources, others, merges."""
    scores = measured.scores("test")
    agents = measured.updates["bfloat16"]["1e-05"]["agents"]
    keys = ("density", "rho", "lambda")
    return {
        "agents": {name: {k: own[k] for k in keys if k in own} for name, own in agents.items()},
        "scores": {name: scores.pop(name) for name in ("base", *measured.analysis.agents)},
        "others": {name: scores.pop(name) for name in measured.others if name in scores},
        "merges": scores,
    }


def tuned_rival(
    validation: Mapping[str, Mapping[str, float]], agents: Collection[str]
) -> str | None:
    """Return the merge outside the RAM family with the highest mean on validation questions.

    Of equal ones the earlier; None where no merge was asked them.
    """
    means = {
        name: sum(own.values()) / len(own)
        for name, own in validation.items()
        if own and name not in ("base", *agents) and not name.startswith("ram")
    }
    return max(means, key=means.__getitem__, default=None)


def read_other_suites(file: Path) -> dict[str, dict[str, list[int]]]:
    """Return [right, asked] by suite and model from the output of `ram-studio evaluate --json`."""
    found: dict[str, dict[str, list[int]]] = {}
    if file.exists():
        for model, result in json.loads(file.read_text("utf-8"))["models"].items():
            for suite, own in result["domains"].items():
                found.setdefault(suite, {})[model] = [own["correct"], own["n"]]
    return found


def read_training(log: Path) -> dict[str, Any]:
    """Return an agent's settings, the length of its training, and its curve."""
    lines = list(read_lines(log))
    points = [line for line in lines if "step" in line]
    seconds = sum(p.get("seconds", 0.0) + p.get("check_seconds", 0.0) for p in points)
    keys = ("step", "reward", "validation", "kl", "density", "density_1e-5")
    return {
        "settings": lines[0].get("settings", {}) if lines else {},
        "steps": len(points),
        "minutes": round(seconds / 60),
        "curve": [{key: point[key] for key in keys if key in point} for point in points],
    }


if __name__ == "__main__":
    main()
