"""A merge on the CPU starts without what it does not use: compilers, servers, checkers of types."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_zoo import make_zoo

RUN = """
import sys
from ram_studio.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
left_out = ("numba", "scipy", "jaxtyping", "asyncio", "ssl", "torch", "transformers", "gradio")
print([name for name in left_out if name in sys.modules])
"""


@pytest.mark.parametrize("method", ["ram+", "ties"])
def test_a_merge_whose_kernels_are_kept_imports_no_compiler(tmp_path, method):
    zoo = make_zoo(tmp_path / "zoo", 2)
    agents = [f"--agent={name}={path}" for name, path in zoo.agent_paths.items()]
    found = []
    for number in (1, 2):  # the first may have to compile
        command = ["merge", f"--base={zoo.base_path}", *agents, f"--method={method}"]
        done = subprocess.run(
            [sys.executable, "-c", RUN, *command, f"--out={tmp_path / str(number)}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines()[-1])
    assert found[1] == "[]"
