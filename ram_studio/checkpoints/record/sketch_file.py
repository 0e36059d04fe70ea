"""A sketch on disk: one safetensors file with the counts, and a JSON header."""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from ram_studio.algorithm.grouping import StackCounts
from ram_studio.algorithm.ladder import BIN_COUNT, LADDER
from ram_studio.algorithm.meters.kept import Energies
from ram_studio.algorithm.meters.relations import (
    EXPONENTS,
    HALF_STEPS,
    Relations,
    magnitude_of_sets,
    members_of,
    pairs_of,
    products_of,
)
from ram_studio.algorithm.meters.rounding_meter import DTYPES, StepCounts
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS, OverlapCounts
from ram_studio.algorithm.partial import parts_text
from ram_studio.algorithm.sketch import Sketch, TensorEntry
from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record import compact
from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import OutputError, SketchError, told_as

SKETCH_FORMAT = 3
PARTIAL_FORMAT = 5
"""See ``partial_file``."""

PROFILE_FORMAT = 6
"""A profile (see ``Sketch.profiled``): format 4 with smaller arrays and a checksum of them."""

_DEFLATED_FORMAT, PACKED_FORMAT = 4, 7
"""Format 3 in one array of bytes, deflated; 7 made its arrays small before, without loss."""

_READABLE = (1, 2, 3, 4, PARTIAL_FORMAT, PROFILE_FORMAT, PACKED_FORMAT)
"""Format 1 had counts only: such sketches have neither relations nor steps. Format 2 had no
energies: what a merge keeps is not known from such a sketch."""

_HEADER, _PACKED = "ram_studio_sketch", "packed"
_MOST_UNPACKED, _MOST_PROFILE = 1 << 30, 1 << 27
"""Profiles come from strangers; one of 80 layers and five agents takes a quarter of this."""


def save_sketch(sketch: Sketch, path: str | Path, *, packed: bool = False) -> Path:
    """Write a sketch; the file appears whole or not at all, and replaces an older one.

    packed: less than a tenth of the size, for a file that is passed on; read as any other.

    Raises: OutputError when the file cannot be written.
    """
    if sketch.is_profile:
        return save_profile(sketch, path)
    header, arrays = sketch_header(sketch), sketch_arrays(sketch)
    if packed:
        header["format"] = PACKED_FORMAT
        small = save(compact.compacted(arrays, exact=True))
        arrays = {_PACKED: np.frombuffer(zlib.compress(small, 9), np.uint8)}
    return write_sketch_file(path, header, arrays)


def save_profile(sketch: Sketch, path: str | Path) -> Path:
    """Write a sketch's profile: a small file to look at without weights, read as any other sketch.

    Raises: OutputError when the file cannot be written.
    """
    small = sketch.profiled()
    body = zlib.compress(save(compact.compacted(sketch_arrays(small))), 9)
    header = sketch_header(small) | {"format": PROFILE_FORMAT, "blake3": hash_bytes(body)}
    return write_sketch_file(path, header, {_PACKED: np.frombuffer(body, np.uint8)})


def sketch_header(sketch: Sketch) -> dict[str, Any]:
    """Return what a sketch's file says in words."""
    return {
        "format": SKETCH_FORMAT,
        "agents": list(sketch.agents),
        "tensors": [t.name for t in sketch.tensors],
        "ladder": list(LADDER),
        "fingerprints": dict(sketch.fingerprints),
        "sources": dict(sketch.sources),
        "dtypes": dict(sketch.dtypes),
        "warnings": list(sketch.warnings),
        "layers": [] if sketch.steps is None else list(sketch.steps.layers),
        "stacks": [] if sketch.stacks is None else list(sketch.stacks.labels),
    }


def sketch_arrays(sketch: Sketch) -> dict[str, np.ndarray]:
    """Return a sketch's arrays by the names that they have in its file."""
    arrays = {"magnitudes": sketch.magnitudes, "numel": sketch.counts.numel}
    arrays |= _count_arrays("counts", sketch.counts)
    if sketch.rounded is not None:
        arrays |= _count_arrays("rounded", sketch.rounded)
    if (relations := sketch.relations) is not None:
        # What each agent alone changed and shares follows from the sums by set.
        sums = "magnitude" if relations.by_set is None else "by_set"
        others = ("pair_counts", "pair_sums", "dots", "conflicts", "cancelled")
        arrays |= _fields("relations", relations, *others, sums)
    if sketch.steps is not None:
        arrays |= _step_arrays(sketch.steps)
    if (energies := sketch.energies) is not None:
        # Up to six agents all else follows from the sums by set.
        names = ("square", "cross", "meet") if energies.products is None else ("products",)
        arrays |= _fields("energies", energies, *names)
    if sketch.stacks is not None:
        arrays |= {"stacks.numel": sketch.stacks.counts.numel}
        arrays |= _count_arrays("stacks", sketch.stacks.counts)
    return arrays


def _fields(prefix: str, owner: object, *names: str) -> dict[str, np.ndarray]:
    found = {f"{prefix}.{name}": getattr(owner, name) for name in names}
    return {name: array for name, array in found.items() if array is not None}


def _count_arrays(prefix: str, counts: OverlapCounts) -> dict[str, np.ndarray]:
    return _fields(prefix, counts, "shared" if counts.patterns is None else "patterns")


def write_sketch_file(
    path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]
) -> Path:
    """Write header and arrays; the file appears whole or not at all, and replaces an older one.

    Raises: OutputError when the file cannot be written.
    """
    path = Path(path)
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    data = save(arrays, metadata={_HEADER: json.dumps(header, sort_keys=True)})
    what = f"The sketch {printable(path)} cannot be written"
    with told_as(OutputError, what, "choose another place"):
        write_whole(path, data)
    return path


def load_sketch(path: str | Path, *, only_profiles: bool = False) -> Sketch:
    """Read a sketch.

    only_profiles: refuse whole sketches, which may take much memory.

    Raises: SketchError when the file is missing, damaged, of another format or another ladder.
    """
    with reading_sketch(path):
        header, arrays = read_sketch_file(path, only_profiles=only_profiles)
        if header["format"] == PARTIAL_FORMAT:
            numbers = [number for number, _ in header["parts"]]
            raise SketchError(
                f"The sketch {printable(path)} holds {parts_text(numbers, header['of'])} only; add "
                "all parts with `ram-studio sketch add FILE ... --out FILE` first."
            )
        return build_sketch(header, arrays)


@contextlib.contextmanager
def reading_sketch(path: str | Path) -> Iterator[None]:
    """Turn what can go wrong with a sketch's file into a SketchError that names it."""
    where = f"The sketch {printable(path)}"
    try:
        yield
    except FileNotFoundError as error:
        raise SketchError(
            f"{where} does not exist; make it with `ram-studio analyze --sketch FILE`."
        ) from error
    except OSError as error:
        raise SketchError(f"{where} cannot be read: {error.strerror or error}.") from error
    except (SafetensorError, zlib.error, KeyError, ValueError, TypeError, IndexError) as error:
        raise SketchError(
            f"{where} is damaged or no sketch at all ({type(error).__name__}); analyze the "
            "checkpoints again."
        ) from error


def read_sketch_file(
    path: str | Path, *, only_profiles: bool = False
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of a sketch's file, unpacked; to be used in ``reading_sketch``."""
    where = f"The sketch {printable(path)}"
    with safe_open(path, framework="np") as file:
        header = json.loads((file.metadata() or {})[_HEADER])
        if only_profiles and header["format"] != PROFILE_FORMAT:
            raise SketchError(
                f"{where} is no profile; here only profiles are opened. Make one of a sketch: "
                "ram-studio sketch profile FILE --out FILE."
            )
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header["format"] not in _READABLE:
        raise SketchError(
            f"{where} has format {header['format']}, this version reads "
            f"{' and '.join(map(str, _READABLE))}; analyze the checkpoints again."
        )
    if header["format"] in (_DEFLATED_FORMAT, PACKED_FORMAT):
        arrays = _unpack(arrays[_PACKED].tobytes(), _MOST_UNPACKED)
        if header["format"] == PACKED_FORMAT:
            arrays = compact.restored(arrays, exact=True)
    elif header["format"] == PROFILE_FORMAT:
        body = arrays[_PACKED].tobytes()
        _require("blake3", header["blake3"] == hash_bytes(body))
        arrays = compact.restored(_unpack(body, _MOST_PROFILE))
    if header["ladder"] != list(LADDER):
        raise SketchError(
            f"{where} was counted on another epsilon ladder; analyze the checkpoints again."
        )
    return header, arrays


def _unpack(packed: bytes, most: int) -> dict[str, np.ndarray]:
    """Return the arrays of a packed file; a bomb is refused before it takes the memory."""
    inflating = zlib.decompressobj()
    data = inflating.decompress(packed, most)
    _require(_PACKED, inflating.eof)
    return load(data)


def build_sketch(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Sketch:
    """Return the sketch of header and arrays, checked; to be used in ``reading_sketch``."""
    numel = arrays["numel"]
    tensors, n_agents = len(header["tensors"]), len(header["agents"])
    known = [header[key] for key in ("fingerprints", "sources", "dtypes")]
    _require("known", *(isinstance(words, dict) for words in known))
    words = [*header["agents"], *header["tensors"], *header["warnings"], *header.get("layers", [])]
    words += itertools.chain.from_iterable([*found, *found.values()] for found in known)
    _require("words", *(isinstance(word, str) for word in words))
    _require("tensors", tensors == len(numel))
    _require("magnitudes", arrays["magnitudes"].shape == (n_agents, BIN_COUNT))

    def counts(prefix: str, numel: np.ndarray) -> OverlapCounts:
        groups = (len(numel), len(LADDER))
        shapes = {"patterns": (*groups, 1 << n_agents), "shared": (*groups, n_agents, n_agents)}
        found = _checked(arrays, prefix, shapes | {"numel": numel.shape})
        _require(prefix, *((array >= 0).all() for array in found.values()))
        if "patterns" in found:
            _require(prefix, (found["patterns"].sum(-1) == numel[:, None]).all())
            return OverlapCounts.from_patterns(numel, found["patterns"])
        _require(prefix, (found["shared"].sum(-1) <= numel[:, None, None]).all())
        return OverlapCounts(numel, None, found["shared"])

    def stacks(labels: list[str]) -> StackCounts:
        _require("stacks", arrays["stacks.numel"].shape == (len(labels),))
        return StackCounts(tuple(map(str, labels)), counts("stacks", arrays["stacks.numel"]))

    is_profile = header["format"] == PROFILE_FORMAT
    entries = tuple(map(TensorEntry, header["tensors"], map(int, numel)))
    groups = len({entry.layer for entry in entries}) if is_profile else tensors
    is_mixed = any(name.startswith("rounded.") for name in arrays)
    return Sketch(
        agents=tuple(header["agents"]),
        tensors=entries,
        counts=counts("counts", numel),
        magnitudes=arrays["magnitudes"],
        fingerprints=header["fingerprints"],
        sources=header["sources"],
        dtypes=header["dtypes"],
        rounded=counts("rounded", numel) if is_mixed else None,
        relations=_build_relations(arrays, groups, n_agents),
        steps=_build_steps(arrays, header.get("layers", []), n_agents),
        energies=_build_energies(arrays, n_agents),
        warnings=tuple(header["warnings"]),
        stacks=stacks(header["stacks"]) if header.get("stacks") else None,
        is_profile=is_profile,
    )


def _require(name: str, *claims: object) -> None:
    if not all(claims):
        raise ValueError(name)


def _checked(
    arrays: dict[str, np.ndarray], part: str, shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Return the arrays of one part of a sketch by their names in it; shapes: that they must be."""
    names = [name.removeprefix(f"{part}.") for name in arrays if name.startswith(f"{part}.")]
    found = {name: arrays[f"{part}.{name}"] for name in names}
    for name, array in found.items():
        _require(name, array.shape == shapes[name], np.isfinite(array).all())
    return found


def _build_relations(arrays: dict[str, np.ndarray], groups: int, n_agents: int) -> Relations | None:
    points, pairs, has_sets = len(LADDER), len(pairs_of(n_agents)), n_agents <= MAX_PATTERN_AGENTS
    shapes = {
        "by_set": (groups, points, len(members_of(n_agents)) if has_sets else 0),
        "magnitude": (groups, points, n_agents, 2),
        "pair_counts": (groups, points, pairs, 2),
        "pair_sums": (groups, points, pairs, 2),
        "conflicts": (groups, points),
        "cancelled": (groups, points, n_agents),
        "dots": (groups, n_agents, n_agents),
    }
    found = _checked(arrays, "relations", shapes)
    if not found:
        return None
    if has_sets:
        found["magnitude"] = magnitude_of_sets(found["by_set"], n_agents)
    _require("magnitude", (found["magnitude"] >= 0).all())
    optional: dict[str, Any] = dict.fromkeys(("by_set", "conflicts", "cancelled"))
    return Relations(**optional | found)


def _build_energies(arrays: dict[str, np.ndarray], n_agents: int) -> Energies | None:
    points, has_sets = len(LADDER), n_agents <= MAX_PATTERN_AGENTS
    shapes = {
        "products": (points, len(products_of(n_agents)) if has_sets else 0),
        "square": (points, n_agents, n_agents),
        "cross": (points, n_agents, n_agents),
        "meet": (points, n_agents + 1),
    }
    found = _checked(arrays, "energies", shapes)
    if "products" in found:
        return Energies.of_products(found["products"], n_agents)
    return Energies(**found) if found else None


_STEP_SHAPES = {
    "exact": (6,),
    "loose": (3,),
    "loose_sums": (len(LADDER), 2),
    "layer_exact": (6,),
    "layer_loose": (4,),
    "layer_sums": (2,),
}
_COUNTED = ("exact", "layer_exact")
_KINDS = (*_COUNTED, "loose", "layer_loose")
"""Tables of small numbers, stored in 16 bits; the counts of the first two apart, in 64."""


def _step_arrays(steps: StepCounts) -> dict[str, np.ndarray]:
    arrays = _fields("steps", steps, *_STEP_SHAPES)
    for name in (f"steps.{name}" for name in _COUNTED):
        arrays[f"{name}_count"] = arrays[name][:, -1]
        arrays[name] = arrays[name][:, :-1]
    return arrays | {f"steps.{n}": arrays[f"steps.{n}"].astype(np.int16) for n in _KINDS}


def _build_steps(
    arrays: dict[str, np.ndarray], layers: list[str], n_agents: int
) -> StepCounts | None:
    if "steps.exact" not in arrays:
        return None
    found = {name: arrays[f"steps.{name}"] for name in _STEP_SHAPES}
    for name in _KINDS:
        found[name] = found[name].astype(np.int64)
    for name in _COUNTED:
        counts = arrays[f"steps.{name}_count"]
        _require(name, counts.ndim == 1, (counts >= 0).all())
        found[name] = np.column_stack([found[name], counts])
    for name, shape in _STEP_SHAPES.items():
        _require(name, found[name].shape[1:] == shape)
    limits = {
        "exact": (n_agents, len(DTYPES), len(LADDER) + 1, EXPONENTS, HALF_STEPS + 1),
        "loose": (n_agents, 2, EXPONENTS),
        "layer_exact": (len(layers), n_agents, len(DTYPES), EXPONENTS, HALF_STEPS + 1),
        "layer_loose": (len(layers), n_agents, 2, EXPONENTS),
    }
    for name, bound in limits.items():
        rows = found[name][:, : len(bound)]
        _require(name, ((rows >= 0) & (rows < np.array(bound))).all())
    for name, sums in (("loose", "loose_sums"), ("layer_loose", "layer_sums")):
        _require(name, len(found[name]) == len(found[sums]), np.isfinite(found[sums]).all())
    return StepCounts(n_agents=n_agents, layers=tuple(layers), **found)
