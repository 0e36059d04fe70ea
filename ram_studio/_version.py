"""The package version, written here and read everywhere else, and the commit of the code."""

import functools
import re
import subprocess
from pathlib import Path

__version__ = "0.2.0"

COMMIT_FILE = "_commit.txt"
"""Beside this file in a wheel that was built from a clone; hatch_build.py writes it."""


def find_commit(package: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the code (12 digits; `-dirty` after changes), None where none is known.

    package: the folder of the package.
    """
    written = package / COMMIT_FILE
    if written.is_file():
        found = written.read_text(encoding="utf-8").strip()
    elif (package.parent / ".git").exists():
        words = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*")
        try:
            done = subprocess.run(
                words, cwd=package, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = done.stdout.strip()
    else:
        return None
    return found if re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", found) else None


@functools.cache
def full_version() -> str:
    """Return the version with the commit where it is known: `0.2.0+g0123456789ab`."""
    commit = find_commit()
    return f"{__version__}+g{commit.replace('-', '.')}" if commit else __version__
