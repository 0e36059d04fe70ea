"""Sanity evaluations of base, agents and merges: small suites, strict verifiers, honest intervals.

Importing this package loads neither torch nor transformers; evaluating does.
"""

from ram_studio.evals.evaluate import (
    DEFAULT_LIMIT,
    DEFAULT_SEED,
    evaluate,
    evaluate_loaded,
    suite_items,
)
from ram_studio.evals.report import (
    Answer,
    DomainScore,
    EvalReport,
    ModelResult,
    PairedCounts,
    compare,
)
from ram_studio.evals.statistics import Comparison, compare_all, items_needed
from ram_studio.evals.tasks import (
    DOMAINS,
    RETENTION_DOMAIN,
    SKILL_DOMAINS,
    SUITES,
    Item,
    make_items,
    score,
)

__all__ = [
    "DEFAULT_LIMIT",
    "DEFAULT_SEED",
    "DOMAINS",
    "RETENTION_DOMAIN",
    "SKILL_DOMAINS",
    "SUITES",
    "Answer",
    "Comparison",
    "DomainScore",
    "EvalReport",
    "Item",
    "ModelResult",
    "PairedCounts",
    "compare",
    "compare_all",
    "evaluate",
    "evaluate_loaded",
    "items_needed",
    "make_items",
    "score",
    "suite_items",
]
