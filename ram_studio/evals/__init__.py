"""Sanity evaluations of base, agents and merges: small suites, strict verifiers, honest intervals.

Importing this package loads neither torch nor transformers; evaluating does.
"""

from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.report.score import DomainScore
from ram_studio.evals.report.statistics import Comparison, compare_all, items_needed
from ram_studio.evals.report.tables import EvalReport, ModelResult, PairedCounts, compare
from ram_studio.evals.run import DEFAULT_SEED, EvaluationPlan, evaluate
from ram_studio.evals.store.answers import AnswerStore, default_store_path
from ram_studio.evals.suites import ALL_SUITES, GENERAL_SUITES, Suite, register
from ram_studio.evals.suites.demo.item import Item
from ram_studio.evals.suites.demo.tasks import (
    DOMAINS,
    RETENTION_DOMAIN,
    SKILL_DOMAINS,
    make_items,
    score,
)

__all__ = [
    "ALL_SUITES",
    "DEFAULT_SEED",
    "DOMAINS",
    "GENERAL_SUITES",
    "RETENTION_DOMAIN",
    "SKILL_DOMAINS",
    "Answer",
    "AnswerStore",
    "Comparison",
    "DomainScore",
    "EndpointEngine",
    "EvalReport",
    "EvaluationPlan",
    "Item",
    "ModelResult",
    "PairedCounts",
    "Question",
    "Suite",
    "compare",
    "compare_all",
    "default_store_path",
    "evaluate",
    "items_needed",
    "make_items",
    "register",
    "score",
]
