"""Files of torch.save: zip archives with one pickle and the tensors' uncompressed bytes.

The archive's directory is read here; ``sealed`` returns the pickle's description of the tensors.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import printable, quoted
from ram_studio.checkpoints.read.tensors import DTYPE_BITS, TensorInfo, element_count
from ram_studio.convert.sealed import MOST_PICKLE_BYTES
from ram_studio.errors import CheckpointError, raise_as

_NAMES = {
    "F64": "float64 double DoubleStorage",
    "F32": "float32 float FloatStorage",
    "F16": "float16 half HalfStorage",
    "BF16": "bfloat16 BFloat16Storage",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "BOOL": "bool BoolStorage",
    "U8": "uint8 ByteStorage",
    "I8": "int8 CharStorage",
    "U16": "uint16",
    "I16": "int16 short ShortStorage",
    "U32": "uint32",
    "I32": "int32 int IntStorage",
    "U64": "uint64",
    "I64": "int64 long LongStorage",
}
DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names.split()}
"""torch's name of a dtype or storage -> safetensors' name of the dtype."""
_LOCAL_HEADER = 30
_MOST_ENTRIES = 1_000_000


@dataclass(frozen=True)
class TorchFile:
    """The directory of an archive of torch.save.

    Attributes:
        path: its file.
        pickle: the bytes that describe its tensors.
        storages: by key: start and number of the bytes in the file.
    """

    path: Path
    pickle: bytes
    storages: dict[str, tuple[int, int]]

    def tensor(self, name: str, stored: Mapping[str, Any], at: str) -> TensorInfo:
        """Return the tensor of a description (see ``inside``).

        Raises: CheckpointError when it does not fit the archive, or is not stored row by row.
        """
        dtype = DTYPES.get(stored["dtype"])
        shape = tuple(stored["shape"])
        if dtype is None or stored["key"] not in self.storages:
            raise CheckpointError(
                f"{at}: tensor {quoted(name)} is of the dtype {printable(stored['dtype'])}, or its "
                "bytes are not in the file; save the model again."
            )
        begin, size = self.storages[stored["key"]]
        width = DTYPE_BITS[dtype] // 8
        nbytes = element_count(shape) * width
        first = stored["start"] * width
        if min((stored["start"], *shape), default=0) < 0 or first + nbytes > size:
            raise CheckpointError(
                f"{at}: tensor {quoted(name)} of shape {list(shape)} does not fit the {size} bytes "
                "that are stored for it; the file is damaged, copy it again."
            )
        if not _is_by_rows(shape, stored["stride"]):
            raise CheckpointError(
                f"{at}: tensor {quoted(name)} is not stored row by row; save it with .contiguous()."
            )
        return TensorInfo(name, dtype, shape, self.path, begin + first, nbytes)


def open_torch_file(path: Path, at: str, span: tuple[int, int] | None = None) -> TorchFile:
    """Return the archive of a file, or of its part in a span (begin, bytes).

    Raises: CheckpointError when it is not an archive, or cannot be read.
    """
    with raise_as(CheckpointError, f"{at} cannot be read"), open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        begin, length = span or (0, size)
        if min(begin, length) < 0 or begin + length > size:
            raise CheckpointError(
                f"{at} is cut short: it has {size} bytes, expected {begin + length}; copy it again."
            )
        try:
            return _parse_archive(path, at, file.fileno(), begin, length)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            raise CheckpointError(
                f"{at} is not a torch.save file of torch 1.6 or newer, or is cut short "
                f"({printable(error)}); copy it again, or save it again with a newer torch."
            ) from error


def _parse_archive(path: Path, at: str, handle: int, begin: int, length: int) -> TorchFile:
    with zipfile.ZipFile(io.BufferedReader(_Slice(handle, begin, length))) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1 or len(entries) > _MOST_ENTRIES:
            raise CheckpointError(
                f"{at} is an archive, but not one of torch.save: it has {len(pickles)} files "
                "called data.pkl, expected 1."
            )
        # torch.save never does this, and zipfile raises many kinds of errors for it.
        if any(e.compress_type != zipfile.ZIP_STORED or e.flag_bits & 1 for e in entries.values()):
            raise CheckpointError(
                f"{at} is compressed or encrypted; save it again with torch.save."
            )
        top = pickles[0].removesuffix("data.pkl")
        if entries[pickles[0]].file_size > MOST_PICKLE_BYTES:
            raise CheckpointError(f"{at} has a pickle of more than {MOST_PICKLE_BYTES} bytes.")
        order = entries.get(f"{top}byteorder")
        if order is not None and (order.file_size > 16 or archive.read(order) != b"little"):
            raise CheckpointError(
                f"{at} was written with the other byte order; save it on a machine like this."
            )
        storages = {}
        for name, entry in entries.items():
            if not name.startswith(f"{top}data/"):
                continue
            head = os.pread(handle, _LOCAL_HEADER, begin + entry.header_offset)
            # A file's own head has the lengths of its name and its extra field.
            rest = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            start = entry.header_offset + _LOCAL_HEADER + rest
            if start + entry.file_size > length:
                raise CheckpointError(f"{at} is cut short inside {quoted(name)}; copy it again.")
            storages[name.removeprefix(f"{top}data/")] = (begin + start, entry.file_size)
        return TorchFile(path, archive.read(pickles[0]), storages)


def _is_by_rows(shape: tuple[int, ...], stride: list[int]) -> bool:
    if len(stride) != len(shape):
        return False
    step = 1
    for size, found in zip(reversed(shape), reversed(stride), strict=True):
        if size > 1 and found != step:
            return 0 in shape
        step *= size
    return True


class _Slice(io.RawIOBase):
    """Some bytes of an open file as a file."""

    def __init__(self, handle: int, begin: int, length: int) -> None:
        self._handle, self._begin, self._length, self._at = handle, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if origin + offset < 0:
            raise ValueError("a place before the beginning")
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        data = os.pread(self._handle, count, self._begin + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
