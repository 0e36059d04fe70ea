"""Agreement with bfcl-eval 2026.3.23, the leaderboard's own checker, on its own questions.

It asks for the clients of every provider; its checker needs few of its dependencies. It runs as
another process in an environment of its own, which is not made here:

    python -m venv /tmp/bfcl
    /tmp/bfcl/bin/pip install --no-deps bfcl-eval==2026.3.23
    /tmp/bfcl/bin/pip install filelock python-dotenv tenacity tqdm tree_sitter==0.21.3 \
        tree_sitter_java==0.21.0 tree_sitter_javascript==0.21.4
    RAM_STUDIO_BFCL_PYTHON=/tmp/bfcl/bin/python python -m pytest tests/evals/test_bfcl_agreement.py

Questions: all of non-live and live: simple (Python, Java, JavaScript), multiple, parallel,
parallel-multiple, irrelevance and relevance.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from bfcl_answers import answers, as_json, as_python, gold, in_language, our_question, said_by
from loopback_endpoint import serve

from ram_studio.evals.answering.endpoint import EndpointEngine
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.run import evaluate
from ram_studio.evals.suites import ALL_SUITES, SuiteSettings
from ram_studio.evals.suites.published import bfcl
from ram_studio.evals.suites.published.bfcl import judge
from ram_studio.evals.suites.published.rows import lines_of

PYTHON = os.environ.get("RAM_STUDIO_BFCL_PYTHON")

pytestmark = pytest.mark.skipif(
    PYTHON is None,
    reason="RAM_STUDIO_BFCL_PYTHON names no Python with bfcl-eval 2026.3.23 installed",
)

# Of all spoilt answers, those that are right for one of the two only: why, and how many. Ours are
# right, but for one.
_IGNORED = {"other case": 15, "a full stop more": 15, "a comma and a space more": 15,
            "other punctuation": 15}  # fmt: skip
WHY: dict[str, dict[str, int]] = {
    "null for an optional argument means leaving it out": {
        "null": 1839, "value in object: null": 9, "an argument nobody asked for, null": 18},
    "text in place of a list or number (a variable): we ignore case and punctuation here too": {
        **_IGNORED, "Java(Script): a comma and a space more": 24,
        "Java(Script): a full stop more": 44, "Java(Script): other case": 42,
        "Java(Script): other punctuation": 44},
    "text in a list in an object: we ignore case and punctuation here too": {
        f"value in object: last element: {kind}": 4 for kind in _IGNORED},
    "we try every pairing of calls; theirs takes the first that fits and may be left with none": {
        "right: reversed order": 1, "right: first call last": 1},
    "2 is 2.0 among the numbers of a list as well": {"last element: float as integer": 14},
    "a float for an integer is wrong in lists of lists as well": {
        "last element: last element: integer as float": 2},
    "a right value that is null means leaving it out": {"an argument left out": 2},
}  # fmt: skip
DIFFERENCES = {
    kind: (n, kind != "last element: last element: integer as float")
    for counts in WHY.values()
    for kind, n in counts.items()
}


theirs = partial(said_by, str(PYTHON), "run_bfcl.py")


def _kind(category: str, kind: str) -> str:
    return f"Java(Script): {kind}" if "java" in category else kind


@pytest.fixture(scope="module")
def questions() -> dict[str, dict[str, dict]]:
    return theirs("questions")


def served(questions: dict[str, dict[str, dict]]) -> Iterator[tuple[str, str, dict]]:
    """Yield (category, id, row) of all questions but those that any call serves."""
    for category, rows in questions.items():
        if category != "live_relevance":
            yield from ((category, key, row) for key, row in rows.items())


def judged(questions: dict[str, dict[str, dict]], category: str, key: str, text: str) -> bool:
    return judge(our_question(category, key, questions[category][key]), text).is_correct


def test_every_verdict_agrees_but_for_the_listed_differences(questions):
    cases = [
        (category, key, _kind(category, kind), in_language(calls, category, row))
        for category, key, row in served(questions)
        for kind, calls in answers(row)
    ]
    verdicts = theirs("judge", given=[(c, key, calls) for c, key, _, calls in cases])
    assert not [v for v in verdicts if isinstance(v, str)], "their checker raised"
    ours = [judged(questions, c, key, as_json(calls)) for c, key, _, calls in cases]
    found = Counter(
        (kind, mine)
        for (_, _, kind, _), mine, other in zip(cases, ours, verdicts, strict=True)
        if mine != other
    )
    assert found == {(kind, mine): n for kind, (n, mine) in DIFFERENCES.items()}
    # Neither side passes or fails everything, in any category.
    for category in questions.keys() - {"live_relevance"}:
        passed = Counter(
            other for (c, *_), other in zip(cases, verdicts, strict=True) if c == category
        )
        assert min(passed[True], passed[False]) > 0 or "irrelevance" in category
    assert len(cases) > 190_000


def test_the_shipped_right_answers(questions):
    """Some of them are wrong for their own checker, and for ours; in Python syntax as well."""
    golds = [(c, k, in_language(gold(row), c, row)) for c, k, row in served(questions)]
    last = [(c, k, in_language(gold(row, -1, True), c, row)) for c, k, row in served(questions)]
    python = [(c, key, as_python(calls)) for c, key, calls in [*golds, *last]]
    verdicts = theirs("judge", given=[*golds, *python])
    ours = [*((c, key, as_json(calls)) for c, key, calls in golds), *python]
    for case, other in zip(ours, verdicts, strict=True):
        assert judged(questions, *case) == other, case[1]
    assert verdicts[: len(golds)].count(False) == 28
    assert len(golds) == 3625


# An answer to a request that no function fits, whether it is right (theirs, ours), and why not.
UNSERVED = [
    *((text, True, True, "") for text in (
        "I am sorry, none of the functions can do that.", "[]", "Let me see: f(a=1)")),
    *((text, False, False, "") for text in ("[f(a=1)]", "f(a=1)", "```\nf(a=1)\n```", "f(1)")),
    ("f(a=b)", False, True, "a name in place of a value is no call for us"),
    ("", True, False, "an empty answer is wrong for us everywhere"),
    ('{"name": "f", "arguments": {"a": 1}}', True, False, "calls in JSON are calls for us"),
    ("<tool_call>f(a=1)</tool_call>", True, False, "calls in tags are calls for us"),
]  # fmt: skip


def test_requests_that_no_function_fits_or_that_any_call_serves(questions):
    for category in ("irrelevance", "live_irrelevance", "live_relevance"):
        any_serves = category == "live_relevance"
        rows = [row for row in UNSERVED if not (any_serves and row[3])]
        cases = [(category, key, *row) for key in questions[category] for row in rows]
        found = theirs("judge", given=[case[:3] for case in cases])
        for (_, key, text, other, mine, why), given in zip(cases, found, strict=True):
            assert given is (other is not any_serves), (key, text)
            assert judged(questions, category, key, text) is (mine is not any_serves), (key, text)
            assert bool(why) == (mine is not other)


@pytest.mark.parametrize(("name", "names"), [
    ("bfcl-nonlive", bfcl.NONLIVE),
    ("bfcl-live", bfcl.LIVE),
])  # fmt: skip
def test_a_scripted_model_scores_what_it_should_by_category(
    questions, name, names, tmp_path, monkeypatch
):
    """Asked through our engine, of every question; some answers right, some spoilt."""
    (tmp_path / "bfcl_eval").symlink_to(theirs("where"))
    monkeypatch.syspath_prepend(str(tmp_path))
    lines_of.cache_clear()
    rng, said = random.Random(5), {}
    for category in names:
        for key, row in questions[category].items():
            known = [
                calls
                for kind, calls in answers(row)
                if _kind(category, kind) not in DIFFERENCES and (kind[:5] == "right" or calls)
            ]
            # Half of them right; where none fits, or any does, both kinds too.
            right = in_language(gold(row), category, row)
            some_call = [{"f": {"a": 1}}]
            spoilt = in_language(rng.choice(known), category, row) if row["answer"] else some_call
            said[key] = (category, right if rng.random() < 0.5 else spoilt)
    asked = ALL_SUITES[name].make(SuiteSettings(len))
    keys = {json.dumps([q.prompt, q.tools]): q.id for q in asked}

    def answer(body):
        key = keys[json.dumps([body["messages"][0]["content"], body.get("tools", [])])]
        return as_json(said[key][1])

    with serve(answer) as server:
        report = evaluate({"m": EndpointEngine(server.url)}, name)
    ours = {
        category: (score.correct, score.n)
        for result in EvalResult.of(report).models["m"].domains.values()
        for category, score in result.categories.items()
    }
    # Some questions are there twice, with right answers of their own.
    same = {q.id: said[keys[json.dumps([q.prompt, q.tools])]][1] for q in asked}
    verdicts = theirs("judge", given=[(q.category, q.id, same[q.id]) for q in asked])
    right: Counter[str] = Counter()
    for question, verdict in zip(asked, verdicts, strict=True):
        right[question.category] += verdict
    assert ours == {c: (right[c], len(questions[c])) for c in names}
    assert all(0 < right[c] < len(questions[c]) for c in names)
