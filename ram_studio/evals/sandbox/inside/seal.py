"""Drop the rights of a process: each layer is tried separately, and the active ones are returned.

In order: resource limits; a network and IPC namespace of its own; no new privileges; Landlock; for
root another user, without any capability; the system-call filter. Where Landlock or the filter is
missing, an audit hook inside Python replaces them, and the process does not count as sealed.
"""

import ctypes
import os
import resource
import struct
import sys
from contextlib import suppress

from .audit import refuse_in_python
from .files import restrict_files
from .syscalls import TIMER, restrict_calls

CLONE_NEWUSER, CLONE_NEWIPC, CLONE_NEWNET = 0x10000000, 0x08000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 38
SIGKILL = 9
NOBODY = 65534
CAP_DAC_READ_SEARCH = 1 << 2


def seal(
    limits: dict[str, int], *, is_reused: bool = False, readable: tuple[str, ...] = ()
) -> dict[str, bool]:
    """Drop every right that can be dropped, for good; return which layers are active.

    Args:
        limits: "memory_bytes" of address space, "cpu_seconds", "file_bytes" per file, "open_files".
        is_reused: for trusted code that parses model output, message by message: it may set its own
            timers and outlives the thread that started it.
        readable: further folders of libraries that it may read.
    """
    layers = dict.fromkeys(("namespace", "privileges", "landlock", "user", "seccomp"), False)
    set_limits(limits)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        # Root needs no user namespace, and inside one it could not become another user.
        own = 0 if os.geteuid() == 0 else CLONE_NEWUSER
        layers["namespace"] = libc.unshare(own | CLONE_NEWNET | CLONE_NEWIPC) == 0
        layers["privileges"] = libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        layers["landlock"] = layers["privileges"] and restrict_files(libc, readable)
        layers["user"] = become_nobody(libc, layers["landlock"], readable)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        if not is_reused:
            libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        more = TIMER if is_reused else {}
        layers["seccomp"] = layers["privileges"] and restrict_calls(libc, more)
    if not (layers["landlock"] and layers["seccomp"]):
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        refuse_in_python(readable)
    return layers


def set_limits(limits: dict[str, int]) -> None:
    """Lower the soft and hard resource limits, so that none can be raised again."""
    for limit, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def become_nobody(libc: ctypes.CDLL, fenced: bool, readable: tuple[str, ...] = ()) -> bool:
    """Drop all capabilities and, as root, become another user; True if the user is not root.

    Where root's Python, or a `readable` folder, is inside a folder that only root may enter, the
    new user keeps the one capability of reading, which Landlock limits (`fenced`). Without Landlock
    it stays root, without any capability.
    """
    capability = 0
    if os.geteuid() == 0:
        with suppress(OSError):
            os.seteuid(NOBODY)
            needed = (os.__file__, *readable)
            can_read = all(os.access(path, os.R_OK, effective_ids=True) for path in needed)
            os.seteuid(0)
            if can_read or fenced:
                capability = 0 if can_read else CAP_DAC_READ_SEARCH
                libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
    # Version 3 of the call: two blocks of effective, permitted, inheritable.
    sets = struct.pack("=6I", capability, capability, 0, 0, 0, 0)
    libc.capset(ctypes.c_char_p(struct.pack("=Ii", 0x20080522, 0)), ctypes.c_char_p(sets))
    return 0 not in os.getresuid()
