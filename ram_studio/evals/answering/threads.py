"""How many threads a model decodes fastest with, found by timing one step of it.

A small model on a busy machine is fastest with one: every tiny operation waits for the thread that
is not running (40 times slower was measured, on two cores). Which it is depends on the model, the
machine and what else it does, so that no rule knows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

# A step is timed so often with each number of threads; the quickest counts.
_TIMES = 2
_MOST_ROWS = 32
_found: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


@contextmanager
def fitting_threads(model: Any, rows: int = 1) -> Iterator[None]:
    """Use as many torch threads inside the block as suit a model on a CPU; restore after.

    rows: how many answers are decoded together; the first time decides for the model.
    """
    import torch

    before = torch.get_num_threads()
    if model.device.type == "cpu" and before > 1:
        if model not in _found:
            _found[model] = _fastest(model, min(rows, _MOST_ROWS), before)
        torch.set_num_threads(_found[model])
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fastest(model: Any, rows: int, most: int) -> int:
    """Return 1 or `most`, whichever computes one token of so many rows sooner."""
    import torch

    ids = torch.zeros((rows, 1), dtype=torch.int64)
    seconds: dict[int, float] = {}
    with torch.inference_mode():
        model(input_ids=ids, use_cache=False)
        for threads in (1, most) * _TIMES:
            torch.set_num_threads(threads)
            start = time.perf_counter()
            model(input_ids=ids, use_cache=False)
            seconds[threads] = min(time.perf_counter() - start, seconds.get(threads, 1e9))
    return min(seconds, key=seconds.__getitem__)
