"""Suite `instructions`: answers whose form a program can check, whatever their content.

A question has one to three of IFEval's 25 instructions, checked by the rules of its authors. The
verdict is strict and per prompt: the unchanged answer follows every instruction.

A check gets the answer and the instruction's settings and returns whether it is followed. It never
raises and ignores meaning. Two checks differ from theirs: sentences are split by a rule, not by a
trained model, and words in capitals are those between blanks. langdetect finds the language, as
there, always from the same seed.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch
from ram_studio.evals.suites.suite import Suite, shipped_questions

MAX_NEW_TOKENS = 400

Check = Callable[..., bool]
# Instructions whose check needs the language of a text.
NEED_LANGUAGE = frozenset(
    ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
)
# Every pattern here reads a text once: runs are matched possessively, from their beginning.
_WORD = re.compile(r"\w+")
_INDENT = r"^[^\S\n]*+"
# Closing marks, with closing quotes or brackets. "1." at the start of a line only numbers it.
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]*]*+(?=\s|$)")
_LINE_NUMBER = re.compile(rf"{_INDENT}\d++[.)]\s", re.MULTILINE)
_LETTER = re.compile(r"[^\W_]")
_STARRED = (re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*"))
_BULLETS = tuple(re.compile(rf"{_INDENT}{mark}.*$", re.MULTILINE) for mark in (r"\*[^*]", "-"))
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def _plain(text: str) -> str:
    """Return a text in lower case with straight apostrophes."""
    return text.lower().replace("’", "'")


def _is_in(text: str, language: str) -> bool:
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0
    try:
        # langdetect reads no more, but would first search the whole text for addresses.
        return str(detect(text[:10_000])) == language
    except LangDetectException:
        # Without a detectable language it passes, as there.
        return True


def _satisfies(count: int, bound: int, relation: str) -> bool:
    return count < bound if relation == "less than" else count >= bound


def _words(text: str, num_words: int, relation: str) -> bool:
    return _satisfies(len(_WORD.findall(text)), num_words, relation)


def _sentences(text: str, num_sentences: int, relation: str) -> bool:
    """Count sentences; the last one may lack its closing mark."""
    parts = _SENTENCE_END.split(_LINE_NUMBER.sub("", text))
    return _satisfies(sum(bool(_LETTER.search(part)) for part in parts), num_sentences, relation)


def _includes(text: str, keywords: Sequence[str]) -> bool:
    """Find keywords, also inside longer words."""
    return all(_plain(word) in _plain(text) for word in keywords)


def _excludes(text: str, forbidden_words: Sequence[str]) -> bool:
    """Find forbidden words, not inside longer ones."""
    plain = _plain(text)
    return not any(re.search(rf"\b{re.escape(_plain(word))}\b", plain) for word in forbidden_words)


def _frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _satisfies(text.lower().count(keyword.lower()), frequency, relation)


def _capitals(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _satisfies(sum(map(str.isupper, text.split())), capital_frequency, capital_relation)


def _pieces(text: str, pattern: str) -> list[str] | None:
    """Return the parts between separators, without blank ends; None for a blank one inside."""
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


def _title(text: str) -> bool:
    titles = (line.rpartition(">>")[0].partition("<<")[2] for line in text.split("\n"))
    return any(title.strip("<> \t") for title in titles)


CHECKS: dict[str, Check] = {
    "keywords:existence": _includes,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _excludes,
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
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        _plain(text).lstrip().startswith(_plain(prompt_to_repeat).strip())
    ),
    "startend:end_checker": lambda text, end_phrase: (
        _plain(text).strip().strip('"”').endswith(_plain(end_phrase).strip())
    ),
    "startend:quotation": lambda text: (
        len(text.strip()) > 1 and text.strip()[0] == '"' == text.strip()[-1]
    ),
    "change_case:capital_word_frequency": _capitals,
    "change_case:english_capital": lambda text: text.isupper() and _is_in(text, "en"),
    "change_case:english_lowercase": lambda text: text.islower() and _is_in(text, "en"),
    "punctuation:no_comma": lambda text: "," not in text,
}


def _plainer_forms(text: str) -> list[str]:
    """Return an answer and its simplified forms, for IFEval's loose verdict.

    They leave out the first line, the last line or both (greetings and closing remarks), each also
    without asterisks (bold type).
    """
    lines = text.split("\n")
    forms = [text] + ["\n".join(cut).strip() for cut in (lines[1:], lines[:-1], lines[1:-1])]
    forms += [form.replace("*", "") for form in forms]
    return list(dict.fromkeys(forms))


def check_instruction(
    text: str, instruction: str, settings: Mapping[str, Any]
) -> tuple[bool, bool]:
    """Return whether an answer follows an instruction strictly, and loosely."""
    check = CHECKS[instruction]

    def holds(form: str) -> bool:
        return bool(form.strip()) and check(form, **settings)

    is_strict = holds(text)
    return is_strict, is_strict or any(map(holds, _plainer_forms(text)[1:]))


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the unchanged answer follows every instruction.

    The facts hold for each whether it is followed strictly, and loosely; see `accuracies`.
    """
    found = [check_instruction(text, own["check"], own["settings"]) for own in question.spec]
    strict = [one for one, _ in found]
    broken = [
        own["check"]
        for own, is_followed in zip(question.spec, strict, strict=True)
        if not is_followed
    ]
    note = f"not followed: {', '.join(broken)}" if broken else ""
    facts = {"strict": strict, "loose": [loose for _, loose in found]}
    return Verdict(not broken, note if text.strip() else "empty answer", facts)


def accuracies(facts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return prompt and instruction accuracy, strict and loose, of a model's `Answer.facts`.

    Prompt accuracy counts prompts with every instruction followed, instruction accuracy counts
    instructions. Empty input gives an empty dict.
    """
    rows = [fact for fact in facts if "strict" in fact]
    result = {}
    for kind in ("strict", "loose") if rows else ():
        marks = [list(row[kind]) for row in rows]
        result[f"prompt_{kind}"] = sum(map(all, marks)) / len(marks)
        result[f"instruction_{kind}"] = sum(map(sum, marks)) / sum(map(len, marks))
    return result


def gold_of(spec: Sequence[Mapping[str, Any]]) -> str:
    """Return the requirements of a right answer, in words."""
    parts = (" ".join(map(str, (own["check"], *own["settings"].values()))) for own in spec)
    return f"any answer with: {'; '.join(parts)}"


def problem_of(instruction: str, settings: Mapping[str, Any]) -> str:
    """Return the problem with an instruction, its arguments or its requirements; "" for none."""
    if instruction not in CHECKS:
        return f"there is no check of {instruction!r}"
    if instruction in NEED_LANGUAGE and find_spec("langdetect") is None:
        return (
            f"{instruction} needs langdetect, which finds an answer's language: pip install "
            "'ram-studio[ifeval]' (or langdetect)"
        )
    try:
        inspect.signature(CHECKS[instruction]).bind("", **settings)
    except TypeError as error:
        return f"{instruction} has {error}"
    try:
        CHECKS[instruction]("Any answer.", **settings)
    except (TypeError, AttributeError) as error:
        return f"{instruction} has arguments of another kind ({error})"
    return ""


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    spec = row["constraints"]
    return {"prompt": row["prompt"], "gold": gold_of(spec), "spec": spec}


SUITE = Suite(
    "instructions",
    3,
    "Instruction following",
    shipped_questions("instructions", MAX_NEW_TOKENS, _fields),
    judge,
    "constraints that can be checked, such as length and format",
    summary=lambda tally, facts: accuracies(facts),
)
