"""Compiling loops, and keeping what was compiled for the next start."""

from __future__ import annotations

import hashlib
import logging
import pickle
from importlib import resources

from numba import njit
from numba.core import caching
from numba.np import linalg

_SOURCES = hashlib.sha256(
    b"".join(
        file.read_bytes()
        for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    )
).hexdigest()

_logged_errors: list[str] = []


class _Index(caching.IndexDataCacheFile):
    """An index of compiled code; one that cannot be read, as of types renamed since, is empty."""

    def _load_index(self):
        try:
            return super()._load_index()
        except (AttributeError, ImportError, EOFError, pickle.UnpicklingError):
            return {}


class _CodeCache(caching.FunctionCache):
    """Compiled code of a loop, kept until any file of this folder changes.

    numba keeps it until the file of that loop changes, and would not see an edit of another loop
    that it calls.
    """

    def __init__(self, function):
        super().__init__(function)
        self._cache_file = _Index(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=_SOURCES,
        )


def loop(function=None, **options):
    """Compile a function where it is first called, and keep the code for the next start.

    Loops whose names begin with _ are called by other loops alone: an entry from Python would take
    a fourth of the time to compile them. None is called from C.
    """
    if function is None:
        return lambda function: loop(function, **options)
    entries = {
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": function.__name__.startswith("_"),
    }
    compiled = njit(nogil=True, error_model="numpy", **entries, **options)(function)
    try:
        compiled._cache = _CodeCache(function)  # what njit(cache=True) does, with numba's own
    except RuntimeError as error:  # no folder to write to: neither the package's nor the user's
        if not _logged_errors:
            _logged_errors.append(str(error))
            logging.getLogger(__name__).warning(
                "Compiled loops cannot be kept (%s): each start compiles them anew, in seconds. "
                "Set NUMBA_CACHE_DIR to a folder that can be written.",
                error,
            )
    return compiled


def _import_without_blas():
    """Import numba's array functions without scipy's BLAS: a quarter of a second for nothing here.

    numba looks for it as it starts, only to choose how ``np.cov`` multiplies; functions that call
    BLAS look for it once more when they are compiled.
    """

    def absent():
        raise ImportError

    found = linalg.ensure_blas
    linalg.ensure_blas = absent
    try:
        from numba.np import arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = found


if hasattr(linalg, "ensure_blas"):
    _import_without_blas()
