"""Versions of what computed a merge, for its passport."""

from __future__ import annotations

import importlib.metadata
import platform

_ALWAYS = ("numpy", "numba", "llvmlite", "blake3")


def library_versions(*, with_torch: bool = False, with_triton: bool = False) -> dict[str, str]:
    """Return name -> version of Python and of the libraries that the numbers depend on.

    Args:
        with_torch: the method's kernels are torch's.
        with_triton: they are Triton's (which also uses torch).
    """
    names = [*_ALWAYS, *["torch"] * (with_torch or with_triton), *["triton"] * with_triton]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
