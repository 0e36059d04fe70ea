"""Which device a pass runs on."""

from __future__ import annotations

from ram_studio.errors import SettingsError

DEVICES = ("auto", "cpu", "cuda")


def choose_device(device: str) -> str:
    """Return "cpu" or a CUDA device name for "auto", "cpu", "cuda" or "cuda:N".

    "auto" is the CPU: a merge is bound by the disk, the CPU kernels keep up with it, and importing
    torch alone would take as long as merging half a billion elements.

    Raises: SettingsError for another name, or when CUDA is asked for and torch sees none.
    """
    if device in ("auto", "cpu"):
        return "cpu"
    if device.split(":")[0] != "cuda":
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
