"""The records of the store: what makes a run, a stored answer, and a run with its tally."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ram_studio.evals.question import Answer, Question, Reply, Verdict


@dataclass(frozen=True)
class RunKey:
    """What makes two evaluations the same: equal keys share their answers.

    fingerprint: of the weights and of everything else that shapes the answers (tokenizer, chat
    template). settings: JSON-ready; whatever else may change an answer.
    """

    fingerprint: str
    suite: str
    suite_version: int
    settings: Mapping[str, Any]

    @staticmethod
    def of(identity: Mapping[str, Any], suite: str, version: int, **more: Any) -> "RunKey":
        """Return the key of an engine (see `Engine.identity`) and a suite; more: settings."""
        settings = {**identity, **more}
        return RunKey(str(settings.pop("fingerprint")), suite, version, settings)

    @property
    def digest(self) -> str:
        """32 hex digits."""
        parts = [self.fingerprint, self.suite, self.suite_version, dict(self.settings)]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class StoredAnswer:
    """One row: the question as a report needs it, the digest it had, the reply and the verdict.

    origin: see `Answer`.
    """

    question: Question
    digest: str
    reply: Reply
    verdict: Verdict
    origin: Mapping[str, Any]

    @property
    def answer(self) -> Answer:
        """The answer as reports have it."""
        return Answer.of(self.reply, self.verdict, self.origin)


@dataclass(frozen=True)
class StoredRun:
    """A run with its tally.

    answered: how many answers (what was not asked has none), correct: the right ones of them;
    domains: the same two by domain. package_version: of what began it; software: versions of what
    gave its answers, see `joined`.
    merge: how a model that was merged in memory was made, see `AnswerStore.open_run`.
    """

    id: int
    model: str
    path: str | None
    fingerprint: str
    suite: str
    suite_version: int
    settings: Mapping[str, Any]
    created: str
    answered: int
    correct: int
    seconds: float
    package_version: str = ""
    merge: Mapping[str, Any] | None = None
    domains: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)


def joined(origins: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the versions of these origins of answers by name, several parted by commas."""
    found: dict[str, dict[str, None]] = {}
    for origin in origins:
        for name, number in origin.get("software", {}).items():
            found.setdefault(name, {})[number] = None
    return {name: ", ".join(numbers) for name, numbers in found.items()}
