"""Suites `ruler-hotpotqa`, `ruler-2wiki`, `ruler-squad`: questions over long documents.

A question's own documents (SQuAD: its paragraph; the others: its ten) are mixed with others of the
data set, as many as fit the length, in random order. RULER itself has no 2WikiMultiHopQA, whose
rows are like HotpotQA's; answers' aliases are not read. As in RULER, documents of the same article
are added first (SQuAD), then any, then repeated ones. Budget and scoring are RULER's: right when
one of the acceptable answers occurs in the answer, in any case. A text that fills less than 90 % of
its length has a note.

Rows of RULER's own generator (input, outputs) are asked unchanged, at their own lengths.

Questions and documents are drawn with a fixed seed, whatever `--seed`: another one would only mix
the same questions with other documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

from ram_studio.errors import EvalSettingsError, EvaluationError
from ram_studio.evals.prompts import fill
from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.published.rows import DataSet, Row
from ram_studio.evals.suites.suite import Make, SuiteSettings, Tally, balance_questions, reading

MAX_NEW_TOKENS = 32
# For each length; RULER asks 500, which takes days on a CPU. --limit sets another number.
PER_LENGTH = 50
TEMPLATE_TOKENS = 48
LEAST_FILLED = 0.9
"""Share of its length below which a text counts as short."""
# The task is before and after the documents, as in RULER; the wording is our own.
_ASK = (
    "Find the answer in these documents. Reply with the answer alone, in as few words as possible."
)
_PROMPT = f"{_ASK}\n\n{{context}}\n\n{_ASK}\n\nQuestion: {{question}}"


class Entry(NamedTuple):
    """A question, its acceptable answers, and the indices of its and its article's documents."""

    id: str
    question: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    article: tuple[int, ...] = ()


class Library(NamedTuple):
    """All documents, each once, and the questions about them."""

    documents: tuple[str, ...]
    entries: tuple[Entry, ...]


def hotpot(rows: Sequence[Row], name: str = "ruler-hotpotqa") -> Library:
    """Return a library of HotpotQA or 2WikiMultiHopQA rows, in the authors' or the Hub's form."""
    places: dict[str, int] = {}
    entries = []
    for number, row in enumerate(rows):
        with reading(name, number):
            context = row["context"]
            if isinstance(context, Mapping):
                texts = context["sentences"] if "sentences" in context else context["content"]
                context = list(zip(context["title"], texts, strict=True))
            own = tuple(
                places.setdefault(f"{title}\n{''.join(sentences)}", len(places))
                for title, sentences in context
            )
            key = str(row.get("_id") or row.get("id") or number)
            entries.append(Entry(key, str(row["question"]), (str(row["answer"]),), own))
    return Library(tuple(places), tuple(entries))


def squad(rows: Sequence[Row]) -> Library:
    """Return SQuAD's rows as a library; questions without an answer are left out."""
    places: dict[str, int] = {}
    articles: dict[str, dict[int, None]] = {}
    entries = []
    for number, row in enumerate(rows):
        with reading(SQUAD.name, number):
            place = places.setdefault(str(row["context"]), len(places))
            # Rows without titles have no other paragraphs of their article.
            title = str(row.get("title") or f"paragraph {place}")
            articles.setdefault(title, {})[place] = None
            answers = tuple(dict.fromkeys(str(text) for text in row["answers"]["text"]))
            if answers:
                key = str(row.get("id") or number)
                entries.append((title, Entry(key, str(row["question"]), answers, (place,))))
    found = {title: tuple(own) for title, own in articles.items()}
    return Library(
        tuple(places), tuple(entry._replace(article=found[title]) for title, entry in entries)
    )


def _flat(data: Mapping[str, Any]) -> list[Row]:
    """Return SQuAD's own file, articles of paragraphs of questions, as rows."""
    return [
        {
            "id": given["id"],
            "question": given["question"],
            "title": f"{number} {article.get('title')}",
            "context": paragraph["context"],
            "answers": {"text": [answer["text"] for answer in given["answers"]]},
        }
        for number, article in enumerate(data["data"])
        for paragraph in article["paragraphs"]
        for given in paragraph["qas"]
    ]


def prompt_of(
    library: Library, entry: Entry, count: int, template: str = _PROMPT
) -> tuple[str, str]:
    """Return (documents, whole prompt) with at least the question's own documents.

    Args:
        count: of documents: its own, those of its article, others, then all of them again. Each
            count has its own random order.
    """
    drawn = random.Random(f"documents/{entry.id}")
    known = dict.fromkeys((*entry.own, *drawn.sample(entry.article, len(entry.article))))
    total = len(library.documents)
    known |= dict.fromkeys(drawn.sample(range(total), min(total, count)))
    chosen = list(islice(cycle(known), max(count, len(entry.own))))
    random.Random(f"order/{entry.id}/{count}").shuffle(chosen)
    text = "\n\n".join(
        f"Document {number}:\n{library.documents[place]}" for number, place in enumerate(chosen, 1)
    )
    return text, fill(template, {"context": text, "question": entry.question})


def _fit_prompt(
    library: Library,
    entry: Entry,
    room: int,
    count_tokens: Callable[[str], int],
    template: str,
) -> tuple[str, str, int] | None:
    """Return the prompt with the most documents within `room` tokens, and its tokens.

    None where the question's own documents take more.
    """
    low = len(entry.own)
    prompt = prompt_of(library, entry, low, template)
    used = count_tokens(prompt[1])
    if used > room:
        return None
    high = max(low, 2 * low * room // used + 8)
    while low < high:
        middle = (low + high + 1) // 2
        trial = prompt_of(library, entry, middle, template)
        if (tokens := count_tokens(trial[1])) <= room:
            low, prompt, used = middle, trial, tokens
            # The guess was too low.
            if low == high:
                high = 2 * high
        else:
            high = middle - 1
    return *prompt, used


def _make(data: DataSet, read: Callable[[Sequence[Row]], Library]) -> Make:
    name = data.name
    known: tuple[Sequence[Row], Library] = ((), Library((), ()))

    def make(settings: SuiteSettings) -> Sequence[Question]:
        nonlocal known
        rows = data.rows(settings)
        if "input" in rows[0]:
            return data.make(MAX_NEW_TOKENS, partial(_given_fields, name))(settings)
        if known[0] is not rows:
            known = (rows, read(rows))
        library = known[1]
        lengths = sorted(set(settings.lengths))
        if not lengths:
            raise EvalSettingsError(f"No length was given for {name}. Give one or more, in tokens.")
        wanted = PER_LENGTH if settings.limit is None else -(-settings.limit // len(lengths))
        entries, template = library.entries, settings.templates.get(name, _PROMPT)
        order = random.Random(f"questions/{name}").sample(entries, len(entries))
        questions = []
        for length in lengths:
            room, made = length - MAX_NEW_TOKENS - TEMPLATE_TOKENS, 0
            for entry in order:
                if made == wanted:
                    break
                found = _fit_prompt(library, entry, room, settings.count_tokens, template)
                if found is not None:
                    *parts, used = found
                    filled = (used + length - room) / length
                    questions.append(_question(name, entry, length, filled, *parts))
                    made += 1
            if not made:
                raise EvalSettingsError(
                    f"A length of {length} tokens is too short for {name}: no question fits with "
                    "its own documents. Choose longer ones, for example 4000."
                )
        return balance_questions(questions, settings.limit)

    return make


def _given_fields(name: str, number: int, row: Row) -> dict[str, Any]:
    """Read a row of RULER's generator; the text for reading in chunks ends at the question."""
    given, answers = str(row["input"]), [str(one) for one in row["outputs"]]
    if not answers:
        raise EvaluationError(f"{name}, row {number + 1}: outputs holds no answer.")
    text, mark, question = given.rpartition("Question:")
    question = question.strip().removesuffix("Answer:").strip()
    return {
        "prompt": f"{given}{row.get('answer_prefix') or ''}",
        "gold": answers[0],
        "spec": {"answers": answers},
        "reading": (text, f"{_ASK}\n\nQuestion: {question}") if mark else None,
    }


def _question(
    name: str, entry: Entry, length: int, filled: float, text: str, prompt: str
) -> Question:
    return Question(
        id=f"{entry.id}-{length:07d}",
        domain=name,
        category=f"{name} {length}",
        prompt=prompt,
        gold=entry.answers[0],
        spec={"answers": list(entry.answers), "filled": filled},
        max_new_tokens=MAX_NEW_TOKENS,
        reading=(text, f"{_ASK}\n\nQuestion: {entry.question}"),
        # The same question at another length, and other questions about the same documents.
        cluster=f"{entry.own}",
    )


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether one of the acceptable answers occurs in the answer."""
    if not text.strip():
        return Verdict(False, "empty answer")
    lowered, filled = text.lower(), question.spec.get("filled", 1.0)
    is_right = any(answer.lower() in lowered for answer in question.spec["answers"])
    notes = [] if is_right else [f"not said: {question.gold[:60]}"]
    if filled < LEAST_FILLED:
        notes.append(f"the text fills {filled:.0%} of its length")
    return Verdict(is_right, "; ".join(notes), {"filled": filled})


def summary(tallies: Tally, facts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of texts that are shorter than requested, if any."""
    filled = [fact["filled"] for fact in facts if "filled" in fact]
    short = sum(share < LEAST_FILLED for share in filled)
    return {f"texts below {LEAST_FILLED:.0%} of their length": short / len(filled)} if short else {}


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
WIKI = DataSet(
    "ruler-2wiki",
    "kamelliao/2wikimultihopqa",
    "f4f0d7e4ae275d9281e90c46c93e66d6cdda3674",
    "data/dev.json",
    ("question|input", "answer|outputs", "context|input"),
    others=("2wikimultihopqa", "dev"),
)
ABOUT = "questions over many documents, made to length"
_MORE: dict[str, Any] = {"has_texts": True, "summary": summary, "has_template": True}
SUITES = (
    HOTPOT.suite(3, "RULER, HotpotQA", _make(HOTPOT, hotpot), judge, ABOUT, **_MORE),
    WIKI.suite(2, "RULER, 2WikiMultiHopQA",
               _make(WIKI, lambda rows: hotpot(rows, WIKI.name)), judge, ABOUT, **_MORE),
    SQUAD.suite(3, "RULER, SQuAD", _make(SQUAD, squad), judge, ABOUT, **_MORE),
)  # fmt: skip
