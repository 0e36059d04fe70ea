"""Chat templates of models, rendered where they can be ended.

A chat template comes with a model and is a program: nested loops in it run for ever, a repeated
string fills the memory. transformers renders it (in Jinja's sandbox: it reaches no file), in a
worker process with a limit on time, memory and output. One worker serves all models of a process;
it starts with the first template and takes some 0.1 ms a prompt from then on.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError

SECONDS = 5.0
"""Longest time for one prompt."""

MEMORY_BYTES = 1_000_000_000
MOST_CHARACTERS = 8_000_000
_START_SECONDS = 120.0
_WORKER = Path(__file__).with_name("chat_template_worker.py")


class TemplateRenderer:
    """Renders templates in one worker, which is started when needed and ended when it hangs."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
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

        Args:
            tools: as JSON schemas, for a template that knows about tools.
            special: the tokenizer's special tokens by name.

        Raises: EvaluationError with the reason, to be put after "The chat template of ... fails:".
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
        start = time.monotonic()
        answer = self._read(worker, self._seconds)
        if answer is not None:
            return answer
        self.close()
        if time.monotonic() - start < self._seconds:
            raise EvaluationError("the process that renders it ended, probably out of memory")
        raise EvaluationError(f"it takes longer than {self._seconds:g} s for one prompt")

    def _running(self) -> subprocess.Popen[str]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        limits = {
            "seconds": self._seconds,
            "memory_bytes": MEMORY_BYTES,
            "characters": MOST_CHARACTERS,
        }
        self._worker = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        if self._read(self._worker, _START_SECONDS) is None:
            self.close()
            raise EvaluationError("the process that renders it did not start")
        return self._worker

    @staticmethod
    def _read(worker: subprocess.Popen[str], seconds: float) -> dict[str, Any] | None:
        """Return the worker's next line, None when there is none in time; it may have ended."""
        # Killing it is what ends a read on every system.
        timer = threading.Timer(seconds, worker.kill)
        timer.daemon = True
        timer.start()
        try:
            assert worker.stdout is not None
            line = worker.stdout.readline()
        finally:
            timer.cancel()
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the worker; the next template starts another."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # what was not written any more
                continue


RENDERER = TemplateRenderer()
"""The worker of this process."""
