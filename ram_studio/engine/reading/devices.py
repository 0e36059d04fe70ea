"""Devices of a pass, and the differences between CUDA devices and the CPU.

The CUDA path also runs on the CPU, as the device "torch" (or "torch:2" for two of them): the same
staging and torch formulas, with synchronous copies. It is slow, and serves tests without a GPU.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ram_studio.checkpoints.read.describe import shown_bytes
from ram_studio.errors import SettingsError

DEVICES = ("auto", "cpu", "cuda")
_TORCH_ON_CPU = "torch"


def choose_device(device: str) -> str:
    """Return "cpu", or the name of one or more devices for "cuda" (all of them) or "cuda:N".

    "auto" is the CPU: a merge is bound by the disk, the CPU kernels keep up with it, and importing
    torch alone would take as long as merging half a billion elements.

    Raises: SettingsError for another name, or when CUDA is requested and torch sees none.
    """
    if device in ("auto", "cpu"):
        return "cpu"
    kind, _, number = device.partition(":")
    if kind == _TORCH_ON_CPU and (not number or (number.isdecimal() and int(number) > 0)):
        return device
    if kind != "cuda":
        raise SettingsError(f"The device is {device!r}; it must be one of {', '.join(DEVICES)}.")
    import torch

    if not torch.cuda.is_available():
        raise SettingsError(
            "The device is cuda, but torch sees no CUDA device; use cpu, or install a torch "
            "build with CUDA on a machine with a GPU."
        )
    try:
        torch.empty(0, device=device)
    except RuntimeError as error:
        raise SettingsError(
            f"The device is {device!r}; torch sees {torch.cuda.device_count()} CUDA device(s), "
            "numbered from 0."
        ) from error
    return device


def devices_of(chosen: str) -> tuple[str, ...]:
    """Return the torch device names of a chosen device, at least one."""
    kind, _, number = chosen.partition(":")
    if kind == _TORCH_ON_CPU:
        return ("cpu",) * int(number or 1)
    if chosen == "cuda":
        import torch

        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    return (chosen,)


def free_bytes(device: str) -> int:
    """Return a device's free memory; for the CPU what is available without swapping.

    2**62 where the system does not report it.
    """
    if device == "cpu":
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/meminfo").read_text().splitlines()
            return next(int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable:"))
        return 1 << 62
    import torch

    return torch.cuda.mem_get_info(device)[0]


@contextlib.contextmanager
def settling(devices: Iterable[str]) -> Iterator[None]:
    """Synchronize these devices at the beginning and the end, also after an error.

    Streams do not wait for each other: work queued before may still use memory that is allocated
    again.

    Raises: SettingsError when a device's memory runs out.
    """
    devices = tuple(devices)
    settle(devices)
    try:
        yield
    except Exception as error:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(error, torch.OutOfMemoryError):
            raise
        free = ", ".join(f"{name} has {shown_bytes(free_bytes(name))}" for name in set(devices))
        raise SettingsError(
            f"The device's memory ran out ({free} free). Stop other programs on it, use fewer "
            "threads, or merge on the CPU."
        ) from error
    finally:
        settle(devices)


def settle(devices: Iterable[str]) -> None:
    """Wait until these devices have finished all queued work."""
    for device in set(devices) - {"cpu"}:
        import torch

        torch.cuda.synchronize(device)


@contextlib.contextmanager
def one_torch_thread(device: str) -> Iterator[None]:
    """Limit torch to one thread per call on a CPU.

    For blocks that our own threads process, and for small matrices: a second thread gains little
    there, and a call takes 30 times as long where another process uses its core.
    """
    torch = sys.modules.get("torch")
    if torch is None or device != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
