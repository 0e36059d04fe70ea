"""The loops on the CPU: numpy arrays in, numpy arrays out.

Stored elements come as uint16 bit patterns of bfloat16 where base and agents all are bfloat16,
else all as float32; agents as a tuple of arrays. Patterns are unsigned integers with a bit per
agent (bit t: agent t changed the element), see ``pattern_dtype``. Nothing is copied.

numba (0.5 s) is imported when a loop first runs. Compiled code is cached beside the package, or in
the user's cache folder where that cannot be written.
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.kernels.rules import Arithmetic, MergekitSum, Rule
from ram_studio.algorithm.overlap import MAX_PATTERN_AGENTS
from ram_studio.algorithm.shapes import Float64, Int64, UInt
from ram_studio.errors import SettingsError

MAX_AGENTS = 32
TILE = 2048
"""``loops.TILE``: length of work rows, and number of spare entries in a table of sizes."""

SUMS = 9
"""Number of sums that ``measure`` returns per agent."""

_HEAD = 256
_PARTS = 64
"""More than the functions that make up a loop, each of which is cached on its own."""

_EXPONENT = np.uint16(0x7F80)


class Grid(NamedTuple):
    """The bins of |tau| (see ``epsilon_grid``): bin 0 begins at ``origin``; ``last`` is the last.

    Smaller sizes count in bin 0, larger ones in the last.
    """

    origin: np.int32
    last: np.uint32

    @classmethod
    def anchored(cls, edge_bits: int = epsilon_grid.EDGE_BITS) -> Grid:
        """Return the grid with an edge at the float32 with these bits, by default 1e-5."""
        lowest = edge_bits + 1 + (epsilon_grid.LOWEST_BIN << epsilon_grid.BIN_SHIFT)
        return cls(np.int32(lowest), np.uint32(epsilon_grid.BIN_COUNT - 1))


DEFAULT_GRID = Grid.anchored()


@cache
def _warn_once(text: str) -> None:
    logging.getLogger(__name__).warning(text)


@cache
def loop_named(name: str) -> Any:
    """Return a loop that numba compiles for each kind of arguments, or loads from its cache."""
    from ram_studio.algorithm.kernels import loops

    compiled = getattr(loops, name)

    def run(*arguments: Any) -> Any:
        for _ in range(_PARTS):
            try:
                return compiled(*arguments)
            except OSError as error:  # a part was compiled but not cached: try the next
                _warn_once(f"Compiled loops could not be cached: {error}.")
        return compiled(*arguments)

    return run


def pattern_dtype(n_agents: int) -> np.dtype:
    """Return the smallest unsigned integer with a bit per agent.

    Raises: SettingsError for more than MAX_AGENTS agents.
    """
    if n_agents > MAX_AGENTS:
        raise SettingsError(
            f"{n_agents} agents were given; at most {MAX_AGENTS} can be merged together. Merge in "
            "groups."
        )
    return np.dtype(np.uint8 if n_agents <= 8 else np.uint16 if n_agents <= 16 else np.uint32)


def is_copy(base: np.ndarray, agents: tuple[np.ndarray, ...]) -> bool:
    """Whether every agent's stored elements equal the base's; stops at the first difference.

    May be False where only 0 and -0 differ.
    """
    head = base[:_HEAD].tobytes()
    if any(agent[:_HEAD].tobytes() != head for agent in agents):
        return False
    return all(np.array_equal(base, agent) for agent in agents)


def is_finite(stored: np.ndarray) -> bool:
    """Whether every stored element of a block is finite."""
    if stored.dtype == np.uint16:
        return bool(((stored & _EXPONENT) != _EXPONENT).all())
    return bool(np.isfinite(stored).all())


def is_tau_finite(base: np.ndarray, agents: tuple[np.ndarray, ...]) -> bool:
    """Whether every element of every task vector is finite as a float32.

    Finds the cause after a loop returned False for a block.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = as_float32(base)
        return all(bool(np.isfinite(as_float32(agent) - x).all()) for agent in agents)


def as_float32(stored: np.ndarray) -> np.ndarray:
    """Return stored elements as float32, which is exact."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32, copy=False)


def find_patterns(
    base: np.ndarray,
    agents: tuple[np.ndarray, ...],
    pattern: UInt[np.ndarray, " n"],
    epsilon: np.float32,
) -> bool:
    """Write which agents changed each element by more than epsilon.

    Returns False when some task vector element is not finite.
    """
    return loop_named("find_patterns")(base, agents, pattern, np.float32(epsilon))


def count_patterns(pattern: UInt[np.ndarray, " n"], n_agents: int) -> Int64[np.ndarray, ...]:
    """Return how many elements have each pattern, (2**agents,).

    For more than MAX_PATTERN_AGENTS: how many each agent shares with exactly j others,
    (agents, agents), as ``overlap.OverlapCounts.shared``.
    """
    if n_agents > MAX_PATTERN_AGENTS:
        shared = np.zeros((n_agents, n_agents), dtype=np.int64)
        loop_named("count_shared")(pattern, shared)
        return shared
    counts = np.zeros(1 << n_agents, dtype=np.int64)
    loop_named("count_patterns")(pattern, counts)
    return counts


@lru_cache(maxsize=64)  # a tensor's blocks have one rule
def _numbers(rule: Rule, arithmetic: Arithmetic) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Return a rule's factors and shares, and its weights, as arguments of the loops."""
    kind = np.dtype(arithmetic).type
    scales = tuple(map(kind, rule.factors)), tuple(map(kind, rule.shares))
    if rule.weights is None:
        return scales, None
    divisors = rule.divisors or (0.0,) * len(rule.weights)
    constant = kind(rule.divisors is None)
    return scales, (tuple(map(kind, rule.weights)), tuple(map(kind, divisors)), constant)


@lru_cache(maxsize=64)
def _mergekit_numbers(rule: MergekitSum) -> tuple[Any, ...]:
    """Return a sum's float32 numbers as the arguments of its loop."""
    near = np.float32
    weights, divisor = tuple(map(near, rule.weights)), near(rule.divisor)
    if rule.base_weight is not None:
        return ((weights, near(rule.base_weight), divisor),)
    parts = None if rule.parts is None else tuple(map(near, rule.parts))
    return (weights, divisor, near(rule.factor)), parts


@cache
def _bits(dtype: np.dtype, n_agents: int) -> tuple[Any, ...]:
    return tuple(dtype.type(1 << t) for t in range(n_agents))


def merge(
    rule: Rule,
    base: np.ndarray,
    agents: tuple[np.ndarray, ...],
    merged: np.ndarray,
    pattern: UInt[np.ndarray, " n"],
    *,
    arithmetic: Arithmetic = "float64",
    start: int = 0,
    voters: UInt[np.ndarray, " n"] | None = None,
) -> bool:
    """Merge a block by a rule, and write which agents changed each element.

    merged: bfloat16 bits or float32, rounded to nearest, or the arithmetic's float dtype, not yet
    rounded. start: index of the block in its tensor, for random draws. voters: if given, receives
    the pattern of the agents whose tau are in each element's sum.
    Returns False when some task vector element or merged one is not finite (``is_tau_finite``).
    """
    kind = np.dtype(arithmetic).type
    survivors = None
    if rule.drawing is not None:
        survivors = np.empty(len(base), dtype=pattern.dtype)
        keys, cuts = rule.drawing
        loop_named("draw")(keys, tuple(map(np.uint64, cuts)), np.uint64(start), survivors)
    scales, voting = _numbers(rule, arithmetic)
    limits: Any = np.float32(rule.epsilon)
    in_order = rule.as_mergekit if rule.is_as_mergekit else None
    is_average = in_order is not None and in_order.base_weight is not None
    if rule.elect_sign or (in_order and not is_average):
        thresholds = rule.thresholds or (rule.epsilon,) * len(agents)
        limits = tuple(map(np.float32, (rule.epsilon, *thresholds)))
    if in_order is not None:
        loop = loop_named("average_as_mergekit" if is_average else "merge_as_mergekit")
        where = (pattern, limits) if is_average else (pattern, survivors, limits)
        is_finite = loop(base, agents, merged, *where, *_mergekit_numbers(in_order))
    else:
        loop = loop_named("merge_elected" if rule.elect_sign else "merge_mean")
        is_finite = loop(base, agents, merged, pattern, survivors, limits, scales, voting)
    if voters is not None and rule.elect_sign:
        loop_named("find_voters")(base, agents, survivors, (limits[1:], kind(0)), voters, voting)
    elif voters is not None:
        np.copyto(voters, pattern if survivors is None else pattern & survivors)
    return bool(is_finite)


def measure(
    rule: Rule,
    base: np.ndarray,
    agents: tuple[np.ndarray, ...],
    stored: np.ndarray,
    masks: tuple[np.ndarray, np.ndarray],
    cuts: list[int],
    *,
    arithmetic: Arithmetic = "float64",
) -> Float64[np.ndarray, "groups agents 9"]:
    """Return sums over groups of elements that measure how each agent's tau was stored.

    With change = stored - base, own part = weight tau where the agent's tau is in the element's
    sum, and error = change - the sum of all own parts:

        [0] change tau, [1] tau**2, [2] error tau        over the agent's unique elements
        [3] own part tau, [4] tau**2, [5] error tau      over its shared elements
        [6] tau**2, [7] (change - own part)**2, [8] (change - error - own part)**2   over all

    [0] / [1] over all blocks is the effective scaling factor: lambda as the output's dtype stores
    it. The others give the retained share of tau, see ``meters.retained``. masks: patterns and
    voters, see ``merge``. cuts: bounds of the groups of elements, ascending from 0 to the block's
    length. Products, and the sums of up to TILE of them, have the arithmetic's precision, added in
    an order that depends on the processor. Where float32 cannot hold them they are float64.
    """
    if stored.dtype == np.float16:
        stored = stored.astype(np.float32)
    work = np.empty((4, TILE), dtype=arithmetic)
    sums = np.zeros((len(cuts) - 1, len(agents), SUMS))
    where = np.array(cuts, dtype=np.int64)
    masked = (*masks, _bits(masks[0].dtype, len(agents)), where)
    loop_named("measure")(base, agents, stored, masked, *_numbers(rule, arithmetic), work, sums)
    if arithmetic == "float32" and not np.isfinite(sums).all():
        return measure(rule, base, agents, stored, masks, cuts)
    return sums


def fill_chain(
    base: np.ndarray,
    agents: tuple[np.ndarray, ...],
    chain: np.ndarray,
    grid: Grid = DEFAULT_GRID,
) -> bool:
    """Add a block to the chain histogram of ``overlap.patterns_from_chain``.

    chain: int32 (2**agents, agents, bins), flattened, incremented in place (entries of the empty
    set are scratch). Agents in one bin leave in the order given.
    Returns False when some task vector element is not finite.
    """
    return loop_named("fill_chain")(base, agents, chain, grid)


def fill_steps(
    base: np.ndarray, agents: tuple[np.ndarray, ...], steps: np.ndarray, grid: Grid = DEFAULT_GRID
) -> bool:
    """Add a block to the step histogram of ``overlap.shared_from_steps``, for many agents.

    steps: int32 (agents, agents, bins). Otherwise as ``fill_chain``, whose table grows with
    2**agents.
    """
    return loop_named("fill_steps")(base, agents, steps, grid)


def count_sizes(
    base: np.ndarray, agents: tuple[np.ndarray, ...], table: np.ndarray, grid: Grid = DEFAULT_GRID
) -> bool:
    """Count each agent's changes by bin of |tau|.

    table: int32 (agents, bins + TILE), incremented in place.
    Returns False when some task vector element is not finite.
    """
    return loop_named("count_sizes")(base, agents, table, grid)


def count_numbers(
    base: np.ndarray, agent: np.ndarray, edge: np.float32, table: Int64[np.ndarray, " n"]
) -> None:
    """Count how often each of the float32 numbers above an edge is an agent's |tau|, in place."""
    loop_named("count_numbers")(base, agent, edge, table)


def random_words(key: np.uint64, start: int, out: np.ndarray) -> None:
    """Fill ``out`` (uint64) with the words of elements start, start + 1, ... of a tensor."""
    loop_named("random_words")(np.uint64(key), np.uint64(start), out)


def round_stochastically(
    values: np.ndarray, changed: np.ndarray, key: np.uint64, start: int, out: np.ndarray
) -> None:
    """Round values at random into ``out``, see ``rounding.store``.

    values: float32 or float64; changed: drawn at random where not 0, else rounded to nearest;
    out: uint16 (bfloat16 bits), float32, or float64 for float16's values.
    """
    name = {"u": "bfloat16", "f": "float32" if out.itemsize == 4 else "float16"}[out.dtype.kind]
    loop_named(f"stochastic_{name}")(values, changed, np.uint64(key), np.uint64(start), out)
