"""An analysis on disk: one safetensors file with the counts, and a JSON header."""

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
from safetensors.numpy import save

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
from ram_studio.algorithm.grouping import StackCounts
from ram_studio.algorithm.meters.part_factors import PartFactors
from ram_studio.algorithm.meters.relations import (
    EXPONENTS,
    HALF_STEPS,
    Relations,
    magnitude_of_sets,
)
from ram_studio.algorithm.meters.retained import Energies
from ram_studio.algorithm.meters.rounding_meter import DTYPES, StepCounts
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS, OverlapCounts
from ram_studio.algorithm.partial import parts_text
from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record import compact
from ram_studio.checkpoints.write.output_folder import write_whole
from ram_studio.errors import AnalysisError, OutputError, told_as

ANALYSIS_FORMAT = 3
PARTIAL_FORMAT = 5
"""See ``partial_file``."""

PROFILE_FORMAT = 6
"""A profile (see ``Analysis.profiled``): format 4 with smaller arrays and a checksum of them."""

_DEFLATED_FORMAT, PACKED_FORMAT = 4, 7
"""Format 3 in one array of bytes, deflated; 7 made its arrays small before, without loss."""

_READABLE = (1, 2, 3, 4, PARTIAL_FORMAT, PROFILE_FORMAT, PACKED_FORMAT)
"""Format 1 had counts only: such analyses have neither relations nor steps. Format 2 had no
energies: what a merge keeps is not known from such an analysis."""

_DAMAGED = (
    SafetensorError,
    zlib.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What a file of any bytes can raise where it is read."""

_HEADER, _PACKED = "ram_studio_analysis", "packed"


def save_analysis(analysis: Analysis, path: str | Path, *, packed: bool = False) -> Path:
    """Write an analysis; the file appears whole or not at all, and replaces an older one.

    packed: less than a tenth of the size, for a file that is passed on; read as any other.

    Raises: OutputError when the file cannot be written.
    """
    if analysis.is_profile:
        return save_profile(analysis, path)
    header, arrays = analysis_header(analysis), analysis_arrays(analysis)
    if packed:
        header["format"] = PACKED_FORMAT
        small = save(compact.compacted(arrays, exact=True))
        arrays = {_PACKED: np.frombuffer(zlib.compress(small, 9), np.uint8)}
    return write_analysis_file(path, header, arrays)


def save_profile(analysis: Analysis, path: str | Path) -> Path:
    """Write a compact analysis file: small, without weights, read as any other analysis.

    Raises: OutputError when the file cannot be written.
    """
    small = analysis.profiled()
    body = zlib.compress(save(compact.compacted(analysis_arrays(small))), 9)
    header = analysis_header(small) | {"format": PROFILE_FORMAT, "blake3": hash_bytes(body)}
    return write_analysis_file(path, header, {_PACKED: np.frombuffer(body, np.uint8)})


def analysis_header(analysis: Analysis) -> dict[str, Any]:
    """Return what an analysis's file says in words."""
    return {
        "format": ANALYSIS_FORMAT,
        "agents": list(analysis.agents),
        "tensors": [t.name for t in analysis.tensors],
        "epsilon_grid": list(EPSILON_GRID),
        "fingerprints": dict(analysis.fingerprints),
        "sources": dict(analysis.sources),
        "dtypes": dict(analysis.dtypes),
        "warnings": list(analysis.warnings),
        "layers": [] if analysis.steps is None else list(analysis.steps.layers),
        "stacks": [] if analysis.stacks is None else list(analysis.stacks.labels),
    }


def analysis_arrays(analysis: Analysis) -> dict[str, np.ndarray]:
    """Return an analysis's arrays by the names that they have in its file."""
    arrays = {"magnitudes": analysis.magnitudes, "numel": analysis.counts.numel}
    arrays |= _count_arrays("counts", analysis.counts)
    if analysis.rounded is not None:
        arrays |= _count_arrays("rounded", analysis.rounded)
    if (relations := analysis.relations) is not None:
        # What each agent alone changed and shares follows from the sums by set.
        sums = "magnitude" if relations.by_set is None else "by_set"
        others = ("pair_counts", "pair_sums", "dots", "conflicts", "cancelled")
        arrays |= _fields("relations", relations, *others, sums)
    if analysis.steps is not None:
        arrays |= _step_arrays(analysis.steps)
    if (energies := analysis.energies) is not None:
        # Up to six agents everything else follows from the sums by set.
        names = ("square", "cross", "meet") if energies.products is None else ("products",)
        arrays |= _fields("energies", energies, *names)
    if analysis.part_factors is not None:
        arrays |= _fields("part_factors", analysis.part_factors, "ram", "total", "energy")
    if analysis.stacks is not None:
        arrays |= {"stacks.numel": analysis.stacks.counts.numel}
        arrays |= _count_arrays("stacks", analysis.stacks.counts)
    return arrays


def _fields(prefix: str, owner: object, *names: str) -> dict[str, np.ndarray]:
    found = {f"{prefix}.{name}": getattr(owner, name) for name in names}
    return {name: array for name, array in found.items() if array is not None}


def _count_arrays(prefix: str, counts: OverlapCounts) -> dict[str, np.ndarray]:
    return _fields(prefix, counts, "shared" if counts.patterns is None else "patterns")


def write_analysis_file(
    path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]
) -> Path:
    """Write header and arrays; the file appears whole or not at all, and replaces an older one.

    Raises: OutputError when the file cannot be written.
    """
    path = Path(path)
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    data = save(arrays, metadata={_HEADER: json.dumps(header, sort_keys=True)})
    what = f"The analysis {printable(path)} cannot be written"
    with told_as(OutputError, what, "choose another place"):
        write_whole(path, data)
    return path


def load_analysis(path: str | Path, *, only_profiles: bool = False) -> Analysis:
    """Read an analysis.

    only_profiles: refuse whole analyses, which may take much memory.

    Raises: AnalysisError when the file is missing, damaged, of another format or another epsilon
    grid.
    """
    with reading_analysis(path):
        header, arrays = read_analysis_file(path, only_profiles=only_profiles)
        if header["format"] == PARTIAL_FORMAT:
            numbers = [number for number, _ in header["parts"]]
            raise AnalysisError(
                f"Analysis {printable(path)} holds {parts_text(numbers, header['of'])} only; add "
                "all parts with `ram-studio analysis add FILE ... --out FILE` first."
            )
        return build_analysis(header, arrays)


@contextlib.contextmanager
def reading_analysis(path: str | Path) -> Iterator[None]:
    """Turn what can go wrong with an analysis's file into an AnalysisError that names it."""
    where = f"The analysis {printable(path)}"
    try:
        yield
    except FileNotFoundError as error:
        raise AnalysisError(
            f"{where} does not exist; make it with `ram-studio analyze --analysis FILE`."
        ) from error
    except OSError as error:
        raise AnalysisError(f"{where} cannot be read: {error.strerror or error}.") from error
    except _DAMAGED as error:
        raise AnalysisError(
            f"{where} is damaged or no analysis at all ({type(error).__name__}); analyze the "
            "checkpoints again."
        ) from error


def read_analysis_file(
    path: str | Path, *, only_profiles: bool = False
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of an analysis file; to be used in ``reading_analysis``."""
    where = f"The analysis {printable(path)}"
    with safe_open(path, framework="np") as file:
        header = json.loads((file.metadata() or {})[_HEADER])
        if only_profiles and header["format"] != PROFILE_FORMAT:
            raise AnalysisError(
                f"{where} is not a profile; here only profiles are opened. Make one of an "
                "analysis: ram-studio analysis profile FILE --out FILE."
            )
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header["format"] not in _READABLE:
        raise AnalysisError(
            f"{where} has format {header['format']}, this version reads "
            f"{' and '.join(map(str, _READABLE))}; analyze the checkpoints again."
        )
    if header["format"] in (_DEFLATED_FORMAT, PACKED_FORMAT):
        arrays = compact.inflated(arrays[_PACKED].tobytes())
        if header["format"] == PACKED_FORMAT:
            arrays = compact.restored(arrays, exact=True)
    elif header["format"] == PROFILE_FORMAT:
        body = arrays.pop(_PACKED).tobytes()
        _require("blake3", header["blake3"] == hash_bytes(body))
        arrays = compact.restored(compact.profile_inflated(body, header))
    if header["epsilon_grid"] != list(EPSILON_GRID):
        raise AnalysisError(
            f"{where} was counted on another epsilon grid; analyze the checkpoints again."
        )
    return header, arrays


def build_analysis(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Analysis:
    """Return the analysis of header and arrays, checked; to be used in ``reading_analysis``."""
    numel = arrays["numel"]
    tensors, n_agents = len(header["tensors"]), len(header["agents"])
    known = [header[key] for key in ("fingerprints", "sources", "dtypes")]
    _require("known", *(isinstance(words, dict) for words in known))
    words = [*header["agents"], *header["tensors"], *header["warnings"], *header.get("layers", [])]
    words += itertools.chain.from_iterable([*found, *found.values()] for found in known)
    _require("words", *(isinstance(word, str) for word in words))
    _require("agents", n_agents <= compact.MAX_AGENTS)
    _require("tensors", tensors == len(numel))
    _require("magnitudes", arrays["magnitudes"].shape == (n_agents, BIN_COUNT))

    def counts(prefix: str, numel: np.ndarray) -> OverlapCounts:
        shapes = compact.array_shapes("counts", len(numel), n_agents)
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
    return Analysis(
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
        part_factors=_build_part_factors(arrays, n_agents),
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
    """Return the arrays of one part of an analysis by name; shapes: the expected ones."""
    names = [name.removeprefix(f"{part}.") for name in arrays if name.startswith(f"{part}.")]
    found = {name: arrays[f"{part}.{name}"] for name in names}
    for name, array in found.items():
        _require(name, array.shape == shapes[name], np.isfinite(array).all())
    return found


def _build_relations(arrays: dict[str, np.ndarray], groups: int, n_agents: int) -> Relations | None:
    found = _checked(arrays, "relations", compact.array_shapes("relations", groups, n_agents))
    if not found:
        return None
    if n_agents <= MAX_PATTERN_AGENTS:
        found["magnitude"] = magnitude_of_sets(found["by_set"], n_agents)
    _require("magnitude", (found["magnitude"] >= 0).all())
    optional: dict[str, Any] = dict.fromkeys(("by_set", "conflicts", "cancelled"))
    return Relations(**optional | found)


def _build_energies(arrays: dict[str, np.ndarray], n_agents: int) -> Energies | None:
    found = _checked(arrays, "energies", compact.array_shapes("energies", 0, n_agents))
    if "products" in found:
        return Energies.of_products(found["products"], n_agents)
    return Energies(**found) if found else None


def _build_part_factors(arrays: dict[str, np.ndarray], n_agents: int) -> PartFactors | None:
    found = _checked(arrays, "part_factors", compact.array_shapes("part_factors", 0, n_agents))
    return PartFactors(**found) if found else None


_STEP_SHAPES = {
    "exact": (6,),
    "loose": (3,),
    "loose_sums": (len(EPSILON_GRID), 2),
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
        "exact": (n_agents, len(DTYPES), len(EPSILON_GRID) + 1, EXPONENTS, HALF_STEPS + 1),
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
