"""Agreement with IFEval's checkers as lm-eval 0.4.13 ships them, strict and loose.

They need few of its dependencies. They run as another process in an environment of its own, which
is not made here:

    python -m venv /tmp/lm-eval
    /tmp/lm-eval/bin/pip install --no-deps lm-eval==0.4.13
    /tmp/lm-eval/bin/pip install click defusedxml immutabledict joblib langdetect nltk packaging \
        regex six tqdm
    RAM_STUDIO_LM_EVAL_PYTHON=/tmp/lm-eval/bin/python python -m pytest \
        tests/evals/test_ifeval_agreement.py

Compared are all instructions but for words in capitals and languages. Sentences are cut by nltk's
untrained algorithm, as its English model would have to be downloaded (see run_ifeval.py).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest
from bfcl_answers import said_by

from ram_studio.evals.suites import instructions

PYTHON = os.environ.get("RAM_STUDIO_LM_EVAL_PYTHON")

pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="RAM_STUDIO_LM_EVAL_PYTHON names no Python with lm-eval 0.4.13 installed"
)


def bounded(name: str, given: dict[str, Any], *counts: int) -> list[tuple[str, dict[str, Any]]]:
    """Return an instruction for at least and for less than each count, which "#" and "?" name."""
    return [
        (name, {k: {"#": n, "?": word}.get(v, v) for k, v in given.items()})
        for count in counts
        for n, word in ((count, "at least"), (count + 1, "less than"))
    ]


# Instructions, with settings that some answers follow and others do not.
ASKED: list[tuple[str, dict[str, Any]]] = [
    *bounded("length_constraints:number_words", {"num_words": "#", "relation": "?"}, 5, 15, 40),
    *bounded("length_constraints:number_sentences", {"num_sentences": "#", "relation": "?"}, 2, 4),
    *bounded("keywords:frequency",
             {"keyword": "lemon", "frequency": "#", "relation": "?"}, 1, 3),
    *bounded("keywords:letter_frequency",
             {"letter": "z", "let_frequency": "#", "let_relation": "?"}, 1, 2),
    *(("detectable_format:number_bullet_lists", {"num_bullets": n}) for n in (1, 3)),
    *(("detectable_format:number_highlighted_sections", {"num_highlights": n}) for n in (1, 2)),
    *(("detectable_content:number_placeholders", {"num_placeholders": n}) for n in (1, 2)),
    *(("keywords:existence", {"keywords": words})
      for words in (["river", "seven o'clock"], ["sea"])),
    ("keywords:forbidden_words", {"forbidden_words": ["sea", "big"]}),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Good evening"}),
    ("startend:end_checker", {"end_phrase": "That is all."}),
    ("change_case:english_lowercase", {}),
    ("change_case:english_capital", {}),
    ("punctuation:no_comma", {}),
    ("startend:quotation", {}),
    ("detectable_format:title", {}),
    ("detectable_format:json_format", {}),
    ("combination:two_responses", {}),
    *(("length_constraints:number_paragraphs", {"num_paragraphs": n}) for n in (1, 2)),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "lemons"},
    ),
    *(("detectable_content:postscript", {"postscript_marker": m}) for m in ("P.S.", "P.P.S")),
    ("detectable_format:constrained_response", {}),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 1}),
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


# Of some 930 answers to each instruction, those that the two judge otherwise, by the way of judging
# and our verdict: Punkt cuts "1." from its line and not after "..."; marks alone are a sentence.
STRICT_YES, STRICT_NO = ("strict", True), ("strict", False)
LOOSE_YES, LOOSE_NO = ("loose", True), ("loose", False)
SENTENCES_DIFFER = {STRICT_YES: 55, STRICT_NO: 61, LOOSE_YES: 49, LOOSE_NO: 54}


def answers() -> list[str]:
    """Return some 900 answers that do and do not follow the instructions."""
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


def their_verdicts(cases: list[tuple[str, dict[str, Any], str]]) -> list[list[bool]]:
    """Return [strict, loose] of each (instruction, its settings, answer)."""
    return said_by(str(PYTHON), "run_ifeval.py", given=cases)


FOLLOWING = (
    "P.S. It is late.", "a\n\np. p. s. more", "My answer is yes.", "my answer is no",
    "Section 1\na\nSection 2\nb", "a *** b", "one\n***\ntwo", "***\none\n***\n\n***\ntwo",
    "Sure.\n\nLemons, a lemon", "x\n\n'Lemons' y",
)  # fmt: skip


def test_ifeval_judges_as_its_authors_but_for_sentences(monkeypatch):
    # Words in capitals are cut with a model there.
    monkeypatch.setattr(instructions, "_is_in", lambda text, language: True)
    texts = [*answers(), *FOLLOWING]
    cases = [(name, settings, text) for name, settings in ASKED for text in texts]
    found, check_instruction = Counter(), Counter()
    for (name, settings, text), theirs in zip(cases, their_verdicts(cases), strict=True):
        ours = instructions.check_instruction(text, name, settings)
        check_instruction[name] += ours[0]
        for kind, mine, other in zip(("strict", "loose"), ours, theirs, strict=True):
            found[name.partition(":")[2], kind, mine] += mine != other
    assert +found == {
        ("number_sentences", kind, mine): n for (kind, mine), n in SENTENCES_DIFFER.items()
    }
    assert min(check_instruction.values()) > 0
    assert len(cases) > 39_000
