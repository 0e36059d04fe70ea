"""The page: head, stepper, the five steps, and the events that lead from one to the next.

Handlers here read the session, make one call into a step and pass its updates on. Which step is
shown is the browser's business (page.js); the server never locks one that was reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from ram_studio.app import api, markup, shell, wording
from ram_studio.app.check import panel as check
from ram_studio.app.history import panel as history
from ram_studio.app.jobs import Updates
from ram_studio.app.load import examples
from ram_studio.app.load import panel as load
from ram_studio.app.look import panel as look
from ram_studio.app.merge import controls, merging, recipes
from ram_studio.app.merge import panel as merge
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings
from ram_studio.app.shared import Shared, Tuning
from ram_studio.app.tune import microscope_panel
from ram_studio.app.tune import panel as tune
from ram_studio.app.tune.deep_link import Link, read_link
from ram_studio.app.workspace import Workspace
from ram_studio.errors import RamStudioError

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_HEAVY: dict[str, Any] = {**_QUIET, "concurrency_id": "heavy", "concurrency_limit": 1}


# Shown at once by the browser, until the job's first word: heavy work is done one at a time.
_WAITING = f"() => {json.dumps(markup.progress(None, wording.WAITING))}"


_EVENTS: dict[str, Any] = {"waiting": _WAITING, "quiet": _QUIET, "heavy": _HEAVY}


class Page:
    """The components of the page and the handlers that need more than one step."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.workspace = Workspace(settings)
        gr.HTML(shell.head_html(), elem_id="ram-head", apply_default_css=False)
        with gr.Row(elem_id="stepper"):
            self.steps = {
                name: gr.Button(label, elem_id=f"to-{name}", interactive=name == "load")
                for name, (_, label) in wording.STEPS.items()
            }
        # Before the panels' events: their handlers' names would take the endpoints'.
        api.build(self.workspace)
        self.shared = shared = Shared(self.workspace, self.steps)
        self.load = load.build(settings)
        self.look = look.build()
        self.tune = tune.build()
        shared.tuning = Tuning(self.tune.epsilon, self.tune.r, self.tune.alpha, self.tune.rule)
        self.merge = merge.build(shell.devices())
        shared.seed = self.merge.seed
        self.check = check.build(self.tune, self.workspace, _EVENTS)
        self.history = history.build()
        gr.HTML('<div id="ram-strip"></div>', apply_default_css=False)
        self._listen()
        self.tab_key = gr.Textbox(visible=False)
        self.signal = gr.Textbox(visible=False)
        self._wire_steps()
        self._wire_load()
        self._wire_merge()
        check.wire(self.check, self.tune, self.workspace, _EVENTS)
        history.wire(self.history, self.check, self.workspace, _QUIET)
        microscope_panel.wire(self.tune.scope, self.tune.settings, self.merge.seed, self.workspace)
        shared.connect()

    # ------------------------------------------------------------------ what a load changes

    def _listen(self) -> None:
        step, shared = self.check, self.shared

        def show_check(session: Session) -> Updates:
            return dict(zip(step.shown, check.show(session), strict=True))

        def show_report(session: Session) -> Updates:
            return dict(zip(report, check.show_report(session.report, session), strict=True))

        report = [step.scores, *step.browser.shown]
        shared.loaded.listen(step.shown, show_check)
        shared.merged.listen([step.models], lambda session: {step.models: check.offer(session)})
        shared.checked.listen(report, show_report)

    @property
    def loaded_outputs(self) -> list[Any]:
        """Every component that shows what is loaded."""
        return [
            self.tune.live,
            *(self.steps[name] for name in ("look", "tune", "merge", "check")),
            self.merge.result,
            self.merge.download,
            self.merge.recipe,
            self.merge.recipe_box,
            *self.shared.loaded.components,
        ]

    def show_loaded(self, session: Any) -> list[Any]:
        """Return updates of ``loaded_outputs`` for a session."""
        if session.loaded is None:
            return [gr.skip()] * len(self.loaded_outputs)
        last = list(session.merges.values())[-1] if session.merges else None
        return [
            examples.profile_of(session.loaded),
            *[gr.update(interactive=True)] * 4,
            *merge.show_result(last, session, self.settings),
            *self.shared.loaded.updates(session).values(),
        ]

    # ------------------------------------------------------------------ steps

    def _wire_steps(self) -> None:
        for name, button in self.steps.items():
            button.click(fn=None, js=f"() => {{ window.RAM.go('{name}'); }}")
        for button, target in (
            (self.look.next, "tune"),
            (self.tune.next, "merge"),
            (self.merge.next, "check"),
        ):
            # The stepper's own button does it, with whatever else it does.
            button.click(fn=None, js=f"() => {{ window.RAM.open('{target}'); }}")

        def draw(
            point: float, drawn: str | None, width: float | None, request: gr.Request
        ) -> list[Any]:
            session = self.workspace.session(request.session_hash)
            return look.draw(session.loaded, point, drawn, width)

        self.steps["look"].click(
            draw,
            [self.tune.epsilon, self.look.drawn, self.look.width],
            self.look.outputs,
            js="(point, drawn) => [point, drawn, window.innerWidth]",
            **{**_QUIET, "show_progress": "minimal"},
            show_progress_on=self.look.head,
        )

    # ------------------------------------------------------------------ Load

    def _wire_load(self) -> None:
        step = self.load

        def use(example: str, request: gr.Request) -> list[Any]:
            session = self.workspace.session(request.session_hash)
            try:
                session.load(examples.load_example(example))
            except RamStudioError as error:
                raise gr.Error(str(error), print_exception=False) from error
            return self.show_loaded(session)

        def use_example(request: gr.Request) -> list[Any]:
            return use("1", request)

        def use_dense(request: gr.Request) -> list[Any]:
            return use("dense", request)

        for button, handler in ((step.use_example, use_example), (step.use_dense, use_dense)):
            button.click(handler, None, self.loaded_outputs, **_QUIET).success(
                fn=None, js="() => { window.RAM.go('tune'); }"
            )

        def enter(key: str, request: gr.Request) -> list[Any]:
            session = self.workspace.attach(request.session_hash, key)
            link = read_link(dict(request.query_params))
            if link.example is not None:
                try:
                    session.load(examples.load_example(link.example))
                except RamStudioError as error:
                    raise gr.Error(str(error), print_exception=False) from error
            return [*self.show_loaded(session), *_link_updates(link)]

        gr.context.Context.root_block.load(
            enter,
            self.tab_key,
            [*self.loaded_outputs, *self.tune.settings],
            js="() => window.RAM.tabKey()",
            **_QUIET,
        ).success(fn=None, js="() => { window.RAM.enter(); }")

        def check_fit(*values: Any) -> str:
            return load.check_fit(values, self.settings)

        step.fit.click(
            check_fit,
            step.form,
            step.status,
            **{**_QUIET, "show_progress": "minimal"},
            concurrency_limit=2,
        )

        # The request comes first: Gradio puts it at its position, which *values would shift.
        def analyze(request: gr.Request, *values: Any) -> Iterator[list[Any]]:
            session = self.workspace.session(request.session_hash)
            for status, loaded in load.analyze_models(values, session, self.settings):
                running = session.is_busy
                buttons = [gr.update(interactive=not running), gr.update(visible=running)]
                updates = (
                    self.show_loaded(session)
                    if loaded is not None
                    else [gr.skip()] * len(self.loaded_outputs)
                )
                yield [status, *buttons, *updates, "look" if loaded is not None else ""]

        step.analyze.click(fn=None, js=_WAITING, outputs=step.status)
        step.analyze.click(
            analyze,
            step.form,
            [step.status, step.analyze, step.stop, *self.loaded_outputs, self.signal],
            **_HEAVY,
        ).then(fn=None, inputs=self.signal, js="(step) => { window.RAM.open(step); }")
        step.stop.click(self._stop, None, None, queue=False, **_QUIET)

    def _stop(self, request: gr.Request) -> None:
        session = self.workspace.session(request.session_hash)
        if session.job is not None:
            session.job.stop()

    # ------------------------------------------------------------------ Merge

    def _wire_merge(self) -> None:
        step = self.merge
        form = step.form(self.tune)

        def plan(request: gr.Request, *values: Any) -> list[Any]:
            session = self.workspace.session(request.session_hash)
            read = merge.read_form(values)
            return [
                merging.plan_html(session.loaded, read, self.workspace.root),
                # Hidden, not taken out: the page writes the sliders' values into it.
                gr.update(visible=True if controls.tuned_by(read.method) else "hidden"),
                *controls.visibilities(read.method),
            ]

        shown = [step.plan, step.from_tune, *step.extras]

        gr.on(
            [
                step.method.input,
                step.dtype.input,
                step.rounding.input,
                self.steps["merge"].click,
            ],
            plan,
            form,
            shown,
            queue=False,
            trigger_mode="always_last",
            **_QUIET,
        )

        def take_recipe(path: str, request: gr.Request) -> list[Any]:
            return recipes.take(path, self.workspace.session(request.session_hash))

        step.load_recipe.upload(
            take_recipe,
            step.load_recipe,
            [
                step.recipe_status,
                step.method,
                *self.tune.settings,
                *step.extras,
                step.dtype,
                step.rounding,
                step.seed,
            ],
            queue=False,
            **_QUIET,
        ).then(plan, form, shown, queue=False, **_QUIET)
        # The rule chosen in Tune is the method offered here; no request for that.
        gr.on(
            [self.tune.rule.input, self.tune.rule.change],
            fn=None,
            inputs=self.tune.rule,
            outputs=step.method,
            js="(rule) => rule",
        )

        def run(request: gr.Request, *values: Any) -> Iterator[list[Any]]:
            session = self.workspace.session(request.session_hash)
            before = len(session.merges)
            for updates in merge.run(merge.read_form(values), session, self.settings):
                added = len(session.merges) > before
                yield [*updates, check.offer(session) if added else gr.skip()]

        step.merge.click(fn=None, js=_WAITING, outputs=step.status)
        step.merge.click(run, form, [*step.outputs, self.check.models], **_HEAVY)
        step.stop.click(self._stop, None, None, queue=False, **_QUIET)


def _link_updates(link: Link) -> list[Any]:
    return [gr.skip() if value is None else value for value in link[1:]]


def build_page(settings: Settings) -> gr.Blocks:
    """Return the app."""
    with gr.Blocks(title=wording.TITLE, analytics_enabled=False, delete_cache=(3600, 86400)) as app:
        page = Page(settings)
    app.queue(max_size=40, default_concurrency_limit=8)
    app.ram_page = page
    return app
