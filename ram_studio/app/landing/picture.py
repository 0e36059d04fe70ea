"""The picture of a link preview: a measured merge's scores, 1200 x 630, drawn by the server.

There is one picture for each measured row. One is drawn at a time and a few are cached; after many
recent ones the server answers with the set's default picture, so that requests cannot overload it.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio
from cachetools import LRUCache
from PIL import Image, ImageDraw, ImageFont

from ram_studio.app.landing.outcomes import Outcome, Outcomes, outcomes_of
from ram_studio.app.session.deep_link import AVERAGE, SUM
from ram_studio.app.session.shared import TuneSettings
from ram_studio.evals.report.colors import AGENTS_LIGHT, PAGE

SIZE = (1200, 630)
_EDGE, _BAR_LEFT, _BAR_RIGHT = 60, 228, 972
_FONTS = "templates/frontend/static/fonts/IBMPlexSans/IBMPlexSans-{}.woff2"
_TAGLINE = "merge trained models, see why it works"
_COLORS = 64
"""Colors of the file's palette: a small number makes the file a third as large."""


@lru_cache(maxsize=16)
def _font(size: int, weight: str = "Regular") -> Any:
    # The page's own font, shipped with Gradio.
    return ImageFont.truetype(Path(gradio.__file__).parent / _FONTS.format(weight), size)


def _agent_mark(draw: ImageDraw.ImageDraw, agent: int, x: float, y: float) -> None:
    color = AGENTS_LIGHT[agent % len(AGENTS_LIGHT)]
    if agent % 3 == 0:
        draw.ellipse((x - 9, y - 9, x + 9, y + 9), fill=color)
    elif agent % 3 == 1:
        draw.rectangle((x - 8, y - 8, x + 8, y + 8), fill=color)
    else:
        draw.polygon(((x, y - 10), (x + 10, y + 8), (x - 10, y + 8)), fill=color)


def headline(outcome: Outcome) -> str:
    """Return a merge's score in words."""
    return f"{outcome.title} solves {outcome.total} of {outcome.prompts}."


def draw_outcome(found: Outcomes, outcome: Outcome) -> bytes:
    """Return the picture of a row as PNG: its bars, and those of average, sum or RAM+ below."""
    ink, muted, empty, page = (PAGE[name][0] for name in ("ink", "muted", "unchanged", "page"))
    image = Image.new("RGB", SIZE, page)
    draw = ImageDraw.Draw(image)
    right = SIZE[0] - _EDGE
    draw.text((_EDGE, 86), "RAM Studio", ink, _font(30, "Bold"), anchor="ls")
    draw.text((right, 86), _TAGLINE, muted, _font(24), anchor="rs")
    draw.text((_EDGE - 3, 216), headline(outcome), ink, _font(66, "Bold"), anchor="ls")
    solved = ", ".join(
        f"{skill.name} {n}" for skill, n in zip(found.skills, outcome.solved, strict=True)
    )
    draw.text((_EDGE, 272), f"{solved} of {outcome.n} questions", muted, _font(30), anchor="ls")
    others = (found.find(AVERAGE), found.find(SUM), found.nearest(TuneSettings()))
    rows = [outcome, *(other for other in others if other.number != outcome.number)][:3]
    for place, row in enumerate(rows):
        y, height = 362 + 62 * place, 17 if place == 0 else 11
        font = _font(25, "Bold" if place == 0 else "Regular")
        draw.text((_EDGE, y), row.title, ink, font, anchor="lm")
        draw.text((right, y), f"{row.total} of {row.prompts}", ink, font, anchor="rm")
        box = (_BAR_LEFT, y - height, _BAR_RIGHT, y + height)
        draw.rounded_rectangle(box, 6, fill=empty)
        x = float(_BAR_LEFT)
        for skill, n in zip(found.skills, row.solved, strict=True):
            wide = (_BAR_RIGHT - _BAR_LEFT) * n / row.prompts
            if n:
                end = x + max(wide - 3, 1)
                draw.rectangle((x, y - height, end, y + height), fill=AGENTS_LIGHT[skill.agent])
            x += wide
    x = _EDGE + 9.0
    for skill in found.skills:
        _agent_mark(draw, skill.agent, x, 568)
        draw.text((x + 17, 568), skill.name, ink, _font(24), anchor="lm")
        x += 52 + draw.textlength(skill.name, _font(24))
    draw.text((right, 568), outcome.settings, muted, _font(24), anchor="rm")
    file = io.BytesIO()
    image.quantize(_COLORS, dither=Image.Dither.NONE).save(file, "PNG", compress_level=6)
    return file.getvalue()


class Pictures:
    """The pictures of all rows, drawn on request.

    Args:
        most: cached pictures (15 kB each). a_minute: most that are drawn in a minute.
    """

    def __init__(
        self, *, most: int = 64, a_minute: int = 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._drawn: LRUCache[tuple[str, int], bytes] = LRUCache(most)
        self._a_minute, self._clock = a_minute, clock
        self._times: list[float] = []
        self._usual: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def picture(self, set_name: str, number: int) -> bytes:
        """Return the picture of a set's row, or the set's default one after many recent ones.

        Raises: IndexError where there is no such row; RamStudioError where files are missing.
        """
        found = outcomes_of(set_name)
        outcome = found.outcome(number)
        with self._lock:
            if (key := (set_name, number)) in self._drawn:
                return self._drawn[key]
            now = self._clock()
            self._times = [at for at in self._times if at > now - 60]
            if len(self._times) >= self._a_minute:
                return self._usual_of(set_name, found)
            self._times.append(now)
            self._drawn[key] = draw_outcome(found, outcome)
            return self._drawn[key]

    def _usual_of(self, set_name: str, found: Outcomes) -> bytes:
        if set_name not in self._usual:
            self._usual[set_name] = draw_outcome(found, found.nearest(TuneSettings()))
        return self._usual[set_name]
