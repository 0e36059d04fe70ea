"""The processor that kernels are compiled for. Knows llvmlite, but not numba."""

from __future__ import annotations

import os

import llvmlite.binding

LANES = 16
"""Elements that vector code works on at a time: 16 float32 fill a 512-bit register."""

STEP = 2 * LANES
"""Elements of bfloat16 that fill it."""


def target_cpu() -> tuple[str, str]:
    """Return LLVM's names of the processor and its features: this one's, or what numba is told."""
    name = os.environ.get("NUMBA_CPU_NAME")
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = "" if name else llvmlite.binding.get_host_cpu_features().flatten()
    return name or llvmlite.binding.get_host_cpu_name(), features


_FEATURES = target_cpu()[1].split(",")

HAS_FAST_LANES = {"+avx512f", "+avx512bw"} <= set(_FEATURES)
"""Whether vector code beats plain loops here."""

HAS_BFLOAT16 = "+avx512bf16" in _FEATURES
"""Whether the processor rounds to bfloat16 by itself."""
