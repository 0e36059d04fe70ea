"""The analysis of some parts on disk: an analysis's file with sums that are not rounded yet.

It has a format number of its own, so that nobody takes it for the whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ram_studio.algorithm.meters.storage import Finding
from ram_studio.algorithm.partial import ExactSums, PartialAnalysis
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.analysis_file import (
    PARTIAL_FORMAT,
    analysis_arrays,
    analysis_header,
    build_analysis,
    read_analysis_file,
    reading_analysis,
    write_analysis_file,
)
from ram_studio.errors import AnalysisError

_SUMS = ("products", "loose", "layer")


def save_partial(partial: PartialAnalysis, path: str | Path) -> Path:
    """Write the analysis of some parts; the file appears whole or not at all.

    Raises: OutputError when the file cannot be written.
    """
    header: dict[str, Any] = analysis_header(partial.analysis) | {
        "format": PARTIAL_FORMAT,
        "plan": partial.plan,
        "parts": [[number, count] for number, count in partial.parts.items()],
        "of": partial.of,
        "findings": [finding.to_dict() for finding in partial.findings],
    }
    arrays = analysis_arrays(partial.analysis)
    if partial.sums is not None:
        arrays |= {f"exact.{name}": getattr(partial.sums, name) for name in _SUMS}
    return write_analysis_file(path, header, arrays)


def load_partial(path: str | Path) -> PartialAnalysis:
    """Read the analysis of some parts.

    Raises: AnalysisError when the file is missing, damaged, or a whole analysis.
    """
    with reading_analysis(path):
        header, arrays = read_analysis_file(path)
        if header["format"] != PARTIAL_FORMAT:
            raise AnalysisError(
                f"The analysis {printable(path)} is not one of a part: it is of format "
                f"{header['format']}, a whole one. Give what `ram-studio analyze --plan` wrote."
            )
        exact = [arrays[name] for key in _SUMS if (name := f"exact.{key}") in arrays]
        analysis = build_analysis(header, arrays)
        parts = {int(number): int(count) for number, count in header["parts"]}
        if list(parts) != sorted(parts) or sum(parts.values()) != len(analysis.tensors):
            raise ValueError("parts")
        if len(exact) not in (0, len(_SUMS)) or not all(np.isfinite(a).all() for a in exact):
            raise ValueError("sums")
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
