"""Chat templates of models, rendered where they can be ended.

A chat template comes with a model and is a program: nested loops in it run for ever, a repeated
string fills the memory. transformers renders it (in Jinja's sandbox: it reaches no file), in a
worker process with a limit on its computing time, memory and output: a machine that is busy with
other things takes longer and makes no template a broken one. One worker serves all models of a
process; it starts with the first template and takes some 0.1 ms a prompt from then on.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError

SECONDS = 5.0
"""Longest computing time for one prompt."""

PATIENCE = 300.0
"""Longest wait for the worker to start or answer, whatever else the machine does."""

MEMORY_BYTES = 1_000_000_000
MOST_CHARACTERS = 8_000_000
# A system that does not count a process's computing has the clock on the wall.
_COUNTS_COMPUTING = hasattr(signal, "setitimer")
_OUT_OF_TIME = -signal.SIGPROF if _COUNTS_COMPUTING else None
_WORKER = Path(__file__).with_name("chat_template_worker.py")


class WorkerError(EvaluationError):
    """The worker did not come to render anything: no fault of the template."""


class TemplateRenderer:
    """Renders templates in one worker, which is started when needed and ended when it hangs.

    Args: seconds: of computing that a prompt may take. patience: longest wait for the worker.
    """

    def __init__(self, seconds: float = SECONDS, patience: float = PATIENCE) -> None:
        self._seconds, self.patience = seconds, patience
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, str]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt that a template makes of messages, ready for the model's answer.

        Args: tools: as JSON schemas, for a template that knows about tools. special: the
            tokenizer's special tokens by name.

        Raises: EvaluationError with the reason, to be put after "The chat template of ... fails:";
            WorkerError, a whole sentence, where the template was not come to.
        """
        asked = {
            "template": template,
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "special": dict(special or {}),
        }
        with self._lock:
            answer = self._ask(json.dumps(asked, default=str))
        if "text" not in answer:
            raise EvaluationError(" ".join(str(answer["error"]).split())[:200])
        return str(answer["text"])

    def _ask(self, line: str) -> dict[str, Any]:
        worker = self._running()
        try:
            assert worker.stdin is not None
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
        except OSError:
            self.close()
            raise EvaluationError("the process that renders it ended") from None
        answer, is_late = self._read(worker, self.patience if _COUNTS_COMPUTING else self._seconds)
        if answer is not None:
            return answer
        self.close()
        if worker.returncode == _OUT_OF_TIME or (is_late and not _COUNTS_COMPUTING):
            raise EvaluationError(f"it takes longer than {self._seconds:g} s for one prompt")
        if is_late:
            raise self._too_busy("rendered no prompt")
        raise EvaluationError("the process that renders it ended, probably out of memory")

    def _too_busy(self, what: str) -> WorkerError:
        return WorkerError(
            f"The process that renders chat templates {what} within {self.patience:g} s: this "
            "machine is too busy. Run the same again when it does less."
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        limits = {"seconds": self._seconds, "memory_bytes": MEMORY_BYTES}
        limits["characters"] = MOST_CHARACTERS
        self._worker = worker = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        answer, is_late = self._read(worker, self.patience)
        if answer is None:
            self.close()
            if is_late:
                raise self._too_busy("did not start")
            raise WorkerError(
                "The process that renders chat templates ended while it started (status "
                f"{worker.returncode}). Look whether `import transformers` works here, and install "
                "it again if it does not."
            )
        return worker

    @staticmethod
    def _read(worker: subprocess.Popen[str], seconds: float) -> tuple[dict[str, Any] | None, bool]:
        """Return the worker's next line, None when it ended, and whether it was out of time."""
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            worker.kill()

        # Killing it is what ends a read on every system.
        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            assert worker.stdout is not None
            line = worker.stdout.readline()
        finally:
            timer.cancel()
        return (json.loads(line) if line else None), is_late.is_set()

    def close(self) -> None:
        """End the worker; the next template starts another."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.kill()
        worker.wait()
        for pipe in filter(None, (worker.stdin, worker.stdout)):
            with contextlib.suppress(OSError):  # what was not written any more
                pipe.close()


RENDERER = TemplateRenderer()
"""The worker of this process."""
