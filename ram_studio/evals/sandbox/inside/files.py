"""The files that a sealed program may read: Landlock, the kernel's access control for paths."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_DIR, WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
INSTALLED = ("site-packages", "dist-packages")


def rules(readable: Iterable[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield (path, rights): Python's own library, shared libraries, time zones, /dev/null.

    Args:
        readable: further folders that may be read.

    Installed packages cannot be read, as this one contains the answers to its questions. The names
    in these folders can be listed, no more.
    """
    for folder in readable:
        yield os.path.realpath(folder), READ_FILE | READ_DIR
    version = "python{}.{}".format(*sys.version_info)
    homes = {os.path.dirname(os.__file__), os.path.join(sys.base_prefix, sys.platlibdir, version)}
    for library in {os.path.realpath(home) for home in homes}:
        yield library, READ_DIR
        for name in _names(library):
            if name not in INSTALLED:
                yield os.path.join(library, name), READ_FILE
    for folder in shared_library_folders():
        names = _names(folder)
        if not any(name.startswith("python") for name in names):
            yield folder, READ_FILE | READ_DIR
            continue
        for name in names:
            if ".so" in name:
                yield os.path.join(folder, name), READ_FILE
    for path in ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom"):
        yield path, READ_FILE | READ_DIR
    yield "/dev/null", READ_FILE | WRITE_FILE


def shared_library_folders() -> set[str]:
    """Return the folders of the system's and Python's shared libraries, links resolved."""
    kind = getattr(sys.implementation, "_multiarch", "")
    roots = [os.path.join(root, name) for root in ("/", "/usr") for name in ("lib", "lib64")]
    roots += [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
    folders = [*roots, *(os.path.join(root, kind) for root in roots)]
    return {os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def restrict_files(libc: ctypes.CDLL, readable: Iterable[str]) -> bool:
    """Allow reading as in `rules`, and no writing; True if the kernel enforces it."""
    call = libc.syscall
    call.restype = ctypes.c_long
    version = call(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # Every right the kernel knows is handled, so it is refused unless a rule grants it. Newer
    # kernels also handle TCP (bind, connect), signals and local sockets.
    known = 13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16
    asked = [(1 << known) - 1, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    attributes = struct.pack(f"={len(asked)}Q", *asked)
    text = ctypes.c_char_p(attributes)
    ruleset = call(LANDLOCK_CREATE_RULESET, text, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for path, rights in rules(readable):
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not os.path.isdir(path):
            rights &= ~READ_DIR
        call(LANDLOCK_ADD_RULE, ruleset, 1, ctypes.c_char_p(struct.pack("=Qi", rights, place)), 0)
        os.close(place)
    done = call(LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return done
