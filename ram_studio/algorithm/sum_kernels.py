"""Fused CPU kernels for methods that sum or average kept task vectors; see ``sum_loops``."""

from __future__ import annotations

from ram_studio.algorithm.machine_code import Kernel

merge_sum = Kernel("sum_loops", "merge_sum")
merge_trimmed = Kernel("sum_loops", "merge_trimmed")
