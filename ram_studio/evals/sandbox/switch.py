"""Whether model-written code may run here: the switch, and this machine's abilities."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ram_studio.errors import EvalSettingsError, EvaluationError

CodeSwitch = Literal["auto", "on", "off"]

FOLDER = Path(__file__).parent
START = "import json, sys; sys.path.insert(0, sys.argv[1]); from inside.start import main; "
START += "sys.path.pop(0); main(json.loads(sys.argv[2]))"
OPEN_FILES = 32


@dataclass(frozen=True)
class Limits:
    """seconds: wall clock; CPU time gets one more. output_bytes: of each of the two streams."""

    seconds: float = 5.0
    memory_bytes: int = 512 * 1024**2
    output_bytes: int = 64 * 1024


DEFAULT_LIMITS = Limits()


@lru_cache(maxsize=1)
def is_sealed() -> bool:
    """Return whether the kernel blocks network, files and processes for sealed programs.

    Tested by sealing one process.
    """
    if platform.system() != "Linux":
        return False
    # Compiled and cached here: sealed processes cannot write, and each would compile it again.
    import_module("ram_studio.evals.sandbox.inside.start")
    try:
        done = subprocess.run(
            command(mode="probe"), env={}, capture_output=True, timeout=60, check=False
        )
        layers = json.loads(done.stdout)
        return bool(layers["landlock"] and layers["seccomp"])
    except (OSError, ValueError, TypeError, KeyError, subprocess.TimeoutExpired):
        return False


def command(limits: Limits = DEFAULT_LIMITS, **order: Any) -> list[str]:
    """Return the command line of a sealed interpreter; see `inside.start` for the order."""
    order |= {"cpu_seconds": int(limits.seconds) + 1, "memory_bytes": limits.memory_bytes}
    order |= {"file_bytes": limits.output_bytes, "open_files": OPEN_FILES}
    # The base interpreter of a virtual environment, whose site-packages are then out of reach.
    python = getattr(sys, "_base_executable", None) or sys.executable
    flags = ["-I", "-S", "-B", "-X", "utf8"]
    return [python, *flags, "-c", START, str(FOLDER), json.dumps(order)]


def check_code_allowed(code: CodeSwitch = "auto") -> None:
    """Raise unless programs written by a model may run here.

    "off" never; "on" on any Linux, with the protection available; "auto" where the kernel seals the
    process, except on a public Space (SPACE_ID is set).

    Raises: EvaluationError: they may not, with the reason.
    """
    if code not in ("auto", "on", "off"):
        raise EvalSettingsError(f"The code switch is {code!r}. Choose auto, on or off.")
    if code == "off":
        raise EvaluationError(
            "Running code that a model wrote is switched off here, and this suite needs it. "
            "Leave the suite out, or switch code on."
        )
    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    if system != "Linux":
        raise EvaluationError(
            f"Code that a model wrote cannot be run on {system}, whatever the code switch says: "
            f"the sandbox needs Linux's Landlock and seccomp, and {system} has nothing like them "
            "for one process. Leave the suite out, or run RAM Studio in Linux: a container, "
            "a virtual machine, WSL 2."
        )
    if code == "auto" and os.environ.get("SPACE_ID"):
        raise EvaluationError(
            "Running code that a model wrote is off on a public Space, and this suite needs it. "
            "Leave the suite out, or run it on your own machine."
        )
    if code == "auto" and not is_sealed():
        raise EvaluationError(
            "This system cannot sandbox a process (Linux with Landlock and seccomp is needed), so "
            "code that a model wrote is not run. Leave the suite out, or set code to 'on' inside "
            "a container or virtual machine you can throw away."
        )
