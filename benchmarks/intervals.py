"""Coverage of intervals and error rates of verdicts, in seeded simulations.

Questions have a common difficulty and each model independent noise, with the given correlation.
`gain`: the interval of the retained gain. `table`: ten merges that are exactly the margin below
their specialists, in three skills. `agents`: six equal agents of which one is the specialist.
`documents`: questions share documents, each with its own difficulty for each model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from ram_studio.evals.question import CLUSTER, SAMPLES, Answer, Question
from ram_studio.evals.report.comparison import SIGNIFICANCE
from ram_studio.evals.report.eval_report import EvalReport, ModelAnswers
from ram_studio.evals.report.score import DomainScore, sample_scores
from ram_studio.evals.report.skill_verdict import (
    MARGIN,
    choose_specialists,
    retained_gain,
    scores_of,
    skill_verdicts,
)

_MARKS = (Answer("", False), Answer("", True))
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


class Cell(NamedTuple):
    """One world: shares of right answers, number of questions, correlation of difficulty."""

    base: float
    specialist: float
    merge: float
    n: int
    shared: float


class Coverage(NamedTuple):
    """covered: share of the shown intervals with the truth; shown: share of all experiments; width:
    mean."""

    covered: float
    shown: float
    width: float


def grid() -> Iterator[Cell]:
    """Yield the requested cells; without a gain in both there is nothing to retain."""
    axes = product((0, 0.02, 0.25, 0.6), (0.5, 0.9, 0.98, 1), (0, 0.02, 0.1), (60, 200), (0, 0.5))
    for base, specialist, loss, n, shared in axes:
        if specialist - loss > base:
            yield Cell(base, specialist, specialist - loss, n, shared)


def chances(scores: tuple[float, ...], shared: float) -> np.ndarray:
    """Return the probability of each pattern of base, specialist and merge."""
    bound = (ndtri(scores)[:, None] - np.sqrt(shared) * _NODES) / np.sqrt(1 - shared)
    right = ndtr(bound)
    found = [
        np.prod([right[i] if pattern >> (2 - i) & 1 else 1 - right[i] for i in range(3)], axis=0)
        for pattern in range(8)
    ]
    given = np.maximum(found @ _WEIGHTS, 0)
    return given / given.sum()


def gain_coverage(cell: Cell, experiments: int, seed: int = 1) -> Coverage:
    """Return the coverage of the interval of the retained gain in one cell."""
    given = chances(cell[:3], cell.shared)
    base, best, after = scores_of(given)
    truth = (after - base) / (best - base)
    drawn = np.random.default_rng(seed).multinomial(cell.n, given, size=experiments)
    patterns, times = np.unique(drawn, axis=0, return_counts=True)
    gains = [retained_gain(counts) for counts in patterns]
    rows = [(g.low, g.high, t) for g, t in zip(gains, times, strict=True) if g.low is not None]
    low, high, weight = np.array(rows, dtype=float).T
    # If all are right, the truth is an end of the interval, up to rounding.
    inside = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
    shown = weight.sum()
    return Coverage(inside @ weight / shown, shown / experiments, (high - low) @ weight / shown)


def report_of(rights: dict[str, np.ndarray], domains: int = 1) -> EvalReport:
    """Return a report of models by name; rights: "domains x questions", whether each is right."""
    n = next(iter(rights.values())).shape[-1]
    names = [f"skill {i}" for i in range(domains)]
    items = {d: tuple(Question(f"{d} {i}", d, "c", f"{d} {i}", "", None, 8) for i in range(n))
             for d in names}  # fmt: skip
    models = {
        name: ModelAnswers(
            name, None, {d: tuple(_MARKS[one] for one in own.astype(int).reshape(domains, n)[i])
                         for i, d in enumerate(names)}, 0.0, tuple(names),
        )
        for name, own in rights.items()
    }  # fmt: skip
    return EvalReport("simulated", 0, items, models)


def _drawn(
    rng: np.random.Generator, scores: dict[str, float], shape: tuple[int, int], shared: float
) -> dict[str, np.ndarray]:
    """Return by model, for each skill and question, whether it is right."""
    common = np.sqrt(shared) * rng.standard_normal(shape)
    return {
        name: common + np.sqrt(1 - shared) * rng.standard_normal(shape) < ndtri(score)
        for name, score in scores.items()
    }


def table_errors(
    best: float, n: int, shared: float, tables: int, *, seed: int = 1, skills: int = 3
) -> dict[str, float]:
    """Return the share of tables with a wrong "survived" and "damaged".

    Ten merges are exactly the margin below the specialist in each skill: no verdict is right.
    "survived_alone", "damaged_alone": the same with uncorrected p.
    """
    rng = np.random.default_rng(seed)
    scores = {"base": best / 4, "expert": best} | {f"m{i}": best - MARGIN for i in range(10)}
    wrong = dict.fromkeys(("survived", "damaged", "survived_alone", "damaged_alone"), 0)
    for _ in range(tables):
        report = report_of(_drawn(rng, scores, (skills, n), shared), skills)
        found = skill_verdicts(report, dict.fromkeys(report.items, "expert"), "base")
        alone = [verdict for verdict in found if verdict.p < SIGNIFICANCE]
        outcomes = {verdict.verdict for verdict in found}
        above = {v.merge_score > v.specialist_score - MARGIN for v in alone}
        wrong["survived"] += "survived" in outcomes
        wrong["damaged"] += "damaged" in outcomes
        wrong["survived_alone"] += True in above
        wrong["damaged_alone"] += False in above
    return {key: count / tables for key, count in wrong.items()}


def agent_errors(n: int, shared: float, tables: int, *, seed: int = 1) -> float:
    """Return the share of wrong "damaged", for a merge the margin below six equal agents."""
    rng = np.random.default_rng(seed)
    agents = [f"agent {i}" for i in range(6)]
    scores = {"base": 0.2, **dict.fromkeys(agents, 0.8), "merge": 0.8 - MARGIN}
    wrong = 0
    for _ in range(tables):
        report = report_of(_drawn(rng, scores, (1, n), shared))
        chosen = choose_specialists(report, agents)
        (found,) = skill_verdicts(chosen.judged, chosen.agents, "base", merges=["merge"])
        wrong += found.verdict == "damaged"
    return wrong / tables


def document_sizes(rng: np.random.Generator, documents: int, kind: str) -> np.ndarray:
    """Return each document's number of questions: "5 each", "1 to 20" (mean 3), "one large"."""
    if kind == "1 to 20":
        return np.minimum(rng.geometric(0.3, documents), 20)
    sizes = np.full(documents, 5 if kind == "5 each" else 2)
    sizes[0] = documents if kind == "one large" else sizes[0]
    return sizes


def about_documents(
    rng: np.random.Generator, score: float, sizes: np.ndarray, alike: float, samples: int = 1
) -> tuple[Answer, ...]:
    """Return a model's answers about documents; alike: their correlation within one."""
    documents = np.repeat(np.arange(len(sizes)), sizes)
    own = np.sqrt(alike) * rng.standard_normal(len(sizes))[documents]
    luck = np.sqrt(1 - alike) * rng.standard_normal((samples, len(documents)))
    rights = (own + luck < ndtri(score)).T.tolist()
    return tuple(
        Answer("", marks[0], facts={CLUSTER: str(document), SAMPLES: marks})
        for marks, document in zip(rights, documents, strict=True)
    )


def document_coverage(
    score: float,
    documents: int,
    kind: str,
    alike: float,
    experiments: int,
    *,
    samples: int = 1,
    seed: int = 1,
) -> float:
    """Return the coverage of a score's interval, and of that of several samples' mean."""
    rng = np.random.default_rng(seed)
    covered = 0
    for _ in range(experiments):
        sizes = document_sizes(rng, documents, kind)
        answers = about_documents(rng, score, sizes, alike, samples)
        found = sample_scores(answers) if samples > 1 else None
        low, high = (found or DomainScore.of(answers)).ci95
        covered += low <= score <= high
    return covered / experiments


def document_errors(
    best: float, documents: int, kind: str, alike: float, tables: int, *, seed: int = 1
) -> float:
    """Return the share of wrong "survived" for one merge exactly the margin below."""
    rng = np.random.default_rng(seed)
    scores = {"base": best / 4, "expert": best, "merge": best - MARGIN}
    wrong = 0
    for _ in range(tables):
        sizes = document_sizes(rng, documents, kind)
        answers = {name: about_documents(rng, own, sizes, alike) for name, own in scores.items()}
        shape = np.zeros((1, sizes.sum()))
        report = report_of(dict.fromkeys(scores, shape))
        models = {
            name: replace(report.models[name], answers={"skill 0": own})
            for name, own in answers.items()
        }
        (found,) = skill_verdicts(replace(report, models=models), {"skill 0": "expert"}, "base")
        wrong += found.verdict == "survived"
    return wrong / tables


def main(wanted: str) -> None:
    """Print the tables."""
    if wanted in ("", "gain"):
        print("base specialist merge n correlation: covered, shown, mean width")
        every = []
        for cell in grid():
            every.append(gain_coverage(cell, 5000))
            print(*cell, *(f"{figure:.4f}" for figure in every[-1]), flush=True)
        covered, _, width = np.array(every).T
        print(f"{len(every)} cells: covered at least {covered.min():.4f}, "
              f"median {np.median(covered):.4f}; mean width {width.mean():.4f}")  # fmt: skip
    if wanted in ("", "table"):
        for best, n, shared in product((0.6, 0.9, 0.98, 1), (60, 200), (0, 0.5)):
            print(best, n, shared, table_errors(best, n, shared, 1000), flush=True)
    if wanted in ("", "agents"):
        for n, shared in product((60, 200), (0, 0.5)):
            wrong = agent_errors(n, shared, 2000)
            print(f"{n} {shared}: wrongly damaged {100 * wrong:.2f} %", flush=True)
    if wanted in ("", "documents"):
        for documents, kind in product((10, 20, 50, 100), ("5 each", "1 to 20", "one large")):
            cells = list(product((0.5, 0.8, 0.95), (0.1, 0.5)))
            shares = [document_coverage(p, documents, kind, alike, 2000) for p, alike in cells]
            four = [
                document_coverage(p, documents, kind, alike, 2000, samples=4) for p, alike in cells
            ]
            wrong = [document_errors(p, documents, kind, a, 400) for p, a in cells if p > 0.5]
            covered = f"covered at least {min(shares):.3f}, median {np.median(shares):.3f}"
            sampled = (
                f"the mean of 4 samples at least {min(four):.3f}, median {np.median(four):.3f}"
            )
            wrongly = f"wrongly survived at most {max(wrong):.3f}"
            print(f"{documents} documents, {kind}: {covered}; {sampled}; {wrongly}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    tables = ("gain", "table", "agents", "documents")
    parser.add_argument("wanted", nargs="?", choices=tables, default="", help="default: all")
    main(parser.parse_args().wanted)
