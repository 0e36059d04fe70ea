"""The benchmarks are scripts beside the package; their modules are imported from there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
