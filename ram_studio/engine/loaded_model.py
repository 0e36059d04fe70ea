"""The tensors of a loaded torch model, by the names of the checkpoint it was loaded from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.checkpoints.read.describe import quoted, shown_list, shown_shape
from ram_studio.checkpoints.read.header import MERGED_DTYPES
from ram_studio.errors import CompatibilityError, SettingsError

# Older checkpoints store these; transformers computes them when it loads a model.
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(self_attn|attention|attn)\.(masked_)?bias)$")


def flat_tensors(state: Mapping[str, Any], tensors: Sequence[MergeTensor]) -> dict[str, Any]:
    """Return a state dict's tensor for each of the checkpoint's, flat views that share storage."""
    missing = [t.name for t in tensors if t.name not in state and not _COMPUTED.search(t.name)]
    if missing:
        raise CompatibilityError(
            f"The loaded model has no {shown_list([quoted(n) for n in missing], separator=', ')}, "
            "which the base stores; its library names or packs them differently. Write the merge "
            "to a folder and load that instead."
        )
    targets = {}
    for tensor in tensors:
        own = state.get(tensor.name)
        if own is None:
            continue
        if tuple(own.shape) != tensor.shape or not own.is_contiguous():
            raise CompatibilityError(
                f"The loaded model's tensor {quoted(tensor.name)} has shape "
                f"{shown_shape(tuple(own.shape))}, the base stores {shown_shape(tensor.shape)} "
                "(rows in order). Load the model from the base's folder."
            )
        targets[tensor.name] = own.detach().view(-1)
    return targets


def check_fits(name: str, dtype: str, target: Any) -> None:
    """Raise SettingsError when the model's dtype would round the merged tensor a second time."""
    import torch

    if target is None or dtype not in MERGED_DTYPES:
        return
    if target.dtype in (torch.float32, torch.float64) or target.dtype == torch_dtype(dtype):
        return
    raise SettingsError(
        f"Tensor {quoted(name)}: the merge gives {dtype}, the loaded model holds "
        f"{str(target.dtype).removeprefix('torch.')}, which cannot hold that exactly. Load the "
        "model in float32, or leave the output dtype at the base's."
    )


def torch_dtype(dtype: str) -> Any:
    """Return the torch dtype of a dtype as safetensors names it."""
    import torch

    if dtype in ("BF16", "BOOL"):
        return torch.bfloat16 if dtype == "BF16" else torch.bool
    words = {"F": "float", "I": "int", "U": "uint"}
    return getattr(torch, words[dtype[0]] + dtype[1:])


class ModelSink:
    """Takes pieces of stored tensors and puts them into the model's; lets go of all others."""

    def __init__(self, targets: dict[str, Any], dtypes: dict[str, str]) -> None:
        self._targets = targets
        self._dtypes = {name: torch_dtype(dtype) for name, dtype in dtypes.items()}

    def write(self, name: str, byte_offset: int, buffer: bytes | bytearray | memoryview) -> None:
        """Put a piece of a tensor's data where it belongs."""
        if name not in self._targets or memoryview(buffer).nbytes == 0:
            return
        import torch

        values = torch.frombuffer(buffer, dtype=self._dtypes[name])
        start = byte_offset // values.element_size()
        with torch.no_grad():
            self._put(name, self._targets[name][start : start + len(values)], values)

    def _put(self, name: str, target: Any, values: Any) -> None:
        target.copy_(values)


class ModelComparison(ModelSink):
    """Raises where the model holds something else than what is stored."""

    def _put(self, name: str, target: Any, values: Any) -> None:
        import torch

        if not torch.equal(values.to(target.device, target.dtype), target):
            raise CompatibilityError(
                f"The loaded model is not the base: its tensor {quoted(name)} differs from the "
                "base's file. Load the model from the base's folder, unchanged and at least in "
                "the dtype it is stored in."
            )
