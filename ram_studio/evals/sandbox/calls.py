"""Programs, functions and tests across the wall: the answer on one side, the judge on the other.

A function of the answer is called with values and gives back values (`sealed_function`). What is
expected of it never enters its process, so there is nothing there to read or to overwrite, and
values come back as Python's own types, so nothing of the answer's takes part in the comparison.
Tests that an answer wrote run in its process, the function they test in another (`run_tests`): they
can call it, not look at it, and do not know which version answers. What a whole program wrote is
judged by the caller (`run_program`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ram_studio.evals.sandbox.inside.plain import copy_changes, decode, encode
from ram_studio.evals.sandbox.process import AnswerFault, ProgramResult, SealedProcess, printable
from ram_studio.evals.sandbox.switch import DEFAULT_LIMITS, CodeSwitch, Limits


def run_program(
    source: str, stdin: str = "", *, code: CodeSwitch = "auto", limits: Limits = DEFAULT_LIMITS
) -> ProgramResult:
    """Run Python source text and return how it ended; never raises for anything the program does.

    Args:
        source: the program; only the standard library can be imported.
        stdin: what it reads from standard input.
        code: see `check_code_allowed`; with "auto" an unsealed process runs nothing.

    Raises: EvaluationError: code may not run here, or the machine cannot start a process.
    """
    with SealedProcess(source, "program", stdin=stdin, code=code, limits=limits) as process:
        return process.finish()


@contextmanager
def sealed_function(
    source: str, entry: str, *, code: CodeSwitch = "auto", limits: Limits = DEFAULT_LIMITS
) -> Iterator[Callable[..., Any]]:
    """Give the function `entry` of source, to be called with plain values within the limits.

    Lists and dicts among its arguments are changed as the call changed them. A call raises
    AnswerFault for whatever goes wrong on the other side, with the exception's name and text.

    Raises: EvaluationError: code may not run here, or the machine cannot start a process.
    """
    with SealedProcess(source, "function", entry=entry, code=code, limits=limits) as process:

        def function(*arguments: Any, **named: Any) -> Any:
            process.send({"call": encode((arguments, named))})
            reply = process.receive()
            if "error" in reply:
                raise AnswerFault(printable(str(reply["error"])))
            try:
                value = decode(reply["value"])
                copy_changes(arguments, decode(reply["after"]))
            except (KeyError, ValueError, TypeError, RecursionError):
                raise AnswerFault("sent something that is not a value") from None
            return value

        yield function


def run_tests(
    tests: str,
    entry: str,
    function: Callable[..., Any],
    *,
    code: CodeSwitch = "auto",
    limits: Limits = DEFAULT_LIMITS,
) -> None:
    """Run tests in which `entry` is `function`; return when they have reached their end.

    Raises:
        AnswerFault: they did not, with the reason.
        EvaluationError: as `sealed_function`.
    """
    with SealedProcess(tests, "tests", entry=entry, code=code, limits=limits) as process:
        while "call" in (message := process.receive()):
            try:
                arguments, named = decode(message["call"])
                value = encode(function(*arguments, **named))
                process.send({"value": value, "after": encode(arguments)})
            except (AnswerFault, ValueError, TypeError, RecursionError) as error:
                is_told = isinstance(error, AnswerFault)
                process.send({"error": str(error) if is_told else "TypeError: no such call"})
        if "end" not in message:
            raise AnswerFault("sent something that is not a message")
