"""The sketch of some parts on disk: a sketch's file with sums that are not rounded yet.

It has a format number of its own, so that nobody takes it for the whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ram_studio.algorithm.meters.storage import Finding
from ram_studio.algorithm.partial import ExactSums, PartialSketch
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.sketch_file import (
    PARTIAL_FORMAT,
    build_sketch,
    read_sketch_file,
    reading_sketch,
    sketch_arrays,
    sketch_header,
    write_sketch_file,
)
from ram_studio.errors import SketchError

_SUMS = ("products", "loose", "layer")


def save_partial(partial: PartialSketch, path: str | Path) -> Path:
    """Write the sketch of some parts; the file appears whole or not at all.

    Raises: OutputError when the file cannot be written.
    """
    header: dict[str, Any] = sketch_header(partial.sketch) | {
        "format": PARTIAL_FORMAT,
        "plan": partial.plan,
        "parts": [[number, count] for number, count in partial.parts.items()],
        "of": partial.of,
        "findings": [finding.to_dict() for finding in partial.findings],
    }
    arrays = sketch_arrays(partial.sketch)
    if partial.sums is not None:
        arrays |= {f"exact.{name}": getattr(partial.sums, name) for name in _SUMS}
    return write_sketch_file(path, header, arrays)


def load_partial(path: str | Path) -> PartialSketch:
    """Read the sketch of some parts.

    Raises: SketchError when the file is missing, damaged, or a whole sketch.
    """
    with reading_sketch(path):
        header, arrays = read_sketch_file(path)
        if header["format"] != PARTIAL_FORMAT:
            raise SketchError(
                f"The sketch {printable(path)} is not one of a part: it is of format "
                f"{header['format']}, a whole one. Give what `ram-studio analyze --plan` wrote."
            )
        exact = [arrays[name] for key in _SUMS if (name := f"exact.{key}") in arrays]
        sketch = build_sketch(header, arrays)
        parts = {int(number): int(count) for number, count in header["parts"]}
        if list(parts) != sorted(parts) or sum(parts.values()) != len(sketch.tensors):
            raise ValueError("parts")
        if len(exact) not in (0, len(_SUMS)) or not all(np.isfinite(a).all() for a in exact):
            raise ValueError("sums")
        return PartialSketch(
            sketch=sketch,
            plan=str(header["plan"]),
            parts=parts,
            of=int(header["of"]),
            findings=tuple(
                Finding(f["kind"], f["text"], tuple(f["agents"]), f["level"])
                for f in header["findings"]
            ),
            sums=ExactSums(*exact) if exact else None,
        )
