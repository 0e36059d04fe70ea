"""How to ask, folded: draws and seed, budgets of tokens, and what suites made to order take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from ram_studio.app.asking.plan import MADE, MODES, MOST_SEED, MOST_TOKENS, SUITE, How
from ram_studio.app.boxes import html, slider
from ram_studio.app.jobs import LIGHT, Updates
from ram_studio.app.settings import Settings
from ram_studio.evals.suites import is_a
from ram_studio.evals.suites.generated import HARDEST
from ram_studio.evals.until import FIRST

_WORDS = (
    "<p class='fine'>As it stands, every answer is the likeliest one (temperature 0). The paper "
    "draws 4 samples at temperature 1 and top-p 0.95: the first draw is what scores and tests are "
    "made of; beside them stand the mean of all and pass@k, the chance that one of k is right.</p>"
)
_DRAWN = ("top_p", "samples")
_BUDGET = ("max_tokens", "think_tokens")
_UNTIL = ("until", "most")
_WAYS = (("Whole", MODES[0]), ("In pieces, with a bounded memory, as MemAgent does", MODES[1]))


class HowToAsk:
    """The folded part of the form. boxes: a component for each field of `How`, by its name.

    What has no effect is hidden: top-p and samples of greedy answers, difficulty without a suite
    made to order, asking until decided with any other suite, how to read without long texts.

    Args:
        prefix: of element ids, of each panel its own.
    """

    def __init__(self, settings: Settings, prefix: str = "") -> None:
        self.boxes: dict[str, Any] = {}
        self._prefix = prefix
        with gr.Accordion("How to ask", open=False, elem_id=f"{prefix}how-to-ask"):
            html(_WORDS)
            with gr.Row(elem_classes="suite-items"):
                self._slider("temperature", "Temperature (0: the likeliest)", (0, 2), 0, 0.05)
                self._slider("top_p", "Top-p, of the likeliest tokens", (0.05, 1), 1, 0.05)
                self._slider("samples", "Samples of each question", (1, settings.max_samples), 1, 1)
                self._number("seed", "Seed of questions and draws", How.seed, 0, MOST_SEED)
            with gr.Row(elem_classes="suite-items"):
                label = "Most tokens of an answer (0: each suite's own)"
                self._number("max_tokens", label, 0, 0, MOST_TOKENS)
                label = "Apart from them, tokens of thinking"
                self._number("think_tokens", label, 0, 0, MOST_TOKENS)
            with gr.Row(elem_classes="suite-items"):
                label = "Difficulty of suites made to order"
                self._slider("difficulty", label, (1, HARDEST), How.difficulty, 1)
                label = "Ask until every interval spans at most so many points (0: do not)"
                self._number("until", label, 0, 0, 99)
                label = "At most so many questions until then"
                most = settings.max_made_items
                self._number("most", label, most, FIRST, most)
            self.boxes["mode"] = gr.Radio(
                list(_WAYS),
                value=MODES[0],
                label="Long texts are read",
                elem_id=self._id("mode"),
                visible="hidden",
            )
        self.boxes["temperature"].input(
            lambda temperature: self._show(_DRAWN, temperature > 0),
            self.boxes["temperature"],
            [self.boxes[name] for name in _DRAWN],
            **LIGHT,
        )

    def _slider(
        self, name: str, label: str, ends: tuple[float, float], value: float, step: float
    ) -> None:
        shape = {"min_width": 200, "elem_id": self._id(name), "visible": _is_shown(name)}
        self.boxes[name] = slider(label, ends, value, step, **shape)

    def _number(self, name: str, label: str, value: float, least: int, most: int) -> None:
        self.boxes[name] = gr.Number(
            value,
            label=label,
            minimum=least,
            maximum=most,
            precision=0,
            min_width=200,
            elem_id=self._id(name),
            visible=_is_shown(name),
        )

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [self.boxes[name] for name in (*_BUDGET, "difficulty", *_UNTIL, "mode")]

    def show(self, kind: str, suites: Sequence[str]) -> Updates:
        """Return updates for a kind of question and the suites that are ticked."""
        is_general = kind != SUITE
        made = [name for name in suites if name in MADE]
        return {
            **self._show(_BUDGET, is_general),
            **self._show(("difficulty",), is_general and bool(made)),
            **self._show(_UNTIL, is_general and bool(made) and len(made) == len(suites)),
            **self._show(("mode",), any(is_a(name, "has_texts") for name in suites)),
        }

    def _id(self, name: str) -> str:
        own = name.replace("_", "-")
        return f"{self._prefix}{own if name in _BUDGET else f'ask-{own}'}"

    def _show(self, names: Sequence[str], is_shown: bool) -> Updates:
        # Hidden, not left out: the form has all of them.
        return {self.boxes[n]: gr.update(visible=True if is_shown else "hidden") for n in names}

    def read(self, data: Mapping[Any, Any], kind: str, suites: Sequence[str]) -> dict[str, Any]:
        """Return the fields that are shown, by name."""
        shown = self.show(kind, suites)
        if not data.get(self.boxes["temperature"]):
            shown |= self._show(_DRAWN, False)
        return {
            name: data.get(box)
            for name, box in self.boxes.items()
            if shown.get(box, {}).get("visible", True) is True
        }


def _is_shown(name: str) -> bool | str:
    return True if name in ("temperature", "seed") else "hidden"
