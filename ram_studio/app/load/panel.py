"""Step 1, Load: the landing page with the shipped examples, or the user's own base and agents.

It also starts the page: it restores the tab's session, and loads a link's example.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gradio as gr
from markupsafe import Markup

from ram_studio.app import templates
from ram_studio.app.boxes import html, mount_point
from ram_studio.app.landing.preview import unknown_parts
from ram_studio.app.load import analysis_panel, work
from ram_studio.app.load.sources import MAX_AGENTS, Sources, offered_models, read_sources
from ram_studio.app.load.view import fit_html, progress_html
from ram_studio.app.public.machine import hardware_text
from ram_studio.app.session.deep_link import read_link
from ram_studio.app.session.jobs import (
    LIGHT,
    LOADED,
    QUIET,
    JobControls,
    Updates,
    Work,
    connect,
    resume_button_id,
    stop_button,
    watch,
)
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import TITLES, load_set, opener
from ram_studio.app.session.shared import PageContext, open_after
from ram_studio.checkpoints.hub.presets import presets
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.errors import RamStudioError

_FIRST_ROWS = 3
_LEAD = "One base and the agents trained from it"
_OWN = f"{_LEAD}: a folder with safetensors files, or a Hub id such as owner/name."
_OWN_IN_PUBLIC = f"{_LEAD}, each a public Hub id such as owner/name, with safetensors files."


class Row(NamedTuple):
    """One line of the form: an agent's name and source."""

    box: gr.Row
    name: gr.Textbox
    source: gr.Dropdown | gr.Textbox
    remove: gr.Button


class LoadPanel:
    """The step.

    examples: the buttons of the shipped sets, by link value. options: components by option. count:
    rows in use.
    """

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        self.examples: dict[str, gr.Button] = {}
        # Above every step: unknown parts of a link.
        self.note = html(elem_id="link-note")
        shared.clear_on_load(self.note)
        with gr.Column(elem_id="step-load", elem_classes="step"):
            self._lay_out_examples()
            with gr.Accordion("Your own models", open=False, elem_id="own-models"):
                self._lay_out_form()
                analysis_panel.build(shared)
            if shared.settings.is_public:
                html(f"<p class='fine'>{hardware_text()}</p>", elem_id="hardware")
        self._sources = [self.base, *(row.source for row in self.rows)]
        filled = self._wire_rows()
        later = [button for name, button in shared.steps.items() if name != "load"]
        shared.loaded.listen(later, lambda session: {b: gr.update(interactive=True) for b in later})
        self._lay_out_ticks()
        shared.when_built(self._wire_examples)
        shared.when_built(lambda: self._wire_own(filled))

    def _lay_out_examples(self) -> None:
        """Lay out the landing page, and the buttons that its links click."""
        mount_point("mountFirst(element)", "hero")
        for name in TITLES:
            shape = {"elem_id": f"use-{name}", "elem_classes": opener(name)}
            self.examples[name] = gr.Button(name, visible="hidden", **shape)

    def _lay_out_form(self) -> None:
        settings = self.shared.settings
        known = list(offered_models(settings))
        where = "Folder or Hub id" if settings.is_private or known else "Hub id"
        html(f"<p>{_OWN if settings.is_private else _OWN_IN_PUBLIC}</p>")
        self.preset = gr.Dropdown(
            [(p.title, key) for key, p in presets().items()],
            value=None,
            label="Published agents that share a base: fill in and check",
            elem_id="preset",
        )
        self.base = _source_box(f"Base model · {where}", known, elem_id="base")
        self.rows = [_build_row(i, where, known) for i in range(1, MAX_AGENTS + 1)]
        self.add = gr.Button("+ Add an agent", size="sm", elem_id="add-agent")
        self.mismatches = gr.Accordion(work.MISMATCHES, open=False, elem_id="mismatches")
        with self.mismatches, gr.Row():
            self.options = {
                name: gr.Radio([("Refuse", refusal), *answers.items()], value=refusal, label=label)
                for name, (label, refusal, answers) in work.CHOICES.items()
            }
        self.download = gr.Checkbox(
            label="Download Hub models instead of reading them on the Hub",
            value=False,
            elem_id="download-models",
        )
        with gr.Row(elem_classes="actions"):
            self.fit = gr.Button("Check compatibility", elem_id="check-fit")
            analyze = gr.Button("Analyze", variant="primary", elem_id="analyze")
            stop = stop_button("stop-analyze")
        self.job = JobControls(analyze, stop, html(elem_id="load-status"))
        self.shared.clear_on_load(self.job.status)
        self.count = gr.Number(_FIRST_ROWS, precision=0, visible=False)

    def _lay_out_ticks(self) -> None:
        """Lay out the state of finished steps, which the browser ticks: {step: whether}."""
        done = mount_point("mountTicks(props, watch)", "steps-done")

        def show(session: Session) -> Updates:
            steps = {
                "load": session.loaded is not None,
                "tune": bool(session.merges),
                "merge": bool(session.merges),
                "check": session.report is not None,
            }
            return {done: json.dumps(steps)}

        for change in (self.shared.loaded, self.shared.merged, self.shared.checked):
            change.listen([done], show)

    def _read(self, data: dict[Any, Any]) -> tuple[Sources, dict[str, str]]:
        """Return the sources and options in a handler's inputs.

        Raises: SettingsError with what to enter.
        """
        names, sources = zip(*((data[r.name], data[r.source]) for r in self.rows), strict=True)
        options = {name: data[component] for name, component in self.options.items()}
        return read_sources(data[self.base], names, sources, self.shared.settings), options

    def _wire_rows(self) -> Any:
        """Connect the form's lines; return the event of filling in a published set."""
        fields = [component for row in self.rows for component in (row.name, row.source)]
        boxes = [row.box for row in self.rows]

        def show(count: int) -> Updates:
            count = min(max(1, count), MAX_AGENTS)
            visible = {box: gr.update(visible=i < count) for i, box in enumerate(boxes)}
            return {self.count: count, **visible}

        def fill(agents: Sequence[tuple[str, str | None]]) -> Updates:
            blank = [("", None)] * (MAX_AGENTS - len(agents))
            values = [value for agent in (*agents, *blank) for value in agent]
            return dict(zip(fields, values, strict=True))

        def remover(index: int) -> Callable[..., Updates]:
            def remove_row(data: dict[Any, Any]) -> Updates:
                agents = [(data[row.name], data[row.source]) for row in self.rows]
                del agents[index]
                return {**show(int(data[self.count]) - 1), **fill(agents)}

            return remove_row

        def fill_in(key: str | None) -> Updates:
            if key not in presets():
                return gr.skip()
            chosen = presets()[key]
            agents = [(agent.name, agent.source) for agent in chosen.agents]
            return {self.base: chosen.base.source, **show(len(agents)), **fill(agents)}

        rows = [self.count, *boxes]
        self.add.click(lambda count: show(int(count) + 1), self.count, rows, **LIGHT)
        for i, row in enumerate(self.rows):
            row.remove.click(remover(i), {self.count, *fields}, [*rows, *fields], **LIGHT)
        return self.preset.input(fill_in, self.preset, [self.base, *rows, *fields], **LIGHT)

    def _use(self, set_name: str, session: Session) -> Updates:
        try:
            loaded = load_set(set_name)
        except RamStudioError as error:
            raise gr.Error(str(error), print_exception=False) from error
        if session.job is not None and loaded is not session.loaded:
            # The job runs, or is queued, for the previous models.
            session.job.stop(LOADED)
        session.load(loaded)
        return self.shared.loaded.updates(session)

    def _wire_examples(self) -> None:
        shared = self.shared
        outputs = shared.loaded.components

        for set_name, button in self.examples.items():
            used = shared.with_session(functools.partial(self._use, set_name))
            button.click(used, None, outputs, **LIGHT).success(
                fn=None, js="() => { window.RAM.go('tune'); }"
            )

        def enter(key: str, request: gr.Request) -> Updates:
            session = shared.workspace.session_of(request, key=key or "")
            query = dict(request.query_params)
            link = read_link(query)
            updates: Updates = {}
            if link.set_name is not None:
                updates |= self._use(link.set_name, session)
            elif session.loaded is not None:
                updates |= shared.loaded.updates(session)
            updates |= shared.tuning.update(**link.settings)
            loaded = session.loaded
            in_vain = unknown_parts(query, has_models=loaded is not None)
            notes = [templates.callout(text, "warn") for text in in_vain]
            updates[self.note] = Markup("").join(notes)
            begin = {
                "job": resume_button_id(session),
                "view": link.view(loaded),
                "loaded": loaded is not None,
            }
            return {**updates, state: json.dumps(begin)}

        state = gr.Textbox(visible=False)
        gr.context.Context.root_block.load(
            enter,
            gr.Textbox(visible=False),
            [*outputs, *shared.tuning, self.note, state],
            js="async () => (await window.RAM_READY).tabKey()",
            **LIGHT,
        ).success(fn=None, inputs=state, js="(state) => { window.RAM.enter(JSON.parse(state)); }")

    def _wire_own(self, filled: Any) -> None:
        shared = self.shared
        plain = [component for row in self.rows for component in (row.name, row.source)]
        form = {self.base, *plain, *self.options.values()}
        for check in (self.fit.click, filled.then):
            check(
                shared.with_session(self._check_fit),
                form,
                [self.job.status, self.mismatches, *self._sources],
                **{**QUIET, "show_progress": "minimal"},
                concurrency_limit=2,
                concurrency_id="check-fit",
            )
        self._target = gr.Textbox(visible=False)
        outputs = [self._target, self.mismatches, *shared.loaded.components]
        given = {*form, self.download}
        open_after(connect(self.job, shared.workspace, self._run, given, outputs), self._target)

    def _check_fit(self, data: dict[Any, Any], session: Session) -> Updates:
        settings = self.shared.settings
        try:
            sources, options = self._read(data)
            with acting_as(session.token):
                fit = work.inspect_sources(sources, options, settings)
                report = self._fit_html(fit)
        except RamStudioError as error:
            return self._with_options({self.job.status: templates.callout(str(error), "bad")})
        pins = work.pinned_sources(fit)
        given = {box: (data[box] or "").strip() for box in self._sources}
        pinned = {box: pins[text] for box, text in given.items() if text in pins}
        return {self.job.status: report, **pinned}

    def _run(self, data: dict[Any, Any], session: Session) -> Iterator[Updates]:
        shared, status = self.shared, self.job.status

        def prepare() -> Work[work.FreshAnalysis]:
            sources, options = self._read(data)
            download = bool(data[self.download])
            return lambda report, cancel: work.analyze(
                sources, options, shared.settings, report, cancel, download=download
            )

        def finish(found: work.FreshAnalysis) -> Updates:
            session.load(found.as_loaded(", ".join(found.sources.agents)))
            fit = self._fit_html(found.fit, found.analysis)
            return {**shared.loaded.updates(session), status: fit, self._target: "tune"}

        yield {self._target: ""}
        updates = watch(
            session,
            self.job,
            prepare,
            lambda event: progress_html(event, "Reading headers"),
            finish,
            needs_loaded=False,
        )
        yield from map(self._with_options, updates)

    def _fit_html(self, *found: Any) -> str:
        shared = self.shared
        return fit_html(*found, is_public=shared.settings.is_public, merges=shared.workspace.root)

    def _with_options(self, updates: Updates) -> Updates:
        """Return updates that also open the options where the status refers to them."""
        if work.MISMATCHES not in str(updates.get(self.job.status, "")):
            return updates
        return {**updates, self.mismatches: gr.update(open=True)}


def _source_box(label: str, choices: list[str], **options: Any) -> gr.Dropdown | gr.Textbox:
    # A drop-down list only if there are choices.
    if choices:
        return gr.Dropdown(choices, value=None, label=label, allow_custom_value=True, **options)
    return gr.Textbox("", label=label, max_lines=1, max_length=4096, **options)


def _build_row(number: int, where: str, known: list[str]) -> Row:
    with gr.Row(visible=number <= _FIRST_ROWS, elem_classes="agent-row") as box:
        shape = {"scale": 2, "min_width": 110, "elem_id": f"agent-name-{number}"}
        name = gr.Textbox(label=f"Agent {number} · Name", max_lines=1, max_length=64, **shape)
        shape = {"scale": 6, "min_width": 180, "elem_id": f"agent-source-{number}"}
        source = _source_box(f"Agent {number} · {where}", known, **shape)
        shape = {"scale": 0, "min_width": 90, "elem_id": f"remove-agent-{number}"}
        remove = gr.Button("Remove", size="sm", elem_classes="remove-agent", **shape)
    return Row(box, name, source, remove)
