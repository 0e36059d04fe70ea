"""The details of Tune that the server draws: overlap of agents, layer by module, file check.

They are in the canvas's dialog, beside details that the browser draws, and are drawn when it opens,
only if the models or the settings have changed.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import lru_cache

import gradio as gr
import plotly.graph_objects as go
from gradio.components.plot import PlotData
from markupsafe import Markup

from ram_studio.algorithm.figures.catalog import FIGURES, Figure
from ram_studio.algorithm.figures.layer_map import layer_map
from ram_studio.app import templates
from ram_studio.app.boxes import choice, html, unchecked
from ram_studio.app.load.view import report_of, storage_html
from ram_studio.app.load.work import open_loaded
from ram_studio.app.session.jobs import LIGHT, Updates
from ram_studio.app.session.session import LoadedModels, Session
from ram_studio.app.session.sets import load_set
from ram_studio.app.session.shared import PageContext, read_tune_settings
from ram_studio.checkpoints.hub.rights import acting_as
from ram_studio.engine.reading.projecting import removed_shares
from ram_studio.errors import RamStudioError

NARROW = 700
"""Page width in CSS pixels below which figures are drawn for a phone."""


_MAP_NOTE = (
    "Share of weights that one agent changed in each kind of module. Stronger: more. Blank: the "
    "layer has no such module."
)


Details = tuple[Markup, dict[str, PlotData | None]]


def details_of(loaded: LoadedModels, point: int, is_narrow: bool) -> Details:
    """Return the storage report, and the figures for the browser."""
    if loaded.set_name is not None:
        return _details_of_set(loaded.set_name, point, is_narrow)
    return _draw_all(loaded, point, is_narrow)


@lru_cache(maxsize=64)
def _details_of_set(set_name: str, point: int, is_narrow: bool) -> Details:
    # A class views the same example: drawn once, it costs each user a tenth.
    return _draw_all(load_set(set_name), point, is_narrow)


def _draw_all(loaded: LoadedModels, point: int, is_narrow: bool) -> Details:
    figures = {n: figure.draw(loaded.analysis, point, is_narrow) for n, figure in FIGURES.items()}
    stored = storage_html(report_of(loaded, point)) + projection_html(loaded)
    return stored, {name: _plot_data(figure) for name, figure in figures.items()}


def projection_html(loaded: LoadedModels) -> Markup:
    """Return the part of each agent's update that Project would remove, where computed quickly."""
    shares = None
    with contextlib.suppress(RamStudioError):  # such as deleted files
        report = open_loaded(loaded)
        # Independent of epsilon, so measured once per report.
        known = loaded.opened.get("removed")
        if known is None or known[0] is not report:
            known = loaded.opened["removed"] = (report, removed_shares(report))
        shares = known[1]
    return templates.render("tune/projection.html.j2", shares=shares)


def _plot_data(figure: go.Figure | None) -> PlotData | None:
    return None if figure is None else PlotData(type="plotly", plot=figure.to_json())


class DetailsPanel:
    """The details. plots: the figures; drawn: their models and settings; draw: a hidden button."""

    def __init__(self, shared: PageContext) -> None:
        self.shared = shared
        with gr.Column(elem_id="details-figures"):
            self.plots = {name: _plot(name, figure) for name, figure in FIGURES.items()}
            with gr.Column(elem_classes=["box", "chart"], min_width=300):
                html(_head("Layer by module", _MAP_NOTE), elem_classes="chart-head")
                with gr.Row():
                    shape = {"min_width": 160, "elem_id": "map-agent"}
                    self.agent = unchecked(choice("Agent", [], None, **shape))
                    self.scale = gr.Radio(
                        [("Its own scale", "own"), ("Powers of ten", "log")],
                        value="own",
                        label="Colors",
                        min_width=240,
                        elem_id="map-scale",
                    )
                self.map = gr.Plot(show_label=False, container=False, elem_id="chart-map")
            self.stored = html(elem_id="details-stored")
            self.draw = gr.Button("", visible="hidden", elem_id="draw-details")
        self.drawn = gr.Textbox(visible=False)
        shared.loaded.listen([self.agent], self._offer_agents)
        shared.when_built(self._wire)

    def _offer_agents(self, session: Session) -> Updates:
        names = list(session.models.analysis.agents)
        return {self.agent: gr.update(choices=names, value=names[0])}

    def _wire(self) -> None:
        width = gr.Number(None, visible=False)
        view = [self.shared.tuning.value, self.agent, self.scale, width]
        quick = {**LIGHT, "show_progress": "minimal"}
        plots = itertools.chain(*self.plots.values())
        self.draw.click(
            self.shared.with_session(self._draw),
            [*view, self.drawn],
            [self.drawn, self.stored, *plots, self.map],
            js="(tuned, agent, scale, _, drawn) => [tuned, agent, scale, window.innerWidth, drawn]",
            **quick,
            show_progress_on=self.stored,
        )
        gr.on(
            [self.agent.input, self.scale.input],
            self.shared.with_session(self._draw_map),
            view,
            self.map,
            js="(tuned, agent, scale) => [tuned, agent, scale, window.innerWidth]",
            **quick,
        )

    def _draw_map(
        self, tuned: str, agent: str | None, scale: str, pixels: float | None, session: Session
    ) -> go.Figure | None:
        if session.loaded is None:
            return None
        analysis, is_narrow = session.loaded.analysis, _is_narrow(pixels)
        known = agent if agent in analysis.agents else analysis.agents[0]
        return layer_map(
            analysis,
            read_tune_settings(tuned).point,
            known,
            is_log=scale == "log",
            narrow=is_narrow,
        )

    def _draw(
        self,
        tuned: str,
        agent: str | None,
        scale: str,
        pixels: float | None,
        drawn: str | None,
        session: Session,
    ) -> Updates:
        if session.loaded is None:
            return gr.skip()
        loaded, is_narrow = session.loaded, _is_narrow(pixels)
        wanted = f"{loaded.identity}|{read_tune_settings(tuned).point}|{is_narrow}"
        if wanted == drawn:
            return gr.skip()
        with acting_as(session.token):
            stored, figures = details_of(loaded, read_tune_settings(tuned).point, is_narrow)
        updates: Updates = {self.drawn: wanted, self.stored: stored}
        for name, figure in figures.items():
            box, plot = self.plots[name]
            updates |= {box: gr.update(visible=figure is not None), plot: figure}
        return updates | {self.map: self._draw_map(tuned, agent, scale, pixels, session)}


def _head(title: str, note: str) -> Markup:
    return templates.render("tune/figure_head.html.j2", title=title, note=note)


def _plot(name: str, figure: Figure) -> tuple[gr.Column, gr.Plot]:
    is_usual = name == next(iter(FIGURES))
    with gr.Column(elem_classes=["box", "chart"], min_width=300, visible=is_usual) as box:
        html(_head(figure.title, figure.note), elem_classes="chart-head")
        return box, gr.Plot(show_label=False, container=False, elem_id=f"chart-{name}")


def _is_narrow(pixels: float | None) -> bool:
    return 0 < (pixels or 0) < NARROW
