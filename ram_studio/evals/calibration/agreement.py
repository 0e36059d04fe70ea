"""Do our suites rank models as the published benchmarks do: Kendall's tau over calibrated models.

With fewer than five models measured on both not even perfect agreement would be beyond chance
(p = 2 / 4! = .083), so nothing is claimed then but how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ram_studio.evals.calibration.record import calibrated

LEAST_MODELS = 5
PAIRS = (("tool", "bfcl-nonlive"), ("tool", "bfcl-live"), ("code", "humaneval"))
"""Domains of ours, and those of the benchmarks that ask for the same skill."""


def rank_agreement(
    records: Sequence[Mapping[str, Any]], ours: str, published: str
) -> dict[str, Any]:
    """Return {"ours", "published", "models", "tau", "p", "sentence"}; tau and p None for too few.

    Args: ours, published: domains; a record counts when it has answers in both.
    """
    scores = [
        {model: fmean(marks.values()) for model, marks in calibrated(records, domain).items()}
        for domain in (ours, published)
    ]
    models = [name for name in scores[0] if name in scores[1]]
    found: dict[str, Any] = {"ours": ours, "published": published, "models": models}
    said = f"Whether {ours} ranks models as {published} does"
    if len(models) < LEAST_MODELS:
        return {
            **found,
            "tau": None,
            "p": None,
            "sentence": f"{said} is not known: {len(models)} measured on both, at least "
            f"{LEAST_MODELS} are needed.",
        }
    from scipy.stats import kendalltau

    tau, p = kendalltau(*([own[name] for name in models] for own in scores))
    return {
        **found,
        "tau": float(tau),
        "p": float(p),
        "sentence": f"{said}: Kendall's tau {tau:.2f} over {len(models)} models (p {p:.2g}).",
    }
