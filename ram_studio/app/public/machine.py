"""The machine that the app runs on: its hardware, thread priorities, and ZeroGPU."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ram_studio.app.numbers import size_text

Work = TypeVar("Work", bound=Callable[..., Any])

_NICE_STEP = 5
_CGROUP = Path("/sys/fs/cgroup")


def lower_priority() -> None:
    """Lower the priority of this thread and its children below the threads that serve pages.

    Only on Linux, where threads have their own priority; elsewhere it would affect the whole app.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, now + _NICE_STEP)


def has_zerogpu() -> bool:
    """Whether this is ZeroGPU: the Hub's package `spaces` gives a GPU for a call."""
    return find_spec("spaces") is not None


def with_zerogpu(seconds: int) -> Callable[[Work], Work]:
    """Return a decorator that runs a function on ZeroGPU, if available, for at most this time.

    On ZeroGPU the function runs in another process: arguments and results are pickled.
    """
    if not has_zerogpu():
        return lambda work: work
    decorate: Callable[[Work], Work] = import_module("spaces").GPU(duration=seconds)
    return decorate


def hardware_text() -> str:
    """Return a sentence about this machine, for users."""
    cores = _limit("cpu.max") or float(len(os.sched_getaffinity(0)) if _CAN_ASK else _CORES)
    parts = [f"{cores:g} processor{'s' * (cores != 1)}"]
    if _CAN_ASK:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{size_text(min(memory, _limit('memory.max') or memory))} of memory")
    if os.environ.get("SPACES_ZERO_GPU") == "true":
        parts.append("ZeroGPU for answers")
    elif Path("/proc/driver/nvidia/version").exists():
        import torch

        if torch.cuda.is_available():
            parts.append(torch.cuda.get_device_name(0))
    return f"This server has {', '.join(parts[:-1])} and {parts[-1]}."


_CAN_ASK = sys.platform == "linux"
_CORES = os.cpu_count() or 1


def _limit(name: str) -> float:
    """Return a container's limit, processors or bytes; 0 for none."""
    try:
        most, *period = (_CGROUP / name).read_text(encoding="ascii").split()
        return float(most) / float(period[0]) if period else float(most)
    except (OSError, ValueError):
        return 0.0
