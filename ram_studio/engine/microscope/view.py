"""The dilution microscope: single elements of base and agents, and each method's stored element.

Reads the bytes it shows and no others (besides the headers that opening the checkpoints read).
Values come from the merge code, so they are the bytes that a merge with the same recipe writes;
facts of the whole model are taken from an analysis, never counted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import DEFAULT_EPSILON, float32_threshold
from ram_studio.algorithm.kernels.cpu import as_float32
from ram_studio.algorithm.methods import METHODS, get_method
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.read.describe import quoted, shown_list, shown_shape
from ram_studio.checkpoints.record.recipe import Recipe
from ram_studio.engine.analyze import load
from ram_studio.engine.job import OutputKeywords, recipe_of
from ram_studio.engine.microscope.probe import ElementProbe, ProbeResult
from ram_studio.engine.reading.blocks import Block
from ram_studio.engine.reading.readers import BlockReader
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import SettingsError

MAX_ELEMENTS = 1 << 16
METHOD_NAMES = tuple(name for name, method in METHODS.items() if not method.is_experiment)
"""Methods that are shown by default: all but the probes."""


class Span(NamedTuple):
    """Consecutive elements of a tensor: the first one's flat index, and how many."""

    start: int
    n: int


def find_tensor(report: CompatibilityReport, name: str) -> MergeTensor:
    """Return a merged tensor by name.

    Raises: SettingsError for an unknown name (it lists similar ones) or a tensor of integers.
    """
    merged = {t.name: t for t in report.merged}
    if name in merged:
        return merged[name]
    copied = [t for t in report.tensors if t.name == name]
    if copied:
        raise SettingsError(
            f"Tensor {quoted(name)} is {copied[0].dtype}; it is copied from the base, not merged. "
            "Choose a tensor of floating-point numbers."
        )
    similar = [n for n in merged if name and name.lower() in n.lower()]
    raise SettingsError(
        f"No tensor is named {quoted(name)}; "
        f"{'similar names are' if similar else 'the first names are'} "
        f"{shown_list([quoted(n) for n in similar or merged], limit=6)}."
    )


def grid_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix: all dimensions but the first joined."""
    if len(shape) < 2:
        return 1, int(shape[0]) if shape else 1
    return int(shape[0]), int(np.prod(shape[1:], dtype=np.int64))


def run_of(tensor: MergeTensor, start: int, count: int) -> list[Span]:
    """Return a flat run of elements, cut off at the tensor's end.

    Raises: SettingsError when start is outside the tensor or count is not 1 to MAX_ELEMENTS.
    """
    _check_count(count)
    if not 0 <= start < tensor.numel:
        raise SettingsError(
            f"Tensor {quoted(tensor.name)} has {tensor.numel} elements, 0 to {tensor.numel - 1}; "
            f"the start is {start}. Choose a start inside the tensor."
        )
    return [Span(start, min(count, tensor.numel - start))]


def window_of(tensor: MergeTensor, row: int, column: int, rows: int, columns: int) -> list[Span]:
    """Return a window of a matrix, cut off at its edges: one span a row (see ``grid_of``).

    Raises: SettingsError when the corner is outside or the window is empty or too large.
    """
    height, width = grid_of(tensor.shape)
    if rows < 1 or columns < 1:
        raise SettingsError(f"The window is {rows} by {columns}; both must be at least 1.")
    _check_count(rows * columns)
    if not (0 <= row < height and 0 <= column < width):
        raise SettingsError(
            f"Tensor {quoted(tensor.name)} has {height} rows of {width} elements (shape "
            f"{shown_shape(tensor.shape)}); the window starts at row {row}, column {column}. "
            "Choose a corner inside the tensor; both count from 0."
        )
    n = min(columns, width - column)
    return [Span(r * width + column, n) for r in range(row, min(row + rows, height))]


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_ELEMENTS:
        raise SettingsError(
            f"{count} elements were requested; the microscope shows 1 to {MAX_ELEMENTS}."
        )


@dataclass(frozen=True)
class View:
    """Some elements of one tensor under the microscope.

    index: int64 (n,), flat indices; base: float32 (n,); agents: float32 (agents, n);
    tau: float32 (agents, n), agent minus base as a pass compares it with epsilon;
    changed: bool (agents, n), |tau| > epsilon; bytes_read: of tensor data.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    agent_names: tuple[str, ...]
    agent_dtypes: tuple[str, ...]
    epsilon: float
    index: np.ndarray
    base: np.ndarray
    agents: np.ndarray
    methods: Mapping[str, ProbeResult]
    bytes_read: int

    @property
    def tau(self) -> np.ndarray:
        """Each agent's change, float32."""
        return self.agents - self.base

    @property
    def changed(self) -> np.ndarray:
        """Which agents changed each element."""
        return np.abs(self.tau) > float32_threshold(self.epsilon)

    @property
    def overlap(self) -> np.ndarray:
        """How many agents changed each element, int64 (n,)."""
        return self.changed.sum(0)

    @property
    def pattern(self) -> np.ndarray:
        """The overlap pattern of each element, int64 (n,); bit t is agent t."""
        bits = np.int64(1) << np.arange(len(self.agent_names), dtype=np.int64)
        return (self.changed * bits[:, None]).sum(0)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON data: the ``microscope --json`` contract."""
        return {
            "tensor": self.tensor,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "epsilon": self.epsilon,
            "index": self.index.tolist(),
            "base": self.base.tolist(),
            "agents": {
                name: {
                    "dtype": self.agent_dtypes[t],
                    "value": self.agents[t].tolist(),
                    "tau": self.tau[t].tolist(),
                    "changed": self.changed[t].tolist(),
                }
                for t, name in enumerate(self.agent_names)
            },
            "overlap": self.overlap.tolist(),
            "methods": {label: result.to_dict() for label, result in self.methods.items()},
            "bytes_read": self.bytes_read,
        }


def microscope(
    base: str | Path,
    agents: Mapping[str, str | Path],
    tensor: str,
    *,
    start: int = 0,
    count: int = 16,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] = METHOD_NAMES,
    epsilon: float = DEFAULT_EPSILON,
    analysis: Analysis | None = None,
    **output: Unpack[OutputKeywords],
) -> View:
    """Return a run of elements of one tensor, and what methods would store there.

    Methods that need the whole tensor have a reason instead.

    Args:
        base, agents: folders or Hub ids, which are not downloaded.
        start, count: the run of elements, by flat index.
        methods: names, or a mapping of names to their settings.
        epsilon: for every method that has one, unless its settings have it.
        output: dtype, rounding, seed, as in a recipe.
        analysis: of the same files; without it, methods that need whole-model counts have a reason.

    Raises: SettingsError, CheckpointError, CompatibilityError, HubError, AnalysisError.
    """
    report = load(base, agents, stream=True)
    found = find_tensor(report, tensor)
    if not isinstance(methods, Mapping):
        methods = {name: {} for name in methods}
    recipes = {
        name: recipe_for(report, name, own, epsilon, **output) for name, own in methods.items()
    }
    return inspect(report, found, run_of(found, start, count), recipes, epsilon, analysis)


def recipe_for(
    report: CompatibilityReport,
    method: str,
    settings: Mapping[str, Any],
    epsilon: float = DEFAULT_EPSILON,
    **output: Unpack[OutputKeywords],
) -> Recipe:
    """Return the recipe of a merge of a report's checkpoints by one method.

    epsilon: where the method has one and ``settings`` does not. Raises: SettingsError.
    """
    values = dict(settings)
    if "epsilon" in get_method(method).settings.model_fields:
        values.setdefault("epsilon", epsilon)
    return recipe_of(report, method, values, **output)


def inspect(
    report: CompatibilityReport,
    tensor: MergeTensor,
    spans: Sequence[Span],
    recipes: Mapping[str, Recipe],
    epsilon: float = DEFAULT_EPSILON,
    analysis: Analysis | None = None,
) -> View:
    """Return the elements in ``spans`` and the stored elements of each recipe's merge.

    Args:
        report: of readable checkpoints; tensor: one of its merged tensors; spans: inside of it.
        recipes: by shown label; their agents are the report's.
        epsilon: threshold of ``changed`` (methods have their own).
        analysis: of these files, for facts of the whole model.

    Raises: AnalysisError for an analysis of other files; SettingsError; CheckpointError.
    """
    # As blocks, cut where an agent's rows end (the base replaces missing rows).
    position = report.tensors.index(tensor)
    runs = [Block(0, position, tensor, span.start, span.n, tensor.agents) for span in spans]
    chunks = [chunk for run in runs for chunk in run.chunks(run.n)]
    size = max((chunk.n for chunk in chunks), default=1)
    names = tuple(agent.name for agent in report.agents)
    shape = (len(names), sum(chunk.n for chunk in chunks))
    base, agents = np.empty(shape[1], np.float32), np.empty(shape, np.float32)
    index = np.concatenate([np.arange(p.start, p.start + p.n) for p in chunks])
    probes = {
        label: ElementProbe(report, tensor, recipe, analysis) for label, recipe in recipes.items()
    }
    ready = {label: probe for label, probe in probes.items() if probe.reason is None}
    read = 0
    with Sources(*report.checkpoints, read_ahead=False) as sources:
        reader = BlockReader(sources, size)
        done = 0
        for chunk in chunks:
            stored_base, stored_agents = reader.read(chunk)
            part = slice(done, done + chunk.n)
            base[part] = as_float32(stored_base)
            for t, stored in enumerate(stored_agents):
                agents[t, part] = as_float32(stored)
            for probe in ready.values():
                read += probe.merge(chunk, stored_base, stored_agents)
            read += chunk.nbytes
            done += chunk.n
        sources.check_unchanged()
    return View(
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        agent_names=names,
        agent_dtypes=tuple(source.dtype for source in tensor.agents),
        epsilon=epsilon,
        index=index,
        base=base,
        agents=agents,
        methods={label: probe.result(index, base, agents) for label, probe in probes.items()},
        bytes_read=read,
    )
