"""Is the model intact? Numbers that need no right answers.

On a text shipped with the package: non-finite logits, perplexity, bits per byte (which can be
compared between tokenizers), and the mean KL divergence of the next-token distribution from the
base's, KL(base || model), in nats a token. On a few prompts, half of them open and half with a
short answer, answered greedily: the share of answers that the model ends, the share of repeated
4-grams, and tokens per second.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.decode import decode, fitting_threads
from ram_studio.evals.answering.engine import Engine
from ram_studio.evals.answering.load import ending_ids, padding_id
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Answer, Question
from ram_studio.evals.store import AnswerStore, RunKey
from ram_studio.evals.suites.suite import DATA, repeated_share

HEALTH_VERSION = 2
MAX_TEXT_TOKENS = 512
NEW_TOKENS = 96
_PROMPTS = (
    "Describe a walk through a small town in the morning.",
    "Explain how a bicycle stays upright.",
    "Write a short letter to a friend you have not seen for a year.",
    "What should one think about before buying a used car?",
    "What is the capital of Japan?",
    "Name three colors.",
    "Which month comes after June?",
    "Say good morning in one short sentence.",
)
_QUESTION = Question("health", "health", "health", "(shipped text and prompts)", "", None, 0)


MEASURES = {
    "perplexity": "Perplexity",
    "bits_per_byte": "Bits per byte",
    "kl_to_base": "KL to the base (nats/token)",
    "nonfinite_logits": "Logits not finite",
    "ended": "Answers that end",
    "repetition": "4-grams repeated",
    "tokens_per_second": "Tokens/s",
    "text_tokens": "Tokens of text",
}
"""Display names of the fields of `Health`."""


def measure_text(key: str, value: float | None) -> str:
    """Return a field's value for display; a dash where it was not measured."""
    if value is None:
        return "–"
    if key in ("ended", "repetition"):
        return f"{100 * value:.0f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Health:
    """The measurements of one model.

    text_tokens: tokens of the shipped text that were scored. nonfinite_logits: number of its logits
        that are NaN or infinite (above 0 the weights are broken; perplexity and KL are then None).
    perplexity: per token. kl_to_base: None without a base or with another vocabulary. ended: share
    of answers that the model ended within 96 tokens. repetition: share of their 4-grams that
    occurred before in the same answer. tokens_per_second: of decoding those answers in one batch.
    """

    text_tokens: int
    nonfinite_logits: int
    perplexity: float | None
    bits_per_byte: float | None
    kl_to_base: float | None
    ended: float
    repetition: float
    tokens_per_second: float

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about clear faults; empty for a model without any."""
        found = []
        if self.nonfinite_logits:
            found.append(f"{self.nonfinite_logits} logits are not finite: the weights are broken")
        if self.repetition > 0.5:
            found.append(f"{self.repetition:.0%} of the 4-grams in its answers are repeated")
        if self.kl_to_base is not None and self.kl_to_base > 2:
            found.append(f"its predictions have left the base's ({self.kl_to_base:.1f} nats/token)")
        return tuple(found)


def text_log_probabilities(engine: LocalEngine) -> tuple[Any, list[int], int]:
    """Return (float32 log-probabilities "positions vocabulary" on the CPU, ids, bad logits).

    Row i is the distribution of token i + 1 of the shipped text given the tokens before it.
    """
    import torch

    model = engine.model
    ids = engine.encode((DATA / "health.txt").read_text("utf-8"))
    ids = ids[: min(MAX_TEXT_TOKENS, engine.context or MAX_TEXT_TOKENS)]
    with torch.inference_mode(), fitting_threads(model):
        logits = model(torch.tensor([ids], device=model.device)).logits[0, :-1].float()
    bad = int((~torch.isfinite(logits)).sum())
    return logits.log_softmax(-1).cpu(), ids, bad


def measure_health(engine: LocalEngine, reference: Any = None) -> Health:
    """Measure a model; `reference`: the base's first result of `text_log_probabilities`."""
    import torch

    log_probabilities, ids, bad = text_log_probabilities(engine)
    perplexity = bits = divergence = None
    if not bad and len(ids) > 1:
        loss = -log_probabilities[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        perplexity = math.exp(min(float(loss.mean()), 700.0))
        nbytes = len(engine.tokenizer.decode(ids[1:]).encode())
        bits = float(loss.sum()) / math.log(2) / max(nbytes, 1)
        if reference is not None and reference.shape == log_probabilities.shape:
            gap = (reference.exp() * (reference - log_probabilities)).sum(-1)
            divergence = max(float(gap.mean()), 0.0)
    ended, repetition, speed = _answers(engine)
    return Health(len(ids) - 1, bad, perplexity, bits, divergence, ended, repetition, speed)


def _answers(engine: LocalEngine) -> tuple[float, float, float]:
    """Return (share ended, share of repeated n-grams, tokens per second)."""
    model, tokenizer = engine.model, engine.tokenizer
    asked = (Question("", "health", "", text, "", None, NEW_TOKENS) for text in _PROMPTS)
    prompts = [engine.encode_prompt(question)[1] for question in asked]
    room = NEW_TOKENS if engine.context is None else engine.context - max(map(len, prompts))
    new_tokens = max(1, min(NEW_TOKENS, room))
    ends = ending_ids(model, tokenizer)
    start = time.perf_counter()
    rows = decode(
        model, prompts, pad_id=padding_id(tokenizer), end_ids=ends, max_new_tokens=new_tokens
    )
    seconds = time.perf_counter() - start
    ended = sum(bool(row) and row[-1] in ends for row in rows) / len(rows)
    return ended, repeated_share(rows), sum(map(len, rows)) / max(seconds, 1e-9)


class HealthRun:
    """Measures models, relative to the base if there is one; results are stored."""

    def __init__(self, store: AnswerStore | None, rerun: bool) -> None:
        self._store, self._rerun = store, rerun
        self._base: LocalEngine | None = None
        self._reference: Any = None

    def measure(self, name: str, engine: Engine, *, is_base: bool) -> Mapping[str, Any]:
        """Return the numbers of `Health` and its "warnings", from the store if stored.

        Raises: EvaluationError: the model's engine gives no logits.
        """
        if not isinstance(engine, LocalEngine):
            raise EvaluationError(
                f'Model "{name}" is behind an endpoint, and health needs its logits. Leave the '
                "suite out, or evaluate the model's folder."
            )
        if not engine.has_logits:
            raise EvaluationError(
                f'Model "{name}" is in an engine that gives no logits, and health needs '
                "them. Leave the suite out, or evaluate the model's folder."
            )
        if is_base:
            self._base = engine
        if self._store is not None:
            base = self._base.identity["fingerprint"] if self._base else None
            key = RunKey.of(engine.identity, "health", HEALTH_VERSION, base=base)
            path = str(engine.path)
            run = self._store.open_run(key, model=name, path=path, rerun=self._rerun)
            for row in self._store.answers(run):
                return dict(json.loads(row.answer.text))
        if self._base is not None and self._reference is None:
            reference, _, bad = text_log_probabilities(self._base)
            # A broken base allows no comparison.
            self._reference = None if bad else reference
            # The base's own numbers may be stored; its weights are then loaded only for this.
            if not is_base:
                self._base.close()
        health: Health = measure_health(engine, self._reference)
        result = {**asdict(health), "warnings": list(health.warnings())}
        if self._store is not None:
            fields = (json.dumps(result), not result["warnings"], "; ".join(result["warnings"]))
            origin = {"software": dict(engine.software)}
            answer = Answer(*fields, {}, 0.0, origin=origin, prompt=_QUESTION.prompt)
            self._store.record(run, [(_QUESTION, answer)])
        return result

    def close(self) -> None:
        """Free the base's distribution: it takes 4 bytes per token and vocabulary entry."""
        self._reference = None
        if self._base is not None:
            self._base.close()
