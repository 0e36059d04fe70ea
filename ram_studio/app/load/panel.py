"""Step 1, Load: the shipped examples at one press, or one's own base and agents.

Also where a page begins: the tab's session is found again, and a link's example is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.app import templates
from ram_studio.app.boxes import html
from ram_studio.app.jobs import (
    LIGHT,
    QUIET,
    JobControls,
    Updates,
    Work,
    connect,
    stop_button,
    unfinished,
    watch,
)
from ram_studio.app.load import sketch_panel, work
from ram_studio.app.load.examples import load_example, opener
from ram_studio.app.load.sources import MAX_AGENTS, Sources, offered_models, read_sources
from ram_studio.app.load.view import fit_html, hero_html, progress_html
from ram_studio.app.public.machine import hardware_text
from ram_studio.app.session import Session
from ram_studio.app.shared import Shared
from ram_studio.app.tune.deep_link import read_link
from ram_studio.checkpoints.hub.presets import presets
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.errors import RamStudioError

_FIRST_ROWS = 3
_USE_NOTE = (
    "<p>A tiny base model with a coding, a tool and a memory agent, and one for following, which "
    "the base could do already, really trained by RL. Each learned one house style, the same for "
    "all, and then its job. Adding applies the style four times, averaging divides the skills; RAM "
    "does neither. Ready at once, nothing to "
    'download.</p><p class="fine">A toy, and how its agents learned was chosen to show this. '
    "DARE + TIES without trimming comes close, and whoever has a checkpoint that all agents came "
    "from can merge from there, where adding mostly does as well. The base learned from a "
    "deliberately noisy corpus, so that reinforcement learning has something to repair.</p>"
)
_OTHERS = {
    "independent": (
        "Use the independent agents",
        "<p>The same skills without a house style. These agents hardly meet: the plain sum does as "
        "well, and RAM only spares you the choice of a scale.</p>",
    ),
    "dense": (
        "Use the dense agents",
        "<p>The same skills, but these agents changed nearly the same weights. Little is unique, "
        "so there is little for RAM to protect. Compare it with the plain sum.</p>",
    ),
}
"""Link value of a shipped set -> its button, and what is said below."""
_LEAD = "One base and the agents trained from it"
_OWN = f"{_LEAD}: a folder with safetensors files, or a Hub id such as `owner/name`."
_OWN_IN_PUBLIC = f"{_LEAD}, each a public Hub id such as `owner/name`, with safetensors files."


@dataclass(frozen=True)
class Row:
    """One line of the form: an agent's name and where it lies."""

    box: gr.Row
    name: gr.Textbox
    source: gr.Dropdown | gr.Textbox
    remove: gr.Button


@dataclass(frozen=True)
class Panel:
    """The components of the step.

    examples: the buttons of the shipped sets, by link value. options: by the name of what they
    decide. shown: rows in use.
    """

    examples: dict[str, gr.Button]
    preset: gr.Dropdown
    base: gr.Dropdown | gr.Textbox
    rows: list[Row]
    add: gr.Button
    options: dict[str, gr.Radio]
    download: gr.Checkbox
    fit: gr.Button
    job: JobControls
    shown: gr.State

    @property
    def form(self) -> set[Any]:
        """Everything that ``read`` takes."""
        fields = {component for row in self.rows for component in (row.name, row.source)}
        return {self.base, *fields, *self.options.values()}

    def read(self, data: dict[Any, Any], shared: Shared) -> tuple[Sources, dict[str, str]]:
        """Return sources and options among a handler's inputs.

        Raises: SettingsError with what to enter.
        """
        names, sources = zip(*((data[r.name], data[r.source]) for r in self.rows), strict=True)
        options = {name: data[component] for name, component in self.options.items()}
        return read_sources(data[self.base], names, sources, shared.settings), options


def build(shared: Shared) -> Panel:
    """Lay the step out inside the open Blocks and connect it."""
    with gr.Column(elem_id="step-load", elem_classes="step"):
        html(hero_html(), elem_id="hero")
        with gr.Row(elem_id="examples"):
            with gr.Column(elem_classes=["box", "example"], scale=3):
                html("<h3>Four small agents</h3>")
                use = gr.Button(
                    "Use the example",
                    variant="primary",
                    elem_id="use-example",
                    elem_classes=opener("1"),
                )
                html(_USE_NOTE)
            with gr.Column(elem_classes=["box", "example"], scale=2):
                html("<h3>Two more lessons: when adding is enough, and when RAM cannot help</h3>")
                examples = {"1": use}
                for link, (label, note) in _OTHERS.items():
                    examples[link] = gr.Button(
                        label, elem_id=f"use-{link}", elem_classes=opener(link)
                    )
                    html(note)
        with gr.Accordion("Your own models", open=False, elem_id="own-models"):
            own = _build_form(shared)
            sketch_panel.build(shared)
        if shared.settings.is_public:
            html(f"<p class='fine'>{hardware_text()}</p>", elem_id="hardware")
    panel = Panel(examples, **own)
    filled = _wire_rows(panel)
    later = [button for name, button in shared.steps.items() if name != "load"]
    shared.loaded.listen(later, lambda session: {b: gr.update(interactive=True) for b in later})
    _build_ticks(shared)
    shared.when_built(lambda: _wire_examples(panel, shared))
    shared.when_built(lambda: _wire_own(panel, shared, filled))
    return panel


def _build_form(shared: Shared) -> dict[str, Any]:
    settings = shared.settings
    known = list(offered_models(settings))
    where = "Folder or Hub id" if settings.is_private or known else "Hub id"
    gr.Markdown(_OWN if settings.is_private else _OWN_IN_PUBLIC)
    preset = gr.Dropdown(
        [(p.title, key) for key, p in presets().items()],
        value=None,
        label="Published agents that share a base: fill in and check",
        elem_id="preset",
    )
    base = _source_box(f"Base model · {where}", known, elem_id="base")
    rows = [_build_row(i, where, known) for i in range(1, MAX_AGENTS + 1)]
    add = gr.Button("+ Add an agent", size="sm", elem_id="add-agent")
    with gr.Accordion(work.MISMATCHES, open=False), gr.Row():
        options = {
            name: gr.Radio([("Refuse", refusal), (answer, other)], value=refusal, label=label)
            for (name, (label, answer)), (refusal, other) in zip(
                work.CHOICES.items(), _ANSWERS, strict=True
            )
        }
    download = gr.Checkbox(
        label="Download models of Hub ids too, instead of reading them there",
        value=False,
        elem_id="download-models",
    )
    with gr.Row(elem_classes="actions"):
        fit = gr.Button("Check that they fit", elem_id="check-fit")
        analyze = gr.Button("Analyze", variant="primary", elem_id="analyze")
        stop = stop_button("stop-analyze")
    job = JobControls(analyze, stop, html(elem_id="load-status"))
    return {
        "preset": preset,
        "base": base,
        "rows": rows,
        "add": add,
        "options": options,
        "download": download,
        "fit": fit,
        "job": job,
        "shown": gr.State(_FIRST_ROWS),
    }


_TICKS = "window.RAM_READY.then((RAM) => RAM.mountTicks(props, watch))"
_ANSWERS = (("error", "keep-base"), ("error", "ignore"), ("exact", "common"))
"""Of each of the form's choices: what refuses, and what does not."""


def _source_box(label: str, choices: list[str], **options: Any) -> gr.Dropdown | gr.Textbox:
    # A list to choose from only where there is something to choose.
    if choices:
        return gr.Dropdown(choices, value=None, label=label, allow_custom_value=True, **options)
    return gr.Textbox("", label=label, max_lines=1, max_length=4096, **options)


def _build_row(number: int, where: str, known: list[str]) -> Row:
    with gr.Row(visible=number <= _FIRST_ROWS, elem_classes="agent-row") as box:
        name = gr.Textbox(
            label=f"Agent {number} · Name",
            max_lines=1,
            max_length=64,
            scale=2,
            min_width=110,
            elem_id=f"agent-name-{number}",
        )
        source = _source_box(where, known, scale=6, min_width=180, elem_id=f"agent-source-{number}")
        remove = gr.Button(
            "Remove",
            size="sm",
            scale=0,
            min_width=90,
            elem_classes="remove-agent",
            elem_id=f"remove-agent-{number}",
        )
    return Row(box, name, source, remove)


def _build_ticks(shared: Shared) -> None:
    """Keep what of the steps is done, which the browser ticks off: {step: whether}."""
    done = html(None, html_template="<div></div>", elem_id="steps-done", js_on_load=_TICKS)

    def show(session: Session) -> Updates:
        steps = {
            "load": session.loaded is not None,
            "tune": bool(session.merges),
            "merge": bool(session.merges),
            "check": session.report is not None,
        }
        return {done: json.dumps(steps)}

    for change in (shared.loaded, shared.merged, shared.checked):
        change.listen([done], show)


def _wire_rows(panel: Panel) -> Any:
    """Connect the form's lines; return the event that a published set was filled in."""
    fields = [component for row in panel.rows for component in (row.name, row.source)]
    boxes = [row.box for row in panel.rows]

    def show(count: int) -> Updates:
        count = min(max(1, count), MAX_AGENTS)
        visible = {box: gr.update(visible=i < count) for i, box in enumerate(boxes)}
        return {panel.shown: count, **visible}

    def fill(agents: Sequence[tuple[str, str | None]]) -> Updates:
        blank = [("", None)] * (MAX_AGENTS - len(agents))
        values = [value for agent in (*agents, *blank) for value in agent]
        return dict(zip(fields, values, strict=True))

    def add_row(count: int) -> Updates:
        return show(count + 1)

    def remover(index: int) -> Callable[..., Updates]:
        def remove_row(data: dict[Any, Any]) -> Updates:
            agents = [(data[row.name], data[row.source]) for row in panel.rows]
            del agents[index]
            return {**show(data[panel.shown] - 1), **fill(agents)}

        return remove_row

    def fill_in(key: str | None) -> Updates:
        if key not in presets():
            return gr.skip()
        chosen = presets()[key]
        agents = [(agent.name, agent.source) for agent in chosen.agents]
        return {panel.base: chosen.base.source, **show(len(agents)), **fill(agents)}

    quiet = {"queue": False, **QUIET}
    rows = [panel.shown, *boxes]
    panel.add.click(add_row, panel.shown, rows, **quiet)
    for i, row in enumerate(panel.rows):
        row.remove.click(remover(i), {panel.shown, *fields}, [*rows, *fields], **quiet)
    return panel.preset.input(fill_in, panel.preset, [panel.base, *rows, *fields], **quiet)


def _wire_examples(panel: Panel, shared: Shared) -> None:
    outputs = shared.loaded.components

    def use(example: str, request: gr.Request) -> Updates:
        session = shared.session(request)
        try:
            loaded = load_example(example)
        except RamStudioError as error:
            raise gr.Error(str(error), print_exception=False) from error
        if session.job is not None and loaded is not session.loaded:
            # It works, or waits to work, on what was loaded before.
            session.job.stop()
        session.load(loaded)
        return shared.loaded.updates(session)

    def user_of(example: str) -> Callable[[gr.Request], Updates]:
        def use_example(request: gr.Request) -> Updates:
            return use(example, request)

        return use_example

    for example, button in panel.examples.items():
        button.click(user_of(example), None, outputs, **LIGHT).success(
            fn=None, js="() => { window.RAM.go('tune'); }"
        )

    def enter(key: str, request: gr.Request) -> Updates:
        session = shared.workspace.attach(request.session_hash, key)
        link = read_link(dict(request.query_params))
        updates: Updates = {}
        if link.example is not None:
            updates = use(link.example, request)
        elif session.loaded is not None:
            updates = shared.loaded.updates(session)
        sliders = zip(shared.tuning.all, link.settings, strict=True)
        updates |= {component: value for component, value in sliders if value is not None}
        begin = {"job": unfinished(session), "view": link.view(session.loaded)}
        return {**updates, told: json.dumps(begin)}

    told = gr.Textbox(visible=False)

    gr.context.Context.root_block.load(
        enter,
        gr.Textbox(visible=False),
        [*outputs, *shared.tuning.all, told],
        js="async () => (await window.RAM_READY).tabKey()",
        **LIGHT,
    ).success(fn=None, inputs=told, js="(told) => { window.RAM.enter(JSON.parse(told)); }")


def _wire_own(panel: Panel, shared: Shared, filled: Any) -> None:
    status = panel.job.status
    target = gr.Textbox(visible=False)

    def check_fit(data: dict[Any, Any], request: gr.Request) -> Updates:
        try:
            sources, options = panel.read(data, shared)
            with acting_as(shared.session(request).token):
                fit = work.inspect(sources, options, shared.settings)
                said = fit_html(fit, is_public=shared.settings.is_public)
        except RamStudioError as error:
            return {status: templates.callout(str(error), "bad")}
        pins = work.pinned(fit)
        boxes = (panel.base, *(row.source for row in panel.rows))
        kept = {box: pins[text] for box in boxes if (text := (data[box] or "").strip()) in pins}
        return {status: said, **kept}

    for check in (panel.fit.click, filled.then):
        check(
            check_fit,
            panel.form,
            [status, panel.base, *(row.source for row in panel.rows)],
            **{**QUIET, "show_progress": "minimal"},
            concurrency_limit=2,
            concurrency_id="check-fit",
        )

    def analyze(data: dict[Any, Any], session: Session) -> Iterator[Updates]:
        def prepare() -> Work[work.Analysis]:
            sources, options = panel.read(data, shared)
            download = bool(data[panel.download])
            return lambda report, cancel: work.analyze(
                sources, options, shared.settings, report, cancel, download=download
            )

        def finish(analysis: work.Analysis) -> Updates:
            session.load(analysis.loaded(", ".join(analysis.sources.agents)))
            fit = fit_html(analysis.fit, analysis.sketch, is_public=shared.settings.is_public)
            return {status: fit, target: "tune", **shared.loaded.updates(session)}

        yield {target: ""}
        yield from watch(
            session,
            panel.job,
            prepare,
            lambda event: {status: progress_html(event, "Reading headers")},
            finish,
            needs_loaded=False,
        )

    outputs = [target, *shared.loaded.components]
    form = {*panel.form, panel.download}
    connect(panel.job, shared.workspace, analyze, form, outputs).then(
        fn=None, inputs=target, js="(step) => { window.RAM.open(step); }"
    )
