"""Agreement with IFEval's checkers as lm-eval 0.4.13 ships them, strict and loose.

They need few of its dependencies. They run as another process in an environment of its own, which
is not made here:

    python -m venv /tmp/lm-eval
    /tmp/lm-eval/bin/pip install --no-deps lm-eval==0.4.13
    /tmp/lm-eval/bin/pip install click defusedxml immutabledict joblib langdetect nltk packaging \
        regex six tqdm
    RAM_STUDIO_LM_EVAL_PYTHON=/tmp/lm-eval/bin/python python -m pytest \
        tests/evals/test_ifeval_agreement.py

Compared are all constraints that both have, and all instructions of the suite `ifeval` but for
words in capitals and languages. Sentences are cut by nltk's untrained algorithm, as its English
model would have to be downloaded (see run_ifeval.py).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest
from bfcl_answers import said_by

from ram_studio.evals.suites.constraints import holds, holds_loosely
from ram_studio.evals.suites.published import ifeval_checks

PYTHON = os.environ.get("RAM_STUDIO_LM_EVAL_PYTHON")

pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="RAM_STUDIO_LM_EVAL_PYTHON names no Python with lm-eval 0.4.13 installed"
)

Pair = tuple[dict[str, Any], str, dict[str, Any]]


def bounded(ours: dict[str, Any], theirs: str, given: dict[str, Any], *counts: int) -> list[Pair]:
    """Return a check for at least and at most each count, which our "least" and their "#" name."""
    return [
        (
            {**ours, side: n},
            theirs,
            {k: {"#": n + (side == "most"), "?": word}.get(v, v) for k, v in given.items()},
        )
        for n in counts
        for side, word in (("least", "at least"), ("most", "less than"))
    ]


def counted(check: str, ours: str, theirs: str, other: str, *counts: int) -> list[Pair]:
    """Return a check of each count, under our name of it and theirs."""
    return [({"check": check, ours: n}, theirs, {other: n}) for n in counts]


# Our constraint and theirs, with settings that hold for some answers and not for others.
PAIRS: list[Pair] = [
    *bounded({"check": "word_count"}, "length_constraints:number_words",
             {"num_words": "#", "relation": "?"}, 5, 15, 40),
    *bounded({"check": "sentence_count"}, "length_constraints:number_sentences",
             {"num_sentences": "#", "relation": "?"}, 2, 4),
    *bounded({"check": "occurs", "phrase": "lemon"}, "keywords:frequency",
             {"keyword": "lemon", "frequency": "#", "relation": "?"}, 1, 3),
    *bounded({"check": "letter_occurs", "letter": "z"}, "keywords:letter_frequency",
             {"letter": "z", "let_frequency": "#", "let_relation": "?"}, 1, 2),
    *counted("bullet_count", "exactly", "detectable_format:number_bullet_lists",
             "num_bullets", 1, 3),
    *counted("highlighted", "least", "detectable_format:number_highlighted_sections",
             "num_highlights", 1, 2),
    *counted("placeholders", "least", "detectable_content:number_placeholders",
             "num_placeholders", 1, 2),
    *(({"check": "includes", "phrases": words}, "keywords:existence", {"keywords": words})
      for words in (["river", "seven o'clock"], ["sea"])),
    ({"check": "excludes", "phrases": ["sea", "big"]}, "keywords:forbidden_words",
     {"forbidden_words": ["sea", "big"]}),
    ({"check": "starts_with", "phrase": "Good evening"}, "combination:repeat_prompt",
     {"prompt_to_repeat": "Good evening"}),
    ({"check": "ends_with", "phrase": "That is all."}, "startend:end_checker",
     {"end_phrase": "That is all."}),
    ({"check": "lowercase"}, "change_case:english_lowercase", {}),
    ({"check": "uppercase"}, "change_case:english_capital", {}),
    ({"check": "without", "marks": ","}, "punctuation:no_comma", {}),
    ({"check": "quoted"}, "startend:quotation", {}),
    ({"check": "titled"}, "detectable_format:title", {}),
    ({"check": "json_object", "keys": ["title"]}, "detectable_format:json_format", {}),
    ({"check": "parts", "separator": "******", "exactly": 2}, "combination:two_responses", {}),
]  # fmt: skip
SENTENCES = (
    "The river runs to the sea.", "Lemons, a lemon and lemonade!",
    "It was seven o'clock; nobody came.", "Is a big fish big?", "a quiet day by the seaside",
    "ALL DOORS ARE CLOSED.", "Zebras doze in the zoo...", "Well-known facts aren't news.",
    "Pi is about 3.14, they say.", 'He said "Go."', "Mr. Smith left at 10 a.m. today.",
    "She paid 5 dollars (or so).", "2 * 3 * 4 is 24.", "Write to [name] at [address].",
    "This is *very* important and **bold**.",
)  # fmt: skip
LINES = (
    "- one point", "* another point", "• a round point", "-5 degrees", "---",
    "1. First things first.", "## A heading", "<<A title>>", "<< >>", "[name]", "[]",
    "*emphasis*", "** **", "******", "***", "",
)  # fmt: skip
OPENINGS = ("Good evening", "good evening, all", "Sure! Here you are:", "Once", "")
ENDINGS = ("That is all.", "that is all.", "That is all", 'That is all."', "Hope this helps!", "")
WHOLES = (
    '{"title": "A book"}', '```json\n{"title": "A book"}\n```', '```\n{"title": 1}\n```',
    '{"title": "A book"', "{'title': 'A book'}", '"All in quotation marks."',
    "“All in round ones.”", '"Not closed', '""', '"', "one******two", "same******same",
    "one****** ******two", "******one******two", "all small letters, here", "ALL CAPITALS.", "123",
    "***bold title***", "\n\nafter two line breaks\n", "Good evening\nGOOD EVENING\n",
    "nobody's sea–side seven o’clock",
)  # fmt: skip


# Of some 920 answers to each constraint, those that the two judge otherwise: why, and how many by
# the way of judging and our verdict.
STRICT_YES, STRICT_NO = ("strict", True), ("strict", False)
LOOSE_YES, LOOSE_NO = ("loose", True), ("loose", False)
DIFFERENCES: dict[str, tuple[str, dict[tuple[str, bool], int]]] = {
    "word_count": ('"it\'s" and "well-known" are one word for us and two for them',
                   {STRICT_YES: 29, STRICT_NO: 26, LOOSE_YES: 34, LOOSE_NO: 26}),
    "sentence_count": (
        'Punkt cuts "1." from its line and not after "..."; marks alone are a sentence to it',
        {STRICT_YES: 53, STRICT_NO: 60, LOOSE_YES: 47, LOOSE_NO: 54}),
    "bullet_count": (
        '"-5 degrees", "---" and a line that begins with *emphasis* are no bullets for us',
        {STRICT_YES: 10, STRICT_NO: 109, LOOSE_YES: 2, LOOSE_NO: 120}),
    "highlighted": ('"2 * 3 * 4" and the stars around a line\'s start highlight nothing for us',
                    {STRICT_NO: 137, LOOSE_NO: 137}),
    "placeholders": ('"[]" is none for us', {STRICT_NO: 41, LOOSE_NO: 41}),
    "quoted": ("round quotation marks will do for us, two marks around nothing will not",
               {STRICT_YES: 1, STRICT_NO: 2, LOOSE_YES: 1, LOOSE_NO: 2}),
    "json_object": ("we ask for an object with given keys; numbers and quoted texts are JSON, too",
                    {STRICT_NO: 23, LOOSE_NO: 29}),
    "parts": ("a separator at the start or the end parts nothing; our prompt rules it out",
              {STRICT_NO: 2, LOOSE_NO: 2}),
}  # fmt: skip


def answers() -> list[str]:
    """Return some 900 answers that do and do not follow the constraints."""
    rng = random.Random(11)
    result = list(WHOLES)
    for _ in range(900):
        lines = [rng.choice(OPENINGS)] if rng.random() < 0.4 else []
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.45:
                lines.append(rng.choice(LINES))
            else:
                lines.append(" ".join(rng.choices(SENTENCES, k=rng.randint(1, 3))))
        if rng.random() < 0.4:
            lines.append(rng.choice(ENDINGS))
        text = rng.choice(("\n", "\n", "\n\n", " ")).join(lines)
        change = rng.random()
        if change < 0.1:
            text = text.lower()
        elif change < 0.2:
            text = text.upper()
        elif change < 0.3:
            text = f'"{text}"'
        elif change < 0.35:
            text += "\n"
        result.append(text)
    return result


def test_every_verdict_agrees_but_for_the_listed_differences():
    texts = answers()
    theirs = their_verdicts([(name, own, text) for _, name, own in PAIRS for text in texts])
    found = Counter()
    for number, (ours, _, _) in enumerate(PAIRS):
        rows = theirs[number * len(texts) : (number + 1) * len(texts)]
        assert 0 < sum(strict for strict, _ in rows) < len(texts), ours
        for text, (strict, loose) in zip(texts, rows, strict=True):
            for kind, mine, other in (
                ("strict", holds(text, ours), strict),
                ("loose", holds_loosely(text, ours), loose),
            ):
                found[ours["check"], kind, mine] += mine != other
    assert +found == {
        (check, kind, mine): n
        for check, (_, counts) in DIFFERENCES.items()
        for (kind, mine), n in counts.items()
    }


def their_verdicts(cases: list[tuple[str, dict[str, Any], str]]) -> list[list[bool]]:
    """Return [strict, loose] of each (instruction, its settings, answer)."""
    return said_by(str(PYTHON), "run_ifeval.py", given=cases)


# What RAM Studio's own constraints lack, and answers that follow it.
MORE: list[tuple[str, dict[str, Any]]] = [
    *(("length_constraints:number_paragraphs", {"num_paragraphs": n}) for n in (1, 2)),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "lemons"},
    ),
    *(("detectable_content:postscript", {"postscript_marker": m}) for m in ("P.S.", "P.P.S")),
    ("detectable_format:constrained_response", {}),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 1}),
]
FOLLOWING = (
    "P.S. It is late.", "a\n\np. p. s. more", "My answer is yes.", "my answer is no",
    "Section 1\na\nSection 2\nb", "a *** b", "one\n***\ntwo", "***\none\n***\n\n***\ntwo",
    "Sure.\n\nLemons, a lemon", "x\n\n'Lemons' y",
)  # fmt: skip


def test_the_suite_ifeval_judges_as_its_authors_but_for_sentences(monkeypatch):
    # Words in capitals are cut with a model there.
    monkeypatch.setattr(ifeval_checks, "_is_in", lambda text, language: True)
    texts = [*answers(), *FOLLOWING]
    asked = [*((name, settings) for _, name, settings in PAIRS), *MORE]
    cases = [(name, settings, text) for name, settings in asked for text in texts]
    found, followed = Counter(), Counter()
    for (name, settings, text), theirs in zip(cases, their_verdicts(cases), strict=True):
        ours = ifeval_checks.followed(text, name, settings)
        followed[name] += ours[0]
        for kind, mine, other in zip(("strict", "loose"), ours, theirs, strict=True):
            found[name.partition(":")[2], kind, mine] += mine != other
    assert +found == {
        ("number_sentences", kind, mine): n for (kind, mine), n in SENTENCES_DIFFER.items()
    }
    assert min(followed.values()) > 0
    assert len(cases) > 39_000


SENTENCES_DIFFER = {STRICT_YES: 55, STRICT_NO: 61, LOOSE_YES: 49, LOOSE_NO: 54}
