"""The program of a sealed process: it describes the objects of pickles, and creates none of them.

Standard input is JSON: {"kind": "torch" | "metadata", "pickles": [base64, ...]}. Standard output is
JSON: {"found": [...]}, one description per pickle, or {"refused": why}. A pickle may name only the
classes in `ALLOWED`, and gets a `Record` for each, which does nothing: neither torch nor any other
library is imported. The process has no files and no network (``evals.sandbox``).
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, ClassVar

_DTYPES = (
    *("float64", "double", "float32", "float", "float16", "half", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bool"),
    *("uint8", "int8", "uint16", "int16", "short", "uint32", "int32", "int"),
    *("uint64", "int64", "long"),
)
_STORAGES = (
    *("DoubleStorage", "FloatStorage", "HalfStorage", "BFloat16Storage", "BoolStorage"),
    *("ByteStorage", "CharStorage", "ShortStorage", "IntStorage", "LongStorage", "UntypedStorage"),
)
_PLACEMENTS = ("Shard", "_StridedShard", "Replicate", "Partial", "_Partial")
_SPEC = ("DTensorSpec", "TensorMeta", "ShardOrderEntry")
_SHARDS = (
    *("ShardedTensor", "ShardedTensor.ProcessGroupState", "Shard"),
    *("ShardedTensorMetadata", "ShardMetadata", "TensorProperties"),
)
_DCP = (
    *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
    *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
)
_PLANS = ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData")
"""Megatron stores each rank's write plan in the metadata."""
ALLOWED = {
    "torch": ("Size", "device", *_DTYPES, *_STORAGES),
    "torch.storage": _STORAGES,
    "torch.serialization": ("_get_layout",),
    "torch.nn.parameter": ("Parameter", "Buffer"),
    "torch._tensor": ("_rebuild_from_type_v2",),
    "torch._utils": (
        *("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"),
        *("_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_wrapper_subclass"),
    ),
    "torch.distributed.tensor": ("DTensor",),
    "torch.distributed.tensor._api": ("DTensor",),
    "torch.distributed._tensor": ("DTensor",),
    "torch.distributed._tensor.api": ("DTensor",),
    "torch.distributed.tensor._dtensor_spec": _SPEC,
    "torch.distributed._tensor._dtensor_spec": _SPEC,
    "torch.distributed.tensor.placement_types": (*_PLACEMENTS, *_SPEC),
    "torch.distributed._tensor.placement_types": (*_PLACEMENTS, *_SPEC),
    "torch.distributed.device_mesh": ("DeviceMesh", "_MeshEnv", "_MeshLayout"),
    "torch.distributed._mesh_layout": ("_MeshLayout", "_FlatLayout"),
    "torch.distributed._pycute.layout": ("Layout",),
    "torch.distributed.checkpoint.metadata": _DCP,
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint.planner": _PLANS,
    "torch.distributed._shard.sharded_tensor.api": _SHARDS,
    "torch.distributed._shard.sharded_tensor.shard": _SHARDS,
    "torch.distributed._shard.sharded_tensor.metadata": (*_SHARDS, "MEM_FORMAT_ENCODING"),
    "torch.distributed._shard.metadata": _SHARDS,
    "torch.distributed._shard.sharding_spec.api": ("EnumerableShardingSpec",),
    "torch.distributed._shard.sharding_spec.chunk_sharding_spec": ("ChunkShardingSpec",),
    "torch.distributed.remote_device": ("_remote_device",),
    "pathlib": ("Path", "PosixPath", "WindowsPath", "PurePosixPath"),
    "pathlib._local": ("Path", "PosixPath", "WindowsPath", "PurePosixPath"),
}
"""Module -> names that a pickle of tensors, or of a distributed checkpoint's metadata, may use."""
_MOST_DEPTH = 16
_MOST_ENTRIES = 1_000_000
"""Limit of entries of all dictionaries: one that is nested repeatedly is read each time."""


class RefusedPickle(Exception):
    """A pickle names or holds an object that is not supported; the text says which."""


class Record:
    """Replaces any object: the arguments of its call, and its state."""

    name = ""

    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **named: Any) -> Record:
        made = object.__new__(cls)
        made.arguments, made.state = arguments, {}
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, key: str, place: int | None = None, default: Any = None) -> Any:
        """Return a value of its state by key or, for a tuple, by index."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] or {}), **state[1]}
        if isinstance(state, dict):
            return state.get(key, default)
        if isinstance(state, tuple) and place is not None and place < len(state):
            return state[place]
        return default


class Reader(pickle.Unpickler):
    """Unpickles to records."""

    made: ClassVar[dict[tuple[str, str], type]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if name == "getattr":  # older protocols name nested classes in this way
            return self.inner
        if name not in ALLOWED.get(module, ()):
            raise RefusedPickle(
                f"names {module}.{name}, which is not on the list of supported classes"
            )
        if (module, name) not in self.made:
            self.made[module, name] = type(name, (Record,), {"name": name})
        return self.made[module, name]

    def inner(self, outer: Any, name: str) -> Any:
        """Replace getattr: return the record's class for a nested class."""
        return self.find_class(
            "torch.distributed._shard.sharded_tensor.api", f"{outer.name}.{name}"
        )

    def persistent_load(self, key: Any) -> Any:
        """Return a storage: ("storage", kind, number, device, elements)."""
        if not (isinstance(key, tuple) and len(key) == 5 and key[0] == "storage"):
            raise RefusedPickle("refers to something that is not a storage of a tensor")
        return key


def name_of(value: Any) -> str:
    """Return the name of a record's class, or of the class itself."""
    return str(getattr(value, "name", "")) if isinstance(value, Record | type) else ""


def numbers(value: Any) -> list[int]:
    """Return a shape, stride or offset as a list."""
    if isinstance(value, Record):
        value = value.arguments[0] if value.arguments else ()
    found = list(value)
    if not all(type(number) is int for number in found):
        raise RefusedPickle("has a shape that is not made of whole numbers")
    return found


def tensor_of(value: Any) -> dict[str, Any] | None:
    """Return a record's description of a tensor, or None if it is not one."""
    name = name_of(value)
    if not isinstance(value, Record):
        return None
    given = value.arguments
    if name in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter"):
        return tensor_of(given[0])
    if name == "_rebuild_from_type_v2":
        function, _, arguments, state = given
        if name_of(function) == "_rebuild_wrapper_subclass":
            return describe_dtensor(arguments, state)
        return tensor_of(function(*arguments))
    if name == "ShardedTensor":
        return parts_of(value.state)
    if name not in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return None
    _, kind, key, _, _ = given[0]
    dtype = given[6] if name == "_rebuild_tensor_v3" else kind
    # Last arguments of torch: numbers are to be negated, or conjugated, when they are read.
    if any(given[7 if name == "_rebuild_tensor_v3" else 6 :]):
        raise RefusedPickle("holds a negated or conjugated view of a tensor, which is not read")
    start, size, stride = given[1:4]
    if type(start) is not int:
        raise RefusedPickle("has a tensor offset that is not an integer")
    shape, steps = numbers(size), numbers(stride)
    return {
        "key": str(key),
        "dtype": name_of(dtype),
        "start": start,
        "shape": shape,
        "stride": steps,
    }


def describe_dtensor(arguments: Any, state: Any) -> dict[str, Any]:
    """Return a DTensor: this rank's part, the whole shape, and how it was cut."""
    if name_of(arguments[0]) == "ShardedTensor":
        return parts_of(state)
    if name_of(arguments[0]) != "DTensor":
        raise RefusedPickle(
            f"holds a tensor of the class {name_of(arguments[0])}, which is not read"
        )
    fields = state[1] if isinstance(state, tuple) else state
    spec = fields["_spec"]
    cuts = []
    for one in spec.get("placements", 1):
        split = one.get("split_factor")
        cuts.append([name_of(one), one.get("dim", 0), split])
    mesh = spec.get("mesh", 0)
    coordinate = mesh.get("_coordinate_on_dim")
    return {
        "local": tensor_of(fields["_local_tensor"]),
        "shape": numbers(arguments[2]),
        "cuts": cuts,
        "coordinate": None if coordinate is None else numbers(coordinate),
    }


def parts_of(state: Any) -> dict[str, Any]:
    """Return a ShardedTensor: this rank's parts with their offsets, and the whole shape."""
    shards, metadata = state[:2]
    parts = []
    for shard in shards:
        place = shard.get("metadata")
        parts.append([tensor_of(shard.get("tensor")), numbers(place.get("shard_offsets"))])
    return {"parts": parts, "shape": numbers(metadata.get("size"))}


def walk(value: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield the values of nested dictionaries, with the keys that lead to them.

    Items of a list have a number in brackets as their key, as have values with other keys.
    """
    if len(path) > _MOST_DEPTH:
        raise RefusedPickle("is nested too deeply")
    yield path, value
    if isinstance(value, dict):
        for number, (key, inner) in enumerate(value.items()):
            name = str(key) if isinstance(key, str | int) else f"[{number}]"
            yield from walk(inner, [*path, name])
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if isinstance(inner, dict | list | tuple | Record):  # skip lists of numbers
                yield from walk(inner, [*path, f"[{number}]"])


def describe_torch(value: Any) -> list[Any]:
    """Return a file of torch.save: [[keys, tensor], ...]; the keys of a single tensor are [].

    A tensor without a name is {}.
    """
    found: list[Any] = []
    for number, (path, inner) in enumerate(walk(value, [])):
        if number > _MOST_ENTRIES:
            raise RefusedPickle(f"holds more than {_MOST_ENTRIES} entries")
        if (tensor := tensor_of(inner)) is not None:
            found.append([path, {} if any(key.startswith("[") for key in path) else tensor])
    return found


def describe_metadata(value: Any) -> dict[str, Any]:
    """Return tensors, and places of their parts, in .metadata of a distributed checkpoint."""
    if name_of(value) != "Metadata":
        raise RefusedPickle("is not the metadata of a distributed checkpoint")
    tensors, others = {}, []
    for name, entry in value.get("state_dict_metadata").items():
        if name_of(entry) != "TensorStorageMetadata":
            others.append(name)
            continue
        tensors[name] = {
            "dtype": name_of(entry.get("properties").get("dtype", 0)),
            "shape": numbers(entry.get("size")),
        }
    paths = value.get("planner_data")
    paths = paths if isinstance(paths, dict) else {}
    places = []
    for index, info in value.get("storage_data").items():
        if index.get("fqn") not in tensors:
            continue
        if info.get("transform_descriptors"):
            raise RefusedPickle(
                "was written with a compression or another transform, which is not read"
            )
        span = [info.get("relative_path"), info.get("offset"), info.get("length")]
        places.append([index.get("fqn"), numbers(index.get("offset") or ()), *span])
    keys = {n: [str(k) for k in p] for n, p in paths.items() if isinstance(p, tuple | list)}
    return {"tensors": tensors, "others": others, "keys": keys, "places": places}


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    describe: Any = {"torch": describe_torch, "metadata": describe_metadata}[request["kind"]]
    found: list[Any] = []
    try:
        for text in request["pickles"]:
            found.append(describe(Reader(io.BytesIO(base64.b64decode(text))).load()))
        json.dump({"found": found}, sys.stdout)
    except RefusedPickle as refused:
        json.dump({"refused": str(refused)}, sys.stdout)
    except Exception as error:
        json.dump({"refused": f"is damaged ({type(error).__name__}: {error})"}, sys.stdout)


if __name__ == "__main__":
    main()
