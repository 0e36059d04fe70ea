"""What numba keeps on disk must not outlive any of the sources it was made from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULES = {
    "one.py": "from ram_studio.algorithm.numba_kernels import numba_kernel\n"
    "@numba_kernel\ndef inner(x):\n    return x + {added}\n",
    "two.py": "from one import inner\nfrom ram_studio.algorithm.numba_kernels import numba_kernel\n"
    "@numba_kernel\ndef outer(x):\n    return inner(x)\n",
}
RUN = """
import sys
from pathlib import Path
from ram_studio.algorithm import numba_kernels
numba_kernels.__file__ = str(Path({folder!r}) / "numba_kernels.py")
sys.path.insert(0, {folder!r})
import two
print(two.outer(1), sum(two.outer.stats.cache_hits.values()))
"""


def run(folder: Path) -> list[str]:
    command = [sys.executable, "-c", RUN.format(folder=str(folder))]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def write(folder: Path, added: int) -> None:
    for name, text in MODULES.items():
        (folder / name).write_text(text.format(added=added))


def test_a_kernel_is_kept_until_what_it_calls_changes(tmp_path):
    write(tmp_path, 1)
    assert run(tmp_path) == ["2", "0"]
    assert run(tmp_path) == ["2", "1"]
    write(tmp_path, 5)
    assert run(tmp_path) == ["6", "0"]
