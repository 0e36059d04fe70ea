"""The item browser of Check: one question, its right answer, what every model said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ram_studio.app import markup, wording
from ram_studio.app.check import item_view
from ram_studio.app.check import wording as words
from ram_studio.evals import DOMAINS, EvalReport


@dataclass(frozen=True)
class Browser:
    """The components of the browser."""

    box: gr.Column
    domain: gr.Dropdown
    which: gr.Dropdown
    position: gr.Slider
    previous: gr.Button
    next: gr.Button
    item: gr.HTML

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [self.box, self.domain, self.which, self.position, self.item]

    @property
    def form(self) -> list[Any]:
        """What ``browse`` reads."""
        return [self.domain, self.which, self.position]


def browse(
    report: EvalReport | None, domain: str, which: str, position: float, agents: Sequence[str]
) -> list[Any]:
    """Return updates of (position slider, item HTML)."""
    if report is None or domain not in report.items or which not in item_view.FILTERS:
        return [gr.update(maximum=1, value=1), ""]
    found = item_view.matching_items(report, domain, which, agents)
    if not found:
        return [gr.update(maximum=1, value=1, label="0 of 0"), markup.empty_state(wording.NO_ITEMS)]
    place = min(max(1, int(position or 1)), len(found))
    slider = gr.update(
        maximum=max(2, len(found)),
        value=place,
        label=f"{wording.ITEM_LABEL} {place} of {len(found)}",
    )
    return [slider, item_view.item_html(report, domain, found[place - 1], agents)]


def show(report: EvalReport | None, agents: Sequence[str]) -> list[Any]:
    """Return updates of ``Browser.shown`` for a report, or for none yet."""
    if report is None or not report.items:
        return [gr.update(visible=False), *[gr.skip()] * 3, ""]
    domains = list(report.items)
    return [
        gr.update(visible=True),
        gr.update(choices=[(d.capitalize(), d) for d in domains], value=domains[0]),
        "all",
        *browse(report, domains[0], "all", 1, agents),
    ]


def build() -> Browser:
    """Lay the browser out inside the open Blocks."""
    with gr.Column(elem_classes="box", visible=False) as box:
        gr.HTML(f"<h3>{wording.BROWSER_HEADING}</h3>", apply_default_css=False)
        with gr.Row(elem_classes="check-form"):
            domains = list(DOMAINS)
            domain = gr.Dropdown(
                [(d.capitalize(), d) for d in domains],
                value=domains[0],
                label=wording.DOMAIN_LABEL,
                filterable=False,
                elem_id="item-domain",
                min_width=140,
            )
            which = gr.Dropdown(
                [(label, key) for key, label in item_view.FILTERS.items()],
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
        with gr.Row(elem_classes="actions"):
            previous = gr.Button(words.PREVIOUS, size="sm", elem_id="item-previous")
            following = gr.Button(words.NEXT, size="sm", elem_id="item-next")
        item = gr.HTML("", elem_id="item", apply_default_css=False)
    return Browser(box, domain, which, position, previous, following, item)
