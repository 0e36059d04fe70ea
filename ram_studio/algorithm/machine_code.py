"""Kernels as machine code: compiled by numba once, kept on disk, called without numba.

Importing numba and letting it load what it compiled earlier takes half a second and 90 MB, more
than merging a small model. So the object code of each kernel is kept in a file of its own, which
llvmlite alone loads in a millisecond. numba is imported only where a kernel is not kept yet.

What is kept belongs to the sources of all kernels, the versions of numba and llvmlite, and the
processor; anything else is compiled anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from ram_studio.algorithm.processor import target_cpu

_SUFFIX = ".kernel"
_BYTE = ctypes.c_char
_RESULT_BYTES = 64
_lock = threading.RLock()

Kind = Any
"""What a kernel is compiled for: (dtype, dimensions) of an array, a dtype, or a tuple of kinds."""


class Kernel:
    """A function of a module of loops, compiled for each kind of arguments it is called with.

    Arguments are C-contiguous arrays, numbers, and tuples of them; results are numbers, truth
    values or tuples of numbers. The interpreter lock is released while it runs.

    Example:
        is_finite = Kernel("loop_kernels", "is_finite")
    """

    def __init__(self, module: str, name: str) -> None:
        self._module = f"{__package__}.{module}"
        self.__name__ = name
        self._loaded: dict[tuple[Kind, ...], Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def __call__(self, *args: Any) -> Any:
        """Run it on these arguments."""
        kinds = tuple(map(_kind, args))
        run = self._loaded.get(kinds)
        if run is None:
            run = self._load(kinds)
        return run(*args)

    def _load(self, kinds: tuple[Kind, ...]) -> Callable[..., Any]:
        with _lock:
            if kinds not in self._loaded:
                kept = _read(self._file_name(kinds))
                if kept is None:
                    kept = _compile(self._module, self.__name__, kinds)
                    _keep(self._file_name(kinds), kept)
                try:
                    self._loaded[kinds] = _bind(kept, kinds)
                except RuntimeError:  # this platform cannot: slower to start, the same results
                    self._loaded[kinds] = _through_numba(self._module, self.__name__)
            return self._loaded[kinds]

    def _file_name(self, kinds: tuple[Kind, ...]) -> str:
        text = repr((_circumstances(), self._module, kinds))
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return f"{self.__name__}-{digest}{_SUFFIX}"


def _kind(value: Any) -> Kind:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "kernels take contiguous arrays"
        return value.dtype.char, value.ndim
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    return np.dtype(type(value)).char


def _flat(args: tuple[Any, ...]) -> list[Any]:
    """Return arguments as numba passes them: an array is its record, a tuple its members."""
    found: list[Any] = []
    for value in args:
        if isinstance(value, np.ndarray):
            # What numpy offers takes three times as long, or reads the array's flags again.
            is_plain = value.flags.writeable and value.nbytes
            place = ctypes.addressof(_BYTE.from_buffer(value)) if is_plain else value.ctypes.data
            found += (None, None, value.size, value.itemsize, place)
            found += value.shape + value.strides
        elif isinstance(value, tuple):
            found += _flat(value)
        else:
            found.append(value.item() if isinstance(value, np.generic) else value)
    return found


def _types(kinds: tuple[Kind, ...]) -> Iterator[Any]:
    """Yield the C types of what ``_flat`` returns."""
    for kind in kinds:
        if isinstance(kind, str):
            yield np.ctypeslib.as_ctypes_type(np.dtype(kind))
        elif len(kind) == 2 and isinstance(kind[1], int):
            yield from (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
            yield ctypes.c_void_p
            yield from [ctypes.c_int64] * 2 * kind[1]
        else:
            yield from _types(kind)


def _compile(module: str, name: str, kinds: tuple[Kind, ...]) -> dict[str, Any]:
    """Return a kernel's object code, the name of its symbol and the format of its result."""
    import numba
    from numba import types

    from ram_studio.algorithm.numba_kernels import COMPILE_OPTIONS

    def numba_type(kind: Kind) -> Any:
        if isinstance(kind, str):
            return numba.from_dtype(np.dtype(kind))
        if len(kind) == 2 and isinstance(kind[1], int):
            return types.Array(numba.from_dtype(np.dtype(kind[0])), kind[1], "C")
        return types.Tuple(tuple(map(numba_type, kind)))

    function = getattr(importlib.import_module(module), name)
    dispatcher = numba.njit(**COMPILE_OPTIONS)(function)
    signature = tuple(map(numba_type, kinds))
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    code = llvm.parse_assembly(compiled.library.get_llvm_str())
    return {
        "symbol": compiled.fndesc.llvm_func_name,
        "result": _result_format(compiled.signature.return_type),
        "needs": [
            f.name for f in code.functions if f.is_declaration and not f.name.startswith("llvm.")
        ],
        "object": _target_machine().emit_object(code),
    }


def _result_format(kind: Any) -> str:
    """Return the ``struct`` format in which numba hands a result over."""
    formats = {"none": "", "bool": "?", "int64": "q", "float32": "f", "float64": "d"}
    return "".join(formats[str(part)] for part in (kind if hasattr(kind, "count") else (kind,)))


def _bind(kept: dict[str, Any], kinds: tuple[Kind, ...]) -> Callable[..., Any]:
    """Load object code and return what calls it.

    Raises: RuntimeError where it calls something that is not there, or LLVM cannot load it.
    """
    unknown = [name for name in kept["needs"] if not llvm.address_of_symbol(name)]
    if unknown:
        raise RuntimeError(f"{kept['symbol']} calls what is not there: {unknown}")
    # Each kernel gets an engine of its own: one that was finalized takes no further code.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(kept["object"]))
    engine.finalize_object()
    address = engine.get_function_address(kept["symbol"])
    pointer = ctypes.c_void_p
    call = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *_types(kinds))(address)
    result = struct.Struct("@" + kept["result"])
    is_single = len(kept["result"]) == 1

    def run(*args: Any, engine: llvm.ExecutionEngine = engine) -> Any:  # which owns the code
        place = ctypes.create_string_buffer(_RESULT_BYTES)
        status = call(place, None, *_flat(args))
        assert status == 0, "kernels raise nothing"
        found = result.unpack_from(place)
        return found[0] if is_single else found or None

    return run


def _through_numba(module: str, name: str) -> Callable[..., Any]:
    """Return a kernel as numba itself calls it."""
    import numba

    function = getattr(importlib.import_module(module), name)
    return numba.njit(nogil=True, error_model="numpy")(function)


def _target_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = target_cpu()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


@cache
def _circumstances() -> tuple[str, ...]:
    """Return everything that machine code depends on beside the kernel's own arguments."""
    found = importlib.util.find_spec("numba")
    assert found is not None, "numba is a dependency"
    assert found.origin is not None, "numba is a package with files"
    changed = Path(found.origin).with_name("_version.py").stat().st_mtime_ns
    return (
        sources_digest(Path(__file__).parent),
        str(changed),
        llvmlite.__version__,
        os.environ.get("NUMBA_OPT", ""),
        *target_cpu(),
    )


@cache
def sources_digest(folder: Path) -> str:
    """Return a digest of every file that kernels may be written in."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _folders() -> list[Path]:
    """Return where kernels are kept: the first that can be written."""
    asked = os.environ.get("NUMBA_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    beside = Path(__file__).parent / "__pycache__"
    return [Path(asked) if asked else beside, Path(user) / "ram-studio" / "kernels"]


def _read(name: str) -> dict[str, Any] | None:
    """Return a kept kernel, None where it is missing or damaged."""
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError, KeyError):
            head, code = (folder / name).read_bytes().split(b"\n", 1)
            kept = json.loads(head)
            if kept.pop("digest") == _digest(code):
                return {**kept, "object": code}
    return None


def _keep(name: str, kernel: dict[str, Any]) -> None:
    """Write a kernel where the next start finds it; not being able to is no error."""
    code = kernel["object"]
    head = {key: value for key, value in kernel.items() if key != "object"}
    text = json.dumps({**head, "digest": _digest(code)}).encode() + b"\n" + code
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(suffix=_SUFFIX, dir=folder)
            try:
                with open(handle, "wb") as file:
                    file.write(text)
                os.replace(temporary, folder / name)
            except OSError:
                os.unlink(temporary)
                raise
            return


def _digest(code: bytes) -> str:
    return hashlib.blake2b(code, digest_size=16).hexdigest()
