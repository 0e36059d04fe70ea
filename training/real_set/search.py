"""Search each agent's weight: `python -m training.real_set.search`.

Optuna proposes weights of task arithmetic (scale 1) by the scores on the validation questions; the
best of them also answers the test questions, and is compared with rows of `measure/answers.jsonl`.
Answers are stored in `measure/searched.jsonl`: a continued search makes the same proposals.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ram_studio.evals.experiment.search import OptunaSearch
from ram_studio.evals.experiment.space import Candidate, Space, parse_axes
from training.real_set import measure
from training.real_set.measure import AnswerFile, Asker, Job, Sources
from training.real_set.merges import Merge
from training.real_set.model import default_folder
from training.real_set.report import compare
from training.real_set.tasks import SKILLS, Split, draw

SUM = Merge("task-arithmetic", {"scale": 1.0})
RANGE = "0.3:1.3"
SEED = 2026
RIVALS = ("ram+", "task-arithmetic scale=0.8")


def main() -> None:
    """Read the command line; search, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--trials", type=int, default=20, help="merges that it tries")
    args = parser.parse_args()
    sources = Sources(args.folder / "base", args.folder / "agents")
    (args.folder / "measure").mkdir(exist_ok=True)
    store = AnswerFile(args.folder / "measure" / "searched.jsonl")
    asker = Asker(sources, "bfloat16")
    space = Space(sources.recipe(SUM), parse_axes([f"weight={RANGE}"]))
    search = OptunaSearch(space, seed=SEED, trials=args.trials)
    tried = []
    for _ in range(args.trials):
        candidate = search.propose()
        right = [one for own in ask(asker, store, candidate, "validation").values() for one in own]
        search.report_score(sum(right) / len(right), is_dropped=False, stage=0)
        tried.append((sum(right), candidate))
        print(f"{candidate.label}: {sum(right)} of {len(right)}", flush=True)
    _, best = max(tried, key=lambda one: one[0])
    own = ask(asker, store, best, "test")
    print(f"Best: {best.label}; of the test questions {sum(map(sum, own.values()))}")
    known = AnswerFile(args.folder / "measure" / "answers.jsonl")
    for rival in (name for name in known.models("test") if name in RIVALS):
        pair = compare(own, known.right_by_skill(rival, "test"))
        print(f"against {rival}: {pair.wins} : {pair.losses}, p {pair.p_value:.2g}")


def ask(
    asker: Asker, store: AnswerFile, candidate: Candidate, split: Split
) -> dict[str, list[bool]]:
    """Return by skill whether each answer of a merge is right; ask missing questions."""
    assert candidate.recipe is not None
    name, weights = candidate.label, {"weights": dict(candidate.recipe.weights)}
    counts = {s: measure.QUESTIONS[split] for s in SKILLS if not store.has(name, split, s)}
    if counts:
        job = Job(name, Merge(SUM.method, SUM.settings, weights), split, counts)
        for skill, texts in asker(job)[2].items():
            store.add(name, split, skill, draw(skill, split, len(texts)), texts)
    return store.right_by_skill(name, split)


if __name__ == "__main__":
    main()
