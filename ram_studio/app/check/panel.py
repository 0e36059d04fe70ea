"""Step 4, Check: base, agents and merges on the same questions, side by side, item by item."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

from ram_studio.algorithm.analysis import BASE
from ram_studio.app.asking.data import DataSets
from ram_studio.app.asking.form import SettingsForm
from ram_studio.app.asking.limits import (
    SUITE,
    code_refusal,
    general_suites,
    most_items,
    read_settings,
)
from ram_studio.app.asking.suites import USUAL, SuiteChoice, title_of
from ram_studio.app.boxes import html, mount_point, number_box, slider, unchecked
from ram_studio.app.check import view, work
from ram_studio.app.check.browse import Browser
from ram_studio.app.check.chat import ChatPanel
from ram_studio.app.check.progress_grid import Scoring, finished_text, grid_html, progress_html
from ram_studio.app.check.verdicts import (
    QUESTION_STEP,
    enough_questions,
    has_verdicts,
    judge_merges,
    power_text,
    verdict_cards,
)
from ram_studio.app.experiment.panel import ComparePanel
from ram_studio.app.experiment.sweep_panel import SweepPanel
from ram_studio.app.load.view import progress_html as pass_html
from ram_studio.app.session.jobs import (
    LIGHT,
    Job,
    JobControls,
    Updates,
    Work,
    connect,
    missing_text,
    stop_button,
    watch,
)
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import CheckForm, PageContext
from ram_studio.app.settings import Settings
from ram_studio.app.templates import callout, empty_state, failure, render, step_head
from ram_studio.checkpoints.read.checkpoint import DownloadProgress
from ram_studio.checkpoints.read.describe import plural
from ram_studio.errors import RamStudioError
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, HEALTH

_HEALTH = "not scored: perplexity, distance from the base, repetition, speed"
_START = 200  # questions per skill that decide the default margin for two merges
_REDRAWN_SECONDS = 0.3
_NOTHING = "Not evaluated yet."
_FIRST = f"{_NOTHING} Choose models and press Evaluate."
_NOT_ITS_SKILLS = (
    "The built-in suite has the example's small tasks (code, tool, memory, follow). Your own "
    "models can run it, but it does not test what they were trained for."
)


class CheckPanel:
    """The step."""

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        with gr.Column(elem_id="step-check", elem_classes="step"):
            lead = (
                "The base, each agent and your merges answer the same held-out questions; strict "
                "checkers count the right answers."
            )
            html(step_head("Check", lead))
            self.note = html()
            with gr.Column(elem_classes="box"):
                self._lay_out_form(shared.settings)
            status = html(elem_id="check-status")
            self.controls = JobControls(self.evaluate, self.stop, status)
            shared.clear_on_load(status)
            self.grid = html(elem_id="check-grid")
            label = "Non-inferiority margin (points)"
            shape = {"visible": "hidden", "elem_id": "margin"}
            self.margin = slider(label, (1, 30), 5, 0.5, **shape)
            # The dumbbells of Tune.
            place = '<div class="dumbbells"></div>'
            self.verdicts = mount_point("mountVerdicts(element, props, watch)", "verdicts", place)
            self.scores = html(empty_state(_NOTHING), elem_id="scores")
            self.browser = Browser(shared)
            ChatPanel(shared, self.models)
            ComparePanel(shared)
            SweepPanel(shared)
        self._wire()

    def _lay_out_form(self, settings: Settings) -> None:
        self.models = unchecked(gr.CheckboxGroup([], label="Models", elem_id="check-models"))
        with gr.Row(elem_classes="check-form"):
            self.kind = gr.Radio(
                [("The example's skills", SUITE), ("General suites", "general")],
                value=SUITE,
                label="Benchmark",
                elem_id="check-kind",
                min_width=260,
            )
            shape = {"min_width": 200, "elem_id": "limit"}
            most = most_items(SUITE, settings)
            bounds = (QUESTION_STEP, most)
            self.limit = slider("Questions per skill", bounds, _START, QUESTION_STEP, **shape)
        # CSS shows it by the choice above, like the slider (check.css): unmounted components get no
        # updates.
        with gr.Column(elem_id="general-suites") as self.general:
            self._lay_out_suites(settings)
        self.power = html(elem_id="check-power", elem_classes="fine")
        self.form = SettingsForm(settings)
        with gr.Row(elem_classes="actions"):
            self.evaluate = gr.Button("Evaluate", variant="primary", elem_id="evaluate")
            self.stop = stop_button("stop-evaluate")

    def _lay_out_suites(self, settings: Settings) -> None:
        self.choice = SuiteChoice(settings, "", USUAL, last=[HEALTH])
        self.suites, self.unavailable = self.choice.box, self.choice.grayed
        self.lengths = self.choice.lengths
        with gr.Row(elem_classes="suite-items"):
            self.items = {
                name: number_box(
                    min(_START, most_items(name, settings)),
                    f"Questions for {title_of(name).lower()}",
                    precision=0,
                    minimum=1,
                    maximum=most_items(name, settings),
                    min_width=150,
                    # Hidden, not omitted, so that the form has all of them.
                    visible=name in USUAL or "hidden",
                    elem_id=f"items-{name}",
                )
                for name in general_suites()
            }
        about = {HEALTH: _HEALTH} | {name: suite.about for name, suite in ALL_SUITES.items()}
        asks = [(title_of(name), about[name]) for name in self.choice.names]
        note = render("check/suites.html.j2", suites=asks, refusal=code_refusal())
        html(note, elem_id="suite-notes")

    def _wire(self) -> None:
        plain = [self.models, self.kind, self.limit, self.suites, self.lengths]
        plain += self.items.values()
        result = [self.margin, self.verdicts, self.scores, *self.browser.outputs]
        self.shared.checked.listen(result, self._show_report)
        connect(
            self.controls,
            self.shared.workspace,
            self.run,
            {*plain, *self.form.boxes.values()},
            [self.grid, *self.shared.checked.components],
        )
        counts = [*self.items.values(), self.lengths, *self.form.outputs]
        general = [self.suites, self.unavailable, *counts]
        self.shared.asking = CheckForm([self.models, self.kind, *general], self._fill)
        self.data_sets = None
        if self.shared.settings.is_private:
            with self.general:
                offer = functools.partial(self._show_kind, "general")
                self.data_sets = DataSets(self.shared, offer, general)
        chosen = self.shared.with_session(self._show_kind)
        self.kind.input(chosen, self.kind, general, **LIGHT)
        self.suites.input(self._show_items, self.suites, counts, **LIGHT)
        shown = {self.kind, self.suites}
        self.form.fold.expand(self._show_settings, shown, self.form.outputs, **LIGHT)
        # The power of this many questions, before asking.
        counted = [*plain, self.margin]
        gr.on(
            [component.change for component in counted],
            self.shared.with_session(self._show_power),
            set(counted),
            [self.power],
            trigger_mode="always_last",
            **LIGHT,
        )
        # No new answers: the same ones are judged by another margin.
        moved, judged = self.shared.with_session(self._set_margin), [self.verdicts, self.scores]
        self.margin.input(moved, self.margin, judged, trigger_mode="always_last", **LIGHT)
        self.shared.merged.listen([self.models, self.limit], self._offer)
        again = [self.note, self.grid, self.kind, *general, self.models, self.limit, *result]
        self.shared.loaded.listen(again, self._show)

    def _offer(self, session: Session) -> Updates:
        """Offer every model of the session, all chosen, with as many questions as decide."""
        names = list(work.candidates(session))
        most = most_items(SUITE, self.shared.settings)
        enough = enough_questions(most, _count_verdicts(names, session), session.margin) or most
        # Fewer merges need no more questions than the slider has.
        more = {self.limit: enough} if enough > _START else {}
        return {self.models: gr.update(choices=names, value=names), **more}

    def _show(self, session: Session) -> Updates:
        is_example = session.loaded is not None and session.loaded.is_example
        kind = SUITE if is_example else "general"
        note = (
            "" if is_example else callout(missing_text(session.loaded) or _NOT_ITS_SKILLS, "note")
        )
        return {
            self.note: note,
            self.grid: "",
            self.kind: kind,
            **self._show_kind(kind, session),
            **self._offer(session),
            **self._show_report(session),
        }

    def _show_settings(self, data: Mapping[Any, Any]) -> Updates:
        return self.form.show([SUITE] if data[self.kind] == SUITE else data[self.suites])

    def _show_kind(self, kind: str, session: Session) -> Updates:
        if kind == SUITE:
            return self.form.show([SUITE])
        chosen, offered = self.choice.offer(session, USUAL)
        return {**offered, **self._show_items(chosen)}

    def _fill(self, names: Sequence[str], suites: Sequence[str], session: Session) -> Updates:
        """Choose these models, and the suites among those offered here."""
        kind = SUITE if SUITE in suites else "general"
        updates = {self.models: list(names), self.kind: kind, **self._show_kind(kind, session)}
        if kind != SUITE:
            chosen = [name for _, name in updates[self.suites]["choices"] if name in suites]
            updates[self.suites]["value"] = chosen
            updates |= self._show_items(chosen)
        return updates

    def _show_items(self, suites: list[str]) -> Updates:
        counts = {
            box: gr.update(visible=name in suites or "hidden") for name, box in self.items.items()
        }
        return {**counts, **self.choice.show(suites), **self.form.show(suites)}

    def _show_power(self, data: Mapping[Any, Any], session: Session) -> Updates:
        """Return the power of this many questions for the chosen merges, or for one."""
        if data[self.kind] == SUITE:
            limits, skills = {"": data[self.limit]}, None
        else:
            chosen = [name for name in data[self.suites] or () if name in self.items]
            limits, skills = {name: data[self.items[name]] for name in chosen}, len(chosen)
        alike: dict[tuple[int, int], list[str]] = {}
        for name, count in limits.items():
            if count and count >= 1:
                lengths = len(data[self.lengths] or ())
                most = most_items(name or SUITE, self.shared.settings, lengths)
                alike.setdefault((min(int(count), most), most), []).append(title_of(name))
        verdicts = _count_verdicts(data[self.models] or (), session, skills)
        lines = [
            (", ".join(names), power_text(*counts, verdicts, data[self.margin] / 100))
            for counts, names in alike.items()
        ]
        return {self.power: render("check/power.html.j2", lines=lines)}

    def _show_report(self, session: Session) -> Updates:
        report, agents = session.report, work.agents_of(session)
        is_led = report is not None and has_verdicts(report, agents)
        return {
            self.margin: gr.update(visible=is_led or "hidden"),
            **self._verdict_updates(session),
            **self.browser.show(report, agents),
        }

    def _verdict_updates(self, session: Session) -> Updates:
        agents = work.agents_of(session)
        if session.report is None:
            text = _FIRST if work.candidates(session) else _NOTHING
            return {self.verdicts: None, self.scores: empty_state(text)}
        result = judge_merges(session.report, agents, session.margin)
        drawn = verdict_cards(result, agents)
        return {
            # As text: Gradio searches every value of a nested one for files.
            self.verdicts: None if drawn is None else json.dumps(drawn),
            self.scores: view.report_html(result, agents),
        }

    def _set_margin(self, points: float, session: Session) -> Updates:
        session.margin = points / 100
        return self._verdict_updates(session)

    def _read(self, data: Mapping[Any, Any], session: Session) -> EvalSettings:
        if data[self.kind] == SUITE:
            suites, limits = [SUITE], {SUITE: data[self.limit]}
        else:
            suites = data[self.suites] or []
            limits = {name: data.get(box) for name, box in self.items.items()}
        own = self.form.read(data, suites)
        if not own.get("ci_width"):
            own["limit"] = limits
        given = {"suites": suites, "lengths": data.get(self.lengths), "data": session.data, **own}
        return read_settings(given, self.shared.settings)

    def run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        """Evaluate with the form's settings, yielding updates."""

        def prepare() -> Work[EvalReport]:
            chosen = work.choose_models(data[self.models] or (), session)
            settings = self._read(data, session)
            return work.score_work(chosen, settings, session, self.shared.workspace)

        def show_progress(event: Scoring | DownloadProgress | None) -> str | Updates:
            if isinstance(event, DownloadProgress):
                return pass_html(event, "")
            return {self.controls.status: progress_html(event), self.grid: grid_html(event)}

        def explain(error: RamStudioError, job: Job[EvalReport]) -> str:
            why = "Stopped: the evaluation took longer than this server allows."
            done = job.latest.done if isinstance(job.latest, Scoring) else 0
            stored = f"{plural(done, 'answer')} stored; evaluate again to continue."
            return failure(error, f"{'Stopped.' if job.cancel.is_cancelled else why} {stored}")

        def finish(report: EvalReport) -> Updates:
            session.report, last = report, session.job and session.job.latest
            message = callout(finished_text(last), "good") if isinstance(last, Scoring) else ""
            shown = {self.controls.status: message, self.grid: ""}
            return {**shown, **self.shared.checked.updates(session)}

        redrawn: dict[str, Any] = {"explain": explain, "poll_seconds": _REDRAWN_SECONDS}
        yield from watch(session, self.controls, prepare, show_progress, finish, **redrawn)


def _count_verdicts(models: Sequence[str], session: Session, skills: int | None = None) -> int:
    """Return the number of verdicts on these models' merges, or on one; skills: by agent."""
    agents = work.agents_of(session)
    merges = [name for name in models if name not in (BASE, *agents)]
    return max(1, len(merges)) * max(1, len(agents) if skills is None else skills)
