"""Starts load no more than they use: no compiler where nothing is merged, no servers, no torch."""

from __future__ import annotations

import json
import subprocess
import sys

from engine_zoo import make_zoo, model_options

COMPILER = {"numba", "llvmlite", "scipy"}
HEAVY = {"torch", "transformers", "gradio", "plotly", "pandas"}
RUN = """
import contextlib, io, json, sys
from ram_studio.cli import main
loaded = {}
for command in json.load(sys.stdin):
    sys.argv = ["ram-studio", *command]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
    loaded[command[0]] = list(sys.modules)
print(json.dumps(loaded))
"""


def loaded_by(*commands: tuple[str, ...]) -> dict[str, set[str]]:
    """Run commands one after the other in a new process; return what each found or imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


def test_commands_import_only_what_they_use(tmp_path):
    sources = model_options(make_zoo(tmp_path / "zoo", 2).recipe())
    analysis, merged = tmp_path / "zoo.analysis", tmp_path / "merged"
    found = loaded_by(
        ("merge", *sources, f"--out={merged}"), ("analyze", *sources, f"--analysis={analysis}")
    )
    for command, modules in found.items():
        assert not HEAVY & modules, command
        assert modules >= {"numba"}, command
        assert not modules & {"scipy.linalg", "numpy.f2py"}, command  # for BLAS, which is not used
    found = loaded_by(
        ("--help",), ("inspect", *sources), ("preview", str(analysis)), ("verify", str(merged))
    )
    for command, modules in found.items():
        assert not modules & (COMPILER | HEAVY - {"pandas", "plotly"}), command


def test_functions_that_call_blas_are_compiled_beside_the_loops():
    import numba
    import numpy as np

    from ram_studio.algorithm.kernels import loops  # noqa: F401

    values = np.arange(9.0).reshape(3, 3)
    assert np.array_equal(numba.njit(lambda x: np.dot(x, x))(values), values @ values)
