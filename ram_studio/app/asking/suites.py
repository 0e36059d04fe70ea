"""The choice of suites: check boxes of available ones, the others grayed out with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from ram_studio.app.asking import limits
from ram_studio.app.asking.form import SettingsForm
from ram_studio.app.asking.limits import SUITE
from ram_studio.app.boxes import html, unchecked
from ram_studio.app.session.jobs import LIGHT, Updates
from ram_studio.app.session.session import Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.settings import Settings
from ram_studio.app.templates import render
from ram_studio.evals.settings import EvalSettings
from ram_studio.evals.suites import ALL_SUITES, HEALTH, is_a

USUAL = ("tool", "math", "instructions")
_TITLES = {HEALTH: "Health", SUITE: "The example's skills"}


def title_of(suite: str) -> str:
    """Return a suite's title on the page."""
    return _TITLES.get(suite) or (ALL_SUITES[suite].title if suite in ALL_SUITES else suite)


class SuiteChoice:
    """The check boxes. names: of all offered suites, in order; box, grayed, lengths: components.

    Args:
        prefix: of element ids, different for each panel. first, last: besides the general suites,
            such as the example's skills and health. value: initially ticked.
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
        every = (*first, *limits.general_suites(), *last)
        refusal = limits.code_refusal()
        self.names = [n for n in every if refusal is None or not is_a(n, "runs_code")]
        absent = limits.absent_here()
        self.box = unchecked(
            gr.CheckboxGroup(
                [(title_of(name), name) for name in self.names if name not in absent],
                value=list(value),
                label="Suites",
                elem_id=f"{prefix}suites",
            )
        )
        self.grayed = html(elem_id=f"{prefix}suites-too-long")
        self.lengths = gr.CheckboxGroup(
            [(f"{n // 1000}k", n) for n in limits.offered_lengths(settings)],
            value=[limits.LENGTHS[0]],
            label="Long texts: prompt lengths in tokens",
            visible="hidden",
            elem_id=f"{prefix}lengths",
        )

    def offer(self, session: Session, wanted: Sequence[str]) -> tuple[list[str], Updates]:
        """Return the available ones of the wanted suites, and updates that tick them."""
        too_long = limits.unavailable_suites(session, self._settings)
        absent = limits.absent_here(session.data)
        offered = [name for name in self.names if name not in too_long and name not in absent]
        chosen = [name for name in wanted if name in offered]
        rows = [
            [(title_of(name), why[name]) for name in self.names if name in why]
            for why in (too_long, absent)
        ]
        facts = {"too_long": rows[0], "absent": rows[1], "is_private": self._settings.is_private}
        note = render("asking/grayed.html.j2", **facts)
        choices = [(title_of(name), name) for name in offered]
        return chosen, {
            self.box: gr.update(choices=choices, value=chosen),
            self.grayed: note if any(rows) else "",
        }

    def show(self, suites: Sequence[str]) -> Updates:
        """Return updates for the needs of the ticked suites."""
        has_texts = any(is_a(name, "has_texts") for name in suites)
        return {self.lengths: gr.update(visible=has_texts or "hidden")}


class Questions:
    """The questions of an experiment's merges: suites, lengths of texts and settings."""

    def __init__(self, shared: PageContext, prefix: str) -> None:
        self._shared = shared
        self.choice = SuiteChoice(shared.settings, prefix, [SUITE], first=[SUITE])
        self.settings = SettingsForm(shared.settings, prefix)

    @property
    def form(self) -> set[Any]:
        """The components that ``read`` reads."""
        return {self.choice.box, self.choice.lengths, *self.settings.boxes.values()}

    @property
    def outputs(self) -> list[Any]:
        """The components that ``show`` updates."""
        return [self.choice.lengths, *self.settings.outputs]

    def wire(self, fold: gr.Accordion) -> None:
        """Connect the events; fold: the accordion around it, which updates it when it opens."""
        offered = [self.choice.box, self.choice.grayed, *self.outputs]
        # Counting tokens takes a moment, so it is done only when the fold opens.
        fold.expand(self._shared.with_session(self.offer), self.choice.box, offered, **LIGHT)
        self.choice.box.input(self.show, self.choice.box, self.outputs, **LIGHT)
        # Other models have other suites, which are offered when it opens.
        self._shared.loaded.listen([fold], lambda session: {fold: gr.update(open=False)})

    def offer(self, suites: Sequence[str] | None, session: Session) -> Updates:
        """Return updates for a session's models: only the example has the example's skills."""
        is_foreign = session.loaded is not None and not session.loaded.is_example
        usual = USUAL if is_foreign else (SUITE,)
        wanted = usual if tuple(suites or ()) in (USUAL, (SUITE,)) else suites or ()
        chosen, updates = self.choice.offer(session, wanted)
        return {**updates, **self.show(chosen)}

    def show(self, suites: Sequence[str]) -> Updates:
        """Return updates for the needs of the ticked suites."""
        return {**self.choice.show(suites), **self.settings.show(suites)}

    def read(self, data: Mapping[Any, Any], limit: float, folder: str = "") -> EvalSettings:
        """Return the form's evaluation settings.

        Args:
            limit: questions per suite (demo: per skill), without an interval width.
            folder: of data sets, see `Session.data`.

        Raises: SettingsError, EvaluationError for settings that cannot be used.
        """
        suites = data.get(self.choice.box) or ()
        lengths = data.get(self.choice.lengths)
        values = {"suites": suites, "lengths": lengths, "limit": int(limit), "data": folder}
        own = self.settings.read(data, suites)
        if own.get("ci_width"):
            # With an interval width the maximum; empty for the app's limit.
            own.setdefault("limit", None)
        return limits.read_settings({**values, **own}, self._shared.settings)
