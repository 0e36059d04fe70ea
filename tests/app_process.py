"""An app in a process of its own, from the clone or from an installed wheel."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

START_SECONDS = 280.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def running_app(
    command: Sequence[str | Path],
    folder: Path,
    environment: Mapping[str, str],
    ending: signal.Signals = signal.SIGTERM,
    on_start: Callable[[int], object] = lambda pid: None,
) -> Iterator[str]:
    """Run a command on a free port, with a folder as its own; yield the address once it answers.

    The signal `ending` ends it. What it printed is in `app.log` of the folder, and added to an
    error. on_start: called with the process's id.
    """
    port = free_port()
    log, address = folder / "app.log", f"http://127.0.0.1:{port}/"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            env={**environment, "GRADIO_SERVER_PORT": str(port)},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        on_start(process.pid)
        deadline = time.monotonic() + START_SECONDS
        while not _answers(address):
            assert process.poll() is None, "the app ended"
            assert time.monotonic() < deadline, f"no answer in {START_SECONDS} s"
            time.sleep(0.2)
        yield address
    except BaseException as error:
        error.add_note(f"The app said:\n{log.read_text(encoding='utf-8')}")
        raise
    finally:
        process.send_signal(ending)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
