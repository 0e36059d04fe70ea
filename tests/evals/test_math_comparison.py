"""MATH-500's judge: math-verify in a sealed worker, ended when it hangs, and its hard cases."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ram_studio.evals.question import TIMED_OUT, Question
from ram_studio.evals.sandbox import is_sealed, worker
from ram_studio.evals.suites.published import math500
from ram_studio.evals.suites.published.math500 import COMPARER, judge

sealed = pytest.mark.skipif(not is_sealed(), reason="this kernel has no Landlock or no seccomp")
LINES = Path(__file__).with_name("math_pairs.txt").read_text("utf-8").splitlines()
PAIRS = [
    (*line.split(" == " if " == " in line else " != "), " == " in line)
    for line in LINES
    if line.strip() and not line.startswith("#")
]
POWERS = r"\sum_{n=1}^{10^7} \sin(n^2)"


def question(wanted: str) -> Question:
    return Question("q", "math500", "Algebra", "p", wanted, wanted, 10)


def is_right(said: str, wanted: str) -> bool:
    return judge(question(wanted), f"So it is $\\boxed{{{said}}}$.").is_correct


def test_nine_in_ten_hard_pairs_are_judged_rightly():
    assert len(PAIRS) > 300
    wrong = [(w, s, same) for w, s, same in PAIRS if is_right(s, w) is not same]
    assert len(wrong) < 0.1 * len(PAIRS), wrong
    # What is wrong is never called right here.
    assert [pair for pair in wrong if not pair[2]] == []


@pytest.fixture(scope="module")
def quick_worker():
    """Compare for half a second at most."""
    with closing(replace(COMPARER, seconds=0.5)) as made:
        yield made


@pytest.fixture
def quick(monkeypatch, quick_worker):
    monkeypatch.setattr(math500, "COMPARER", quick_worker)
    return quick_worker


@pytest.mark.parametrize(("said", "wanted"), [
    ("(" * 399, "3"), ("{" * 390, "{" * 389 + "1"), ("__import__('os')", "1"), ("171!", "5"),
    (r"\frac{1}{0}", "1"), ("1/0", "2/0"), ("9" * 5000, "9" * 5001), ("3,5", "(3,5)x"), ("", "3"),
    (r"\begin{pmatrix}", "1"), ("1000000000001", "1000000000000"), ("3,5", "3,5,7"),
])  # fmt: skip
def test_odd_answers_are_wrong_and_never_raise(said, wanted, quick):
    assert not is_right(said, wanted)


def test_a_comparison_without_end_counts_as_wrong_and_is_said(quick):
    assert is_right(r"\sqrt{12}", r"2\sqrt{3}")
    first = quick._process
    verdict = judge(question("2"), f"\\boxed{{{POWERS}}}")
    assert not verdict.is_correct
    assert verdict.facts == {TIMED_OUT: True}
    assert "took longer than" in verdict.note
    # The next comparison has a new process.
    assert first.returncode == -signal.SIGPROF
    assert is_right(r"\sqrt{12}", r"2\sqrt{3}")
    assert quick._process is not first
    quick._process.kill()
    quick._process.wait()
    assert is_right(r"\sqrt{12}", r"2\sqrt{3}")


def test_threads_take_turns_and_get_their_own_answers():
    pairs = [(f"{n}x + {n}x", f"{n + n % 2}x + {n}x", n % 2 == 0) for n in range(1, 17)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda pair: is_right(*pair[:2]), pairs))
    assert found == [same for *_, same in pairs]


TRYING = """
def answer(message):
    try:
        return {"value": repr(eval(message["code"]))}
    except BaseException as error:
        return {"error": type(error).__name__}
"""
REFUSED = (
    "open('/etc/passwd')", "open('/tmp/made', 'w')", "__import__('os').listdir('/')",
    "__import__('socket').socket()", "__import__('os').fork()", "__import__('os').kill(1, 0)",
    "__import__('subprocess').run(['true'])",
)  # fmt: skip


@pytest.fixture(scope="module")
def trying(tmp_path_factory):
    """Give what evaluates code where answers are compared, with everything that is loaded there."""
    folder = tmp_path_factory.mktemp("trying") / "sandbox"
    subprocess.run(["cp", "-r", str(worker.FOLDER), str(folder)], check=True)
    module = folder / "inside" / "mathematics.py"
    module.write_text(module.read_text() + TRYING)
    with closing(replace(COMPARER, seconds=5)) as made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "FOLDER", folder)
            patch.setenv("HF_TOKEN", "secret-token")
            assert made.ask({"code": "1 + 1"}) == {"value": "2"}
        yield lambda code: made.ask({"code": code})


@sealed
def test_the_worker_reaches_no_file_network_or_process(trying):
    assert [trying(code).get("error") for code in REFUSED] == ["PermissionError"] * len(REFUSED)
    # Its libraries load what they need.
    assert "value" in trying("__import__('sympy.physics.units.systems').__name__")


def test_the_worker_has_neither_torch_nor_secrets(trying):
    loaded = "sorted({'sympy', 'torch', 'gradio', 'ram_studio'} & set(__import__('sys').modules))"
    assert trying(loaded) == {"value": "['sympy']"}
    assert "HF_TOKEN" not in trying("dict(__import__('os').environ)")["value"]
