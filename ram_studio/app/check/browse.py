"""The item browser of Check: one question, its right answer, and every model's answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import gradio as gr

from ram_studio.algorithm.analysis import BASE
from ram_studio.app.boxes import choice, html, slider, unchecked
from ram_studio.app.check.work import agents_of
from ram_studio.app.session.jobs import LIGHT, Updates
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.templates import empty_state, render
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.skill_verdict import is_named_after
from ram_studio.evals.suites.demo.tasks import DOMAINS

FILTERS = {
    "all": "All questions",
    "differ": "Models disagree",
    "base-lost": "Base right, a merge wrong",
    "base-won": "Base wrong, a merge right",
    "merge-lost": "A merge is wrong, a specialist right",
    "merge-won": "A merge is right, all agents wrong",
}


def matching_items(report: EvalReport, domain: str, which: str, agents: Sequence[str]) -> list[int]:
    """Return the indices of a domain's questions that fit a filter (a key of FILTERS)."""
    names = list(report.models)
    merges = [n for n in names if n != BASE and n not in agents]
    found = []
    for i in range(len(report.items[domain])):
        given = {n: report.models[n].answers[domain][i] for n in names}
        right = {n: answer.is_correct for n, answer in given.items() if answer.is_scored}
        any_agent = any(right[a] for a in agents if a in right)
        marks = {right[m] for m in merges if m in right}
        won, lost = True in marks, False in marks
        keep = {
            "all": True,
            "differ": len(set(right.values())) > 1,
            "base-lost": right.get(BASE, False) and lost,
            "base-won": not right.get(BASE, True) and won,
            "merge-lost": any_agent and lost,
            "merge-won": not any_agent and won,
        }[which]
        if keep:
            found.append(i)
    return found


def item_html(report: EvalReport, domain: str, index: int, agents: Sequence[str]) -> str:
    """Return one question, its right answer and every model's answer side by side."""
    answers = {name: model.answers[domain][index] for name, model in report.models.items()}
    item = report.items[domain][index]
    # An agent was not trained for others' skills, so a wrong answer there is not marked.
    elsewhere = [name for name in agents if not is_named_after(name, domain)]
    shown = {"answers": answers, "agents": list(agents), "elsewhere": elsewhere}
    return render("check/item.html.j2", item=item, **shown)


class Browser:
    """The components of the browser, with their events."""

    def __init__(self, shared: PageContext) -> None:
        with gr.Column(elem_classes="box", visible=False) as self.box:
            html("<h3>Read the answers</h3>")
            with gr.Row(elem_classes="check-form"):
                domains = list(DOMAINS)
                shape = {"min_width": 140, "elem_id": "item-domain"}
                self.domain = unchecked(choice("Skill", domains, domains[0], **shape))
                filters = [(label, key) for key, label in FILTERS.items()]
                shape = {"min_width": 200, "elem_id": "item-filter"}
                self.which = choice("Filter", filters, "all", **shape)
                place = {"min_width": 220, "scale": 2, "elem_id": "item-position"}
                self.position = unchecked(slider("Question", (1, 2), 1, 1, **place))
            with gr.Row(elem_classes="actions"):
                previous = gr.Button("Previous", size="sm", elem_id="item-previous")
                following = gr.Button("Next", size="sm", elem_id="item-next")
            self.item = html(elem_id="item")
        changed = [self.domain.input, self.which.input, self.position.input]
        for events, by in ((changed, 0), ([previous.click], -1), ([following.click], 1)):
            gr.on(
                events,
                shared.with_session(functools.partial(self._move, by)),
                [self.domain, self.which, self.position],
                [self.position, self.item],
                trigger_mode="always_last",
                **LIGHT,
            )

    @property
    def outputs(self) -> list[gr.components.Component]:
        """The components that ``show`` updates."""
        return [self.box, self.domain, self.which, self.position, self.item]

    def _move(self, by: int, domain: str, which: str, place: float, session: Session) -> Updates:
        return self.at(session.report, domain, which, place + by, agents_of(session))

    def at(
        self,
        report: EvalReport | None,
        domain: str,
        which: str,
        place: float,
        agents: Sequence[str],
    ) -> Updates:
        """Return updates that show the question at an index of those that fit a filter."""
        if report is None or domain not in report.items or which not in FILTERS:
            return {self.position: gr.update(maximum=1, value=1), self.item: ""}
        found = matching_items(report, domain, which, agents)
        if not found:
            none = empty_state("No question fits this choice.")
            return {self.position: gr.update(maximum=1, value=1, label="0 of 0"), self.item: none}
        place = min(max(1, int(place or 1)), len(found))
        return {
            self.position: gr.update(
                maximum=max(2, len(found)), value=place, label=f"Question {place} of {len(found)}"
            ),
            self.item: item_html(report, domain, found[place - 1], agents),
        }

    def show(self, report: EvalReport | None, agents: Sequence[str]) -> Updates:
        """Return updates for a report, or for none yet."""
        if report is None or not report.items:
            return {self.box: gr.update(visible=False), self.item: ""}
        domains = list(report.items)
        return {
            self.box: gr.update(visible=True),
            self.domain: gr.update(choices=domains, value=domains[0]),
            self.which: "all",
            **self.at(report, domains[0], "all", 1, agents),
        }
