"""An analysis on disk: one safetensors file with a JSON header and all arrays in one, deflated.

Its kind is `whole`, `part` (of a plan, with sums that are not yet rounded; never read as a whole
one) or `compact` (small, to share: enough for previews, see ``Analysis.compact``).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ram_studio.algorithm.analysis import Analysis, TensorEntry
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
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
from ram_studio.algorithm.meters.storage import Finding
from ram_studio.algorithm.meters.weighted import WeightSums
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS, OverlapCounts
from ram_studio.algorithm.partial import ExactSums, PartialAnalysis, parts_text
from ram_studio.checkpoints.read.content_hash import hash_bytes
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.analysis_packing import pack, require, unpack
from ram_studio.checkpoints.write.output_folder import absolute, write_whole
from ram_studio.errors import AnalysisError, OutputError, raise_as

ANALYSIS_FORMAT = 2
_DAMAGED = (
    SafetensorError,
    zlib.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""Errors when a file of arbitrary bytes is read."""

_HEADER, _PACKED = "ram_studio_analysis", "packed"
_SUMS = ("products", "loose", "layer")
_WEIGHING = ("weighing", "module_weighing")


def save_analysis(analysis: Analysis | PartialAnalysis, path: str | Path) -> Path:
    """Write an analysis atomically, replacing an existing file.

    Raises: OutputError when the file cannot be written.
    """
    path = absolute(path)
    found = analysis.analysis if isinstance(analysis, PartialAnalysis) else analysis
    header, arrays = _header(found), analysis_arrays(found)
    if isinstance(analysis, PartialAnalysis):
        header |= {
            "kind": "part",
            "plan": analysis.plan,
            "parts": [[number, count] for number, count in analysis.parts.items()],
            "of": analysis.of,
            "findings": [asdict(finding) for finding in analysis.findings],
        }
        if analysis.sums is not None:
            arrays |= {f"exact.{name}": getattr(analysis.sums, name) for name in _SUMS}
    body = pack(arrays, exact=not found.is_compact)
    header_text = json.dumps(header | {"blake3": hash_bytes(body)}, sort_keys=True)
    data = save({_PACKED: np.frombuffer(body, np.uint8)}, metadata={_HEADER: header_text})
    what = f"The analysis {printable(path)} cannot be written"
    with raise_as(OutputError, what, "choose another place"):
        write_whole(path, data)
    return path


def _header(analysis: Analysis) -> dict[str, Any]:
    """Return the JSON header of an analysis's file."""
    return {
        "format": ANALYSIS_FORMAT,
        "kind": "compact" if analysis.is_compact else "whole",
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
    """Return an analysis's arrays by their names in its file."""
    arrays = {"magnitudes": analysis.magnitudes, "numel": analysis.counts.numel}
    arrays |= _count_arrays("counts", analysis.counts)
    if analysis.rounded is not None:
        arrays |= _count_arrays("rounded", analysis.rounded)
    if (relations := analysis.relations) is not None:
        # Unique and shared sums of each agent follow from the sums by set.
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
        arrays |= _fields("part_factors", analysis.part_factors, *vars(analysis.part_factors))
    for name in _WEIGHING:
        if (sums := getattr(analysis, name)) is not None:
            arrays |= _fields(name, sums, *vars(sums))
    if analysis.stacks is not None:
        arrays |= {"stacks.numel": analysis.stacks.counts.numel}
        arrays |= _count_arrays("stacks", analysis.stacks.counts)
    return arrays


def _fields(prefix: str, owner: object, *names: str) -> dict[str, np.ndarray]:
    found = {f"{prefix}.{name}": getattr(owner, name) for name in names}
    return {name: array for name, array in found.items() if array is not None}


def _count_arrays(prefix: str, counts: OverlapCounts) -> dict[str, np.ndarray]:
    return _fields(prefix, counts, "shared" if counts.patterns is None else "patterns")


def load_analysis(path: str | Path, *, only_compact: bool = False) -> Analysis:
    """Read an analysis.

    Args:
        only_compact: refuse whole analyses, which may take much memory.

    Raises: AnalysisError when the file is missing, damaged, of another format or another epsilon
    grid, or has only some parts of a plan.
    """
    with _reading(path) as path:
        header, arrays = _read_arrays(path, only_compact=only_compact)
        if header["kind"] == "part":
            numbers = [number for number, _ in header["parts"]]
            raise AnalysisError(
                f"Analysis {printable(path)} holds {parts_text(numbers, header['of'])} only; add "
                "all parts with `ram-studio analysis add FILE ... --out FILE` first."
            )
        require("tensors", header["tensors"])
        return _build(header, arrays)


def load_partial(path: str | Path) -> PartialAnalysis:
    """Read the analysis of some parts.

    Raises: AnalysisError when the file is missing, damaged, or a whole analysis.
    """
    with _reading(path) as path:
        header, arrays = _read_arrays(path)
        if header["kind"] != "part":
            raise AnalysisError(
                f"The analysis {printable(path)} is not one of a part: its kind is "
                f"{printable(header['kind'])}. Give a file of `ram-studio analyze --plan`."
            )
        exact = [arrays[name] for key in _SUMS if (name := f"exact.{key}") in arrays]
        require("sums", len(exact) in (0, len(_SUMS)))
        analysis = _build(header, arrays)
        parts = {int(number): int(count) for number, count in header["parts"]}
        require("parts", list(parts) == sorted(parts), sum(parts.values()) == len(analysis.tensors))
        return PartialAnalysis(
            analysis=analysis,
            plan=str(header["plan"]),
            parts=parts,
            of=int(header["of"]),
            findings=tuple(
                Finding(f["kind"], f["text"], tuple(f["agents"]), f["level"])
                for f in header["findings"]
            ),
            sums=ExactSums(*exact) if exact else None,
        )


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[Path]:
    """Yield the expanded path; errors in the block become an AnalysisError that names it."""
    path = Path(os.path.expanduser(path))
    where = f"The analysis {printable(path)}"
    try:
        if path.is_dir():
            raise AnalysisError(f"{where} is a folder; give a file written by analyze.")
        yield path
    except FileNotFoundError as error:
        raise AnalysisError(
            f"{where} does not exist; make it with `ram-studio analyze --analysis FILE`."
        ) from error
    except OSError as error:
        raise AnalysisError(f"{where} cannot be read: {error.strerror or error}.") from error
    except _DAMAGED as error:
        raise AnalysisError(
            f"{where} is damaged or is not an analysis; analyze the checkpoints again."
        ) from error


def _read_arrays(
    path: Path, *, only_compact: bool = False
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    where = f"The analysis {printable(path)}"
    with safe_open(path, framework="np") as file:
        header = json.loads((file.metadata() or {})[_HEADER])
        if header["format"] != ANALYSIS_FORMAT:
            raise AnalysisError(
                f"{where} has format {printable(header['format'])}, this version reads "
                f"{ANALYSIS_FORMAT}; analyze the checkpoints again."
            )
        if only_compact and header["kind"] != "compact":
            raise AnalysisError(
                f"{where} is not compact; only compact analyses are opened here. Make one: "
                "ram-studio analysis compact FILE --out FILE."
            )
        body = file.get_tensor(_PACKED).tobytes()
    if header["epsilon_grid"] != list(EPSILON_GRID):
        raise AnalysisError(
            f"{where} was counted on another epsilon grid; analyze the checkpoints again."
        )
    require("blake3", header["blake3"] == hash_bytes(body))
    require("kind", header["kind"] in ("whole", "part", "compact"))
    return header, unpack(body, header)


def _build(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Analysis:
    """Return the analysis of header and arrays, after checking their names and numbers."""
    numel, n_agents = arrays["numel"], len(header["agents"])
    known = [header[key] for key in ("fingerprints", "sources", "dtypes")]
    require("known", *(isinstance(words, dict) for words in known))
    lists = ("agents", "tensors", "warnings", "layers", "stacks")
    words = itertools.chain.from_iterable(header[key] for key in lists)
    pairs = itertools.chain.from_iterable([*found, *found.values()] for found in known)
    require("words", *(isinstance(word, str) for word in itertools.chain(words, pairs)))

    def counts(part: str, numel: np.ndarray) -> OverlapCounts:
        found = {
            name: array for name, array in _part_arrays(arrays, part).items() if name != "numel"
        }
        require(part, *((array >= 0).all() for array in found.values()))
        if "patterns" in found:
            require(part, (found["patterns"].sum(-1) == numel[:, None]).all())
            return OverlapCounts.from_patterns(numel, found["patterns"])
        require(part, (found["shared"].sum(-1) <= numel[:, None, None]).all())
        return OverlapCounts(numel, None, found["shared"])

    def stacks(labels: list[str]) -> StackCounts:
        return StackCounts(tuple(labels), counts("stacks", arrays["stacks.numel"]))

    factors = _part_arrays(arrays, "part_factors")
    weighing = {name: _part_arrays(arrays, name) for name in _WEIGHING}
    return Analysis(
        agents=tuple(header["agents"]),
        tensors=tuple(map(TensorEntry, header["tensors"], map(int, numel))),
        counts=counts("counts", numel),
        magnitudes=arrays["magnitudes"],
        fingerprints=header["fingerprints"],
        sources=header["sources"],
        dtypes=header["dtypes"],
        rounded=counts("rounded", numel) if _part_arrays(arrays, "rounded") else None,
        relations=_build_relations(_part_arrays(arrays, "relations"), n_agents),
        steps=_build_steps(arrays, header["layers"], n_agents),
        energies=_build_energies(_part_arrays(arrays, "energies"), n_agents),
        part_factors=PartFactors(**factors) if factors else None,
        **{name: WeightSums(**own) for name, own in weighing.items() if own},
        warnings=tuple(header["warnings"]),
        stacks=stacks(header["stacks"]) if header["stacks"] else None,
        is_compact=header["kind"] == "compact",
    )


def _part_arrays(arrays: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """Return the arrays of one part of an analysis by name."""
    prefix = f"{part}."
    return {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}


def _build_relations(found: dict[str, np.ndarray], n_agents: int) -> Relations | None:
    if not found:
        return None
    if n_agents <= MAX_PATTERN_AGENTS:
        found["magnitude"] = magnitude_of_sets(found["by_set"], n_agents)
    require("magnitude", (found["magnitude"] >= 0).all())
    optional: dict[str, Any] = dict.fromkeys(("by_set", "conflicts", "cancelled"))
    return Relations(**optional | found)


def _build_energies(found: dict[str, np.ndarray], n_agents: int) -> Energies | None:
    if "products" in found:
        return Energies.of_products(found["products"], n_agents)
    return Energies(**found) if found else None


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
"""Tables of small numbers, stored in 16 bits; the counts of the first two separately, in 64."""


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
        require(name, counts.ndim == 1, (counts >= 0).all())
        found[name] = np.column_stack([found[name], counts])
    for name, shape in _STEP_SHAPES.items():
        require(name, found[name].shape[1:] == shape)
    limits = {
        "exact": (n_agents, len(DTYPES), len(EPSILON_GRID) + 1, EXPONENTS, HALF_STEPS + 1),
        "loose": (n_agents, 2, EXPONENTS),
        "layer_exact": (len(layers), n_agents, len(DTYPES), EXPONENTS, HALF_STEPS + 1),
        "layer_loose": (len(layers), n_agents, 2, EXPONENTS),
    }
    for name, bound in limits.items():
        rows = found[name][:, : len(bound)]
        require(name, ((rows >= 0) & (rows < np.array(bound))).all())
    for name, sums in (("loose", "loose_sums"), ("layer_loose", "layer_sums")):
        require(name, len(found[name]) == len(found[sums]), np.isfinite(found[sums]).all())
    return StepCounts(n_agents=n_agents, layers=tuple(layers), **found)
