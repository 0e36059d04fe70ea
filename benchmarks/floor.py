"""The I/O floor of a merge: read every model's shards N times, write one model's bytes once.

No arithmetic, only read and write calls through one reused buffer, by one thread; written data is
not flushed to the disk. A merge cannot be faster than this with one thread.

    python benchmarks/floor.py OUT MODEL [MODEL ...] [--passes 2]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

BUFFER_BYTES = 8 << 20


def run_floor(out: Path, models: list[Path], passes: int) -> tuple[int, int]:
    """Read all models ``passes`` times and copy the first one to ``out``; return bytes moved."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    read = written = 0
    out.mkdir(parents=True, exist_ok=True)
    for number in range(passes):
        for model in models:
            for shard in sorted(model.glob("*.safetensors")):
                is_copied = number == passes - 1 and model == models[0]
                target = out / shard.name if is_copied else os.devnull
                with open(shard, "rb", 0) as source, open(target, "wb", 0) as copy:
                    while count := source.readinto(buffer):
                        read += count
                        if is_copied:
                            written += copy.write(buffer[:count])
    return read, written


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--passes", type=int, default=2)
    options = parser.parse_args()
    read, written = run_floor(options.out, options.models, options.passes)
    print(f"read {read} bytes, wrote {written} bytes")


if __name__ == "__main__":
    main()
