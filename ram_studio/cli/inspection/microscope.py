"""``ram-studio microscope``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ram_studio.cli import options
from ram_studio.cli.tables import print_table
from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
    from ram_studio.engine.microscope.probe import ProbeResult
    from ram_studio.engine.microscope.view import Span, View


@options.expand_groups
def microscope(
    *,
    base: options.Base = None,
    agent: options.Agents = None,
    tensor: Annotated[str | None, typer.Option(help="The tensor to show.")] = None,
    at: Annotated[
        str, typer.Option(metavar="START|ROW,COLUMN", help="The first element, counted from 0.")
    ] = "0",
    count: Annotated[int, typer.Option(help="How many elements in a row.")] = 16,
    window: Annotated[
        str | None,
        typer.Option(metavar="ROWSxCOLUMNS", help="A window of the matrix instead of a run."),
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            help="Start at the next such element: shared, unique:NAME, or conflict (the strongest "
            "of the tensor)."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD[:KEY=VALUE,...]",
            help="A method, with settings of its own; repeat for each [default: all].",
        ),
    ] = None,
    epsilon: options.Epsilon = 1e-5,
    dtype: options.Dtype = None,
    rounding: Annotated[str, typer.Option(help="nearest or stochastic.")] = "nearest",
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    analysis: Annotated[
        Path | None,
        typer.Option(help="Analysis of the same files, for methods that count the whole model."),
    ] = None,
    policies: options.Policies,
    as_json: options.Json = False,
) -> None:
    """Show single elements of base and agents, and what methods would store there."""
    from ram_studio.engine.analyze import load
    from ram_studio.engine.microscope import view as scope

    if tensor is None:
        raise typer.BadParameter("no tensor was given", param_hint="--tensor")
    corner = _numbers(at, ",", "--at", (1, 2))
    size = None if window is None else _numbers(window.lower(), "x", "--window", (2,))
    report = load(
        options.require_base(base), options.parse_agents(agent), **policies.fit(), stream=True
    )
    found = scope.find_tensor(report, tensor)
    spans = _looked_at(report, found, (corner, count, size), find, epsilon)
    output: dict[str, Any] = {"dtype": dtype, "rounding": rounding, "seed": seed}
    recipes = {}
    for text in method or scope.METHOD_NAMES:
        name, given = options.parse_method(text, "method")
        is_file = not text.startswith(name)  # a user's method is labeled by its name
        label = ":".join([name, *(f"{k}={v}" for k, v in given.items())]) if is_file else text
        recipes[label] = scope.recipe_for(report, name, given, epsilon, **output)
    view = scope.inspect(report, found, spans, recipes, epsilon, options.known_analysis(analysis))
    if as_json:
        print(json.dumps(view.to_dict(), allow_nan=False))
        return
    # The element searched for is the first one shown; else the one that the most agents changed.
    _print(view, 0 if find is not None else int(view.overlap.argmax()))
    searched = "" if find is None else " after the search"
    print(f"Read {view.bytes_read} bytes of tensor data{searched}.")


def _looked_at(
    report: CompatibilityReport,
    found: MergeTensor,
    place: tuple[list[int], int, list[int] | None],
    find: str | None,
    epsilon: float,
) -> list[Span]:
    """Return the requested elements. place: first one, number, or the rows and columns.

    Raises: SettingsError when there is no element of the requested kind.
    """
    from ram_studio.engine.microscope import view as scope
    from ram_studio.engine.microscope.search import find_element

    corner, count, size = place
    width = scope.grid_of(found.shape)[1]
    start = corner[0] if len(corner) == 1 else corner[0] * width + corner[1]
    if find is not None:
        element = find_element(report, found, find, epsilon=epsilon, start=start)
        if element is None:
            raise SettingsError(
                f"{found.name} has no element of this kind: {find}, above epsilon {epsilon:g}. "
                "Choose another tensor, an earlier --at, or a smaller --epsilon."
            )
        start = element.index
    if size is None:
        return scope.run_of(found, start, count)
    return scope.window_of(found, *divmod(start, width), *size)


def _numbers(text: str, separator: str, option: str, lengths: tuple[int, ...]) -> list[int]:
    parts = text.split(separator)
    if len(parts) not in lengths or not all(p.strip().isdecimal() for p in parts):
        raise typer.BadParameter(f"{text!r} is not of that form", param_hint=option)
    return [int(p) for p in parts]


def _print(view: View, worked: int) -> None:
    shown = {label: seen for label, seen in view.methods.items() if seen.reason is None}
    shape = " x ".join(map(str, view.shape)) or "one element"
    pick = range(len(view.index))
    shown_of = f"{len(pick):,} of {math.prod(view.shape):,} elements"
    print_table(
        ("element", "base", *(f"{name} tau" for name in view.agent_names), "changed by"),
        [
            (
                str(view.index[i]),
                _number(view.base[i], view.dtype),
                *(_signed_text(tau) for tau in view.tau[:, i]),
                ", ".join(
                    name
                    for name, is_changed in zip(view.agent_names, view.changed[:, i], strict=True)
                    if is_changed
                )
                or "-",
            )
            for i in pick
        ],
        title=f"{view.tensor} ({shape}, {view.dtype}), {shown_of}, epsilon {view.epsilon:g}",
    )
    if shown:
        first = next(iter(shown.values()))
        print_table(
            ("element", *shown),
            [
                (str(view.index[i]), *(_stored_text(seen, i) for seen in shown.values()))
                for i in pick
            ],
            title=f"Stored ({first.dtype}, {first.rounding})",
        )
        _print_worked(view, shown, worked)
    for label, seen in view.methods.items():
        if seen.reason is not None:
            print(f"{label}: not shown. {seen.reason}")


def _print_worked(view: View, shown: dict[str, ProbeResult], i: int) -> None:
    from ram_studio.engine.microscope.worked_example import number

    print(f"Element {view.index[i]}, worked out:")
    for label, seen in shown.items():
        worked = seen.worked[i]
        note = f"  ({worked.note})" if worked.note else ""
        result = "" if worked.is_base else f" = {number(worked.value, 8)}"
        assert seen.stored is not None, "shown elements have values"
        stored = number(seen.stored[i], 8)
        print(f"  {label}: {worked.expression}{result}, stored as {stored}{note}")


def _stored_text(seen: ProbeResult, i: int) -> str:
    assert seen.stored is not None, "shown elements have values"
    assert seen.dtype is not None, "shown elements have values"
    return _number(seen.stored[i], seen.dtype)


def _number(value: float, dtype: str) -> str:
    return f"{value:.9g}" if dtype == "F32" else f"{value:.6g}"


def _signed_text(tau: float) -> str:
    return "0" if tau == 0 else f"{tau:+.3e}"
