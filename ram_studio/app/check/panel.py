"""Step 5, Check: base, agents and merges on the same questions, side by side, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.app import markup, wording
from ram_studio.app.check import browse, chat, heat_table, scoring
from ram_studio.app.check import wording as words
from ram_studio.app.check.browse import Browser
from ram_studio.app.check.chat import ChatPanel
from ram_studio.app.check.scoring import GENERAL, HEALTH, SUITE
from ram_studio.app.experiment import compare_panel as compare
from ram_studio.app.experiment import sweep_panel
from ram_studio.app.experiment.compare_panel import CompareStep
from ram_studio.app.experiment.sweep_panel import SweepPanel
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings
from ram_studio.app.shared import Tuning
from ram_studio.app.workspace import Workspace
from ram_studio.errors import RamStudioError
from ram_studio.evals import EvalReport

LIMITS = (50, 300)
DEFAULT_LIMIT = 200
DEFAULT_SUITES = ("tool", "math", "instructions")
DEFAULT_ITEMS = 12


@dataclass(frozen=True)
class CheckStep:
    """The components of the step. items: the number of questions of each general suite."""

    column: gr.Column
    note: gr.HTML
    models: gr.CheckboxGroup
    kind: gr.Radio
    limit: gr.Slider
    general: gr.Column
    suites: gr.CheckboxGroup
    items: dict[str, gr.Number]
    lengths: gr.CheckboxGroup
    evaluate: gr.Button
    stop: gr.Button
    status: gr.HTML
    scores: gr.HTML
    browser: Browser
    chat: ChatPanel
    compare: CompareStep
    sweep: SweepPanel

    @property
    def form(self) -> list[Any]:
        """What ``read_form`` reads, before the models."""
        return [self.kind, self.limit, self.suites, self.lengths, *self.items.values()]

    @property
    def outputs(self) -> list[Any]:
        """What ``run`` yields values for."""
        return [self.evaluate, self.stop, self.status, self.scores, *self.browser.shown]

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [
            self.note,
            self.kind,
            self.limit,
            self.general,
            self.models,
            self.scores,
            *self.browser.shown,
            *self.chat.shown,
            *self.compare.shown,
            *self.sweep.shown,
        ]


def offer(session: Session) -> Any:
    """Return the update that offers every model of the session, all chosen."""
    names = list(scoring.candidates(session))
    return gr.update(choices=names, value=names)


def agents_of(session: Session) -> list[str]:
    """Return the loaded agents' names."""
    return list(session.loaded.agents) if session.loaded else []


def show(session: Session) -> list[Any]:
    """Return updates of ``CheckStep.shown`` for what a session has."""
    is_example = session.loaded is not None and session.loaded.example is not None
    note = "" if is_example else markup.callout(wording.SUITE_ONLY_EXAMPLE, "note")
    kind = SUITE if is_example else "general"
    return [
        note,
        kind,
        *show_kind(kind),
        offer(session),
        *show_report(session.report, session),
        *chat.show(session),
        *compare.show(session.comparison),
        *sweep_panel.show(session.sweep),
    ]


def show_kind(kind: str) -> list[Any]:
    """Return updates of (limit, general) for a kind of questions."""
    return [gr.update(visible=kind == SUITE), gr.update(visible=kind != SUITE)]


def show_report(report: EvalReport | None, session: Session) -> list[Any]:
    """Return updates of (scores, *Browser.shown) for a report, or for none yet."""
    agents = agents_of(session)
    if report is None:
        return [markup.empty_state(wording.NOTHING_CHECKED), *browse.show(None, agents)]
    return [heat_table.report_html(report, agents), *browse.show(report, agents)]


def read_form(values: Sequence[Any], settings: Settings) -> scoring.Plan:
    """Return the plan of the values of ``CheckStep.form``.

    Raises: SettingsError that says what to change.
    """
    kind, limit, suites, lengths, *items = values
    if kind == SUITE:
        return scoring.make_plan([SUITE], {SUITE: limit}, (), settings)
    numbers = dict(zip(GENERAL, items, strict=True))
    return scoring.make_plan(suites or (), numbers, lengths or (), settings)


def run(
    names: Sequence[str], values: Sequence[Any], session: Session, workspace: Workspace
) -> Iterator[list[Any]]:
    """Evaluate, yielding updates of ``CheckStep.outputs``."""
    idle = [gr.update(interactive=True), gr.update(visible=False)]
    busy = [gr.update(interactive=False), gr.update(visible=True)]
    rest = 1 + len(browse.show(None, ()))
    try:
        plan = read_form(values, workspace.settings)
    except RamStudioError as error:
        yield [*idle, markup.callout(str(error), "warn"), *[gr.skip()] * rest]
        return
    shown = None
    for status, report in scoring.run_evaluation(names or (), plan, session, workspace):
        is_busy = report is None and session.is_busy
        # Only when they change: a button that is drawn anew under the pointer misses its click.
        buttons = [gr.skip()] * 2 if is_busy is shown else busy if is_busy else idle
        shown = is_busy
        result = [gr.skip()] * rest if report is None else show_report(report, session)
        yield [*buttons, status, *result]


def _length_text(length: int) -> str:
    return f"{length // 1000}k"


def _build_suites(settings: Settings) -> tuple[gr.Column, gr.CheckboxGroup, dict, gr.CheckboxGroup]:
    refusal = scoring.code_refusal()
    offered = [name for name in (*GENERAL, HEALTH) if name != "code" or refusal is None]
    notes = "; ".join(f"{words.SUITES[name]}: {words.SUITE_NOTES[name]}" for name in offered)
    with gr.Column(visible=False, elem_id="general-suites") as box:
        suites = gr.CheckboxGroup(
            [(words.SUITES[name], name) for name in offered],
            value=list(DEFAULT_SUITES),
            label=words.SUITES_LABEL,
            elem_id="suites",
        )
        with gr.Row(elem_classes="suite-items"):
            items = {
                name: gr.Number(
                    min(DEFAULT_ITEMS, settings.max_suite_items),
                    label=words.ITEMS_LABEL.format(suite=words.SUITES[name].lower()),
                    precision=0,
                    minimum=1,
                    maximum=settings.max_suite_items,
                    min_width=150,
                    # Hidden, not left out: the form has all of them.
                    visible=True if name in DEFAULT_SUITES else "hidden",
                    elem_id=f"items-{name}",
                )
                for name in GENERAL
            }
        lengths = gr.CheckboxGroup(
            [(_length_text(n), n) for n in scoring.offered_lengths(settings)],
            value=[scoring.LENGTHS[0]],
            label=words.LENGTHS_LABEL,
            visible="hidden",
            elem_id="lengths",
        )
        said = f'<p class="fine">{words.SUITES_NOTE.format(notes=notes)}</p>'
        if refusal is not None:
            said += markup.callout(words.CODE_OFF.format(reason=refusal), "note")
        gr.HTML(said, elem_id="suite-notes", apply_default_css=False)
    return box, suites, items, lengths


def build(tune: Tuning, workspace: Workspace, events: dict[str, Any]) -> CheckStep:
    """Lay the step out inside the open Blocks.

    events: waiting, quiet and heavy, as the panels' wiring takes them.
    """
    settings = workspace.settings
    with gr.Column(elem_id="step-check", elem_classes="step") as column:
        gr.HTML(
            markup.step_head(wording.CHECK_HEADING, wording.CHECK_LEAD), apply_default_css=False
        )
        note = gr.HTML("", apply_default_css=False)
        with gr.Column(elem_classes="box"):
            models = gr.CheckboxGroup([], label=wording.MODELS_LABEL, elem_id="check-models")
            with gr.Row(elem_classes="check-form"):
                kind = gr.Radio(
                    [(words.KIND_DEMO, SUITE), (words.KIND_SUITES, "general")],
                    value=SUITE,
                    label=words.KIND_LABEL,
                    elem_id="check-kind",
                    min_width=260,
                )
                limit = gr.Slider(
                    *LIMITS,
                    value=DEFAULT_LIMIT,
                    step=50,
                    label=wording.LIMIT_LABEL,
                    buttons=[],
                    elem_id="limit",
                    min_width=200,
                )
            general, suites, items, lengths = _build_suites(settings)
            with gr.Row(elem_classes="actions"):
                evaluate = gr.Button(wording.EVALUATE, variant="primary", elem_id="evaluate")
                stop = gr.Button(
                    wording.STOP, variant="stop", visible=False, elem_id="stop-evaluate"
                )
        status = gr.HTML("", elem_id="check-status", apply_default_css=False)
        scores = gr.HTML(
            markup.empty_state(wording.NOTHING_CHECKED), elem_id="scores", apply_default_css=False
        )
        browser = browse.build()
        talk = chat.build(settings)
        comparison = compare.build()
        sweep = sweep_panel.sweep_panel(tune, workspace, **events)
    return CheckStep(
        column,
        note,
        models,
        kind,
        limit,
        general,
        suites,
        items,
        lengths,
        evaluate,
        stop,
        status,
        scores,
        browser,
        talk,
        comparison,
        sweep,
    )


def wire(step: CheckStep, tune: Tuning, workspace: Workspace, events: dict[str, Any]) -> None:
    """Connect the step and its panels. events: see ``build``."""
    quiet, heavy, waiting = events["quiet"], events["heavy"], events["waiting"]

    # The request comes first: Gradio puts it at its position, which *values would shift.
    def run_check(request: gr.Request, names: list[str], *values: Any) -> Iterator[list[Any]]:
        yield from run(names, values, workspace.session(request.session_hash), workspace)

    step.evaluate.click(fn=None, js=waiting, outputs=step.status)
    step.evaluate.click(run_check, [step.models, *step.form], step.outputs, **heavy)

    def stop(request: gr.Request) -> None:
        job = workspace.session(request.session_hash).job
        if job is not None:
            job.stop()

    for button in (step.stop, step.compare.stop, step.chat.stop):
        button.click(stop, None, None, queue=False, **quiet)
    step.kind.input(show_kind, step.kind, [step.limit, step.general], queue=False, **quiet)

    def show_items(suites: list[str]) -> list[Any]:
        names = [*GENERAL, "memory"]
        return [gr.update(visible=True if name in suites else "hidden") for name in names]

    step.suites.input(
        show_items, step.suites, [*step.items.values(), step.lengths], queue=False, **quiet
    )
    _wire_browser(step, workspace, quiet)
    chat.wire(step.chat, step.models, workspace, **events)
    compare.wire(step.compare, tune, workspace, **events)


def _wire_browser(step: CheckStep, workspace: Workspace, quiet: dict[str, Any]) -> None:
    browser = step.browser

    def look(by: int, domain: str, which: str, place: float, request: gr.Request) -> list[Any]:
        session = workspace.session(request.session_hash)
        return browse.browse(session.report, domain, which, place + by, agents_of(session))

    def stay(domain: str, which: str, place: float, request: gr.Request) -> list[Any]:
        return look(0, domain, which, place, request)

    def back(domain: str, which: str, place: float, request: gr.Request) -> list[Any]:
        return look(-1, domain, which, place, request)

    def forth(domain: str, which: str, place: float, request: gr.Request) -> list[Any]:
        return look(1, domain, which, place, request)

    options = {"queue": False, "trigger_mode": "always_last", **quiet}
    outputs = [browser.position, browser.item]
    changed = [browser.domain.input, browser.which.input, browser.position.input]
    gr.on(changed, stay, browser.form, outputs, **options)
    browser.previous.click(back, browser.form, outputs, **options)
    browser.next.click(forth, browser.form, outputs, **options)
