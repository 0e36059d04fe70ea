"""Word problems with one number as the answer, compared exactly; `generated` draws them.

The prompt asks for a last line `Answer: <number>`. In a calculation on that line, the number in a
box or after its last `=` counts (`Answer: 8 * 12 = 96 books.` is 96). Without such a line, the last
boxed number counts, else the last "the answer is", else the last number of the answer.
"""

import re
from fractions import Fraction

from ram_studio.evals.question import Question, Verdict
from ram_studio.evals.sandbox import CodeSwitch

MAX_NEW_TOKENS = 400
PROMPT = '{question}\n\nThink step by step. End with a line of the form "Answer: <number>".'

# Digits, with commas only as thousands separators; a dot only before a digit.
_NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+|/\d+)?"
_LEAD = r"[\s*_$€£:=\\(\[{]*"
# In order of priority, with the occurrence that counts. The first "Answer:", as a model without a
# chat format may continue with invented questions and answers; the last of phrases that models also
# use for intermediate steps.
_BOXED = re.compile(r"\\boxed{([^{}]*)")
_MARKED = (
    (re.compile(r"\bfinal answer(?: is)?(.*)", re.IGNORECASE), 0),
    (re.compile(r"\banswer\s*:(.*)", re.IGNORECASE), 0),
    (re.compile(r"\\boxed(.*)"), -1),
    (re.compile(r"####(.*)"), 0),
    (re.compile(r"\banswer is(.*?)(?=\banswer is|$)", re.IGNORECASE | re.MULTILINE), -1),
)
_FIRST = re.compile(rf"{_LEAD}({_NUMBER})")
# A dot, but not of a number or a lower-case abbreviation.
_SENTENCE_END = re.compile(r"[.;!?]\s+(?=[A-Z])")
_ANY = re.compile(rf"(?<![\w.]){_NUMBER}")
# LaTeX's thousands separators: a comma without a space after it, or a thin space.
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,)(?=\d{3}(?!\d))")
# A fraction, or a mixed number.
_FRACTION = re.compile(r"(?<![\d.,])(?:(\d{1,9})\s?)?\\[dt]?frac\{(-?\d{1,9})\}\{(\d{1,9})\}")


def find_number(text: str) -> Fraction | None:
    """Return the final number of an answer, None if it has none."""
    text = _THOUSANDS.sub(",", text.replace("\N{MINUS SIGN}", "-"))
    text = _FRACTION.sub(lambda m: f"{int(m[1] or 0) * int(m[3]) + int(m[2])}/{m[3]}", text)
    for pattern, place in _MARKED:
        found = [number for line in pattern.findall(text) if (number := _on_line(line))]
        if found:
            return _value(found[place])
    found = _ANY.findall(text)
    return _value(found[-1]) if found else None


def _on_line(rest: str) -> str:
    """Return the number in the rest of a line after its mark, "" for none."""
    rest = _SENTENCE_END.split(rest, maxsplit=1)[0]
    if boxed := _BOXED.findall(rest):
        rest = boxed[-1]
    elif rest.startswith("{"):
        rest = rest[1:].partition("}")[0]
    for part in (rest.rpartition("=")[2], rest):
        if found := _FIRST.match(part):
            return found[1]
    return ""


def _value(text: str) -> Fraction | None:
    # Longer numbers are never right here, and slow to parse.
    if len(text) > 40:
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ZeroDivisionError:
        return None


def judge(question: Question, text: str, code: CodeSwitch = "off") -> Verdict:
    """Return whether the answer's number equals the right one exactly."""
    if not text.strip():
        return Verdict(False, "empty answer")
    found = find_number(text)
    if found is None:
        return Verdict(False, "no number in the answer")
    is_correct = found == Fraction(question.spec)
    shown = found if found.denominator == 1 else f"{float(found):g}"
    return Verdict(is_correct, "" if is_correct else f"found {shown}")
