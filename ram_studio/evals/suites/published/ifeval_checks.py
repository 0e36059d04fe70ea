"""IFEval's 25 instructions as checks, by the rules of its authors.

Where `constraints` has the same rule it is used; where ours is another (what a word or a bullet
is), theirs is here. Two differ from theirs: sentences are cut by our rule, not by a trained model,
and words in capitals are those between blanks. Which language a text is in is told by langdetect,
as there, always from the same seed.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from ram_studio.evals.suites import constraints

Check = Callable[..., bool]
# Instructions whose check asks which language a text is in.
NEED_LANGUAGE = frozenset(
    ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
)
_WORD = re.compile(r"\w+")
_STARRED = (re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*"))
# Runs of blanks are read once, from their beginning.
_BULLETS = tuple(re.compile(rf"^[^\S\n]*+{mark}.*$", re.MULTILINE) for mark in (r"\*[^*]", "-"))
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def _is_in(text: str, language: str) -> bool:
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0
    try:
        # It looks at no more, but would search all of it for addresses first.
        return str(detect(text[:10_000])) == language
    except LangDetectException:
        # Nothing in it tells: as there, that is no fault.
        return True


def _related(count: int, relation: str, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


def _words(text: str, num_words: int, relation: str) -> bool:
    return _related(len(_WORD.findall(text)), relation, num_words)


def _sentences(text: str, num_sentences: int, relation: str) -> bool:
    if relation == "less than":
        return constraints.sentence_count(text, most=num_sentences - 1)
    return constraints.sentence_count(text, least=num_sentences)


def _frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _related(text.lower().count(keyword.lower()), relation, frequency)


def _capitals(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _related(sum(map(str.isupper, text.split())), capital_relation, capital_frequency)


def _pieces(text: str, pattern: str) -> list[str] | None:
    """Return the parts between separators, blank ends left out; None for a blank one inside."""
    parts = [part.strip() for part in re.split(pattern, text)]
    inner = parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]
    return inner if all(inner) else None


def _paragraphs(text: str, num_paragraphs: int) -> bool:
    found = _pieces(text, r"\s?\*\*\*\s?")
    return found is not None and len(found) == num_paragraphs


def _two_responses(text: str) -> bool:
    found = _pieces(text, re.escape("******"))
    return found is not None and len(found) == 2 and found[0] != found[1]


def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = text.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if nth_paragraph > count or not parts[nth_paragraph - 1].strip():
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    word = re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower()
    return count == num_paragraphs and word == first_word.lower()


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    pattern = _POSTSCRIPTS.get(marker, re.escape(marker.lower()))
    return bool(re.search(pattern, text.lower()))


def _bullets(text: str, num_bullets: int) -> bool:
    return sum(len(pattern.findall(text)) for pattern in _BULLETS) == num_bullets


def _placeholders(text: str, num_placeholders: int) -> bool:
    """Count brackets that close on their line, from the first that opens."""
    count = 0
    for line in text.split("\n"):
        place = line.find("[")
        while place >= 0 and (end := line.find("]", place)) >= 0:
            count += 1
            place = line.find("[", end)
    return count >= num_placeholders


def _highlights(text: str, num_highlights: int) -> bool:
    found = [part for pattern in _STARRED for part in pattern.findall(text)]
    return sum(bool(part.strip()) for part in found) >= num_highlights


def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    pattern = rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?"
    return len(re.findall(pattern, text)) >= num_sections


def _json(text: str) -> bool:
    stripped = text.strip()
    for mark in ("```json", "```Json", "```JSON", "```"):
        stripped = stripped.removeprefix(mark)
    try:
        json.loads(stripped.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


CHECKS: dict[str, Check] = {
    "keywords:existence": lambda text, keywords: constraints.includes(text, keywords),
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": lambda text, forbidden_words: constraints.excludes(
        text, forbidden_words
    ),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: _frequency(
        text, letter, let_frequency, let_relation
    ),
    "language:response_language": lambda text, language: _is_in(text, language),
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": _words,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": lambda text: any(one in text for one in _ANSWERS),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": constraints.titled,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: constraints.starts_with(
        text, prompt_to_repeat.strip()
    ),
    "startend:end_checker": lambda text, end_phrase: constraints.ends_with(
        text, end_phrase.strip()
    ),
    "startend:quotation": lambda text: (
        len(text.strip()) > 1 and text.strip()[0] == '"' == text.strip()[-1]
    ),
    "change_case:capital_word_frequency": _capitals,
    "change_case:english_capital": lambda text: text.isupper() and _is_in(text, "en"),
    "change_case:english_lowercase": lambda text: text.islower() and _is_in(text, "en"),
    "punctuation:no_comma": lambda text: "," not in text,
}


def followed(text: str, instruction: str, settings: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether an answer follows an instruction strictly, and loosely."""
    check = CHECKS[instruction]

    def holds(form: str) -> bool:
        return bool(form.strip()) and check(form, **settings)

    is_strict = holds(text)
    return is_strict, is_strict or any(map(holds, constraints.plainer_forms(text)[1:]))


def misfit(instruction: str, settings: Mapping[str, Any]) -> str:
    """Return what is wrong with an instruction or its arguments, or lacks here; "" for nothing."""
    if instruction not in CHECKS:
        return f"there is no check of {instruction!r}"
    if instruction in NEED_LANGUAGE and find_spec("langdetect") is None:
        return (
            f"{instruction} asks which language answers are in, which langdetect tells, as for its "
            "authors: pip install 'ram-studio[ifeval]' (or langdetect)"
        )
    try:
        inspect.signature(CHECKS[instruction]).bind("", **settings)
    except TypeError as error:
        return f"{instruction} has {error}"
    return ""
