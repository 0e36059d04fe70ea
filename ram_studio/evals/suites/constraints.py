"""Constraints on the form of an answer that a program can check: one function each.

A check gets the answer and the constraint's settings and returns whether it holds. It never raises
and does not look at meaning. Comparisons of text ignore case. Where IFEval has the same constraint
the rules are its own; what still differs is listed and counted in
tests/evals/test_ifeval_agreement.py.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
# Closing marks, with what may close after them. "1." at the start of a line only numbers it.
# Every pattern here reads a text once: runs are taken whole (possessive), from where they begin.
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]*]*+(?=\s|$)")
_INDENT = r"^[^\S\n]*+"
_LINE_NUMBER = re.compile(rf"{_INDENT}\d++[.)]\s", re.MULTILINE)
_BULLET = re.compile(rf"{_INDENT}[-*]\s++\S", re.MULTILINE)
_NUMBERED = re.compile(rf"{_INDENT}\d++[.)]\s++\S", re.MULTILINE)
_FENCE = re.compile(r"```[\w+-]*+\s*+(.*?)```", re.DOTALL)
_HIGHLIGHT = re.compile(r"(?<!\*)\*{1,3}[^\s*](?:[^*\n]*[^\s*])?\*{1,3}(?!\*)")


def words(text: str) -> list[str]:
    """Return the words of a text in small letters."""
    return [word.lower() for word in _WORD.findall(text)]


def _plain(text: str) -> str:
    """Return a text in small letters with straight apostrophes."""
    return text.lower().replace("’", "'")


def _between(count: int, least: int | None, most: int | None) -> bool:
    return (least is None or count >= least) and (most is None or count <= most)


def word_count(text: str, least: int | None = None, most: int | None = None) -> bool:
    """The answer has so many words."""
    return _between(len(words(text)), least, most)


def sentence_count(text: str, least: int | None = None, most: int | None = None) -> bool:
    """The answer has so many sentences; the last one may lack its closing mark."""
    pieces = _SENTENCE_END.split(_LINE_NUMBER.sub("", text))
    return _between(sum(bool(words(piece)) for piece in pieces), least, most)


def paragraph_count(text: str, exactly: int) -> bool:
    """The answer has so many paragraphs, parted by blank lines."""
    return len([part for part in re.split(r"\n\s*\n", text) if part.strip()]) == exactly


def line_count(text: str, exactly: int) -> bool:
    """The answer has so many lines that are not blank."""
    return len([line for line in text.splitlines() if line.strip()]) == exactly


def bullet_count(text: str, exactly: int) -> bool:
    """The answer has so many lines that begin with - or *."""
    return len(_BULLET.findall(text)) == exactly


def numbered_count(text: str, exactly: int) -> bool:
    """The answer has so many lines that begin with a number and a dot."""
    return len(_NUMBERED.findall(text)) == exactly


def includes(text: str, phrases: Sequence[str]) -> bool:
    """Every one of these words or phrases occurs, be it inside a longer word."""
    return all(_plain(phrase) in _plain(text) for phrase in phrases)


def excludes(text: str, phrases: Sequence[str]) -> bool:
    """None of these words or phrases occurs as such; longer words do not count."""
    return not any(
        re.search(rf"\b{re.escape(_plain(phrase))}\b", _plain(text)) for phrase in phrases
    )


def occurs(text: str, phrase: str, least: int | None = None, most: int | None = None) -> bool:
    """A word or phrase occurs so often, inside longer words as well."""
    return _between(_plain(text).count(_plain(phrase)), least, most)


def letter_occurs(
    text: str, letter: str, least: int | None = None, most: int | None = None
) -> bool:
    """A letter, large or small, occurs so often."""
    return _between(text.lower().count(letter.lower()), least, most)


def starts_with(text: str, phrase: str) -> bool:
    """The answer begins with this."""
    return _plain(text).lstrip().startswith(_plain(phrase))


def ends_with(text: str, phrase: str) -> bool:
    """The answer ends with this, or with this and double quotation marks."""
    return _plain(text).strip().strip('"”').endswith(_plain(phrase))


def lowercase(text: str) -> bool:
    """There are letters, and none is a capital."""
    return text.islower()


def uppercase(text: str) -> bool:
    """There are letters, and all are capitals."""
    return text.isupper()


def without(text: str, marks: str) -> bool:
    """None of these characters occurs."""
    return not set(marks) & set(text)


def quoted(text: str) -> bool:
    """The whole answer stands in double quotation marks."""
    stripped = text.strip()
    return len(stripped) > 2 and stripped[0] in '"“' and stripped[-1] in '"”'


def titled(text: str) -> bool:
    """There is a title in double angle brackets: <<title>>."""
    titles = (line.rpartition(">>")[0].partition("<<")[2] for line in text.split("\n"))
    return any(title.strip("<> \t") for title in titles)


def highlighted(text: str, least: int) -> bool:
    """At least so many parts stand between asterisks."""
    return len(_HIGHLIGHT.findall(text)) >= least


def placeholders(text: str, least: int) -> bool:
    """At least so many placeholders stand in square brackets."""
    return len(re.findall(r"\[[^\[\]\n]+\]", text)) >= least


def one_of(text: str, options: Sequence[str]) -> bool:
    """The answer is one of these and nothing else."""
    return text.strip().strip(".").lower() in [option.lower() for option in options]


def json_object(text: str, keys: Sequence[str]) -> bool:
    """The answer is a JSON object with exactly these keys; a fenced block counts as well."""
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped)
    try:
        value = json.loads(fenced.group(1) if fenced else stripped)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and set(value) == set(keys)


def parts(text: str, separator: str, exactly: int) -> bool:
    """The separator cuts the answer into so many parts, all different and none of them empty."""
    pieces = [piece.strip() for piece in text.split(separator)]
    return len(pieces) == exactly == len(set(pieces)) and all(pieces)


CHECKS: dict[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        *(word_count, sentence_count, paragraph_count, line_count, bullet_count, numbered_count),
        *(includes, excludes, occurs, letter_occurs, starts_with, ends_with, lowercase, uppercase),
        *(without, quoted, titled, highlighted, placeholders, one_of, json_object, parts),
    )
}


def holds(text: str, constraint: dict[str, Any]) -> bool:
    """Return whether a non-empty answer satisfies {"check": name, **settings}."""
    settings = {key: value for key, value in constraint.items() if key != "check"}
    return bool(text.strip()) and CHECKS[constraint["check"]](text, **settings)


def holds_loosely(text: str, constraint: dict[str, Any]) -> bool:
    """Return whether the constraint holds for the answer or for one of its plainer forms."""
    return any(holds(form, constraint) for form in plainer_forms(text))


def plainer_forms(text: str) -> list[str]:
    """Return an answer with its plainer forms, as IFEval judges loosely.

    They leave out the first line, the last line or both (greetings and closing remarks),
    and each of those without asterisks (bold type).
    """
    lines = text.split("\n")
    forms = [text] + ["\n".join(cut).strip() for cut in (lines[1:], lines[:-1], lines[1:-1])]
    forms += [form.replace("*", "") for form in forms]
    return list(dict.fromkeys(forms))
