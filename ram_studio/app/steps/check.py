"""Step 5, Check: base, agents and merges on the same prompts, side by side, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.app import markup, scoring, wording
from ram_studio.app.steps import compare
from ram_studio.app.steps.compare import CompareStep
from ram_studio.app.workspace import Session
from ram_studio.evals import SUITES, EvalReport

LIMITS = (50, 300)
DEFAULT_LIMIT = 200


@dataclass(frozen=True)
class CheckStep:
    """The components of the step."""

    column: gr.Column
    note: gr.HTML
    models: gr.CheckboxGroup
    limit: gr.Slider
    evaluate: gr.Button
    stop: gr.Button
    status: gr.HTML
    scores: gr.HTML
    browser: gr.Column
    domain: gr.Dropdown
    which: gr.Dropdown
    position: gr.Slider
    item: gr.HTML
    compare: CompareStep

    @property
    def outputs(self) -> list[Any]:
        """What ``run`` yields values for."""
        return [
            self.evaluate,
            self.stop,
            self.status,
            self.scores,
            self.browser,
            self.position,
            self.item,
        ]


def model_update(session: Session) -> Any:
    """Return the update that offers every model of the session, all chosen."""
    names = list(scoring.candidates(session))
    return gr.update(choices=names, value=names)


def note_html(session: Session) -> str:
    """Return what to know before evaluating: whose skills the suite tests."""
    if session.loaded is not None and session.loaded.example is None:
        return markup.callout(wording.SUITE_ONLY_EXAMPLE, "note")
    return ""


def agents_of(session: Session) -> list[str]:
    """Return the loaded agents' names."""
    return list(session.loaded.agents) if session.loaded else []


def browse(
    report: EvalReport | None, domain: str, which: str, position: float, agents: Sequence[str]
) -> list[Any]:
    """Return updates of (position slider, item HTML) for the item browser."""
    if report is None or domain not in report.items or which not in scoring.FILTERS:
        return [gr.update(maximum=1, value=1), ""]
    found = scoring.matching_items(report, domain, which, agents)
    if not found:
        return [gr.update(maximum=1, value=1, label="0 of 0"), markup.empty_state(wording.NO_ITEMS)]
    place = min(max(1, int(position or 1)), len(found))
    slider = gr.update(
        maximum=max(2, len(found)),
        value=place,
        label=f"{wording.ITEM_LABEL} {place} of {len(found)}",
    )
    return [slider, scoring.item_html(report, domain, found[place - 1], agents)]


def show_report(report: EvalReport | None, session: Session) -> list[Any]:
    """Return updates of (scores, browser, position, item) for a report, or for none yet."""
    if report is None:
        return [
            markup.empty_state(wording.NOTHING_CHECKED),
            gr.update(visible=False),
            gr.skip(),
            "",
        ]
    agents = agents_of(session)
    domain = next(iter(report.items))
    html = scoring.statements_html(report, agents) + scoring.table_html(report, agents)
    return [html, gr.update(visible=True), *browse(report, domain, "all", 1, agents)]


def run(
    names: Sequence[str], limit: float, session: Session, shared: scoring.Scores
) -> Iterator[list[Any]]:
    """Evaluate, yielding updates of ``CheckStep.outputs``."""
    idle = [gr.update(interactive=True), gr.update(visible=False)]
    busy = [gr.update(interactive=False), gr.update(visible=True)]
    for status, report in scoring.run_evaluation(names or (), int(limit), session, shared):
        if report is not None:
            yield [*idle, "", *show_report(report, session)]
        else:
            yield [*(busy if session.is_busy else idle), status, *[gr.skip()] * 4]


def build() -> CheckStep:
    """Lay the step out inside the open Blocks."""
    with gr.Column(elem_id="step-check", elem_classes="step") as column:
        gr.HTML(
            markup.step_head(wording.CHECK_HEADING, wording.CHECK_LEAD), apply_default_css=False
        )
        note = gr.HTML("", apply_default_css=False)
        with gr.Column(elem_classes="box"):
            with gr.Row(elem_classes="check-form"):
                models = gr.CheckboxGroup(
                    [], label=wording.MODELS_LABEL, elem_id="check-models", scale=3, min_width=260
                )
                limit = gr.Slider(
                    *LIMITS,
                    value=DEFAULT_LIMIT,
                    step=50,
                    label=wording.LIMIT_LABEL,
                    buttons=[],
                    elem_id="limit",
                    scale=1,
                    min_width=200,
                )
            with gr.Row(elem_classes="actions"):
                evaluate = gr.Button(wording.EVALUATE, variant="primary", elem_id="evaluate")
                stop = gr.Button(
                    wording.STOP, variant="stop", visible=False, elem_id="stop-evaluate"
                )
        status = gr.HTML("", elem_id="check-status", apply_default_css=False)
        scores = gr.HTML(
            markup.empty_state(wording.NOTHING_CHECKED), elem_id="scores", apply_default_css=False
        )
        with gr.Column(elem_classes="box", visible=False) as browser:
            gr.HTML(f"<h3>{wording.BROWSER_HEADING}</h3>", apply_default_css=False)
            with gr.Row(elem_classes="check-form"):
                domains = list(SUITES[scoring.SUITE])
                domain = gr.Dropdown(
                    [(d.capitalize(), d) for d in domains],
                    value=domains[0],
                    label=wording.DOMAIN_LABEL,
                    filterable=False,
                    elem_id="item-domain",
                    min_width=140,
                )
                which = gr.Dropdown(
                    [(label, key) for key, label in scoring.FILTERS.items()],
                    value="all",
                    label=wording.FILTER_LABEL,
                    filterable=False,
                    elem_id="item-filter",
                    min_width=200,
                )
                position = gr.Slider(
                    1,
                    2,
                    value=1,
                    step=1,
                    label=wording.ITEM_LABEL,
                    buttons=[],
                    elem_id="item-position",
                    min_width=220,
                    scale=2,
                )
            item = gr.HTML("", elem_id="item", apply_default_css=False)
        comparison = compare.build()
    return CheckStep(
        column,
        note,
        models,
        limit,
        evaluate,
        stop,
        status,
        scores,
        browser,
        domain,
        which,
        position,
        item,
        comparison,
    )
