"""Compiles loops, and caches the code for the next start."""

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
    """An index of compiled code; one that cannot be read (types were renamed) counts as empty."""

    def _load_index(self):
        try:
            return super()._load_index()
        except (AttributeError, ImportError, EOFError, pickle.UnpicklingError):
            return {}


class _CodeCache(caching.FunctionCache):
    """Cached code of a loop, valid until any file of this folder changes.

    numba's own cache is valid until the file of that loop changes, and misses edits of other loops
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
    """Compile a function when it is first called, and cache the code for the next start.

    Loops whose names begin with _ are called by other loops only: an entry from Python would take
    a fourth of their compile time. None is called from C.
    """
    if function is None:
        return lambda function: loop(function, **options)
    entries = {
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": function.__name__.startswith("_"),
    }
    compiled = njit(nogil=True, error_model="numpy", **entries, **options)(function)
    try:
        compiled._cache = _CodeCache(function)  # as njit(cache=True) does with numba's own cache
    except RuntimeError as error:  # neither the package's nor the user's folder is writable
        if not _logged_errors:
            _logged_errors.append(str(error))
            logging.getLogger(__name__).warning(
                "Compiled loops cannot be cached (%s): each start compiles them again, in seconds. "
                "Set NUMBA_CACHE_DIR to a writable folder.",
                error,
            )
    return compiled


def _import_without_blas():
    """Import numba's array functions without scipy's BLAS, which takes 0.25 s and is not used.

    At import numba needs it only to choose how ``np.cov`` multiplies; functions that call BLAS
    search for it again when they are compiled.
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
