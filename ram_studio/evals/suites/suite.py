"""A suite: questions made for given settings, and a judge for the answers."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import EvalSettingsError, EvaluationError
from ram_studio.evals.prompts import Templates, after_examples, word
from ram_studio.evals.question import Conversation, Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch

DATA = Path(__file__).with_name("data")
DEFAULT_LENGTHS = (1000, 4000)
DEFAULT_DIFFICULTY = 2

Budget = int | Mapping[str, int] | None
"""Maximum tokens of an answer, for all suites or by suite; None or left out: the suite's own."""
Tally = Mapping[str, tuple[int, int]]
"""Numbers of right answers and of all answers, by category."""
Summary = Callable[[Tally, Sequence[Mapping[str, Any]]], Mapping[str, float]]


@dataclass(frozen=True)
class SuiteSettings:
    """The settings of a suite's questions.

    limit: most questions per suite, None for all. seed: for generated suites. lengths:
    prompt lengths in tokens, for the memory suite. count_tokens: text -> length in the model's own
    tokens. difficulty: of generated families, 1 to 5. data: folder with the rows of suites from
    data sets, see `published.rows`; None: the Hub's cache, or the Hub. max_tokens: of an answer,
    see `Suite.questions`. samples: of a question, for suites that sample by themselves. templates:
    of prompts, see `prompts`; shots: few-shot examples before each question.
    """

    count_tokens: Callable[[str], int]
    limit: int | None = None
    seed: int = 0
    lengths: tuple[int, ...] = DEFAULT_LENGTHS
    difficulty: int = DEFAULT_DIFFICULTY
    data: str | Path | None = None
    max_tokens: Budget = None
    samples: int = 1
    templates: Templates = field(default_factory=dict)
    shots: int = 0


Make = Callable[[SuiteSettings], Sequence[Question]]
Judge = Callable[[Question, str, CodeSwitch], Verdict]


@dataclass(frozen=True)
class Suite:
    """A named set of questions with its judge.

    version: raised whenever a question or the judging changes, so that old answers are not reused.
    make: settings -> questions, the same ones for the same settings. judge: (question, visible
    answer, code switch) -> verdict; never raises, for any answer. about: a short description.
    runs_code: judging executes model-written code. apart: domains outside the average. summary:
    (tally by category, facts of each verdict) -> further figures, as defined by the suite's
    publishers. absent: (folder of data, see `SuiteSettings`) -> why its questions are not on this
    machine, "" where they are; uses no network. fetch: downloads them from the Hub, where possible.
    has_texts: its questions are about long texts of `SuiteSettings.lengths` (`Question.reading`).
    converse: (question, code switch) -> the conversation that answers it; None: a single request.
    draws_samples: that conversation draws all samples of a question. has_template: other templates
    are possible, see `prompts`; has_shots: few-shot examples of a fixed split are possible.
    harness: lm-eval's tasks for it, as published.
    """

    name: str
    version: int
    title: str
    make: Make
    judge: Judge
    about: str = ""
    runs_code: bool = False
    apart: tuple[str, ...] = ()
    summary: Summary | None = None
    absent: Callable[[str | Path | None], str] = lambda data: ""
    has_texts: bool = False
    fetch: Callable[[], object] | None = None
    converse: Callable[[Question, CodeSwitch], Conversation] | None = None
    draws_samples: bool = False
    has_template: bool = False
    has_shots: bool = False
    harness: tuple[str, ...] = ()

    def tokens_of(self, budget: Budget) -> int | None:
        """Return a budget's most tokens of an answer, None for the suite's own."""
        return budget.get(self.name) if isinstance(budget, Mapping) else budget

    def questions(self, settings: SuiteSettings) -> tuple[Question, ...]:
        """Return the questions, each with its answer's most tokens.

        Raises: EvaluationError for a duplicate id, or a text that cannot be encoded.
        """
        most = self.tokens_of(settings.max_tokens)
        made = self.make(settings)
        for known, times in Counter(question.id for question in made).most_common(1):
            if times > 1:
                raise EvaluationError(
                    f"Suite {self.name}: {times} questions have the id {printable(known, 60)!r}. "
                    "Give each row of the data an id of its own."
                )
        for q in made:
            try:
                f"{q.id}{q.category}{q.prompt}{q.gold}".encode()
            except UnicodeEncodeError as error:
                raise EvaluationError(
                    f"Suite {self.name}: question {printable(q.id, 60)!r} holds half a character "
                    f"({error}). Take the data as its publishers give it."
                ) from error
        return tuple(q if most is None else replace(q, max_new_tokens=most) for q in made)


def json_lines(path: Path) -> list[Any]:
    """Return the values of a JSON lines file, compressed (.gz) or not, without blank lines.

    Raises: OSError, EOFError, or ValueError with the number of an invalid line.
    """
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from error
    return found


@lru_cache(maxsize=16)
def load_data(name: str) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return (header, rows) of a shipped JSONL file; the header states version and license.

    Raises: EvaluationError: the file is missing from this installation or damaged.
    """
    try:
        header, *rows = json_lines(DATA / f"{name}.jsonl")
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"The shipped suite {name!r} cannot be read: {error}. Install the package again."
        ) from error
    return header, tuple(rows)


RowFields = Callable[[int, Any], dict[str, Any]]
"""Index and content of a row -> gold, spec and further fields of a question; its prompt, or
"fields" of a template by name; "worked": its answer as a few-shot example, "" for none."""
Rows = Callable[[SuiteSettings], Iterable[Any]]


def rows_to_questions(
    name: str,
    max_new_tokens: int,
    rows: Rows,
    fields: RowFields,
    template: str = "",
    examples: Rows | None = None,
) -> Make:
    """Return the `make` of a suite with one question per row, independent of the seed.

    Unless `fields` sets them, a question's id has the suite's name and the row's number, and domain
    and category are the suite's name. template: of the prompt, in the suite's own words. examples:
    rows for few-shot examples, the first ones for all questions.
    """

    def read(number: int, row: Any, settings: SuiteSettings) -> tuple[dict[str, Any], str]:
        with reading(name, number):
            own = dict(fields(number, row))
            worked = str(own.pop("worked", "")).strip()
            if (asked := own.pop("fields", None)) is not None:
                own["prompt"] = word(name, template, asked, settings.templates)
            return own, worked

    def make(settings: SuiteSettings) -> tuple[Question, ...]:
        usual = {"domain": name, "category": name, "max_new_tokens": max_new_tokens}
        shown: list[tuple[str, str]] = []
        for number, row in enumerate(examples(settings) if settings.shots and examples else ()):
            own, worked = read(number, row, settings)
            if worked and len(shown) < settings.shots:
                shown.append((own["prompt"], worked))
        check_examples(name, len(shown), settings)
        questions = []
        for number, row in enumerate(rows(settings)):
            own, _ = read(number, row, settings)
            own["prompt"] = after_examples(own["prompt"], shown)
            with reading(name, number):
                questions.append(Question(**{"id": f"{name}-{number:04d}", **usual, **own}))
        return balance_questions(questions, settings.limit)

    return make


def check_examples(name: str, there: int, settings: SuiteSettings) -> None:
    """Raise EvaluationError where a suite has fewer few-shot examples than requested."""
    if there < settings.shots:
        raise EvalSettingsError(
            f"Suite {name} has {there} worked examples, {settings.shots} were requested. Give "
            f"fewer shots, or more rows in {name}-shots.jsonl."
        )


@contextmanager
def reading(name: str, number: int) -> Iterator[None]:
    """Raise an error that names a suite's row if reading it fails; number: from 0.

    Raises: EvaluationError.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EvaluationError(
            f"{name}, row {number + 1} is not in the form that it was published in "
            f"({type(error).__name__}: {error}). Take the file as its publishers give it."
        ) from error


def shipped_questions(
    name: str, max_new_tokens: int, fields: Callable[[dict[str, Any]], dict[str, Any]]
) -> Make:
    """Return the `make` of a suite with shipped questions; `fields` gets rows without index.

    Names and categories of questions are in their file.
    """
    return rows_to_questions(
        name,
        max_new_tokens,
        lambda settings: load_data(name)[1],
        lambda _, row: {"id": row["id"], "category": row["category"], **fields(row)},
    )


def balance_questions(questions: Sequence[Question], limit: int | None) -> tuple[Question, ...]:
    """Return at most `limit` questions, evenly over the categories, in their original order.

    A smaller limit gives a subset of a larger one's questions.
    """
    if limit is None or limit >= len(questions):
        return tuple(questions)
    rank: dict[str, int] = {}
    ranked = []
    for position, question in enumerate(questions):
        rank[question.category] = rank.get(question.category, 0) + 1
        ranked.append((rank[question.category], position))
    chosen = sorted(position for _, position in sorted(ranked)[:limit])
    return tuple(questions[position] for position in chosen)


def visible(text: str) -> str:
    """Return an answer without its thinking: the text after the last `</think>`.

    Thinking that was cut off leaves an empty answer.
    """
    if "</think>" in text:
        return text.rsplit("</think>", 1)[1].strip()
    return "" if re.match(r"\s*<think>", text) else text


def repeated_share(rows: Sequence[Sequence[object]], n: int = 4) -> float:
    """Return the share of n-grams that occurred before in their row; 0 when there are none."""
    total = repeated = 0
    for row in rows:
        grams = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return repeated / total if total else 0.0


# A box, other braces, and closing braces.
_BRACES = re.compile(r"(\\f?boxed\s*+\{)|\\[{}]|(\{)|\}")


def find_box(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`, None where there is none."""
    opened: list[int] = []
    start = end = -1
    for found in _BRACES.finditer(text):
        if found[1] or found[2]:
            opened.append(found.end() if found[1] else -1)
        elif found[0] == "}" and opened and (begin := opened.pop()) > start:
            start, end = begin, found.start()
    return None if end < 0 else text[start:end]
