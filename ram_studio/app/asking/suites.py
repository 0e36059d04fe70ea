"""Which suites are asked: boxes of those that can be, the others greyed below with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from ram_studio.app.asking import plan
from ram_studio.app.asking.how import HowToAsk
from ram_studio.app.asking.plan import SUITE
from ram_studio.app.boxes import html
from ram_studio.app.jobs import LIGHT, Updates
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings
from ram_studio.app.shared import Shared
from ram_studio.app.templates import render
from ram_studio.evals.suites import ALL_SUITES, HEALTH, is_a

USUAL = ("tool", "math", "instructions")
_TITLES = {HEALTH: "Health", SUITE: "The example's skills"}


def title_of(suite: str) -> str:
    """Return what a suite is called on the page."""
    return _TITLES.get(suite) or ALL_SUITES[suite].title


class SuiteChoice:
    """The boxes. names: of all suites offered here, in order; box, greyed, lengths: components.

    Args:
        prefix: of element ids, of each panel its own. first, last: beside the general suites, such
            as the example's skills and health. value: what is ticked at first.
    """

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        value: Sequence[str],
        *,
        first: Sequence[str] = (),
        last: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        every = (*first, *plan.general_suites(), *last)
        refusal = plan.code_refusal()
        self.names = [n for n in every if refusal is None or not is_a(n, "runs_code")]
        absent = plan.absent_here()
        self.box = gr.CheckboxGroup(
            [(title_of(name), name) for name in self.names if name not in absent],
            value=list(value),
            label="Suites",
            elem_id=f"{prefix}suites",
        )
        self.greyed = html(elem_id=f"{prefix}suites-too-long")
        self.lengths = gr.CheckboxGroup(
            [(f"{n // 1000}k", n) for n in plan.offered_lengths(settings)],
            value=[plan.LENGTHS[0]],
            label="Long texts: prompt lengths in tokens",
            visible="hidden",
            elem_id=f"{prefix}lengths",
        )

    def offer(self, session: Session, wanted: Sequence[str]) -> tuple[list[str], Updates]:
        """Return those of the wanted suites that can be asked, ticked, and updates that say so."""
        too_long = plan.misfits_of(session, self._settings)
        absent = plan.absent_here(session.data)
        offered = [name for name in self.names if name not in too_long and name not in absent]
        chosen = [name for name in wanted if name in offered]
        rows = [
            [(title_of(name), why[name]) for name in self.names if name in why]
            for why in (too_long, absent)
        ]
        told = {"too_long": rows[0], "absent": rows[1], "is_private": self._settings.is_private}
        said = render("asking/greyed.html.j2", **told)
        choices = [(title_of(name), name) for name in offered]
        return chosen, {
            self.box: gr.update(choices=choices, value=chosen),
            self.greyed: said if any(rows) else "",
        }

    def show(self, suites: Sequence[str]) -> Updates:
        """Return updates of what the ticked suites need."""
        has_texts = any(is_a(name, "has_texts") for name in suites)
        return {self.lengths: gr.update(visible=True if has_texts else "hidden")}


class Questions:
    """What an experiment's merges are asked: suites, lengths of texts and how, in one piece."""

    def __init__(self, shared: Shared, prefix: str) -> None:
        self._shared = shared
        self.choice = SuiteChoice(shared.settings, prefix, [SUITE], first=[SUITE])
        self.how = HowToAsk(shared.settings, prefix)

    @property
    def form(self) -> set[Any]:
        """What ``read`` reads."""
        return {self.choice.box, self.choice.lengths, *self.how.boxes.values()}

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [self.choice.lengths, *self.how.shown]

    def wire(self, fold: gr.Accordion) -> None:
        """Connect the events; fold: what it stands in, which is looked into when it opens."""
        offered = [self.choice.box, self.choice.greyed, *self.shown]
        # Counting tokens takes a moment that nobody waits for who does not open it.
        fold.expand(self._shared.with_session(self.offer), self.choice.box, offered, **LIGHT)
        self.choice.box.input(self.show, self.choice.box, self.shown, **LIGHT)

    def offer(self, suites: Sequence[str] | None, session: Session) -> Updates:
        """Return updates for the models of a session: the example's skills are only its own."""
        is_foreign = session.loaded is not None and session.loaded.example is None
        wanted = USUAL if is_foreign and list(suites or ()) == [SUITE] else suites or ()
        chosen, updates = self.choice.offer(session, wanted)
        return {**updates, **self.show(chosen)}

    def show(self, suites: Sequence[str]) -> Updates:
        """Return updates of what the ticked suites need."""
        kind = SUITE if SUITE in suites else "general"
        return {**self.choice.show(suites), **self.how.show(kind, suites)}

    def read(self, data: Mapping[Any, Any], folder: str = "") -> plan.Asked:
        """Return what the form asks; folder: of data sets, see `Session.data`.

        Raises: SettingsError for what cannot be asked.
        """
        suites = data.get(self.choice.box) or ()
        kind = SUITE if SUITE in suites else "general"
        how = {**self.how.read(data, kind, suites), "data": folder}
        lengths = data.get(self.choice.lengths) or ()
        return plan.asked_of(suites, lengths, self._shared.settings, how)
