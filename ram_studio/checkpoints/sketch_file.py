"""A sketch on disk: one safetensors file with the counts, and a JSON header."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ram_studio.algorithm.ladder import BIN_COUNT, LADDER
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.algorithm.sketch import Sketch, TensorEntry
from ram_studio.checkpoints.describe import printable
from ram_studio.errors import OutputError, SketchError

SKETCH_FORMAT = 1
_HEADER = "ram_studio_sketch"


def save_sketch(sketch: Sketch, path: str | Path) -> Path:
    """Write a sketch; the file appears whole or not at all, and replaces an older one.

    Raises: OutputError when the file cannot be written.
    """
    path = Path(path)
    arrays = {"magnitudes": sketch.magnitudes, "numel": sketch.counts.numel}
    arrays |= _arrays("counts", sketch.counts)
    if sketch.rounded is not None:
        arrays |= _arrays("rounded", sketch.rounded)
    header = {
        "format": SKETCH_FORMAT,
        "agents": list(sketch.agents),
        "tensors": [t.name for t in sketch.tensors],
        "ladder": list(LADDER),
        "fingerprints": dict(sketch.fingerprints),
        "sources": dict(sketch.sources),
        "dtypes": dict(sketch.dtypes),
        "warnings": list(sketch.warnings),
    }
    data = save(
        {name: np.ascontiguousarray(a) for name, a in arrays.items()},
        metadata={_HEADER: json.dumps(header, sort_keys=True)},
    )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OutputError(
            f"The sketch {printable(path)} cannot be written: {error.strerror}. Choose another "
            "place."
        ) from error
    return path


def _arrays(prefix: str, counts: OverlapCounts) -> dict[str, np.ndarray]:
    if counts.patterns is not None:
        return {f"{prefix}.patterns": counts.patterns}
    return {f"{prefix}.shared": counts.shared}


def load_sketch(path: str | Path) -> Sketch:
    """Read a sketch.

    Raises: SketchError when the file is missing, damaged, of another format or another ladder.
    """
    path = Path(path)
    where = f"The sketch {printable(path)}"
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header["format"] != SKETCH_FORMAT:
            raise SketchError(
                f"{where} has format {header['format']}, this version reads {SKETCH_FORMAT}; "
                "analyze the checkpoints again."
            )
        if header["ladder"] != list(LADDER):
            raise SketchError(
                f"{where} was counted on another epsilon ladder; analyze the checkpoints again."
            )
        return _build(header, arrays)
    except FileNotFoundError as error:
        raise SketchError(
            f"{where} does not exist; make it with `ram-studio analyze --sketch FILE`."
        ) from error
    except OSError as error:
        raise SketchError(f"{where} cannot be read: {error.strerror}.") from error
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError) as error:
        raise SketchError(
            f"{where} is damaged or no sketch at all ({type(error).__name__}); analyze the "
            "checkpoints again."
        ) from error


def _build(header: dict, arrays: dict[str, np.ndarray]) -> Sketch:
    numel = arrays["numel"]
    n_agents = len(header["agents"])
    if arrays["magnitudes"].shape != (n_agents, BIN_COUNT):
        raise ValueError("magnitudes")
    if len(header["tensors"]) != len(numel):
        raise ValueError("tensors")

    def counts(prefix: str) -> OverlapCounts:
        shape = (len(numel), len(LADDER))
        if f"{prefix}.patterns" in arrays:
            patterns = arrays[f"{prefix}.patterns"]
            if patterns.shape != (*shape, 1 << n_agents):
                raise ValueError(prefix)
            if (patterns < 0).any() or (patterns.sum(-1) != numel[:, None]).any():
                raise ValueError(prefix)
            return OverlapCounts.from_patterns(numel, patterns)
        shared = arrays[f"{prefix}.shared"]
        if shared.shape != (*shape, n_agents, n_agents):
            raise ValueError(prefix)
        if (shared < 0).any() or (shared.sum(-1) > numel[:, None, None]).any():
            raise ValueError(prefix)
        return OverlapCounts(numel, None, shared)

    is_mixed = any(name.startswith("rounded.") for name in arrays)
    return Sketch(
        agents=tuple(header["agents"]),
        tensors=tuple(
            TensorEntry(name, int(n)) for name, n in zip(header["tensors"], numel, strict=True)
        ),
        counts=counts("counts"),
        magnitudes=arrays["magnitudes"],
        fingerprints=header["fingerprints"],
        sources=header["sources"],
        dtypes=header["dtypes"],
        rounded=counts("rounded") if is_mixed else None,
        warnings=tuple(header["warnings"]),
    )
