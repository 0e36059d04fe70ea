"""Faults at chosen system calls of a merge: the n-th write fails, is torn, or is the last one.

`FaultPoint` counts every call of this process that changes something below a folder. As a script
this file is a server for faults that end a process: it imports and warms up once, then forks a
process per line on its input, so that a kill costs a merge and no start of Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

BY_PATH = ("open", "mkdir", "rename", "replace", "link")
BY_HANDLE = ("pwrite", "write", "pwritev", "posix_fallocate", "ftruncate", "fsync", "fdatasync")
TORN = ("pwrite", "write")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FaultPoint:
    """Lets the call number `at` end in `act`, torn in the middle where it writes bytes.

    Attributes:
        seen: the calls so far, as (function, file name).
    """

    def __init__(self, folder: str | os.PathLike, at: int | None, act: Callable[[], Any]) -> None:
        self.seen: list[tuple[str, str]] = []
        self._folder = os.fspath(folder)
        self._at = at
        self._act = act
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def installed(self) -> Iterator[FaultPoint]:
        """Stand between the process and the system while the block runs."""
        originals = {name: getattr(os, name) for name in (*BY_PATH, *BY_HANDLE, "close")}
        write_bytes = pathlib.Path.write_bytes
        for name in BY_PATH:
            setattr(os, name, self._by_path(name, originals[name]))
        for name in BY_HANDLE:
            setattr(os, name, self._by_handle(name, originals[name]))
        os.close = self._close(originals["close"])

        def torn_write_bytes(path: pathlib.Path, data: bytes) -> int:
            if self._is_ours(path) and self._is_now("write_bytes", path):
                write_bytes(path, data[: len(data) // 2])
                self._act()
            return write_bytes(path, data)

        pathlib.Path.write_bytes = torn_write_bytes
        try:
            yield self
        finally:
            pathlib.Path.write_bytes = write_bytes
            for name, original in originals.items():
                setattr(os, name, original)

    def _is_ours(self, path: Any) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        return os.path.abspath(os.fspath(path)).startswith(self._folder)

    def _is_now(self, call: str, path: Any) -> bool:
        with self._lock:
            self.seen.append((call, os.path.basename(os.fspath(path))))
            return len(self.seen) - 1 == self._at

    def _by_path(self, name: str, original: Callable) -> Callable:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            is_read = name == "open" and not (args[0] if args else 0) & _WRITING
            if is_read or not self._is_ours(path):
                result = original(path, *args, **options)
                if name == "open" and self._is_ours(path):
                    self._paths[result] = os.fspath(path)  # folders and files to be flushed
                return result
            if self._is_now(name, path):
                self._act()
            result = original(path, *args, **options)
            if name == "open":
                self._paths[result] = os.fspath(path)
            return result

        return call

    def _by_handle(self, name: str, original: Callable) -> Callable:
        def call(handle: int, *args: Any) -> Any:
            if handle in self._paths and self._is_now(name, self._paths[handle]):
                if name in TORN:
                    data = memoryview(args[0])
                    original(handle, data[: len(data) // 2], *args[1:])
                self._act()
            return original(handle, *args)

        return call

    def _close(self, original: Callable) -> Callable:
        def call(handle: int) -> None:
            self._paths.pop(handle, None)
            original(handle)

        return call


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run(order: dict[str, Any]) -> int:
    """Merge in this process with a fault; return the exit code the command line would give."""
    from ram_studio.checkpoints.record.recipe import make_recipe
    from ram_studio.cli.main import _stop
    from ram_studio.engine.merge import merge
    from ram_studio.errors import RamStudioError, Stopped

    signal.signal(signal.SIGTERM, _stop)
    act: Callable[[], Any] = _kill
    if order["fault"] == "term":
        act = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    if order["fault"] == "limit":  # the kernel itself refuses, whatever function writes
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["at"], order["at"]))
        order["at"] = None
    point = FaultPoint(os.path.dirname(order["out"]), order["at"], act)
    try:
        with point.installed():
            merge(make_recipe(order["recipe"]), order["out"], **order["options"])
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 130
    except RamStudioError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _serve() -> None:
    # All is imported and compiled after a merge that ends well; threads that outlive it would be
    # missing after a fork.
    first = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        assert _run({**first, "fault": "none", "out": f"{folder}/out", "at": -1}) == 0
    assert threading.active_count() == 1
    print("ready", flush=True)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.dup2(writing, 2)
                code = _run(json.loads(line))
            finally:
                os._exit(code)
        os.close(writing)
        with open(reading, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), text]), flush=True)


if __name__ == "__main__":
    _serve()
