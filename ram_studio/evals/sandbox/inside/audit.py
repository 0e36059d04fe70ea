"""The fallback for kernels that do not seal: Python refuses network, processes and files.

An audit hook sees calls of Python code, not of native code (ctypes).
"""

import os
import sys
from collections.abc import Iterable

from .files import rules
from .syscalls import EPERM

REFUSED = {
    *("os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.kill", "os.killpg"),
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"),
    *("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr"),
    *("os.putenv", "os.chflags", "pty.spawn", "resource.prlimit", "resource.setrlimit"),
    *("signal.pthread_kill", "fcntl.fcntl", "fcntl.flock", "fcntl.lockf"),
}
REFUSED_FAMILIES = (
    *("socket.", "subprocess.", "ctypes.", "shutil.", "tempfile."),
    *("os.exec", "os.spawn", "os.chown", "os.lchown"),
)
LISTING = {"os.listdir", "os.scandir", "os.chdir", "glob.glob"}


def refuse_in_python(folders: Iterable[str] = ()) -> None:
    """Install the hook, for good. folders: may be read besides."""
    readable = {os.path.realpath(path) for path, _ in rules(folders)}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    # Bound now: the program may replace attributes of modules.
    real, decode, parent, here = os.path.realpath, os.fsdecode, os.path.dirname, os.getcwd

    def is_readable(path: str) -> bool:
        while path not in readable and path != parent(path):
            path = parent(path)
        return path in readable

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in REFUSED or event.startswith(REFUSED_FAMILIES):
            raise PermissionError(EPERM, f"the sandbox does not allow {event}")
        if event == "open" or event in LISTING:
            given = arguments[0]
            if isinstance(given, int):
                return
            path = real(decode(given)) if isinstance(given, (str, bytes, os.PathLike)) else here()
            flags = arguments[2] if event == "open" else 0
            if (isinstance(flags, int) and flags & writing) or not is_readable(path):
                raise PermissionError(EPERM, f"the sandbox does not allow {event} of {path}")

    sys.addaudithook(hook)
