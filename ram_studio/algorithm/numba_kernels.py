"""How kernels are compiled: by numba, to machine code kept on disk for the next start.

numba keeps a compiled function until the file it is written in changes. Kernels here are built of
functions from several files, so what is kept is tied to the sources of the whole package of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from ram_studio.algorithm.machine_code import sources_digest

COMPILE_OPTIONS = {
    "nogil": True,
    # Without the Python error model's zero-division branches LLVM can turn every `if` into a
    # select, and so vectorise.
    "error_model": "numpy",
    # Loops that ``machine_code`` calls: from machine code alone, and without reference counts.
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}


def loop_part(function: Callable | None = None, **options: Any) -> Any:
    """Make a function callable from the loops that ``machine_code`` compiles; a decorator."""
    if function is None:
        return lambda function: loop_part(function, **options)
    return njit(**COMPILE_OPTIONS, **options)(function)


def numba_kernel(function: Callable | None = None, **options: Any) -> Any:
    """Compile a function at its first call with each kind of arguments; a decorator.

    The interpreter lock is released while it runs. Options are those of numba's ``njit``.
    """
    if function is None:
        return lambda function: numba_kernel(function, **options)
    # Without the Python error model's zero-division branches LLVM can turn every `if` into a
    # select, and so vectorise.
    compiled = njit(nogil=True, error_model="numpy", cache=True, **options)(function)
    # Not a part of numba's interface: where it is missing, the file's own stamp has to do.
    kept = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = (kept._source_stamp, sources_digest(Path(__file__).parent))
    return compiled
