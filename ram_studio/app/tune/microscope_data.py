"""The data of the microscope panel: from the form to elements, formulas and numbers as text.

Independent of Gradio; assets/microscope.js draws the result of ``panel_data``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ram_studio.algorithm import naming
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS
from ram_studio.algorithm.methods import METHODS
from ram_studio.app.experiment.work import CHOICES, Choice
from ram_studio.app.numbers import count_text, epsilon_text
from ram_studio.app.session.deep_link import method_title, shown_method
from ram_studio.app.session.session import LoadedModels
from ram_studio.app.session.shared import TuneSettings
from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.engine.microscope import view as scope
from ram_studio.engine.microscope.probe import ProbeResult
from ram_studio.engine.microscope.search import SHARED, find_element
from ram_studio.engine.microscope.worked_example import number

COLUMNS = 10
ROWS = 6
COUNT = COLUMNS * ROWS
BEFORE = 5
"""Elements shown before the one found by a search."""

SEARCH_LIMIT = 1 << 25
"""Most elements of one search."""

EVERYWHERE = ""
"""The choice of all layers or modules."""

_NAMED = {choice.method for choice in CHOICES.values()}
_EVERY = {
    **CHOICES,
    **{n: Choice("", n) for n, m in METHODS.items() if not m.is_experiment and n not in _NAMED},
}
_METHODS = dict(sorted(_EVERY.items(), key=lambda item: not item[1].method.startswith("ram")))
"""Methods by label, in display order: first the RAM rules, with Tune's settings; others have them
where Tune shows them."""


@dataclass(frozen=True)
class ScopeForm:
    """The panel's form.

    tuned: Tune's settings; layer, module: EVERYWHERE for any; target: of a jump; layout: "run" or
    "window"; focus: the flat index of an element to highlight, or None.
    place: a layer, or "TENSOR ELEMENT", that replaces the earlier choice.
    """

    tuned: TuneSettings
    layer: str = EVERYWHERE
    module: str = EVERYWHERE
    tensor: str = ""
    start: int = 0
    target: str = SHARED
    layout: str = "run"
    dtype: str | None = None
    rounding: str = "nearest"
    seed: int = 0
    focus: int | None = None
    place: str = ""


def merged_tensors(report: CompatibilityReport) -> list[MergeTensor]:
    """Return the tensors of the microscope."""
    return [t for t in report.tensors if t.kind == "merge" and t.numel]


def choices_of(report: CompatibilityReport) -> tuple[list[str], list[str]]:
    """Return the layers and modules, in model order."""
    tensors = merged_tensors(report)
    layers = naming.sort_layers({naming.layer_of(t.name) for t in tensors})
    return layers, list(dict.fromkeys(naming.module_of(t.name) for t in tensors))


def names_of(report: CompatibilityReport, layer: str, module: str) -> list[str]:
    """Return the tensors of a layer and a module (EVERYWHERE: any)."""
    return [
        t.name
        for t in merged_tensors(report)
        if layer in (EVERYWHERE, naming.layer_of(t.name))
        and module in (EVERYWHERE, naming.module_of(t.name))
    ]


def settle(loaded: LoadedModels, report: CompatibilityReport, form: ScopeForm) -> ScopeForm:
    """Return the form with invalid values replaced: layer, module, tensor, start."""
    if form.place:
        form = _go_to_place(report, form)
    layers, modules = choices_of(report)
    layer = form.layer if form.layer in layers else EVERYWHERE
    module = form.module if form.module in modules else EVERYWHERE
    names = names_of(report, layer, module)
    if not names:  # this layer has no such module
        module = EVERYWHERE
        names = names_of(report, layer, module)
    tensor, start = form.tensor, form.start
    if tensor not in names:
        tensor, start = names[0], 0
        if module == EVERYWHERE:
            tensor, first = first_view(loaded, report, form.tuned.epsilon, names)
            start = max(0, first - BEFORE)
    return replace(form, layer=layer, module=module, tensor=tensor, start=start)


def _go_to_place(report: CompatibilityReport, form: ScopeForm) -> ScopeForm:
    """Return the form at its `place`: a weight, or a weight of interest in a layer."""
    name, _, place = form.place.rpartition(" ")
    numel = {t.name: t.numel for t in merged_tensors(report)}.get(name)
    if numel is None or not (place.isascii() and place.isdecimal() and len(place) <= 18):
        return replace(form, layer=form.place, module=EVERYWHERE, tensor="", start=0)
    index = min(int(place), numel - 1)
    layer = naming.layer_of(name)
    start = max(0, index - BEFORE)
    return replace(form, layer=layer, module=EVERYWHERE, tensor=name, start=start, focus=index)


def first_view(
    loaded: LoadedModels, report: CompatibilityReport, epsilon: float, names: Sequence[str]
) -> tuple[str, int]:
    """Return the first tensor and element to show, with many unique and shared elements around.

    A matrix, at its first shared element; without shared elements the start of the first tensor.
    """
    tensors = {t.name: t for t in merged_tensors(report)}
    point = EPSILON_GRID.index(epsilon)
    counts = loaded.analysis.counts.by_count[:, point]
    both = np.minimum(counts[:, 1], counts[:, 2:].sum(-1))
    share = both / np.maximum(1, loaded.analysis.counts.numel)
    offered, edge = set(names), (naming.EMBEDDING, naming.HEAD)

    def rank(i: int) -> tuple[bool, float]:
        name = loaded.analysis.tensors[i].name
        is_plain = len(tensors[name].shape) > 1 and naming.layer_of(name) not in edge
        return not is_plain, -float(share[i])

    entries = loaded.analysis.tensors
    found = [i for i, entry in enumerate(entries) if entry.name in offered and both[i]]
    for i in sorted(found, key=rank):
        tensor = tensors[entries[i].name]
        element = find_element(report, tensor, SHARED, epsilon=epsilon, limit=SEARCH_LIMIT)
        if element is not None:
            return tensor.name, element.index
    return names[0], 0


def panel_data(
    loaded: LoadedModels, report: CompatibilityReport, form: ScopeForm
) -> dict[str, Any]:
    """Return the panel's data, see assets/microscope.js.

    Raises: SettingsError, CheckpointError, AnalysisError.
    """
    tensor = scope.find_tensor(report, form.tensor)
    start = min(max(0, form.start), tensor.numel - 1)
    width = scope.grid_of(tensor.shape)[1]
    if form.layout == "window":
        # Around the element at offset BEFORE: its context includes the next row.
        row, column = divmod(min(start + BEFORE, tensor.numel - 1), width)
        spans = scope.window_of(tensor, row, max(0, column - BEFORE), ROWS, COLUMNS)
    else:
        spans = scope.run_of(tensor, start, COUNT)
    output: dict[str, Any] = {"dtype": form.dtype, "rounding": form.rounding, "seed": form.seed}
    tuned, known = form.tuned, {agent.name for agent in report.agents}
    weights = {name: w for name, w in tuned.weights.items() if name in known}
    rule = shown_method(tuned.method, tuned.own, len(known))
    rows = {label: (one.method, one.settings(tuned.values)) for label, one in _METHODS.items()}
    rows[rule] = tuned.method, tuned.settings
    recipes = {
        label: scope.recipe_for(
            report,
            method,
            settings,
            weights=weights if METHODS[method].takes_weights else {},
            **output,
        )
        for label, (method, settings) in rows.items()
    }
    view = scope.inspect(report, tensor, spans, recipes, tuned.epsilon, loaded.analysis)
    # The element searched for; else the first weight that only one agent changed, for its lambda.
    wanted = view.index == (-1 if form.focus is None else form.focus)
    places = next((p for p in (wanted, view.overlap == 1, view.overlap > 1) if p.any()), wanted)
    focus = int(places.argmax())
    return {
        "tensor": tensor.name,
        "layer": naming.layer_of(tensor.name),
        "facts": _facts(view, tensor),
        "agents": list(view.agent_names),
        "focus": focus,
        "rule": rule,
        "rows": _rows(view, form.layout, width),
        "elements": [_element(view, i, width) for i in range(len(view.index))],
        "methods": [
            _method(label, seen, view.base)
            for label, seen in view.methods.items()
            if seen.reason is None
        ],
        "hidden": [
            [method_title(label), seen.reason]
            for label, seen in view.methods.items()
            if seen.reason is not None
        ],
    }


def _facts(view: scope.View, tensor: MergeTensor) -> str:
    shape = " × ".join(count_text(n) for n in tensor.shape) or "1"
    return (
        f"{shape} weights in {DTYPE_WORDS[tensor.dtype]} · changed: by more than "
        f"{epsilon_text(view.epsilon)} · {count_text(view.bytes_read)} bytes read"
    )


def _rows(view: scope.View, layout: str, width: int) -> list[list[Any]]:
    """Return the grid's rows: the label of each, and the positions of its elements."""
    index = view.index
    if layout == "window":
        starts = np.flatnonzero(np.diff(index // width)) + 1
        parts = [part.tolist() for part in np.split(np.arange(len(index)), starts)]
        return [[f"row {index[p[0]] // width}", p] for p in parts]
    parts = [list(range(a, min(a + COLUMNS, len(index)))) for a in range(0, len(index), COLUMNS)]
    return [[str(index[p[0]]), p] for p in parts]


def _element(view: scope.View, i: int, width: int) -> dict[str, Any]:
    index = int(view.index[i])
    row, column = divmod(index, width)
    return {
        "index": index,
        "at": f"Weight {count_text(index)}",
        "place": f"row {row}, column {column}" if len(view.shape) > 1 else "",
        "base": _value(view.base[i], view.dtype),
        "values": [_value(view.agents[t, i], dtype) for t, dtype in enumerate(view.agent_dtypes)],
        "taus": [_change(tau) for tau in view.tau[:, i].tolist()],
        "sizes": np.abs(view.tau[:, i]).tolist(),
        "changed": [t for t, flag in enumerate(view.changed[:, i]) if flag],
        "moved": [t for t, tau in enumerate(view.tau[:, i]) if tau != 0],
    }


def _value(value: float, dtype: str) -> str:
    return number(float(value), 9 if dtype == "F32" else 6)


def _change(tau: float) -> str:
    return "0" if tau == 0 else ("+" if tau > 0 else "") + number(tau, 4)


def _method(label: str, seen: ProbeResult, base: np.ndarray) -> dict[str, Any]:
    assert seen.exact is not None, "hidden ones are shown separately"
    assert seen.stored is not None
    assert seen.dtype is not None
    requested = (seen.exact - base) / seen.step
    effective = (seen.stored - base.astype(np.float64)) / seen.step
    digits = 9 if seen.dtype == "F32" else 6
    return {
        "name": method_title(label),
        "method": seen.method,
        "label": label,
        "dtype": DTYPE_WORDS.get(seen.dtype, seen.dtype),
        "is_drawn": seen.rounding == "stochastic",
        "stored": [number(float(x), digits) for x in seen.stored],
        "formula": [w.expression for w in seen.worked],
        "result": ["" if w.is_base else number(w.value, digits + 2) for w in seen.worked],
        "note": [w.note for w in seen.worked],
        "requested": [_steps(x) for x in requested],
        "effective": [_steps(x) for x in effective],
    }


def _steps(steps: float) -> str:
    if steps == 0:
        return "0"
    text = number(float(f"{steps:.2f}"), 6) if abs(steps) < 1000 else number(steps, 4)
    return text if text.startswith("−") or text == "0" else f"+{text}"
