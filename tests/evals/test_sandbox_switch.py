"""Where code that a model wrote may run at all, and what holds where the kernel cannot seal it."""

import os
import platform
import shutil
import subprocess
import sys

import pytest

from ram_studio.errors import EvaluationError
from ram_studio.evals.sandbox import check_code_allowed, process, run_program, switch

sealed = pytest.mark.skipif(
    not switch.is_sealed(), reason="this kernel has no Landlock or no seccomp"
)


def inside(source, folder):
    """Return what a bare Python writes that can import what the sandbox runs in its processes."""
    begin = f"import os, sys\nsys.path[:0] = [{str(switch.FOLDER)!r}]\n"
    order = [sys.executable, "-I", "-S", "-B", "-c", begin + source]
    return subprocess.run(order, capture_output=True, text=True, cwd=folder, check=True).stdout


FALLBACK = """from inside.audit import refuse_in_python
refuse_in_python()
import json, random, textwrap
print("imports work")
for attempt in (
    "__import__('socket').socket()", "open('/etc/passwd')", "open('x', 'w')", "os.listdir('/')",
    "os.fork()", "os.system('true')", "__import__('subprocess').run(['true'])", "os.remove('x')",
    "__import__('resource').prlimit(os.getppid(), 0)",
):
    try:
        eval(attempt)
    except PermissionError:
        print("refused")
"""


def test_code_is_refused_where_the_kernel_cannot_seal(tmp_path):
    assert inside(FALLBACK, tmp_path).split("\n") == ["imports work", *["refused"] * 9, ""]


def test_code_that_must_be_sealed_does_not_run_unsealed(monkeypatch, tmp_path):
    broken = tmp_path / "sandbox"
    shutil.copytree(switch.FOLDER, broken)
    seal = broken / "inside" / "seal.py"
    text, found = seal.read_text(), 'layers["seccomp"] = '
    assert found in text
    seal.write_text(text.replace(found, found + "False and "))
    monkeypatch.setattr(switch, "FOLDER", broken)
    result = run_program("print('ran')")
    assert (result.outcome, result.output) == ("failed", "")
    assert "nothing was run" in result.last_line
    assert run_program("print('ran')", code="on").output == "ran\n"


def test_the_switch(monkeypatch):
    with pytest.raises(EvaluationError, match="switched off"):
        run_program("print(1)", code="off")
    with pytest.raises(EvaluationError, match="auto, on or off"):
        check_code_allowed("maybe")
    monkeypatch.setenv("SPACE_ID", "someone/space")
    with pytest.raises(EvaluationError, match="public Space"):
        check_code_allowed("auto")
    check_code_allowed("on")
    monkeypatch.delenv("SPACE_ID")
    monkeypatch.setattr(switch, "is_sealed", lambda: False)
    with pytest.raises(EvaluationError, match="cannot sandbox"):
        check_code_allowed("auto")


@pytest.mark.parametrize(("system", "name"), [("Darwin", "macOS"), ("Windows", "Windows")])
@pytest.mark.parametrize("code", ["auto", "on"])
def test_other_systems_say_that_they_cannot_and_why(monkeypatch, system, name, code):
    monkeypatch.setattr(platform, "system", lambda: system)
    with pytest.raises(EvaluationError, match=f"run on {name}.*Landlock.*Leave the suite"):
        run_program("print(1)", code=code)
    switch.is_sealed.cache_clear()
    assert not switch.is_sealed()
    switch.is_sealed.cache_clear()


def test_a_machine_that_starts_no_process_is_told_in_a_sentence(monkeypatch):
    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process.subprocess, "Popen", refuse)
    with pytest.raises(EvaluationError, match=r"could not start a process.*Too many open files"):
        run_program("print(1)", code="on")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give up")
@sealed
def test_an_ordinary_user_is_sealed_as_well(tmp_path):
    # Root can do more before sealing; nobody must get the same two kernel layers.
    code = "from inside.seal import seal\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    limits = {"memory_bytes": 2**29, "cpu_seconds": 5, "file_bytes": 4096, "open_files": 32}
    code += f"print(seal({limits}))\n"
    assert "'landlock': True, 'user': True, 'seccomp': True" in inside(code, tmp_path)
