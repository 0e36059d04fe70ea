"""A merge made ready: the method, and what every block needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.methods import Facts, Method
from ram_studio.algorithm.overlap import OverlapCounts
from ram_studio.checkpoints.fit.compatibility import MergeTensor
from ram_studio.engine.reading.blocks import Block
from ram_studio.errors import SettingsError

MAX_AGENTS = 32

ARITHMETIC = "float64"
"""In which floating-point arithmetic merges are computed, before they are stored.

Kept in the passport: another version's arithmetic may give other last digits.
"""


@dataclass(frozen=True)
class Counted:
    """Counts at one epsilon, and how they came about.

    counts: per counted tensor; magnitude: float64 (tensors, agents, 2), sums of |tau| over elements
    changed alone, and with others, or None; is_from_sketch: whether no pass made them; bytes_read:
    for them.
    """

    counts: OverlapCounts
    magnitude: np.ndarray | None = None
    is_from_sketch: bool = False
    bytes_read: int = 0


@dataclass(frozen=True)
class Known:
    """The facts of a merge, and what they were made of.

    counted: counts at the method's epsilon, or None; is_from_sketch: whether a sketch told them.
    """

    facts: Facts
    counted: Counted | None
    is_from_sketch: bool
    bytes_read: int


@dataclass(frozen=True)
class Plan:
    """See above.

    prepared: what the method's ``prepare`` returned; known: what it was prepared with;
    dtypes: output dtype of each merged tensor by name; rows: index of each merged tensor among
    Facts.tensors, by name; device: as chosen, see ``devices.choose_device``.
    """

    method: Method
    prepared: Any
    known: Known
    dtypes: dict[str, str]
    rows: dict[str, int]
    rounding: rounding.Rounding
    device: str = "cpu"

    @property
    def facts(self) -> Facts:
        """What the engine found out before the first block."""
        return self.known.facts

    @property
    def n_agents(self) -> int:
        """Number of agents."""
        return len(self.facts.agents)

    @property
    def is_fused(self) -> bool:
        """Whether a fused CPU loop computes it; else its torch formula does."""
        return self.device == "cpu" and hasattr(self.prepared, "kernel")

    @property
    def arithmetic(self) -> str:
        """In which numbers merged elements are computed, see ARITHMETIC."""
        return ARITHMETIC

    def key(self, tensor: MergeTensor) -> np.uint64:
        """Return the tensor's key for stochastic rounding; a tied head shares its embedding's."""
        return rounding.stream_key(self.facts.seed, "rounding", tensor.tied_to or tensor.name)


@dataclass(frozen=True)
class Merged:
    """One block, merged.

    stored: elements of the output's dtype, in the backend's memory; counts: int64 (2, agents), how
    many each agent changed, and changed alone; sums: float64 (groups, 2, agents), over the latter
    (stored - base) * tau and tau**2, by group of elements. The last two are None where the tensor
    is not counted.
    """

    stored: Any
    counts: np.ndarray | None = None
    sums: np.ndarray | None = None


def pattern_dtype(n_agents: int) -> np.dtype:
    """Return the smallest unsigned integer with a bit per agent.

    Raises: SettingsError for more than MAX_AGENTS agents.
    """
    if n_agents > MAX_AGENTS:
        raise SettingsError(
            f"{n_agents} agents were given; at most {MAX_AGENTS} can be merged at once. Merge in "
            "groups."
        )
    return np.dtype(np.uint8 if n_agents <= 8 else np.uint16 if n_agents <= 16 else np.uint32)


def overflow_error(dtype: str, block: Block) -> SettingsError:
    """Return the error for a merged element that became infinite in the output dtype."""
    return SettingsError(
        f"Tensor `{block.tensor.name}`: a merged element lies beyond the range of the output "
        f"dtype ({dtype}). Choose float32 or bfloat16 for the output, or a smaller scale."
    )
