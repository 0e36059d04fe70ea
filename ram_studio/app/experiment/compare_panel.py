"""Compare methods, in the Check step: many merges scored side by side, none of them written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.algorithm.ladder import LADDER
from ram_studio.app import wording
from ram_studio.app.experiment import comparing, comparison_view
from ram_studio.app.session import Comparison, Session
from ram_studio.app.shared import Tuning
from ram_studio.app.workspace import Workspace
from ram_studio.evals.experiment.presets import EXPERIMENTS

LIMITS = (10, 300)
DEFAULT_LIMIT = 100


@dataclass(frozen=True)
class CompareStep:
    """The components of the section."""

    preset: gr.Dropdown
    methods: gr.CheckboxGroup
    about: gr.HTML
    limit: gr.Slider
    compare: gr.Button
    stop: gr.Button
    status: gr.HTML
    result: gr.HTML
    downloads: gr.Row
    csv: gr.DownloadButton
    report: gr.DownloadButton
    figure: gr.DownloadButton

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [self.result, self.downloads, self.csv, self.report, self.figure]

    @property
    def outputs(self) -> list[Any]:
        """What ``run`` yields values for."""
        return [self.compare, self.stop, self.status, *self.shown]


def show(comparison: Comparison | None) -> list[Any]:
    """Return updates of ``CompareStep.shown`` for a comparison, or for none yet."""
    if comparison is None:
        empty = gr.update(value=None)
        return ["", gr.update(visible=False), empty, empty, empty]
    return [
        comparison_view.page_html(comparison.table),
        gr.update(visible=True),
        gr.update(value=str(comparison.csv)),
        gr.update(value=str(comparison.html)),
        gr.update(value=str(comparison.svg)),
    ]


def about(preset: str) -> list[Any]:
    """Return updates of (methods, about) for a preset."""
    text = EXPERIMENTS[preset].description if preset else wording.COMPARE_OWN_NOTE
    return [gr.update(visible=not preset), f'<p class="fine">{text}</p>']


def run(values: Sequence[Any], session: Session, workspace: Workspace) -> Iterator[list[Any]]:
    """Compare, yielding updates of ``CompareStep.outputs``."""
    preset, methods, limit, point, r, alpha = values
    tuned = {"epsilon": LADDER[int(point)], "r": r, "alpha": alpha}
    idle = [gr.update(interactive=True), gr.update(visible=False)]
    busy = [gr.update(interactive=False), gr.update(visible=True)]
    found = comparing.run_comparison(
        preset or "", methods or (), int(limit), tuned, session, workspace
    )
    for status, comparison in found:
        if comparison is not None:
            yield [*idle, status, *show(comparison)]
        else:
            yield [*(busy if session.is_busy else idle), status, *[gr.skip()] * len(show(None))]


def build() -> CompareStep:
    """Lay the section out inside the open Blocks."""
    with gr.Accordion(wording.COMPARE_HEADING, open=False, elem_id="compare-methods"):
        gr.HTML(f'<p class="lead">{wording.COMPARE_LEAD}</p>', apply_default_css=False)
        with gr.Row(elem_classes="check-form"):
            preset = gr.Dropdown(
                [
                    (wording.OWN_COMPARISON, ""),
                    *((EXPERIMENTS[name].title, name) for name in comparing.PRESETS),
                ],
                value="",
                label=wording.COMPARE_WHAT,
                filterable=False,
                min_width=220,
                elem_id="compare-preset",
            )
            limit = gr.Slider(
                *LIMITS,
                value=DEFAULT_LIMIT,
                step=10,
                label=wording.LIMIT_LABEL,
                buttons=[],
                min_width=220,
                elem_id="compare-limit",
            )
        methods = gr.CheckboxGroup(
            [(wording.COMPARE_CHOICES[name], name) for name in comparing.CHOICES],
            value=list(comparing.USUAL),
            label=wording.COMPARE_METHODS,
            elem_id="compare-choice",
        )
        note = gr.HTML(
            f'<p class="fine">{wording.COMPARE_OWN_NOTE}</p>',
            elem_id="compare-about",
            apply_default_css=False,
        )
        with gr.Row(elem_classes="actions"):
            compare = gr.Button(wording.COMPARE, variant="primary", elem_id="compare")
            stop = gr.Button(wording.STOP, variant="stop", visible=False, elem_id="stop-compare")
        status = gr.HTML("", elem_id="compare-status", apply_default_css=False)
        result = gr.HTML("", elem_id="comparison", apply_default_css=False)
        with gr.Row(elem_classes="actions", visible=False) as downloads:
            csv = gr.DownloadButton(wording.COMPARE_CSV, elem_id="compare-csv")
            report = gr.DownloadButton(wording.COMPARE_REPORT, elem_id="compare-report")
            figure = gr.DownloadButton(wording.COMPARE_SVG, elem_id="compare-figure")
    return CompareStep(
        preset, methods, note, limit, compare, stop, status, result, downloads, csv, report, figure
    )


def wire(
    step: CompareStep,
    tune: Tuning,
    workspace: Workspace,
    *,
    waiting: str,
    quiet: dict[str, Any],
    heavy: dict[str, Any],
) -> None:
    """Connect the section. waiting: script that shows the queue's progress bar at once."""

    def compare(request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        yield from run(values, workspace.session(request.session_hash), workspace)

    form = [step.preset, step.methods, step.limit, tune.epsilon, tune.r, tune.alpha]
    step.compare.click(fn=None, js=waiting, outputs=step.status)
    step.compare.click(compare, form, step.outputs, **heavy)
    step.preset.input(about, step.preset, [step.methods, step.about], queue=False, **quiet)
