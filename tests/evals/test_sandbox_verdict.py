"""Answers that go for the judge instead of the task: refused or wrong, and the evaluator lives."""

import os
import resource
import time
from functools import partial

import pytest

from ram_studio.evals.sandbox import AnswerFault, Limits, is_sealed, run_tests, sealed_function
from ram_studio.evals.sandbox.inside.plain import MOST_BYTES, decode, encode
from ram_studio.evals.suites import GENERAL_SUITES, SuiteSettings
from ram_studio.evals.suites import code as code_suite
from ram_studio.evals.suites.code import judge

QUESTIONS = {q.id: q for q in GENERAL_SUITES["code"].make(SuiteSettings(len))}
FUNCTION, PROGRAM, TESTS = (QUESTIONS[f"{kind}-01"] for kind in ("function", "program", "tests"))

pytestmark = pytest.mark.skipif(not is_sealed(), reason="code cannot be sealed here")


def verdict(code, question=FUNCTION):
    """Judge code; this process must be as it was."""
    before = [resource.getrlimit(kind) for kind in range(10)], os.getpriority(0, 0)
    found = judge(question, f"```python\n{code}\n```")
    assert ([resource.getrlimit(kind) for kind in range(10)], os.getpriority(0, 0)) == before
    return found


@pytest.fixture(autouse=True)
def little_time(monkeypatch):
    limits = Limits(seconds=1.5, memory_bytes=2**28)
    for name in ("sealed_function", "run_tests"):
        monkeypatch.setattr(code_suite, name, partial(getattr(code_suite, name), limits=limits))


ATTACKS = (
    "import resource, os; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "import resource, os; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "import os; os.kill(os.getppid(), 9)",
    "import os; os.kill(0, 9)",
    "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)",
)


def test_attacks_beside_a_right_function_are_refused():
    for attack in ATTACKS:
        note = verdict(f"{attack}\n{FUNCTION.gold}").note
        assert note == "PermissionError: [Errno 1] Operation not permitted", attack
    tried = [f"try:\n    {attack}\nexcept BaseException: pass\n" for attack in ATTACKS]
    assert verdict("".join(tried) + FUNCTION.gold).is_correct


STEALS_THE_WORD = """
import os, re, sys
frame = sys._getframe()
while frame:
    for text in map(str, [*frame.f_locals.values(), *frame.f_globals.values()]):
        for word in re.findall("[0-9a-f]{32}", text):
            os.write(1, word.encode())
    frame = frame.f_back
os._exit(0)
"""
READS_THE_TESTS = """
import gc, re, sys
def count_vowels(text):
    pattern = re.escape(f"count_vowels({text!r}) == ") + "([0-9])"
    held, frame = gc.get_objects(), sys._getframe()
    while frame:
        held += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    for value in held:
        found = re.search(pattern, value if isinstance(value, str) else "")
        if found: return int(found[1])
"""
FLOODS_REPLIES = """
import os
for number in range(3, 32):
    try:
        while True: os.write(number, LINE)
    except OSError: pass
"""
CHEATS = {
    "the word that ends the tests": STEALS_THE_WORD,
    "the tests in memory": READS_THE_TESTS,
    "an object that equals everything": """
class Any(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def count_vowels(text): return Any(9)""",
    "an object of a kind of its own": """
class Any:
    def __eq__(self, other): return True
def count_vowels(text): return Any()""",
    "other built-ins": """
import builtins, json
builtins.AssertionError = builtins.Exception = type("Quiet", (BaseException,), {})
builtins.print = builtins.len = builtins.repr = lambda *a, **k: ""
json.dumps = lambda *a, **k: '{"value": ["plain", 3], "after": ["list", [["plain", ""]]]}'
def count_vowels(text): return 9""",
    "an exit": "import os\ndef count_vowels(text): os._exit(0)",
    "an exit before": "raise SystemExit(0)",
    "an exit at the end": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(1)",
    "a trace function": """
import sys
def trace(frame, event, argument):
    frame.f_locals.update(passed=True)
    return trace
sys.settrace(trace)
def count_vowels(text): return 9""",
    "replies it was not asked for": FLOODS_REPLIES.replace(
        "LINE", """b'{"value": ["plain", 3], "after": ["list", [["plain", ""]]]}\\n' * 9"""
    ),
    "the word end": FLOODS_REPLIES.replace("LINE", """b'{"end": true}\\n'"""),
    "deep brackets": FLOODS_REPLIES.replace("LINE", "b'[' * 60000 + b'\\n'"),
    "deep values": FLOODS_REPLIES.replace(
        "LINE", """b'{"value": ' + b'["list", [' * 6000 + b']]' * 6000 + b'}\\n'"""
    ),
    "a long number": FLOODS_REPLIES.replace(
        "LINE", """b'{"value": ["plain", ' + b'9' * 60000 + b']}\\n'"""
    ),
    "no end of line": FLOODS_REPLIES.replace("LINE", "b'x' * 4096"),
    "closed descriptors": "import os\nos.closerange(0, 99)\ndef count_vowels(text): return 3",
    "endless values": "def count_vowels(text):\n    while True: yield 3",
    "sleeping threads": """
import threading, time
for _ in range(9): threading.Thread(target=time.sleep, args=(200,)).start()
raise SystemExit(0)""",
    "what steers a terminal": "raise ValueError('\\x1b[2J' * 99)",
    "much memory": "def count_vowels(text): return bytearray(2**40)",
    "a value too large": "def count_vowels(text): return 'x' * 10**7",
}


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_no_cheat_makes_a_wrong_function_right(code):
    found = verdict(code)
    assert not found.is_correct
    assert found.note.isprintable()


@pytest.mark.parametrize(
    "code",
    [
        "assert clamp(5, 0, 10) == 5\nimport os; os._exit(0)",
        "import atexit; atexit.register(print, 'x')\nassert clamp(5, 0, 10) == 5",
        "import inspect\nassert 'max' in inspect.getsource(clamp)",
        "assert 'max' in clamp.__code__.co_names",
        "import gc\nassert any('max(low, min' + '(' in str(x) for x in gc.get_objects()), clamp",
        "clamp = lambda *a: 5\nassert clamp(5, 0, 10) == 5",
        FLOODS_REPLIES.replace("LINE", """b'{"end": true}\\n'""") + "assert clamp(5, 0, 10) == 5",
        FLOODS_REPLIES.replace("LINE", """b'{"call": 7}\\n'""") + "assert clamp(5, 0, 10) == 5",
        "while True: clamp('x' * 60000, 0, 10)  # assert",
    ],
)
def test_unit_tests_cannot_look_at_the_version_they_test(code):
    assert not verdict(code, TESTS).is_correct


def test_a_note_cannot_steer_a_terminal():
    assert verdict("def count_vowels(t): raise ValueError('\\x1b[2J')").note == "ValueError:  [2J"


VALUES = [None, True, 3, 2.5, "x", [1, [2]], (1, "a"), {"a": [1]}, {1, 2}, frozenset({3}),
          float("inf")]  # fmt: skip


def test_values_cross_as_they_are():
    with sealed_function("def same(x): return x", "same") as same:
        found = [same(value) for value in VALUES]
    assert [(value, type(value)) for value in found] == [(value, type(value)) for value in VALUES]


def test_values_cross_the_sandbox_as_built_in_ones():
    source = """
import collections, enum
class Color(enum.IntEnum): RED = 3
Point = collections.namedtuple("Point", "x y")
def change(values, names, kind="x"):
    values.append(4)
    names["b"] = 2
    return {"color": Color.RED, "point": Point(1, 2), "counts": collections.Counter("aab"),
            "range": range(3), "later": (n * n for n in range(3)), "other": object(), kind: b""}
"""
    values, names = [1], {"a": 1}
    with sealed_function(source, "change") as change:
        found = change(values, names, kind="k")
    assert (values, names) == ([1, 4], {"a": 1, "b": 2})
    assert (found["color"], type(found["color"])) == (3, int)
    assert (found["point"], type(found["point"])) == ((1, 2), tuple)
    assert (found["counts"], type(found["counts"])) == ({"a": 2, "b": 1}, dict)
    assert len(found["range"]) == 3
    assert list(found["range"]) == [0, 1, 2] != found["range"]
    assert list(found["later"]) == [0, 1, 4]
    assert (bool(found["other"]), bool(found["k"]), found["k"] == b"") == (True, False, False)


NO_VALUES = (None, 7, [], ["plain"], ["plain", []], ["what", 1], ["list", 5], ["dict", [1]],
             ["set", [["list", []]]])  # fmt: skip


@pytest.mark.parametrize("data", NO_VALUES)
def test_what_is_no_value_is_refused(data):
    with pytest.raises((ValueError, TypeError)):
        decode(data)


def test_a_function_and_tests_have_a_time_of_their_own():
    limits = Limits(seconds=0.3)
    with (
        sealed_function("def f(): import time; time.sleep(9)", "f", limits=limits) as f,
        pytest.raises(AnswerFault, match="timeout"),
    ):
        f()
    for tests in ("while True: f()", "while True: pass"):
        with pytest.raises(AnswerFault, match="timeout"):
            run_tests(tests, "f", lambda: 1, limits=limits)


def test_the_largest_message_is_cheap_to_decode():
    numbers = encode({number * (2**61 - 1) for number in range(1, 2300)})  # all of one hash
    assert len(str(numbers)) > MOST_BYTES
    start = time.process_time()
    decode(numbers)
    assert time.process_time() - start < 4
