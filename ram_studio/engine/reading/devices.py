"""Which devices a pass runs on, and what differs between a CUDA device and the CPU.

The CUDA path also runs on the CPU, as the device "torch" (or "torch:2" for two of them): the same
staging and torch formulas, with copies that have happened when they return. It is slow, and there
to be tested where there is no GPU.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ram_studio.checkpoints.read.describe import shown_bytes
from ram_studio.errors import SettingsError

DEVICES = ("auto", "cpu", "cuda")
_TWIN = "torch"


def choose_device(device: str) -> str:
    """Return "cpu", or the name of one or more devices for "cuda" (all of them) or "cuda:N".

    "auto" is the CPU: a merge is bound by the disk, the CPU kernels keep up with it, and importing
    torch alone would take as long as merging half a billion elements.

    Raises: SettingsError for another name, or when CUDA is asked for and torch sees none.
    """
    if device in ("auto", "cpu"):
        return "cpu"
    kind, _, number = device.partition(":")
    if kind == _TWIN and (not number or (number.isdecimal() and int(number) > 0)):
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
    """Return the torch device names that a chosen device stands for, at least one."""
    kind, _, number = chosen.partition(":")
    if kind == _TWIN:
        return ("cpu",) * int(number or 1)
    if chosen == "cuda":
        import torch

        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    return (chosen,)


def free_bytes(device: str) -> int:
    """Return how much of a device's memory is free; for the CPU what can be had without swapping.

    2**62 where the system does not tell.
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
    """Begin and end with nothing queued on these devices, also after an error.

    Streams do not wait for each other: what was queued before may still use memory that is handed
    out anew.

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
            f"The device's memory ran out ({free} free): something else may be using it. Stop "
            "that, use fewer threads, or merge on the CPU."
        ) from error
    finally:
        settle(devices)


def settle(devices: Iterable[str]) -> None:
    """Wait until these devices have done all that was queued for them."""
    for device in set(devices) - {"cpu"}:
        import torch

        torch.cuda.synchronize(device)


@contextlib.contextmanager
def one_torch_thread(device: str) -> Iterator[None]:
    """Keep torch to one thread per call on a CPU.

    For blocks that are dealt to threads of our own, and for small matrices: a second thread wins
    little there, and takes 30 times as long where something else holds its core.
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
