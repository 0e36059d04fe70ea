"""Find words of our own where the field has a term, vague names, stumbling sentences.

Reads Python, JavaScript, templates and pages; `make lint` runs it:

    python scripts/check_words.py [FILE ...]
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

WORDS = {
    r"sketch(es|ed)?": "analysis",
    r"passports?": "provenance",
    r"(epsilon|the) ladder": "epsilon grid",
    r"all[ -]else": "interference, everything else",
    r"(meets?|meet) whom": "overlap",
    r"(tells?|told) apart": "differ significantly, distinguish",
    r"cannot tell": "inconclusive, does not show",
    r"doorway": "request guard",
    r"(heavy|light|short|kept) lanes?": "job queue, slot",
    r"strangers?": "other users, untrusted",
    r"visitors?": "users",
    r"lent (gpu|by|for)": "ZeroGPU",
    r"step(s|ped)? back": "lower priority",
    r"gibberish|nonsense(?!:)": "trivial baseline, random answers",
    r"made to order": "generated",
    r"math-made|tool-made|code-made": "math, tool, code-generated",
    r"house style|the house's": "shared style, the project's",
    r"ways of asking|how to ask|what to ask": "evaluation settings, benchmark",
    r"prompts solved|(fewer|same|held-out) prompts": "questions",
    r"licen[c]e[sd]?|(colou|behaviou|neighbou|honou|favou)[r]s?|analys(e|ed|ing)": "US spelling",
    r"(initial|normal|optim|organ|recogn|serial|summar)is(e[sd]?|ing|ations?)": "US spelling",
    r"grey|spelt|distil": "US spelling",
    r"a (agent|analysis|answer|element|epsilon|error|index|option|own|update)": "an ...",
}
"""Banned words and their replacements, everywhere."""

SCREEN = {
    r"(?<!there )(is|are|was|were) no ($|(?!longer|more|less|such)\w+)": "is not a ...",
    r"so many": "the number",
    r"floors?(?!\()": "chance level",
    r"stands? in (the )?line|in line here|its turn": "is queued",
    r"what this rests on": "reproducibility details",
    r"go(es)? on (from|to|with)|to go on": "continue",
    r"\A(?-i:Who|What is|Where) [^?]*\Z": "a question, or a sentence with a subject",
    r"nobody changed|any ?more": "no agent changed, no longer",
    r"stands? beside": "is shown beside",
}
"""Also banned in texts for users: messages, help, templates, the page's texts, and pages."""

NAMES = {
    r"tell|told|say|said": "what is reported, as `message`, `report_progress`",
    r"knock|look": "what is done, as `connect`, `inspect`",
    r"kept": "the field's term: retained, stored, effective",
}
"""Banned as words of the package's own names: functions, classes, fields, variables."""

_FOLDERS = ("ram_studio", "assets", "training", "scripts", "benchmarks", "examples", "docs")
_PAGES = ("README.md", "CONTRIBUTING.md")
# Questions to models are not checked.
_QUESTIONS = "ram_studio/evals/suites/"


def problems_in(path: str, text: str) -> list[str]:
    """Return "path:line: found; write ..." for each banned word in a file."""
    problems = []
    parts = () if path.startswith(_QUESTIONS) else _parts(path, text)
    for line, part, is_screen in parts:
        for pattern, instead in {**WORDS, **(SCREEN if is_screen else {})}.items():
            for match in re.finditer(rf"(?<![\w-])({pattern})(?![\w-])", part, re.IGNORECASE):
                row = line + part[: match.start()].count("\n")
                problems.append(f"{path}:{row}: {match[0]!r}; write {instead}")
    for line, name in _own_names(path, text):
        for pattern, instead in NAMES.items():
            if re.search(rf"(?:^|_)({pattern})(?:_|$)", _snake(name)):
                problems.append(f"{path}:{line}: {name!r}; write {instead}")
    return list(dict.fromkeys(problems))


def _own_names(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of the names that a file of the package defines."""
    if not path.startswith("ram_studio/") or not path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _parts(path: str, text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text, whether users read it) of a file's texts."""
    is_ours = path.startswith("ram_studio/")
    if path.endswith(".py"):
        tree = ast.parse(text)
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            # A string without a space is a key.
            if isinstance(node, ast.Constant) and " " in str(node.value):
                is_help = path.startswith("ram_studio/cli/")
                yield node.lineno, str(node.value), is_help or (id(node) not in docs and is_ours)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string, False
    else:
        hidden = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", re.DOTALL)
        blank = lambda m: re.sub(r"[^\n]", " ", m[0])  # noqa: E731
        yield 1, text, path.startswith("docs/") or path in _PAGES
        if path.endswith(".j2"):
            yield 1, hidden.sub(blank, text), True
        if path.endswith(".js"):
            for found in re.finditer(r"""(["'`])(?=\S* )(?:(?!\1).)+\1""", text):
                yield text.count("\n", 0, found.start()) + 1, found[0], True


def main(files: Iterable[str]) -> int:
    """Print the problems in these files, by default in all tracked ones; return the exit code."""
    listed = ["git", "ls-files", *_FOLDERS, *_PAGES]
    tracked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\n")
    problems = [
        problem
        for path in list(files) or [f for f in tracked if f != "scripts/check_words.py"]
        if Path(path).suffix in (".py", ".js", ".j2", ".md", ".css")
        for problem in problems_in(path, Path(path).read_text(encoding="utf-8"))
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
