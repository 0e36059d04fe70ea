"""One sealed process from outside: it runs the answer's code, and the caller judges.

Its output is treated as data, and read with limits on time and size. A function of the answer is
called with values and returns values (`sealed_function`). Expected results never enter its process,
so they cannot be read or overwritten there; values return as Python's own types, so no code of the
answer takes part in the comparison. Tests that an answer wrote run in its process, the function
they test in another (`run_tests`): they can call it, but cannot inspect it or find out which
version answers. The caller judges the output of a whole program (`run_program`).
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from ram_studio.errors import EvaluationError
from ram_studio.evals.sandbox.inside.plain import MOST_BYTES, copy_changes, decode, encode
from ram_studio.evals.sandbox.switch import (
    DEFAULT_LIMITS,
    CodeSwitch,
    Limits,
    check_code_allowed,
    command,
)

Outcome = Literal["done", "failed", "timeout", "too much output", "killed"]


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended.

    outcome: "done" exit code 0; "failed" any other (an uncaught exception too); "timeout" wall
    clock or CPU time over; "too much output"; "killed" died of a signal. output: standard output,
    errors: standard error, both cut to the limit.
    """

    outcome: Outcome
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line of standard error: usually the exception."""
        lines = self.errors.strip().splitlines()
        return printable(lines[-1]) if lines else ""

    @property
    def reason(self) -> str:
        """The reason for its early end, in a few words."""
        if self.outcome == "done":
            return "ended before the tests did"
        return (self.last_line if self.outcome == "failed" else "") or self.outcome


class AnswerFault(Exception):
    """The program did not give a valid answer; the text is the reason."""


class SealedProcess(AbstractContextManager["SealedProcess"]):
    """A running program; use it in a `with` statement, which ends it.

    source: its text; mode: see `inside.start`; entry: the function that the messages call.

    Raises: EvaluationError: code may not run here, or no process can be started.
    """

    def __init__(
        self,
        source: str,
        mode: str,
        *,
        entry: str = "",
        stdin: str = "",
        code: CodeSwitch = "auto",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        check_code_allowed(code)
        self._limits = limits
        self._result: ProgramResult | None = None
        self._is_ended = False
        self._pending = b""
        with ExitStack() as stack:
            try:
                self._start(stack, source, mode, entry, stdin, code)
            except OSError as error:
                raise EvaluationError(
                    f"The sandbox could not start a process: {error}. Free memory, files or "
                    "processes on this machine and judge again."
                ) from error
            self._stack = stack.pop_all()

    def _start(
        self, stack: ExitStack, source: str, mode: str, entry: str, stdin: str, code: CodeSwitch
    ) -> None:
        self._place = Path(stack.enter_context(TemporaryDirectory(prefix="ram-studio-sandbox-")))
        work = self._place / "work"
        work.mkdir()
        program = self._place / "program.py"
        program.write_bytes(source.encode("utf-8", "replace"))
        (self._place / "stdin").write_bytes(stdin.encode("utf-8", "replace"))
        theirs, self._to = _pipe(stack)
        self._from, replies = _pipe(stack)
        os.set_blocking(self._to.fileno(), False)
        order = command(
            self._limits,
            mode=mode,
            program=str(program),
            entry=entry,
            requests=theirs.fileno(),
            replies=replies.fileno(),
            must_seal=code == "auto",
        )
        self._begin = time.monotonic()
        # Output goes to files: the limit on file size then ends an endless one.
        with (
            open(self._place / "stdin", "rb") as given,
            open(self._place / "output", "wb") as output,
            open(self._place / "errors", "wb") as errors,
        ):
            self._process = subprocess.Popen(
                order,
                stdin=given,
                stdout=output,
                stderr=errors,
                env={},
                cwd=work,
                pass_fds=() if mode == "program" else (theirs.fileno(), replies.fileno()),
                start_new_session=True,
            )
        stack.callback(self._kill)
        theirs.close()
        replies.close()

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def _seconds_left(self) -> float:
        return max(0.0, self._begin + self._limits.seconds - time.monotonic())

    def _wait_for(self, end: FileIO, event: int) -> None:
        poll = select.poll()
        poll.register(end, event)
        left = self._seconds_left()
        if not left or not poll.poll(left * 1000):
            raise AnswerFault("timeout")

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises: AnswerFault: the process ended or did not take it in time.
        """
        data = json.dumps(message).encode() + b"\n"
        while data:
            self._wait_for(self._to, select.POLLOUT)
            try:
                data = data[os.write(self._to.fileno(), data) :]
            except BlockingIOError:
                continue
            except OSError:
                raise AnswerFault(self.finish().reason) from None

    def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises: AnswerFault: none came in time, the process ended, or it wrote something else.
        """
        while b"\n" not in self._pending:
            self._wait_for(self._from, select.POLLIN)
            data = os.read(self._from.fileno(), MOST_BYTES)
            self._pending += data
            if not data:
                raise AnswerFault(self.finish().reason)
            if len(self._pending) > 2 * MOST_BYTES:
                raise AnswerFault("too much output")
        text, self._pending = self._pending.split(b"\n", 1)
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise AnswerFault("sent something that is not a message")
        return message

    def finish(self) -> ProgramResult:
        """Wait for the end, within the limits, and return how the program ended."""
        if self._result is None:
            timed_out = not self._ends_in_time()
            self._kill()
            most = self._limits.output_bytes
            output, errors = ((self._place / name).read_bytes() for name in ("output", "errors"))
            is_full = max(len(output), len(errors)) >= most
            outcome = _outcome(self._process.returncode, timed_out, is_full)
            printed, wrong = (text[:most].decode("utf-8", "replace") for text in (output, errors))
            self._result = ProgramResult(outcome, printed, wrong)
        return self._result

    def _ends_in_time(self) -> bool:
        # Popen.wait would poll at growing intervals; most programs end within milliseconds.
        with suppress(OSError), open(os.pidfd_open(self._process.pid), "rb", 0) as process:
            with suppress(AnswerFault):
                self._wait_for(process, select.POLLIN)
            return self._process.poll() is not None
        with suppress(subprocess.TimeoutExpired):  # a kernel without process descriptors
            self._process.wait(timeout=self._seconds_left())
        return self._process.returncode is not None

    def _kill(self) -> None:
        """End the process and the rest of its group; return when it has ended."""
        if self._is_ended:
            return  # its id may be reused
        self._is_ended = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._process.kill()
        self._process.wait()


def printable(text: str) -> str:
    """Return at most 200 characters of text, without terminal control characters."""
    return "".join(mark if mark.isprintable() else " " for mark in text[:200])


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    """Return the reading and the writing end of a pipe, closed with the stack at the latest."""
    reading, writing = os.pipe()
    ends = FileIO(reading, "r"), FileIO(writing, "w")
    for end in ends:
        stack.callback(end.close)
    return ends


def _outcome(code: int, timed_out: bool, full: bool) -> Outcome:
    if full or code == -signal.SIGXFSZ:
        return "too much output"
    if timed_out or code == -signal.SIGXCPU:
        return "timeout"
    if code == 0:
        return "done"
    return "killed" if code < 0 else "failed"


def run_program(
    source: str, stdin: str = "", *, code: CodeSwitch = "auto", limits: Limits = DEFAULT_LIMITS
) -> ProgramResult:
    """Run Python source text and return how it ended; never raises for the program's own errors.

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
    """Yield the function `entry` of source, to be called with plain values within the limits.

    Lists and dicts among its arguments are changed as the call changed them. A call raises
    AnswerFault for any failure in the other process, with the exception's name and text.

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
    """Run tests in which `entry` is `function`; return when they have passed.

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
                is_fault = isinstance(error, AnswerFault)
                process.send({"error": str(error) if is_fault else "TypeError: no such call"})
        if "end" not in message:
            raise AnswerFault("sent something that is not a message")
