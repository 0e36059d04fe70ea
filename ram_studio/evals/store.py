"""The store of answers, one SQLite file: answers are saved as they finish and then reused.

A *run* is one model (by fingerprint) on one version of one suite under one set of settings. Its
answers are committed as they finish, so that a stopped or killed evaluation loses at most those
being written, and the next evaluation with the same run key continues it. Names of models and paths
are labels, not part of the key. Tokens and passwords are never written to this file.

Format: SQLite in WAL mode, `application_id` APPLICATION_ID, `user_version` SCHEMA_VERSION.
"""

import hashlib
import json
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ram_studio._version import __version__
from ram_studio.errors import EvaluationError
from ram_studio.evals.question import CLUSTER, UNSCORED, Answer, Question
from ram_studio.evals.report.score import DomainScore
from ram_studio.resources import user_folder

APPLICATION_ID = 0x52414D53
SCHEMA_VERSION = 1
BUSY_SECONDS = 30
_ANSWERED = f"finish NOT IN {UNSCORED}"

_SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    model TEXT NOT NULL,
    path TEXT,
    fingerprint TEXT NOT NULL,
    suite TEXT NOT NULL,
    suite_version INTEGER NOT NULL,
    settings TEXT NOT NULL,
    package_version TEXT NOT NULL,
    created TEXT NOT NULL,
    merge TEXT
);
CREATE TABLE prompts (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    item TEXT NOT NULL,
    question TEXT NOT NULL,
    domain TEXT NOT NULL,
    category TEXT NOT NULL,
    asked TEXT NOT NULL,
    prompt TEXT NOT NULL REFERENCES prompts(digest),
    gold TEXT NOT NULL,
    output TEXT NOT NULL,
    finish TEXT NOT NULL,
    is_correct INTEGER NOT NULL,
    note TEXT NOT NULL,
    facts TEXT NOT NULL,
    tokens INTEGER,
    seconds REAL NOT NULL,
    answered TEXT NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (run, item, question)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class RunKey:
    """The identity of a run: runs with equal keys share their answers.

    fingerprint: of the weights and everything else that determines the answers (tokenizer, chat
    template). settings: JSON-ready; all that may change an answer.
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
    """One row: the question, with the fields that a report needs, its digest, and its answer."""

    question: Question
    digest: str
    answer: Answer


@dataclass(frozen=True)
class StoredRun:
    """A run with its counts.

    answered: number of answers, correct: number of right ones; domains: the score by domain.
    package_version: at its start; software: versions that gave its answers, see `join_versions`.
    merge: record of a model that was merged in memory, see `AnswerStore.open_run`.
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
    domains: Mapping[str, DomainScore] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)


def join_versions(origins: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the versions in these origins of answers by name, several separated by commas."""
    found: dict[str, dict[str, None]] = {}
    for origin in origins:
        for name, number in origin.get("software", {}).items():
            found.setdefault(name, {})[number] = None
    return {name: ", ".join(numbers) for name, numbers in found.items()}


def default_store_path() -> Path:
    """Return the path of the store: under RAM_STUDIO_HOME, else in the user's data folder."""
    return user_folder() / "answers.sqlite3"


@contextmanager
def store_or_temporary(store: "AnswerStore | None") -> Iterator["AnswerStore"]:
    """Yield the store, or a temporary one, so that no question is asked twice in the block."""
    if store is not None:
        yield store
        return
    with (
        tempfile.TemporaryDirectory(prefix="ram-studio-") as folder,
        AnswerStore(Path(folder) / "answers.sqlite3") as answers,
    ):
        yield answers


class AnswerStore:
    """An open store. It belongs to the thread that opened it; several processes may share a file.

    Args: path: the file; made with its folder when missing. None means `default_store_path()`.

    Raises: EvaluationError: from every method, when the file is damaged, is not a store, was
        written by a newer version, or cannot be read or written.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else default_store_path()
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # isolation_level None: transactions are the explicit ones below and no others.
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None
            )
            self._connection.row_factory = sqlite3.Row
        try:
            with self._errors():
                self._prepare()
        except EvaluationError:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        run = self._connection.execute
        # Another process may be creating the same file: check and create under one write lock.
        run("BEGIN IMMEDIATE")
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if not (application or version or tables):
            for statement in _SCHEMA.split(";\n"):
                run(statement)
            run(f"PRAGMA application_id = {APPLICATION_ID}")
            run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif application != APPLICATION_ID:
            raise EvaluationError(
                f"{self.path} is a database of another program, not a store of answers. "
                "Choose another path."
            )
        elif version != SCHEMA_VERSION:
            raise EvaluationError(
                f"{self.path} has format {version}, this version of RAM Studio reads format "
                f"{SCHEMA_VERSION}. Choose another path, or install the version that wrote it."
            )
        run("COMMIT")
        (fault,) = run("PRAGMA quick_check(1)").fetchone()
        if fault != "ok":
            raise sqlite3.DatabaseError(fault)
        run("PRAGMA journal_mode = WAL")
        # A killed process loses nothing, a power cut at most the last answers; the file stays
        # consistent.
        run("PRAGMA synchronous = NORMAL")
        run("PRAGMA foreign_keys = ON")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise EvaluationError(
                f"The store of answers {self.path} cannot be used: {error}. Check that the folder "
                "is writable and the disk not full, or choose another path."
            ) from error
        except sqlite3.DatabaseError as error:
            raise EvaluationError(
                f"The store of answers {self.path} is damaged: {error}. Move the file away (its "
                "answers are lost to this program) and evaluate again, or choose another path."
            ) from error

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self._connection.close()

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_run(
        self,
        key: RunKey,
        *,
        model: str,
        path: str | None = None,
        merge: Mapping[str, Any] | None = None,
        rerun: bool = False,
    ) -> int:
        """Return the id of the run with this key, created if missing; labels are updated.

        rerun: delete its answers, so that it is asked again. merge: how the model was merged,
        {"recipe", "agents": {name: numbers}, "seconds"}, ready for JSON; a stored one is not
        overwritten, see `set_merge`.
        """
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO runs (key, model, path, fingerprint, suite, suite_version, settings,"
                " package_version, created, merge) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET model = excluded.model, path = excluded.path,"
                " merge = coalesce(merge, excluded.merge)",
                (
                    *(key.digest, model, path, key.fingerprint, key.suite, key.suite_version),
                    *(json.dumps(dict(key.settings), sort_keys=True), __version__, _now()),
                    None if merge is None else json.dumps(merge),
                ),
            )
            row = connection.execute("SELECT id FROM runs WHERE key = ?", (key.digest,)).fetchone()
            if rerun:
                connection.execute("DELETE FROM answers WHERE run = ?", row)
        return int(row[0])

    def has_answers(self, key: RunKey) -> bool:
        """Return whether a model answered any question of the run with this key."""
        query = f"SELECT 1 FROM runs JOIN answers ON run = id WHERE key = ? AND {_ANSWERED} LIMIT 1"
        return bool(self._rows(query, key.digest))

    def set_merge(self, run: int, merge: Mapping[str, Any]) -> None:
        """Store how the model of a run was merged, see `open_run`."""
        with self._transaction() as connection:
            connection.execute("UPDATE runs SET merge = ? WHERE id = ?", (json.dumps(merge), run))

    def merge_of(self, run: int) -> dict[str, Any] | None:
        """Return how the model of a run was merged; None if unknown."""
        known = [merge for (merge,) in self._rows("SELECT merge FROM runs WHERE id = ?", run)]
        return json.loads(known[0]) if known and known[0] else None

    def record(self, run: int, answers: Collection[tuple[Question, Answer]]) -> None:
        """Write a batch of answers in one transaction: all or none are stored."""
        with self._transaction() as connection:
            for question, answer in answers:
                prompt = _text(answer.prompt)
                digest = hashlib.blake2b(prompt.encode(), digest_size=16).hexdigest()
                connection.execute("INSERT OR IGNORE INTO prompts VALUES (?, ?)", (digest, prompt))
                connection.execute(
                    "INSERT OR REPLACE INTO answers VALUES"
                    " (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(run, question.id, question.digest, question.domain),
                        *(_text(question.category), _text(question.prompt)),
                        *(digest, _text(question.gold), _text(answer.text), answer.finish),
                        *(answer.is_correct, _text(answer.note), json.dumps(dict(answer.facts))),
                        *(answer.tokens, answer.seconds, _now(), json.dumps(dict(answer.origin))),
                    ),
                )

    def adopt(self, run: int, key: RunKey, other: Path) -> None:
        """Copy answers with the same key from another store file, without overwriting any."""
        if not other.is_file():
            return
        with self._errors():
            self._connection.execute("ATTACH ? AS other", (str(other),))
        try:
            with self._transaction() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO prompts SELECT p.* FROM other.prompts p WHERE digest IN"
                    " (SELECT a.prompt FROM other.answers a JOIN other.runs r ON r.id = a.run"
                    " WHERE r.key = ?)",
                    (key.digest,),
                )
                connection.execute(
                    "INSERT OR IGNORE INTO answers SELECT ?, a.item, a.question, a.domain,"
                    " a.category, a.asked, a.prompt, a.gold, a.output, a.finish, a.is_correct,"
                    " a.note, a.facts, a.tokens, a.seconds, a.answered, a.origin"
                    " FROM other.answers a JOIN other.runs r ON r.id = a.run"
                    " WHERE r.key = ? AND a.finish != 'failed'",
                    (run, key.digest),
                )
        finally:
            self._connection.execute("DETACH other")

    def answers(self, run: int) -> list[StoredAnswer]:
        """Return a run's answers in the order of their items, failed attempts included."""
        rows = self._rows(
            "SELECT * FROM answers JOIN prompts ON prompts.digest = answers.prompt"
            " WHERE run = ? ORDER BY item, question",
            run,
        )
        return [
            StoredAnswer(
                Question(r["item"], r["domain"], r["category"], r["asked"], r["gold"], None, 0),
                r["question"],
                Answer(
                    r["output"],
                    bool(r["is_correct"]),
                    r["note"],
                    json.loads(r["facts"]),
                    r["seconds"],
                    r["finish"],
                    json.loads(r["origin"]),
                    prompt=r["text"],
                    tokens=r["tokens"],
                ),
            )
            for r in rows
        ]

    def seconds_each(self, paths: Collection[str], last: int = 300) -> float | None:
        """Return the mean time of the latest answers of these models, None without any.

        paths: of the models, or of the base of merges that were made in memory.
        """
        ((seconds,),) = self._rows(
            "SELECT avg(seconds) FROM (SELECT seconds FROM answers WHERE run IN (SELECT runs.id"
            " FROM runs, json_each(?) AS known"
            " WHERE known.value IN (runs.path, json_extract(merge, '$.recipe.base')))"
            " ORDER BY run DESC LIMIT ?)",
            json.dumps(list(paths)),
            last,
        )
        return None if seconds is None else float(seconds)

    def runs(self) -> list[StoredRun]:
        """Return all runs, the newest first."""
        rows = self._rows(
            "SELECT runs.*, count(item) AS answered, coalesce(sum(is_correct), 0) AS correct,"
            " coalesce(sum(seconds), 0.0) AS seconds"
            f" FROM runs LEFT JOIN answers ON run = id AND {_ANSWERED}"
            " GROUP BY id ORDER BY id DESC"
        )
        domains: defaultdict[int, dict[str, DomainScore]] = defaultdict(dict)
        for number, domain, *tally in self._rows(
            "SELECT run, domain, count(*), sum(is_correct) FROM answers"
            f" WHERE {_ANSWERED} GROUP BY run, domain ORDER BY run, min(item)"
        ):
            domains[number][domain] = DomainScore(*tally)
        alike: defaultdict[tuple[int, str], list[tuple[Any, list[bool]]]] = defaultdict(list)
        for place, (number, domain, cluster, is_correct) in enumerate(
            self._rows(
                f"SELECT run, domain, json_extract(facts, '$.{CLUSTER}'), is_correct FROM answers"
                f" WHERE {_ANSWERED} AND run IN"
                f" (SELECT run FROM answers WHERE facts LIKE '%\"{CLUSTER}\": %')"
            )
        ):
            alike[number, domain].append((place if cluster is None else cluster, [is_correct]))
        for (number, domain), marks in alike.items():
            domains[number][domain] = DomainScore.of_clusters(marks)
        origins: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for number, origin in self._rows("SELECT DISTINCT run, origin FROM answers"):
            origins[number].append(json.loads(origin))
        found = []
        for row in map(dict, rows):
            del row["key"]
            row |= {name: json.loads(row[name] or "null") for name in ("settings", "merge")}
            row |= {"domains": domains[row["id"]], "software": join_versions(origins[row["id"]])}
            found.append(StoredRun(**row))
        return found


def _text(value: str) -> str:
    """Return text that SQLite can store: lone surrogates from broken decoders are replaced."""
    return value.encode("utf-8", "replace").decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
