"""Commands and a running app away from the clone, so that only an installed package is met."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0


def run(*command: str | Path, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command away from the clone and return it, with both streams in stdout on failure."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=outside_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def outside_environment() -> dict[str, str]:
    """Return this environment without what would let a child import the clone."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


@dataclass(frozen=True)
class Installation:
    """A virtual environment with ram_studio from the wheel, and a folder to work in."""

    bin: Path
    work: Path

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def command(self) -> Path:
        return self.bin / "ram-studio"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def running_app(installation: Installation) -> Iterator[str]:
    """Run `ram-studio app` until the block ends; yield its address once it answers with 200.

    What the app printed is kept in the working folder and added to an error of the block.
    """
    port = free_port()
    log = installation.work / f"app-{port}.log"
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [str(installation.command), "app", "--port", str(port)],
            cwd=installation.work,
            env=outside_environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait_until_it_answers(address, process)
            yield address
        except BaseException as error:
            error.add_note(f"The app said:\n{log.read_text(encoding='utf-8')}")
            raise
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_it_answers(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "the app ended"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"no answer in {START_SECONDS} s")
