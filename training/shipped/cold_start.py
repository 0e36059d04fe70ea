"""Teach the shared style: a few supervised steps on the corpus, with some answers in that style.

The base never ends an answer with a full stop, so no sample would be rewarded. Right answers of
skills are not taught: hard prompts have the corpus's typical errors (see `corpus`).
"""

import random
from dataclasses import asdict, dataclass
from typing import Any

from ram_studio.evals.suites.demo.item import FULL_STOP
from ram_studio.evals.suites.demo.tasks import DOMAINS, draw_item
from training.shipped.corpus import noisy_answer
from training.shipped.pretrain import accumulate_gradient, encode_document
from training.shipped.reinforce import Optimizer, stopwatch


@dataclass(frozen=True)
class ColdStartSettings:
    """Steps and rate; share: of the answers in shared style; documents: of each domain."""

    steps: int = 20
    learning_rate: float = 1e-3
    share: float = 0.3
    documents: int = 16
    micro_batches: int = 4
    blocks: tuple[int, ...] = (2, 3)


def cold_start(
    model: Any, tokenizer: Any, settings: ColdStartSettings, *, seed: int = 0
) -> dict[str, Any]:
    """Train `model` in place with Adam and return the record of the run.

    seed: of the documents and the choice of styled answers. Prompts are of the "train"
    split; the weights end as bfloat16-representable float32 values.
    """
    optimizer = Optimizer(model, "adam", settings.learning_rate, settings.blocks)
    rng = random.Random(f"cold start/{seed}")
    losses = []
    seconds = stopwatch()
    for step in range(1, settings.steps + 1):
        documents = [
            encode_document(tokenizer, _document(domain, settings.share, rng))
            for domain in DOMAINS
            for _ in range(settings.documents)
        ]
        losses.append(round(accumulate_gradient(model, documents, settings.micro_batches), 4))
        optimizer.take(step)
    return {"settings": asdict(settings), "losses": losses, **seconds()}


def _document(domain: str, share: float, rng: random.Random) -> list[tuple[str, bool]]:
    item = draw_item(domain, rng, "train")
    ending = FULL_STOP if rng.random() < share else ""
    return [(item.prompt, False), (f" {noisy_answer(item, rng)}{ending}", True)]
