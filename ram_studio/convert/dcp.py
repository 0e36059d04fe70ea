"""torch's distributed checkpoints (DCP): ``.metadata`` has the place of each part of a tensor.

Megatron's ``torch_dist`` checkpoints are of this kind. Each part in a ``.distcp`` file is a
separate archive of torch.save.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ram_studio.checkpoints.read.describe import printable, quoted, shown_list
from ram_studio.checkpoints.read.json_files import read_bounded
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.virtual.distributed import Box, join_boxes
from ram_studio.convert.names import Keys, choose_names
from ram_studio.convert.sealed import MOST_PICKLE_BYTES, describe_pickles
from ram_studio.convert.torch_files import DTYPES, TorchFile, open_torch_file
from ram_studio.errors import CheckpointError

METADATA = ".metadata"


def read_dcp(folder: Path, key: str | None, at: str) -> tuple[dict[str, TensorInfo], list[str]]:
    """Return the model's tensors by name, and the names of other stored objects.

    Raises: CheckpointError when the folder is damaged or not complete; SettingsError as
    `choose_names`.
    """
    data = read_bounded(folder / METADATA, "", limit=MOST_PICKLE_BYTES)
    [metadata] = describe_pickles("metadata", [data], f"{at}/{METADATA}")
    tensors: dict[str, Any] = metadata["tensors"]
    keys: dict[Keys, str] = {tuple(metadata["keys"].get(name) or (name,)): name for name in tensors}
    names = {keys[path]: name for path, name in choose_names(keys.keys(), key, at).items()}
    boxes = _boxes(folder, [p for p in metadata["places"] if p[0] in names], at)
    found = {}
    for stored, name in names.items():
        where = f"{at}: tensor {quoted(stored)}"
        parts = boxes.get(stored)
        shape = tuple(tensors[stored]["shape"])
        if not parts:
            raise CheckpointError(f"{where} has no part in any file; save the checkpoint again.")
        whole = join_boxes(parts, where)
        dtype = DTYPES.get(tensors[stored]["dtype"])
        if (whole.shape, whole.dtype) != (shape, dtype):
            raise CheckpointError(
                f"{where} is {dtype} of shape {list(shape)} by {METADATA}, its parts make "
                f"{whole.dtype} of {list(whole.shape)}; the folder has files of another save."
            )
        found[name] = whole.renamed(name)
    return found, sorted(metadata["others"])


def _boxes(folder: Path, places: list[Any], at: str) -> dict[str, list[Box]]:
    """Return the parts of tensors by their stored names."""
    there = {path.name for path in folder.iterdir()}
    lost = sorted({file for _, _, file, _, _ in places} - there)
    if lost:
        raise CheckpointError(
            f"{at} lacks {shown_list(lost, show=printable)}, which {METADATA} names; copy the files"
            " of all ranks."
        )
    archives: list[TorchFile] = []
    for name, _, file, begin, length in places:
        where = f"{at}/{printable(file)}, part of {quoted(name)}"
        archives.append(open_torch_file(folder / file, where, (begin, length)))
    described = describe_pickles("torch", [archive.pickle for archive in archives], at)
    boxes: dict[str, list[Box]] = {}
    for (name, offsets, *_), archive, parts in zip(places, archives, described, strict=True):
        if len(parts) != 1 or parts[0][0] or "key" not in parts[0][1]:
            raise CheckpointError(f"{at}: a part of {quoted(name)} is not one tensor.")
        info = archive.tensor(name, parts[0][1], at)
        boxes.setdefault(name, []).append(Box(info, tuple(offsets), info.shape))
    return boxes
