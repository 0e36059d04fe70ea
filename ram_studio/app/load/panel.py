"""Step 1, Load: the shipped examples at one press, or one's own base and agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from ram_studio.app import markup, wording
from ram_studio.app.jobs import Job
from ram_studio.app.load import loading
from ram_studio.app.load.hero import hero_figure
from ram_studio.app.load.sources import MAX_AGENTS, Sources, find_models, presets, read_sources
from ram_studio.app.session import Loaded, Session
from ram_studio.app.settings import Settings
from ram_studio.errors import RamStudioError

_FIRST_ROWS = 3


@dataclass(frozen=True)
class LoadStep:
    """The components of the step. Row i of the form is (rows[i], names[i], sources[i])."""

    column: gr.Column
    use_example: gr.Button
    use_dense: gr.Button
    base: gr.Dropdown | gr.Textbox
    rows: list[gr.Row]
    names: list[gr.Textbox]
    sources: list[gr.Dropdown | gr.Textbox]
    options: list[gr.Radio]
    fit: gr.Button
    analyze: gr.Button
    stop: gr.Button
    status: gr.HTML

    @property
    def form(self) -> list[Any]:
        """Everything that ``read_form`` takes, in its order."""
        return [self.base, *self.names, *self.sources, *self.options]


def read_form(values: Sequence[Any], settings: Settings) -> tuple[Sources, dict[str, str]]:
    """Return sources and options from the form's values (see LoadStep.form).

    Raises: SettingsError with what to enter.
    """
    base = values[0]
    names, sources = values[1 : 1 + MAX_AGENTS], values[1 + MAX_AGENTS : 1 + 2 * MAX_AGENTS]
    missing, extra, rows = values[1 + 2 * MAX_AGENTS :]
    options = {"missing": missing, "extra": extra, "rows": rows}
    return read_sources(base, names, sources, settings), options


def check_fit(values: Sequence[Any], settings: Settings) -> str:
    """Return the compatibility report of the form's models as HTML, or what is wrong with them."""
    try:
        sources, options = read_form(values, settings)
        return loading.fit_html(
            loading.inspect(sources, options, settings), is_space=settings.is_space
        )
    except RamStudioError as error:
        return markup.callout(str(error), "bad")


def analyze_models(
    values: Sequence[Any], session: Session, settings: Settings
) -> Iterator[tuple[str, Loaded | None]]:
    """Analyze the form's models; yield (status HTML, what was loaded or None) as it goes."""
    try:
        sources, options = read_form(values, settings)
    except RamStudioError as error:
        yield markup.callout(str(error), "bad"), None
        return
    if session.is_busy:
        yield markup.callout(wording.BUSY, "warn"), None
        return
    job = Job(lambda report, cancel: loading.analyze(sources, options, settings, report, cancel))
    session.job = job
    yield loading.progress_html(None), None
    for event in job.updates():
        yield loading.progress_html(event), None
    analysis, error = job.outcome()
    if analysis is None:
        yield markup.failure(error, wording.STOPPED), None
        return
    loaded = Loaded(
        title=", ".join(sources.agents),
        example=None,
        base=sources.base,
        agents=sources.agents,
        sketch=analysis.sketch,
        options=options,
        read_rate=analysis.read_rate,
    )
    session.load(loaded)
    yield loading.fit_html(analysis.fit, analysis.sketch, is_space=settings.is_space), loaded


def _hero() -> str:
    keys = "".join(
        f'<span class="item"><i class="swatch" style="background:var(--ram-{color})"></i>'
        f"{escape(text)}</span>"
        for color, text in wording.HERO_KEYS
    )
    return (
        f'<div class="hero"><div><h2>{escape(wording.LOAD_HEADING)}</h2>'
        f"<p>{escape(wording.LOAD_LEAD)}</p></div>"
        f'<figure>{hero_figure(wording.HERO_FIGURE)}<figcaption class="legend">{keys}</figcaption>'
        "</figure></div>"
    )


def _model_box(label: str, choices: list[str], **options: Any) -> gr.Dropdown | gr.Textbox:
    # A list to choose from only where there is something to choose.
    if choices:
        return gr.Dropdown(choices, value=None, label=label, allow_custom_value=True, **options)
    return gr.Textbox("", label=label, max_lines=1, max_length=4096, **options)


def build(settings: Settings) -> LoadStep:
    """Lay the step out inside the open Blocks and wire the form's own events."""
    known = find_models(settings.models_dir)
    source_label = wording.SOURCE_LABEL_SPACE if settings.is_space else wording.SOURCE_LABEL
    lead = wording.OWN_LEAD_SPACE if settings.is_space else wording.OWN_LEAD
    rows, names, sources, removers = [], [], [], []
    with gr.Column(elem_id="step-load", elem_classes="step") as column:
        gr.HTML(_hero(), elem_id="hero", apply_default_css=False)
        with gr.Row(elem_id="examples"):
            with gr.Column(elem_classes=["box", "example"], scale=3):
                gr.HTML(f"<h3>{escape(wording.EXAMPLE_TITLE)}</h3>", apply_default_css=False)
                use_example = gr.Button(
                    wording.USE_EXAMPLE, variant="primary", elem_id="use-example"
                )
                gr.HTML(
                    f"<p>{escape(wording.USE_EXAMPLE_NOTE)}</p>"
                    f'<p class="fine">{escape(wording.EXAMPLE_HONESTY)}</p>',
                    apply_default_css=False,
                )
            with gr.Column(elem_classes=["box", "example"], scale=2):
                gr.HTML(f"<h3>{escape(wording.DENSE_TITLE)}</h3>", apply_default_css=False)
                use_dense = gr.Button(wording.USE_DENSE, elem_id="use-dense")
                gr.HTML(f"<p>{escape(wording.USE_DENSE_NOTE)}</p>", apply_default_css=False)
        with gr.Accordion(wording.OWN_MODELS, open=False, elem_id="own-models"):
            gr.Markdown(lead)
            preset = gr.Dropdown(
                [(p.title, key) for key, p in presets().items()],
                value=None,
                label=wording.PRESET_LABEL,
                elem_id="preset",
            )
            base = _model_box(f"{wording.BASE_LABEL} · {source_label}", known, elem_id="base")
            for i in range(MAX_AGENTS):
                with gr.Row(visible=i < _FIRST_ROWS, elem_classes="agent-row") as row:
                    names.append(
                        gr.Textbox(
                            label=f"Agent {i + 1} · {wording.NAME_LABEL}",
                            max_lines=1,
                            max_length=64,
                            scale=2,
                            min_width=110,
                            elem_id=f"agent-name-{i + 1}",
                        )
                    )
                    sources.append(
                        _model_box(
                            source_label,
                            known,
                            scale=6,
                            min_width=180,
                            elem_id=f"agent-source-{i + 1}",
                        )
                    )
                    removers.append(
                        gr.Button(
                            wording.REMOVE_AGENT,
                            size="sm",
                            scale=0,
                            min_width=90,
                            elem_classes="remove-agent",
                            elem_id=f"remove-agent-{i + 1}",
                        )
                    )
                rows.append(row)
            add = gr.Button(wording.ADD_AGENT, size="sm", elem_id="add-agent")
            with gr.Accordion(wording.STRICTNESS, open=False), gr.Row():
                options = [
                    gr.Radio(wording.MISSING_CHOICES, value="error", label=wording.MISSING_LABEL),
                    gr.Radio(wording.EXTRA_CHOICES, value="error", label=wording.EXTRA_LABEL),
                    gr.Radio(wording.ROWS_CHOICES, value="exact", label=wording.ROWS_LABEL),
                ]
            with gr.Row(elem_classes="actions"):
                fit = gr.Button(wording.CHECK_FIT, elem_id="check-fit")
                analyze = gr.Button(wording.ANALYZE, variant="primary", elem_id="analyze")
                stop = gr.Button(
                    wording.STOP, variant="stop", visible=False, elem_id="stop-analyze"
                )
            status = gr.HTML("", elem_id="load-status", apply_default_css=False)
    step = LoadStep(
        column,
        use_example,
        use_dense,
        base,
        rows,
        names,
        sources,
        options,
        fit,
        analyze,
        stop,
        status,
    )
    _wire_rows(step, add, removers, preset)
    return step


def _wire_rows(
    step: LoadStep, add: gr.Button, removers: list[gr.Button], preset: gr.Dropdown
) -> None:
    shown = gr.State(_FIRST_ROWS)
    fields = [*step.names, *step.sources]

    def visible(count: int) -> list[Any]:
        return [gr.update(visible=i < count) for i in range(MAX_AGENTS)]

    def add_row(count: int) -> list[Any]:
        count = min(MAX_AGENTS, count + 1)
        return [count, *visible(count)]

    def remover(index: int) -> Callable[..., list[Any]]:
        def remove_row(count: int, *values: Any) -> list[Any]:
            names, sources = list(values[:MAX_AGENTS]), list(values[MAX_AGENTS:])
            for column, blank in ((names, ""), (sources, None)):
                del column[index]
                column.append(blank)
            count = max(1, count - 1)
            return [count, *visible(count), *names, *sources]

        return remove_row

    def fill_in(key: str | None, base: str | None, count: int, *values: Any) -> list[Any]:
        if key not in presets():
            return [base, count, *visible(count), *values]
        chosen = presets()[key]
        blank = MAX_AGENTS - len(chosen.agents)
        names = [name for name, _ in chosen.agents] + [""] * blank
        sources = [source for _, source in chosen.agents] + [None] * blank
        count = len(chosen.agents)
        return [chosen.base, count, *visible(count), *names, *sources]

    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    add.click(add_row, [shown], [shown, *step.rows], **quiet)
    for i, button in enumerate(removers):
        button.click(remover(i), [shown, *fields], [shown, *step.rows, *fields], **quiet)
    preset.input(
        fill_in,
        [preset, step.base, shown, *fields],
        [step.base, shown, *step.rows, *fields],
        **quiet,
    )
