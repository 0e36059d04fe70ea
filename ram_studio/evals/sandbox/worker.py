"""A worker process: one line of JSON in, one line out, ended when it hangs.

For libraries that process untrusted input and may take forever or all memory. One process serves
all threads in turn; it starts with the first message.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.sandbox.switch import FOLDER, OPEN_FILES

PATIENCE = 300.0
"""Longest wait for a worker to start or answer, however busy the machine is."""

_START = "import json, sys; sys.path.insert(0, sys.argv[1]); from inside.serve import main; "
_START += "sys.path.pop(0); main(sys.argv[2], json.loads(sys.argv[3]))"
# Without a count of a process's computing time, wall-clock time is used.
_COUNTS_COMPUTING = hasattr(signal, "setitimer")
_OUT_OF_TIME = -signal.SIGPROF if _COUNTS_COMPUTING else None


class WorkerError(EvaluationError):
    """The worker did not start, or the machine is too busy: the message is not at fault."""


class OutOfTime(Exception):
    """The worker computed longer than one answer may take."""


class WorkerEnded(Exception):
    """The worker ended without an answer, most likely out of memory."""


@dataclass(eq=False)
class Worker:
    """Does one job, for all threads in turn; starts when needed, and again after it was ended.

    module: of `sandbox.inside`, with its `answer`. does, library: in words, for errors. seconds:
    most computing time of one answer. is_sealed: sealed as model-written code is, with an empty
    environment, where the kernel can. patience: longest wait for an answer.
    """

    module: str
    does: str
    library: str
    seconds: float
    memory_bytes: int
    is_sealed: bool = False
    patience: float = PATIENCE
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the worker's answer.

        Raises: OutOfTime; WorkerEnded; WorkerError, a whole sentence.
        """
        with self._lock:
            return self._exchange(json.dumps(message, default=str))

    def _exchange(self, line: str) -> dict[str, Any]:
        process = self._running()
        try:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except OSError:
            self.close()
            raise WorkerEnded from None
        answer, is_late = _read_line(process, self.patience if _COUNTS_COMPUTING else self.seconds)
        if answer is not None:
            return answer
        self.close()
        if process.returncode == _OUT_OF_TIME or (is_late and not _COUNTS_COMPUTING):
            raise OutOfTime(f"it takes longer than {self.seconds:g} s")
        raise self._too_busy("gave no answer") if is_late else WorkerEnded()

    def _too_busy(self, what: str) -> WorkerError:
        return WorkerError(
            f"The process that {self.does} {what} within {self.patience:g} s: this machine is "
            "too busy. Run the same again when it is free."
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        order = {"seconds": self.seconds, "memory_bytes": self.memory_bytes, "is_sealed": False}
        if self.is_sealed:
            order |= {"is_sealed": True, "open_files": OPEN_FILES, "file_bytes": 0}
            # Over the worker's lifetime; each answer is limited by a timer.
            order["cpu_seconds"] = 10**6
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(FOLDER), self.module, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={} if self.is_sealed and os.name == "posix" else None,
        )
        answer, is_late = _read_line(process, self.patience)
        if answer is None:
            self.close()
            if is_late:
                raise self._too_busy("did not start")
            raise WorkerError(
                f"The process that {self.does} ended while it started (status "
                f"{process.returncode}). Check that `import {self.library}` works here; if it "
                "fails, install it again."
            )
        return process

    def close(self) -> None:
        """End the process; the next message starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with contextlib.suppress(OSError):  # unwritten output
                pipe.close()


def _read_line(
    process: subprocess.Popen[str], seconds: float
) -> tuple[dict[str, Any] | None, bool]:
    """Return the next line (None when the process ended), and whether it was out of time."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    # Only killing the process ends a read on every system.
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        timer.cancel()
    return (json.loads(line) if line else None), is_late.is_set()
