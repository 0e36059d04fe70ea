"""Suites `ruler-hotpotqa` and `ruler-squad`: RULER's questions over many documents, made to length.

A question's own documents (SQuAD: its paragraph; HotpotQA: the ten it comes with) stand among
others of the data set, as many as the length holds, in an order of their own. Prompt, budget and
scoring are RULER's: right when one of the acceptable answers occurs in the answer, whatever the
case.

Rows that RULER's own generator wrote (input, outputs) are asked as they stand, of the lengths that
they were made for.

Questions and documents are drawn from one seed, the same whatever `--seed`: another one would ask
the same questions among other documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.published.rows import DataSet, Row
from ram_studio.evals.suites.suite import Make, SuiteSettings, balanced, reading

MAX_NEW_TOKENS = 32
# Of each length; RULER asks 500, which is a matter of days on a CPU. --limit asks fewer or more.
PER_LENGTH = 50
TEMPLATE_TOKENS = 48
# What to do stands before and after the documents, as in RULER; the words are our own.
_ASK = (
    "Find the answer in these documents. Reply with the answer alone, in as few words as possible."
)
_PROMPT = f"{_ASK}\n\n{{text}}\n\n{_ASK}\n\nQuestion: {{question}}"


class Asked(NamedTuple):
    """A question with its acceptable answers and the documents that belong to it, by place."""

    id: str
    question: str
    answers: tuple[str, ...]
    own: tuple[int, ...]


class Library(NamedTuple):
    """All documents, each once, and the questions about them."""

    documents: tuple[str, ...]
    asked: tuple[Asked, ...]


def hotpot(rows: Sequence[Row]) -> Library:
    """Return HotpotQA's rows as a library, in the form of its authors or of the Hub."""
    places: dict[str, int] = {}
    asked = []
    for number, row in enumerate(rows):
        with reading(HOTPOT.name, number):
            context = row["context"]
            if isinstance(context, Mapping):
                context = list(zip(context["title"], context["sentences"], strict=True))
            own = tuple(
                places.setdefault(f"{title}\n{''.join(sentences)}", len(places))
                for title, sentences in context
            )
            key = str(row.get("_id") or row.get("id") or number)
            asked.append(Asked(key, str(row["question"]), (str(row["answer"]),), own))
    return Library(tuple(places), tuple(asked))


def squad(rows: Sequence[Row]) -> Library:
    """Return SQuAD's rows as a library; questions without an answer are left out."""
    places: dict[str, int] = {}
    asked = []
    for number, row in enumerate(rows):
        with reading(SQUAD.name, number):
            place = places.setdefault(str(row["context"]), len(places))
            answers = tuple(dict.fromkeys(str(text) for text in row["answers"]["text"]))
            if answers:
                key = str(row.get("id") or number)
                asked.append(Asked(key, str(row["question"]), answers, (place,)))
    return Library(tuple(places), tuple(asked))


def _flat(data: Mapping[str, Any]) -> list[Row]:
    """Return SQuAD's own file, articles of paragraphs of questions, as rows."""
    return [
        {
            "id": asked["id"],
            "question": asked["question"],
            "context": paragraph["context"],
            "answers": {"text": [answer["text"] for answer in asked["answers"]]},
        }
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def prompt_of(library: Library, asked: Asked, count: int) -> tuple[str, str]:
    """Return (documents, whole prompt) with at most `count` documents, those of the question first.

    More documents come on top of the fewer; their order is drawn anew for each count.
    """
    drawn = random.Random(f"documents/{asked.id}")
    chosen = list(asked.own)
    known = set(chosen)
    for place in drawn.sample(range(len(library.documents)), min(len(library.documents), count)):
        if len(chosen) >= count:
            break
        if place not in known:
            chosen.append(place)
    random.Random(f"order/{asked.id}/{count}").shuffle(chosen)
    text = "\n\n".join(
        f"Document {number}:\n{library.documents[place]}" for number, place in enumerate(chosen, 1)
    )
    return text, _PROMPT.format(text=text, question=asked.question)


def _fitted(
    library: Library, asked: Asked, room: int, count_tokens: Callable[[str], int]
) -> tuple[str, str] | None:
    """Return the prompt of most documents within `room` tokens; None where its own are more."""
    low = len(asked.own)
    found = prompt_of(library, asked, low)
    used = count_tokens(found[1])
    if used > room:
        return None
    most = len(library.documents)
    high = min(most, max(low, 2 * low * room // used + 8))
    while low < high:
        middle = (low + high + 1) // 2
        trial = prompt_of(library, asked, middle)
        if count_tokens(trial[1]) <= room:
            low, found = middle, trial
            # The guess was too low.
            if low == high < most:
                high = min(most, 2 * high)
        else:
            high = middle - 1
    return found


def _make(data: DataSet, read: Callable[[Sequence[Row]], Library]) -> Make:
    name = data.name
    known: tuple[Sequence[Row], Library] = ((), Library((), ()))

    def make(settings: SuiteSettings) -> tuple[Question, ...]:
        nonlocal known
        rows = data.rows(settings)
        if "input" in rows[0]:
            questions = []
            for number, row in enumerate(rows):
                with reading(name, number):
                    questions.append(_given(name, number, row))
            return balanced(questions, settings.limit)
        if known[0] is not rows:
            known = (rows, read(rows))
        library = known[1]
        lengths = sorted(set(settings.lengths))
        if not lengths:
            raise EvaluationError(f"No length was given for {name}. Give one or more, in tokens.")
        wanted = PER_LENGTH if settings.limit is None else -(-settings.limit // len(lengths))
        order = random.Random(f"questions/{name}").sample(library.asked, len(library.asked))
        questions = []
        for length in lengths:
            room, made = length - MAX_NEW_TOKENS - TEMPLATE_TOKENS, 0
            for asked in order:
                if made == wanted:
                    break
                found = _fitted(library, asked, room, settings.count_tokens)
                if found is not None:
                    questions.append(_question(name, asked, length, *found))
                    made += 1
            if not made:
                raise EvaluationError(
                    f"A length of {length} tokens is too short for {name}: no question fits with "
                    "its own documents. Choose longer ones, for example 4000."
                )
        return balanced(questions, settings.limit)

    return make


def _given(name: str, number: int, row: Row) -> Question:
    """Return a row of RULER's generator; its text in pieces ends where the question begins."""
    given, answers = str(row["input"]), [str(one) for one in row["outputs"]]
    if not answers:
        raise EvaluationError(f"{name}, row {number + 1}: outputs holds no answer.")
    text, mark, asked = given.rpartition("Question:")
    asked = asked.strip().removesuffix("Answer:").strip()
    return Question(
        id=f"{name}-{number:04d}",
        domain=name,
        category=name,
        prompt=f"{given}{row.get('answer_prefix') or ''}",
        gold=answers[0],
        spec=answers,
        max_new_tokens=MAX_NEW_TOKENS,
        reading=(text, f"{_ASK}\n\nQuestion: {asked}") if mark else None,
    )


def _question(name: str, asked: Asked, length: int, text: str, prompt: str) -> Question:
    return Question(
        id=f"{asked.id}-{length:07d}",
        domain=name,
        category=f"{name} {length}",
        prompt=prompt,
        gold=asked.answers[0],
        spec=list(asked.answers),
        max_new_tokens=MAX_NEW_TOKENS,
        reading=(text, f"{_ASK}\n\nQuestion: {asked.question}"),
    )


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether one of the acceptable answers occurs in what was said."""
    if not text.strip():
        return Verdict(False, "empty answer")
    is_said = any(answer.lower() in text.lower() for answer in question.spec)
    return Verdict(is_said, "" if is_said else f"not said: {question.gold[:60]}")


HOTPOT = DataSet(
    "ruler-hotpotqa",
    "hotpotqa/hotpot_qa",
    "1908d6afbbead072334abe2965f91bd2709910ab",
    "distractor/validation-00000-of-00001.parquet",
    ("question|input", "answer|outputs", "context|input"),
    others=("hotpot_dev_distractor_v1", "hotpotqa", "qa_2", "qa_2/validation"),
)
SQUAD = DataSet(
    "ruler-squad",
    "rajpurkar/squad_v2",
    "3ffb306f725f7d2ce8394bc1873b24868140c412",
    "squad_v2/validation-00000-of-00001.parquet",
    ("question|input", "answers|outputs", "context|input"),
    others=("dev-v2.0", "squad", "qa_1", "qa_1/validation"),
    flatten=_flat,
)
ABOUT = "questions over many documents, made to length"
SUITES = (
    HOTPOT.suite(1, "RULER, HotpotQA", _make(HOTPOT, hotpot), judge, ABOUT, has_texts=True),
    SQUAD.suite(1, "RULER, SQuAD", _make(SQUAD, squad), judge, ABOUT, has_texts=True),
)
