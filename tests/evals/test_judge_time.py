"""No judge reads 50 kB longer than 0.2 s of processor time, whatever stands in it.

Of time a judge spends itself: what runs in a process of its own has limits of its own.
"""

import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

import pytest
from published_rows import AREA, JAVA, OF, ONE, SCRIPT, TASK, write_rows

from ram_studio.errors import EvaluationError
from ram_studio.evals.question import Question
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings, instructions
from ram_studio.evals.suites.published import bfcl
from ram_studio.evals.suites.published.bfcl_languages import value_of

SIZE, SECONDS = 50_000, 0.2
REPEATED = (
    " ", "\n", " \n", "\t", "7", "a", "A ", "é", "漢", "🙂", "(", "[", "{", "<", ")", "]", "}", ">",
    "\\", '"', "'", "`", "*", "**a ", "-", "- ", "- a\n", ".", ". ", "!)", ",", "#", "_", "|",
    "=", '{"a":', '["', "[[1],", "```", "```python\n", "```python ", "```\n\n", "1,", "1.5 ",
    "1/", "\\boxed{", "\\boxed{1}", "\\frac", "$", "answer is ", "answer: ", "#### 1\n", "1. a\n",
    "a.b", "<tool_call>", "<function=f>", "<parameter=a>", "<escape>", "[TOOL_CALLS]f",
    "f(a=1)\n", "x+", "<start_function_call>call:f{", "add(", 'put("', "new a[]{",
    "new HashMap<>(){", "<<", "[a", "word ", "a word. ", "P.S. ", "******", "def f():\n",
    "\u2028", "\x00", "def f(", "lambda:",
)  # fmt: skip
# What leads deeper into a judge: before the text, and after it.
EDGES = {
    "tool": [
        *(("<tool_call>x", "x"), ("<function=f>", "</function>"), ("[f(", ""), ("```json\n", "x")),
        ('{"name": "f", "arguments": {"a": "', '"}}'), ("<start_function_call>call:f{", "x}"),
        ("<function=f><parameter=a>", "x</parameter></function>"),
    ],
    "math": [("Answer:", "x"), ("The answer is", "x"), ("#### ", "x")],
    "math500": [("Answer:", "x"), ("The answer is", "x"), ("\\boxed{", "x}")],
    "gsm8k": [("#### ", "x")],
    "code": [("```python\n", "x"), ("```", "x"), ("def f(): return '", "'")],
    "livecodebench": [('{"test": "**Test Input:**\\n```', '"}'), ('{"program": "```python', '"}')],
    "bfcl-multi-turn": [('{"role": "assistant", "content": "', '"}')],
    "nq": [("answer:", "x"), ("The answer is", "x")],
}  # fmt: skip
SETTINGS = {
    "keywords": ["sea"], "forbidden_words": ["sea"], "keyword": "a", "frequency": 2, "letter": "a",
    "relation": "at least", "let_frequency": 2, "let_relation": "at least", "language": "en",
    "num_sentences": 2, "num_paragraphs": 2, "num_words": 5, "nth_paragraph": 1, "first_word": "a",
    "num_placeholders": 2, "postscript_marker": "P.S.", "num_bullets": 2, "num_highlights": 2,
    "section_spliter": "SECTION", "num_sections": 2, "prompt_to_repeat": "a", "end_phrase": "a",
    "capital_frequency": 2, "capital_relation": "at least",
}  # fmt: skip
# One suite of those that share a judge.
SUITES = sorted({suite.judge: name for name, suite in reversed(ALL_SUITES.items())}.values())


def bfcl_questions():
    """Return a question of each language and of several calls, whose arguments are texts."""
    for category in ("simple_java", "simple_javascript", "parallel"):
        answer, function = OF.get(category, (ONE, AREA))
        asked = [[{"role": "user", "content": "?"}]]
        row = {"id": category, "question": asked, "function": [function]}
        yield bfcl.question_of("bfcl-nonlive", category, row, [answer])


def ifeval_questions():
    """Return a question with each of IFEval's instructions."""
    for name, check in instructions.CHECKS.items():
        if name in instructions.NEED_LANGUAGE and not find_spec("langdetect"):
            continue
        names = check.__code__.co_varnames[1 : check.__code__.co_argcount]
        spec = [{"check": name, "settings": {key: SETTINGS[key] for key in names}}]
        yield Question(name, "ifeval", name, "p", "", spec, 100)


def questions_of(name, folder):
    """Return what a suite asks, one question of each kind."""
    if name == "bfcl-multi-turn":
        return [Question("b", name, "base", "p", "", {"truth": [[["ls()"]]]}, 100)]
    if name.startswith("bfcl"):
        return list(bfcl_questions())
    if name == "instructions":
        return list(ifeval_questions())
    if name == "humaneval":
        spec = {"entry": "total", "head": TASK["prompt"], "tests": "check(total)"}
        return [Question("h", "humaneval", "function", "p", "", spec, 100)]
    if name == "livecodebench":
        spec = {"samples": 1, "cases": [("1", "1")], "seconds": 1, "test_prompt": ""}
        return [Question("l", name, "problem", "p", "", spec, 100)]
    settings = SuiteSettings(lambda text: -(-len(text) // 4), data=folder, lengths=(400,))
    questions = ALL_SUITES[name].make(settings)
    kinds = {(q.domain, name == "code" and q.category): q for q in questions}
    return list(kinds.values())


def refuse(*_, **__):
    raise EvaluationError("nothing is run here")


def time_of(judge, question, text):
    """Return the least of up to three times: whatever else the machine does costs none."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        with suppress(EvaluationError):
            judge(question, text, "auto")
        best = min(best, time.process_time() - start)
        if best < SECONDS:
            break
    return best


@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SUITES)
def test_50_kb_are_judged_in_no_time(name, share, tmp_path, monkeypatch):
    """share: a question is given one text in this many, and the next question the next ones."""
    suite = ALL_SUITES[name]
    if suite.runs_code:
        # Starting a process for each is another test's matter.
        for module in ("code", "published.mbpp", "published.contests", "published.bfcl_multi_turn"):
            for starts in ("run_program", "sealed_function", "run_tests", "_run"):
                monkeypatch.setattr(
                    f"ram_studio.evals.suites.{module}.{starts}", refuse, raising=False
                )
    slow = []
    for number, question in enumerate(questions_of(name, write_rows(tmp_path))):
        with suppress(EvaluationError):
            suite.judge(question, "what is loaded once", "auto")
        edges = [("", "x"), *(() if number else EDGES.get(name, ()))]
        for repeated in REPEATED[number % share :: share]:
            body = (repeated * (SIZE // len(repeated) + 1))[:SIZE]
            for before, after in edges:
                took = time_of(suite.judge, question, before + body + after)
                if took >= SECONDS:
                    slow.append((question.category, before, repeated, after, round(took, 2)))
    assert not slow


BEGINNINGS = (
    "",
    "new HashMap<String>() {{ x",
    "new ArrayList<>() {{ add(",
    "new int[] {",
    "[[1], [",
    "{a:",
)


def read(given, language, _, text, code):
    return value_of(text, language, given)


@pytest.mark.parametrize(("language", "function"), [("Java", JAVA), ("JavaScript", SCRIPT)])
def test_arguments_of_50_kb_are_read_in_no_time(language, function):
    slow = []
    for given in function["parameters"]["properties"].values():
        for repeated in REPEATED:
            for before in BEGINNINGS:
                text = before + repeated * (SIZE // len(repeated)) + "x"
                took = time_of(partial(read, given, language), None, text)
                if took >= SECONDS:
                    slow.append((given["type"], before, repeated, round(took, 2)))
    assert not slow
