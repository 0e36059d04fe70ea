"""The compiled loops: vector code, the same bytes on every processor, and where they are kept."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ram_studio
from ram_studio.algorithm.kernels.loops.compiling import _Index

ROOT = Path(ram_studio.__file__).parents[1]

# Elements of a base and 3 agents as bfloat16, and a rule for each loop that merges.
SAMPLE = r"""
import hashlib, json, re, sys
import numpy as np
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.kernels.relating import ChangedElements, RelationSums
from ram_studio.algorithm.kernels.relating import add_relations, gather_changed
from ram_studio.algorithm.kernels.rules import Drawing, Rule, means
from ram_studio.algorithm.meters.rounding_meter import kernel_places

n, rng = 5000, np.random.default_rng(0)
bits = ((rng.standard_normal(n) * 0.02).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
steps = [rng.integers(-3, 4, n) * (rng.random(n) < 0.3) for _ in range(3)]
others = tuple((bits + step).astype(np.uint16) for step in steps)
pattern, sizes = np.empty(n, np.uint8), np.zeros((3, 4096 + cpu.TILE), np.int32)
chain = np.zeros(24 * 4096, np.int32)
drawing = Drawing((np.uint64(1), np.uint64(2), np.uint64(3)), (1 << 51,) * 3)
rules = [
    Rule(1e-5, (1.1, 1.0, 1.3), means(3), elect_sign, None, drawn)
    for drawn in (None, drawing) for elect_sign in (False, True)
]
"""

# A digest of what each loop wrote, from bfloat16 and from float32, and how many instructions on
# whole vectors (256 or 512 bits) the code of each loop for bfloat16 holds at least.
WRITE = (
    SAMPLE
    + r"""
from ram_studio.algorithm.kernels import loops
from ram_studio.algorithm.kernels.loops import measuring
packed = re.compile(r"\tv?p?[a-z0-9]+\t.*%[yz]mm")

vectorised = ["find_patterns", "merge_mean", "merge_elected", "count_patterns"]
vectorised += ["_find_error", "_measure_agent"]
vectorised += ["fill_chain", "count_sizes", "gather_changed", "draw", "stochastic_bfloat16"]

def vectors(name):
    place = measuring if name.startswith("_") else loops
    each = [code.splitlines() for code in getattr(place, name).inspect_asm().values()]
    return min(sum(bool(packed.match(line)) for line in one) for one in each)

wrote, counted = {}, {}
for arithmetic in ("float32", "float64"):
    def keep(name, *arrays):
        bytes_ = b"".join(array.tobytes() for array in arrays)
        wrote[name + " " + arithmetic] = hashlib.sha256(bytes_).hexdigest()
    base, agents = bits, others
    if arithmetic == "float64":
        base, agents = cpu.as_float32(bits), tuple(cpu.as_float32(a) for a in others)
    out = np.empty_like(base)
    assert cpu.find_patterns(base, agents, pattern, np.float32(1e-5))
    keep("find", pattern, cpu.count_patterns(pattern, 3), cpu.count_patterns(pattern, 7))
    for number, rule in enumerate(rules):
        assert cpu.merge(rule, base, agents, out, pattern, arithmetic=arithmetic)
        keep(f"merge {number}", out, pattern)
    table = np.zeros((3, 3, 4096), np.int32)
    assert cpu.fill_chain(base, agents, chain) and cpu.count_sizes(base, agents, sizes)
    assert cpu.fill_steps(base, agents, table)
    keep("histograms", chain[3 * 4096 :], sizes[:, :4096], table)
    values = cpu.as_float32(out).astype(arithmetic)
    for kind in (np.uint16, np.float32, np.float64):
        stored = np.empty(n, kind)
        cpu.round_stochastically(values, pattern, np.uint64(5), 7, stored)
        keep(f"round {kind.__name__}", stored)
    gathered = ChangedElements.room_for(3, n)
    found = RelationSums.zeros(3, 925353388, np.arange(4096) // 64)
    found.places[:] = kernel_places(["BF16"] * 3)
    gather_changed(base, agents, gathered)
    add_relations(gathered, found)
    keep("relations", found.rows, found.steps)
    if not counted:
        masks = pattern, pattern
        cpu.measure(rules[0], base, agents, out, masks, [0, n], arithmetic=arithmetic)
        counted = {name: vectors(name) for name in vectorised}
print(json.dumps([wrote, counted]))
"""
)

ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors are x86")


def run(code: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        cwd=root,  # which comes first among the folders that modules are looked for in
        capture_output=True,
        text=True,
        check=False,
    )


@ON_X86
@pytest.mark.slow
def test_wide_and_narrow_vectors_give_the_same_bytes(tmp_path):
    # Kept code shows no instructions: all is compiled here, for both processors at a time.
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(run, WRITE, NUMBA_CACHE_DIR=str(tmp_path / place), **processor)
            for place, processor in (("host", {}), ("haswell", {"NUMBA_CPU_NAME": "haswell"}))
        ]
    done = [one.result() for one in running]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    (host, on_host), (haswell, on_haswell) = (json.loads(one.stdout) for one in done)
    assert host == haswell
    assert len(host) == 20
    # Loops that are not vectorised hold a few, which copy arguments.
    for counted in (on_host, on_haswell):
        assert {name: count for name, count in counted.items() if count < 40} == {}


# A loop of two parts that compiles fast; each part is kept on its own.
DRAW = """
import numpy as np
from ram_studio.algorithm.kernels import cpu
words = np.zeros(300, np.uint64)
for _ in range(2):
    cpu.random_words(np.uint64(1), 0, words)
    assert len(set(words.tolist())) == 300
"""


@pytest.fixture
def unwritable(tmp_path):
    """Return a copy of the loops beside which nothing can be kept, also not by root."""
    package = tmp_path / "site" / "ram_studio"
    shutil.copytree(
        ROOT / "ram_studio" / "algorithm",
        package / "algorithm",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "ram_studio" / "errors.py", package)
    (package / "algorithm" / "kernels" / "loops" / "__pycache__").touch()
    return package.parent


@pytest.mark.slow
def test_a_read_only_package_stores_loops_in_the_users_cache(unwritable, tmp_path):
    done = run(DRAW, unwritable, XDG_CACHE_HOME=str(tmp_path / "cache"), NUMBA_CACHE_DIR="")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "cache").rglob("drawing.*.nbc"))) >= 2


@pytest.mark.slow
def test_stored_code_is_recompiled_when_any_loop_changes(tmp_path):
    package = tmp_path / "site" / "ram_studio"
    loops = package / "algorithm" / "kernels" / "loops"
    shutil.copytree(ROOT / "ram_studio", package, ignore=shutil.ignore_patterns("*.nb[ci]"))
    round_one = """
import numpy as np
from ram_studio.algorithm.kernels import cpu
out = np.zeros(1, np.uint16)
cpu.round_stochastically(np.ones(1, np.float32), np.zeros(1, np.uint8), np.uint64(1), 0, out)
print(out[0])
"""

    def rounded() -> str:
        return run(round_one, package.parent, NUMBA_CACHE_DIR="").stdout.strip()

    assert [rounded(), rounded()] == ["16256", "16256"]  # 0x3F80, the second time as it was kept
    elements = loops / "elements.py"
    text = elements.read_text(encoding="utf-8")
    assert text.count(">> np.uint32(16))\n") == 1
    elements.write_text(text.replace(">> np.uint32(16))\n", ">> np.uint32(15))\n"), "utf-8")
    assert rounded() == "32512"


@pytest.mark.slow
def test_without_a_writable_folder_loops_compile_in_memory(unwritable, tmp_path):
    (tmp_path / "cache").touch()
    done = run(DRAW, unwritable, XDG_CACHE_HOME=str(tmp_path / "cache"), NUMBA_CACHE_DIR="")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Compiled loops cannot be cached") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


@pytest.mark.slow
def test_a_full_disk_costs_the_kept_code_and_not_the_merge(tmp_path):
    full = """
import numba.core.caching as caching
def save_overload(self, *_):
    raise OSError(28, "No space left on device")
caching.Cache.save_overload = save_overload
"""
    done = run(full + DRAW, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("could not be cached") == 1
    assert "No space left" in done.stderr


class OldType:
    """A type whose name is gone in newer code."""


def test_code_kept_for_types_renamed_since_is_compiled_anew(tmp_path, monkeypatch):
    """Its index could not be read: after an update every analysis ended in an AttributeError."""
    index = _Index(str(tmp_path), "loop", "sources")
    index.save(OldType, b"code")
    assert index.load(OldType) == b"code"
    monkeypatch.delattr(sys.modules[__name__], "OldType")
    assert index.load("another") is None
    index.save("another", b"new")
    assert index.load("another") == b"new"
