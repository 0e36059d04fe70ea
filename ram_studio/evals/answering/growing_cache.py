"""A key-value cache that writes in place; import it only where a model is about to run.

The cache of transformers copies every layer for every token. For 60 prompts of 700 tokens on a CPU
this took most of the time.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

# A full cache grows by a quarter, at least by this many tokens.
LEAST_GROWTH = 64


class GrowingLayer(DynamicLayer):
    """Keys and values "rows heads tokens size" as views of storage with spare capacity."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self._storage: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states of new tokens and return those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        if self._storage is None or self._storage[0].shape[-2] < stop:
            room = stop + max(LEAST_GROWTH, stop // 4)
            self._storage = (
                _grow(key_states, self.keys, start, room),
                _grow(value_states, self.values, start, room),
            )
        keys, values = self._storage
        keys[:, :, start:stop] = key_states
        values[:, :, start:stop] = value_states
        self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row; the copies have no spare capacity."""
        super().batch_repeat_interleave(repeats)
        self._storage = None

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these rows; the copies have no spare capacity."""
        super().batch_select_indices(indices)
        self._storage = None


def _grow(like: torch.Tensor, old: torch.Tensor, length: int, room: int) -> torch.Tensor:
    rows, heads, _, size = like.shape
    storage = like.new_empty((rows, heads, room, size))
    if length:
        storage[:, :, :length] = old
    return storage


def make_cache(model: Any) -> tuple[Cache, bool]:
    """Return (an empty cache for a model, whether all its layers are plain attention).

    Only such a cache may drop rows or be filled in chunks: sliding windows and recurrent states
    need other rules, and are left to transformers.
    """
    cache = DynamicCache(config=model.config)
    is_plain = bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)
    if is_plain:
        cache.layers = [GrowingLayer() for _ in cache.layers]
    return cache, is_plain
