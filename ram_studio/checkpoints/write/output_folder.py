"""Where a merged checkpoint may go: refusals before any work, the lock, leftovers of killed runs.

The output folder appears by one rename of a temporary folder beside it. One lock file beside both,
held for the whole run, ensures that two runs never write to the same output, and that a
temporary folder found while holding it belongs to a dead run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ram_studio.checkpoints.read.describe import printable, shown_bytes
from ram_studio.errors import BusyError, OutputError, raise_as

# Space for config, tokenizer, card and provenance beside the shards.
SIDECAR_BYTES = 2**20

LONG_NAME_BYTES = 200
"""Disks allow 255, also for temporary names beside an output."""

NOTHING_LEFT = "Nothing was left behind."
"""End of messages about an output that is complete or not written at all."""


def check_output(
    out: str | Path, *, needed_bytes: int, sources: Sequence[Path] = (), may_exist: bool = False
) -> None:
    """Check that a checkpoint can be written to `out`.

    Args:
        out: a folder that does not exist yet, or an empty one.
        needed_bytes: bytes of all files to be written.
        sources: folders that are read meanwhile; the output must not be inside one of them.
        may_exist: whether it may already exist and not be empty.

    Raises: OutputError when it exists, is inside a source, its parent is not writable, or the
    disk is too small (both numbers are in the message). Nothing has been written then.
    """
    out = absolute(out)
    what = f"{printable(out)} cannot be used for the output"
    with raise_as(OutputError, what, "choose another folder"):
        if not may_exist:
            _refuse_existing(out)
        for source in sources:
            if out.resolve().is_relative_to(source.resolve()):
                raise OutputError(
                    f"{printable(out)} is inside {printable(source)}, which is a source; "
                    "choose a folder outside of it."
                )
        parent = _writable_parent(out)
        free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise OutputError(
            f"{printable(out)} needs {shown_bytes(needed_bytes)}, {printable(parent)} has "
            f"{shown_bytes(free)} free ({needed_bytes} and {free} bytes); free "
            f"{shown_bytes(needed_bytes - free)} or choose another disk."
        )


def check_file(path: str | Path) -> None:
    """Check that a file can be written to `path`, before the work for its content.

    Raises: OutputError.
    """
    path = absolute(path)
    with raise_as(OutputError, f"{printable(path)} cannot be written", "choose another place"):
        if path.is_dir():
            raise OutputError(f"{printable(path)} is a folder; name a file in it.")
        _writable_parent(path)


def _writable_parent(out: Path) -> Path:
    parent = _folder_above(out)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(
            f"{printable(parent)} is not writable; choose another folder for the output, or "
            "change its permissions."
        )
    return parent


def _folder_above(out: Path) -> Path:
    """Return the closest parent of `out` that exists.

    Raises: NotADirectoryError where that is a file, or a broken link.
    """
    found = (parent for parent in out.parents if parent.exists() or parent.is_symlink())
    parent = next(found, out.parents[-1])
    if not parent.is_dir():
        reason = f"{printable(parent)} is not a folder"
        raise NotADirectoryError(errno.ENOTDIR, reason, str(parent))
    return parent


def _refuse_existing(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise OutputError(
            f"{printable(out)} exists and is not a folder; choose a folder that does not exist yet."
        )
    if out.is_dir() and any(out.iterdir()):
        raise OutputError(
            f"{printable(out)} exists and is not empty; choose another folder, or remove this one "
            "first."
        )
    if out.is_dir() and os.path.ismount(out):
        raise OutputError(
            f"{printable(out)} is a mount point, which cannot be replaced in one step; choose a "
            "new folder inside it."
        )


def absolute(out: str | Path) -> Path:
    """Return an output as an absolute path; links are not followed.

    Raises: OutputError for the folder of an unknown user, and for an empty or invalid path.
    """
    found = os.path.expanduser(out)
    if not found:
        raise OutputError("The output is an empty path; give the name of a folder or a file.")
    if "\0" in found or found.startswith("~"):
        what = "not a path" if "\0" in found else "in the folder of a user that does not exist"
        raise OutputError(f"{printable(out)} is {what}; choose another output.")
    return Path(os.path.abspath(found))


def hidden_name(name: str, end: str) -> str:
    """Return the name `.NAME.END` of a temporary file beside an output while it is written.

    A long name is replaced by its hash.
    """
    encoded = os.fsencode(name)
    stem = name if len(encoded) <= LONG_NAME_BYTES else hashlib.sha256(encoded).hexdigest()[:32]
    return f".{stem}.{end}"


def nearest_folder(out: Path) -> Path:
    """Return the closest parent of `out` that exists."""
    return next((parent for parent in out.parents if parent.exists()), out.parents[-1])


@contextlib.contextmanager
def reserved(out: Path) -> Iterator[Path]:
    """Hold the lock of `out` and yield a new temporary folder beside it, removed at the end.

    Temporary folders that killed runs left for the same output are removed first. Parents of `out`
    are created, and removed again when the block leaves them empty.

    Raises: OutputError when another live run holds the lock, or a folder cannot be created.
    """
    with contextlib.ExitStack() as undo:
        with plain_words(f"the folder {printable(out.parent)} cannot be prepared"):
            for folder in [parent for parent in out.parents if not parent.exists()][::-1]:
                folder.mkdir(exist_ok=True)
                undo.callback(_quietly, folder.rmdir)
            is_locked = _hold_lock(out, undo)
            if is_locked:
                _remove_leftovers(out)
            temporary = out.parent / hidden_name(out.name, f"partial-{secrets.token_hex(8)}")
            temporary.mkdir()
        # After finishing it has become the output, and this removes nothing.
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        yield temporary


def _hold_lock(out: Path, undo: contextlib.ExitStack) -> bool:
    """Take the lock file beside `out` until `undo` runs; False where the disk has no locks."""
    path = out.parent / hidden_name(out.name, "partial-lock")
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The run that held it may have removed the file between our open and our lock.
            if _is_same_file(path, handle):
                break
        except BlockingIOError:
            os.close(handle)
            raise BusyError(
                f"Another run is writing to {printable(out)} right now; wait for it or choose "
                "another folder."
            ) from None
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            _quietly(path.unlink)
            return False
        os.close(handle)
    undo.callback(os.close, handle)
    undo.callback(_quietly, path.unlink)
    return True


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _quietly(act: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        act()


def _remove_leftovers(out: Path) -> None:
    begin = glob.escape(hidden_name(out.name, "partial-"))
    for path in out.parent.glob(begin + "[0-9a-f]" * 16):
        if not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def whole_file(path: str | Path, *, flushed: bool = False, replaces: bool = True) -> Iterator[Path]:
    """Yield a temporary path for a file, which is then renamed: complete or not at all.

    Args: path: see ``absolute``; flushed: flush it to the disk before the rename; replaces: an
        existing file, else that is an error.

    Raises: OSError; OutputError for an invalid path.
    """
    if not Path(path).name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path = absolute(path)
    _folder_above(path)
    temporary = path.with_name(hidden_name(path.name, secrets.token_hex(4)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if flushed:
            flush(temporary)
        (os.replace if replaces else os.link)(temporary, path)
    finally:
        _quietly(temporary.unlink)


def write_whole(path: str | Path, data: bytes, *, flushed: bool = False) -> None:
    """Write some bytes as a ``whole_file``, replacing an older one. Raises: as that."""
    with whole_file(path, flushed=flushed) as temporary:
        temporary.write_bytes(data)


def flush(path: Path) -> None:
    """Flush a file's or folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def plain_words(what: str, left: str = NOTHING_LEFT) -> Iterator[None]:
    """Turn an operating system's error into an OutputError.

    Args: what: starts it; left: ends it, with the state of the output.
    """
    try:
        yield
    except OSError as error:
        reason = {
            errno.ENOSPC: "the disk is full; free some space",
            errno.EDQUOT: "the disk quota is used up; free some space",
            errno.EIO: "the disk reported an input/output error; check it or choose another",
            errno.EROFS: "the disk is read-only; choose another",
            errno.EMFILE: "no more files may be open at once; raise the limit (ulimit -n)",
        }.get(error.errno or 0, f"{error.strerror or error}; choose another folder")
        raise OutputError(f"{what[0].upper()}{what[1:]}: {reason} and run again. {left}") from error
