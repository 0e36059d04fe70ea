"""The folded evaluation settings: a component for each field of `EvalSettings` with an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from ram_studio.app.asking.limits import GENERATED, SUITE, upper_limits
from ram_studio.app.boxes import html, setting_box
from ram_studio.app.session.jobs import LIGHT, Updates
from ram_studio.app.settings import Settings
from ram_studio.evals.paraphrases import SUITES as PARAPHRASED
from ram_studio.evals.settings import described_fields
from ram_studio.evals.suites import is_a

_ABOUT = (
    "<p class='fine'>By default every answer is the likeliest one (temperature 0). The paper draws "
    "4 samples at temperature 1 and top-p 0.95. Scores and tests use the first sample; the mean of "
    "all samples and pass@k are shown beside them.</p>"
)
_ALWAYS = ("temperature", "seed")
_DRAWN = ("top_p", "samples")
_BUDGET = ("max_tokens", "think_tokens")
_UNTIL = ("ci_width", "limit")
_ROWS = (
    ("temperature", *_DRAWN, "seed"),
    _BUDGET,
    ("difficulty", *_UNTIL),
    ("paraphrases", "mode"),
)
_BY_SUITES = (*_BUDGET, "difficulty", *_UNTIL, "paraphrases", "mode")
_CHOICES = {"mode": {"whole": "Whole", "memagent": "In chunks, as MemAgent does"}}
_LEFT_OUT = {"max_tokens": "the suite's default", "ci_width": "off", "limit": "as many as needed"}


def with_effect(suites: Sequence[str], temperature: float | None) -> set[str]:
    """Return the fields that have an effect.

    Examples without an effect: top-p and samples of greedy answers, difficulty without a generated
    suite, the interval width with any other suite, wordings of other suites, the mode without long
    texts.
    """
    is_general = SUITE not in suites
    made = [name for name in suites if name in GENERATED]
    fields = {
        _ALWAYS: True,
        _DRAWN: bool(temperature),
        _BUDGET: is_general,
        ("difficulty",): is_general and bool(made),
        _UNTIL: is_general and bool(made) and len(made) == len(suites),
        ("paraphrases",): any(name in PARAPHRASED for name in suites),
        ("mode",): any(is_a(name, "has_texts") for name in suites),
    }
    return {name for names, has_effect in fields.items() if has_effect for name in names}


class SettingsForm:
    """The folded part of a form.

    boxes: the components by field. outputs: the components that ``show`` updates.

    Fields without an effect are hidden, see ``with_effect``.

    Args:
        prefix: of element ids, different for each panel.
    """

    def __init__(self, app: Settings, prefix: str = "") -> None:
        self.boxes: dict[str, Any] = {}
        most = upper_limits(app)
        schemas = described_fields(name for row in _ROWS for name in row)
        # Updates do not reach folded components, so they are shown again when the fold opens.
        self.fold = gr.Accordion(
            "Evaluation settings", open=False, elem_id=f"{prefix}eval-settings"
        )
        with self.fold:
            html(_ABOUT)
            for row in _ROWS:
                with gr.Row(elem_classes="suite-items"):
                    for name in row:
                        self.boxes[name] = setting_box(
                            schemas[name],
                            schemas[name]["title"],
                            most=most.get(name),
                            choices=_CHOICES.get(name),
                            placeholder=_LEFT_OUT.get(name),
                            visible=name in _ALWAYS or "hidden",
                            elem_id=f"{prefix}eval-{name.replace('_', '-')}",
                        )
        drawn = [self.boxes[name] for name in _DRAWN]
        self.boxes["temperature"].input(
            lambda temperature: [gr.update(visible=bool(temperature) or "hidden") for _ in drawn],
            self.boxes["temperature"],
            drawn,
            **LIGHT,
        )
        self.outputs = [self.boxes[name] for name in _BY_SUITES]

    def show(self, suites: Sequence[str]) -> Updates:
        """Return updates for the ticked suites."""
        fields = with_effect(suites, None)
        # Hidden, not omitted, so that the form has all of them.
        return {
            self.boxes[name]: gr.update(visible=name in fields or "hidden") for name in _BY_SUITES
        }

    def read(self, data: Mapping[Any, Any], suites: Sequence[str]) -> dict[str, Any]:
        """Return the fields that have an effect, by name."""
        fields = with_effect(suites, data.get(self.boxes["temperature"]))
        found = {
            name: (data.get(box) or None) if name in _LEFT_OUT else data.get(box)
            for name, box in self.boxes.items()
            if name in fields
        }
        if not found.get("ci_width"):
            found.pop("limit", None)
        return found
