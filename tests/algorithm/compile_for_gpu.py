"""Compiles the Triton kernels for an H100 without one, and prints what came out as JSON.

A program of its own, because a process that interprets kernels cannot compile them:

    python tests/algorithm/compile_for_gpu.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ram_studio.algorithm import triton_kernels
from ram_studio.algorithm.device_kernels import TILE

HOPPER = GPUTarget("cuda", 90, 32)
STORED = {"BF16": "*i16", "F16": "*fp16", "F32": "*fp32"}
COUNT = {"base": "", "agents": "", "chain": "*i32", "flags": "*i32"}
MERGE = {**COUNT, "merged": "", "factors": "*fp64", "counts": "*i32", "sums": "*fp64"}
NUMBERS = {
    "n": "i32",
    "stride": "i32",
    "lead": "i32",
    "edge_bits": "i32",
    "epsilon": "fp32",
    "cut": "i64",
    "key": "i64",
    "start": "i64",
}


def compiled(kernel: Any, pointers: Mapping[str, str], constants: Mapping[str, Any]) -> Any:
    """Return a kernel compiled for aligned pointers and rows."""
    names = kernel.arg_names
    types = {**NUMBERS, **pointers}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if name in pointers or name in ("n", "stride", "lead")
        },
    )
    return triton.compile(source, target=HOPPER, options=dict(triton_kernels._OPTIONS))


def facts(kernel: Any) -> dict[str, Any]:
    """Return what matters about a compiled kernel."""
    ptx = kernel.asm["ptx"]
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
        "fused": len(re.findall(r"\bfma\.", ptx)),
        "flushing": len(re.findall(r"\.ftz\b", ptx)),
        "divisions": sorted(set(re.findall(r"\bdiv\.[a-z0-9.]+", ptx))),
        "wide_loads": len(re.findall(r"\bld\.global\S*\.v[248]\.", ptx)),
        "atomics": sorted(set(re.findall(r"\b(?:atom|red)\.[a-z0-9._]+", ptx))),
    }


def main() -> None:
    """Compile every kind of kernel and print its facts by name."""
    found = {}
    for agents in (1, 4, 6):
        pointers = {**COUNT, "base": STORED["BF16"], "agents": STORED["BF16"]}
        constants = {"AGENTS": agents, "COPIES": 16, "TILE": TILE}
        found[f"count {agents}"] = facts(compiled(triton_kernels.fill_chain, pointers, constants))
    for name, agents, stored, output, elects, draws, measures in (
        ("plain", 4, "BF16", "BF16", False, False, True),
        ("unmeasured", 4, "BF16", "BF16", False, False, False),
        ("lone agent", 1, "BF16", "BF16", False, True, True),
        ("elected", 6, "BF16", "BF16", True, False, True),
        ("drawn float16", 3, "F16", "F16", False, True, True),
        ("drawn float32", 3, "F32", "F32", True, True, True),
    ):
        pointers = {
            **{k: v for k, v in MERGE.items() if k != "chain"},
            "base": STORED[stored],
            "agents": STORED[stored],
            "merged": STORED[output],
        }
        constants = {
            "AGENTS": agents,
            "ELECT_SIGN": elects,
            "OUTPUT": ("BF16", "F16", "F32").index(output),
            "IS_STOCHASTIC": draws,
            "IS_MEASURED": measures,
            "TILE": TILE,
        }
        found[f"merge {name}"] = facts(compiled(triton_kernels.merge_region, pointers, constants))
    for name, trims, drops in (("sum", False, False), ("trimmed, dropped", True, True)):
        pointers = {
            **{k: v for k, v in MERGE.items() if k not in ("chain", "factors")},
            **dict.fromkeys(("base", "agents", "merged"), STORED["BF16"]),
            "thresholds": "*fp32",
            "keys": "*i64",
            "factor": "*fp64",
        }
        constants = {
            "AGENTS": 4,
            "IS_TRIMMED": trims,
            "IS_DROPPED": drops,
            "OUTPUT": 0,
            "IS_STOCHASTIC": False,
            "IS_MEASURED": True,
            "TILE": TILE,
        }
        found[f"merge {name}"] = facts(compiled(triton_kernels.merge_kept, pointers, constants))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
