"""Health of one model after the other, kept in the store like any answer."""

import json
from collections.abc import Mapping
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.answering.engine import Engine
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Question, Reply, Verdict
from ram_studio.evals.store.answers import AnswerStore, RunKey
from ram_studio.evals.suites.health.health import (
    HEALTH_VERSION,
    Health,
    measure_health,
    text_log_probabilities,
)

_QUESTION = Question("health", "health", "health", "(shipped text and prompts)", "", None, 0)


class HealthRun:
    """Measures models against the one that is measured as the base, if any."""

    def __init__(self, store: AnswerStore | None, fresh: bool) -> None:
        self._store, self._fresh = store, fresh
        self._base: LocalEngine | None = None
        self._reference: Any = None

    def measure(self, name: str, engine: Engine, *, is_base: bool) -> Mapping[str, Any]:
        """Return `Health.to_dict()` and its "warnings"; from the store when it is there.

        Raises:
            EvaluationError: the model is behind an endpoint, which hands out no logits.
        """
        if not isinstance(engine, LocalEngine):
            raise EvaluationError(
                f'Model "{name}" is behind an endpoint, and health needs its logits. Leave the '
                "suite out, or evaluate the model's folder."
            )
        if is_base:
            self._base = engine
        if self._store is not None:
            base = self._base.identity["fingerprint"] if self._base else None
            key = RunKey.of(engine.identity, "health", HEALTH_VERSION, base=base)
            path = str(engine.path)
            run = self._store.open_run(key, model=name, path=path, fresh=self._fresh)
            for row in self._store.answers(run):
                return dict(json.loads(row.reply.text))
        if self._base is not None and self._reference is None:
            reference, _, bad = text_log_probabilities(self._base)
            # Nothing can be compared with a broken base.
            self._reference = None if bad else reference
            # The base's own numbers may have been stored, and its weights loaded for this alone.
            if not is_base:
                self._base.close()
        health: Health = measure_health(engine, self._reference)
        result = {**health.to_dict(), "warnings": list(health.warnings())}
        if self._store is not None:
            reply = Reply(json.dumps(result), _QUESTION.prompt, "end")
            verdict = Verdict(not result["warnings"], "; ".join(result["warnings"]))
            self._store.record(run, [(_QUESTION, reply, verdict)])
        return result

    def close(self) -> None:
        """Let go of the base's distribution: it takes 4 bytes per token and word."""
        self._reference = None
        if self._base is not None:
            self._base.close()
