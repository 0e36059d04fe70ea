"""Run one Python program, written by a model, in a process that has given up its rights.

What holds on Linux with Landlock and seccomp (5.13 and newer; `protection()` tells), root or not:
- a process of its own, started anew with an empty environment in an empty temporary folder;
- no network, no new process, no execve, no signal to another process, no tracing;
- files: only Python's library and the system's shared libraries can be read; nothing can be
  written, made, linked or deleted anywhere, the temporary folder included;
- limits on CPU time, address space and open files; as there is only one process, they hold for the
  whole program;
- killed with its process group when the time is over or the output too long; output is cut.

What it does NOT cover:
- faults of the kernel itself, side channels, and the use of CPU time within the limit;
- metadata: names, sizes and times of files can be asked for (`os.stat`), contents and listings not;
- whatever lies in Python's own library folders can be read;
- a program that guesses how it is judged can fool the judge: the machine is guarded, not the score;
- other systems (macOS, Windows, older kernels): there only resource limits and an audit hook inside
  Python hold, which native code (ctypes) gets around. "auto" does not run code there.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

from ram_studio.errors import EvaluationError

CHILD = Path(__file__).with_name("child.py")
DEFAULT_SECONDS = 5.0
DEFAULT_MEMORY_BYTES = 512 * 1024**2
DEFAULT_OUTPUT_BYTES = 64 * 1024
OPEN_FILES = 32

CodeSwitch = Literal["auto", "on", "off"]
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
    seconds: float

    @property
    def last_line(self) -> str:
        """The last line of standard error: usually the exception."""
        lines = self.errors.strip().splitlines()
        return lines[-1][:200] if lines else ""


@dataclass(frozen=True)
class Protection:
    """Which layers the kernel holds here."""

    namespace: bool
    privileges: bool
    landlock: bool
    seccomp: bool

    @property
    def is_sealed(self) -> bool:
        """Whether the kernel itself keeps programs from network, files and processes."""
        return self.landlock and self.seccomp


@lru_cache(maxsize=1)
def protection() -> Protection:
    """Return what holds on this machine, found out by sealing one process."""
    done = subprocess.run(
        _command("-", must_seal=False),
        env={},
        capture_output=True,
        timeout=60,
        check=False,
    )
    try:
        return Protection(**json.loads(done.stdout))
    except (ValueError, TypeError):
        return Protection(False, False, False, False)


def check_code_allowed(code: CodeSwitch = "auto") -> None:
    """Raise unless programs written by a model may run here.

    "off" never; "on" always, under whatever protection there is; "auto" where the kernel seals the
    process, except on a public Space (SPACE_ID is set).

    Raises:
        EvaluationError: they may not, with the reason.
    """
    if code not in ("auto", "on", "off"):
        raise EvaluationError(f"The code switch is {code!r}. Choose auto, on or off.")
    if code == "off":
        raise EvaluationError(
            "Running code that a model wrote is switched off here, and this suite needs it. "
            "Leave the suite out, or switch code on."
        )
    if code == "auto" and os.environ.get("SPACE_ID"):
        raise EvaluationError(
            "Running code that a model wrote is off on a public Space, and this suite needs it. "
            "Leave the suite out, or run it on your own machine."
        )
    if code == "auto" and not protection().is_sealed:
        raise EvaluationError(
            "This system cannot lock up a process (Linux with Landlock and seccomp is needed), so "
            "code that a model wrote is not run. Leave the suite out, or set code to 'on' inside "
            "a container or virtual machine you can throw away."
        )


def run_program(
    source: str,
    stdin: str = "",
    *,
    code: CodeSwitch = "auto",
    seconds: float = DEFAULT_SECONDS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    output_bytes: int = DEFAULT_OUTPUT_BYTES,
) -> ProgramResult:
    """Run Python source text and return how it ended; never raises for anything the program does.

    Args:
        source: the program; only the standard library can be imported.
        stdin: what it reads from standard input.
        code: see `check_code_allowed`; with "auto" an unsealed process runs nothing.
        seconds: wall-clock limit; CPU time is limited to one second more.
        memory_bytes: limit of the address space.
        output_bytes: limit of standard output and standard error, each.

    Raises:
        EvaluationError: code may not run here.
    """
    check_code_allowed(code)
    with tempfile.TemporaryDirectory(prefix="ram-studio-sandbox-") as folder:
        place = Path(folder)
        (place / "work").mkdir()
        (place / "program.py").write_bytes(source.encode("utf-8", "replace"))
        (place / "stdin").write_bytes(stdin.encode("utf-8", "replace"))
        start = time.monotonic()
        command = _command(
            str(place / "program.py"),
            must_seal=code == "auto",
            cpu_seconds=int(seconds) + 1,
            memory_bytes=memory_bytes,
            file_bytes=output_bytes,
        )
        # Output goes to files: the child's limit on file size then ends an endless one.
        with (
            open(place / "stdin", "rb") as given,
            open(place / "output", "w+b") as output,
            open(place / "errors", "w+b") as errors,
        ):
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=output,
                stderr=errors,
                env={},
                cwd=place / "work",
                start_new_session=True,
            )
            try:
                process.wait(timeout=seconds)
                timed_out = False
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                _kill_group(process)
            texts = [_read(file, output_bytes) for file in (output, errors)]
            full = any(os.fstat(file.fileno()).st_size >= output_bytes for file in (output, errors))
    outcome = _outcome(process.returncode, timed_out, full)
    return ProgramResult(outcome, texts[0], texts[1], time.monotonic() - start)


def _command(
    program: str,
    *,
    must_seal: bool,
    cpu_seconds: int = 5,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    file_bytes: int = DEFAULT_OUTPUT_BYTES,
) -> list[str]:
    settings = {
        "memory_bytes": memory_bytes,
        "cpu_seconds": cpu_seconds,
        "file_bytes": file_bytes,
        "open_files": OPEN_FILES,
        "must_seal": must_seal,
    }
    # The interpreter below a virtual environment: its site-packages stay out of reach.
    python = getattr(sys, "_base_executable", None) or sys.executable
    flags = ["-I", "-S", "-B", "-X", "utf8"]
    return [python, *flags, str(CHILD), json.dumps(settings), program]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and whatever is left of its group; returns when the process is gone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _read(file: BinaryIO, limit: int) -> str:
    file.seek(0)
    return file.read(limit).decode("utf-8", "replace")


def _outcome(code: int, timed_out: bool, full: bool) -> Outcome:
    if full or code == -getattr(signal, "SIGXFSZ", 0):
        return "too much output"
    if timed_out or code == -getattr(signal, "SIGXCPU", 0):
        return "timeout"
    if code == 0:
        return "done"
    return "killed" if code < 0 else "failed"
