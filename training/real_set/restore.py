"""Continue measuring from the shipped answers: `python -m training.real_set.restore`.

Training again on a similar machine gives the shipped agents bit for bit. Their answers in
`assets/real` are then written into the files of `measure.py`, so that only the rest is asked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.skill_table import load_table
from training.real_set.measure import Sources, figures, measure_updates
from training.real_set.model import default_folder
from training.real_set.ship import OUT, factors_key, rows_of_merges, table_file
from training.real_set.tasks import draw, is_right


def main() -> None:
    """Read the command line and write the shipped answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--out", type=Path, default=OUT, help="the set that is shipped")
    args = parser.parse_args()
    print(f"{restore(args.folder, args.out)} answers were written, and are not asked again")


def restore(folder: Path, out: Path) -> int:
    """Write the shipped answers, factors and other suites into the folder; return how many answers.

    Raises: SystemExit: the folder has other agents, or already has answers.
    """
    measured = folder / "measure"
    measured.mkdir(exist_ok=True)
    if (measured / "answers.jsonl").exists():
        raise SystemExit(f"{measured / 'answers.jsonl'} exists: measure.py continues from it.")
    measure_updates(Sources(folder / "base", folder / "agents"), measured)
    own, shipped = measured / "bfloat16-compact.analysis", out / "analysis.safetensors"
    if figures(load_analysis(own)) != figures(load_analysis(shipped)):
        raise SystemExit(
            f"The agents in {folder} differ from the base in other elements than those of {out}. "
            "Their answers differ: measure them again, with measure.py."
        )
    table = load_table(table_file(out))
    record = json.loads((out / "record.json").read_text("utf-8"))
    factors = [{"row": factors_key(r), "factors": r["factors"]} for r in table["rows"]]
    _write(measured / "factors.jsonl", (line for line in factors if line["factors"]))
    seconds = record["seconds"].items()
    _write(
        measured / "merges.jsonl", ({"model": m, "seconds": s, "agents": {}} for m, s in seconds)
    )
    others: dict[str, Any] = {}
    for suite, models in record["other_suites"].items():
        for model, (right, n) in models.items():
            measured_suites = others.setdefault(model, {"domains": {}})
            measured_suites["domains"][suite] = {"correct": right, "n": n}
    (measured / "other_suites.json").write_text(json.dumps({"models": others}), encoding="utf-8")
    answers = _answers(table)
    _write(measured / "answers.jsonl", answers)
    return len(answers)


def _answers(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    found, n, names = [], table["n"], rows_of_merges()
    for row in table["rows"]:
        merge = names.get((row["method"], str(row["settings"])))
        if merge is None and row["kind"] != "source":
            raise SystemExit(f"{row['method']} {row['settings']} is not a merge of merges.py.")
        model = merge.label if merge else row["method"]
        for place, skill in enumerate(table["domains"]):
            for number, question in enumerate(draw(skill, "test", n)):
                i = place * n + number
                if question.prompt != table["prompts"][i]:
                    raise SystemExit("The table has other questions than tasks.py: measure again.")
                answer = table["answers"][i][row["answers"][i]]
                line = {"model": model, "split": "test", "skill": skill, "question": number}
                found.append({**line, "right": is_right(question, answer), "answer": answer})
    return found


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
