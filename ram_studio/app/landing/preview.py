"""Link previews: title, description and picture of every state of the page.

The scores of a merge are those of the nearest measured setting in the shipped set's table, with a
note.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.landing.picture import SIZE, Pictures, headline
from ram_studio.app.session.deep_link import (
    AVERAGE,
    KEYS,
    SCENES,
    STEPS,
    SUM,
    pin_parts,
    read_link,
    read_number,
    scene_of,
)
from ram_studio.app.session.sets import DEFAULT_SET, TITLES
from ram_studio.app.session.shared import tune_settings_from
from ram_studio.app.session.weights import unusable_text, weights_text
from ram_studio.app.templates import render
from ram_studio.errors import RamStudioError
from ram_studio.evals.report.canvas_page import RANGES, SHOWN

NAME = "RAM Studio"
_DAY = 86_400
_WHY = (
    "In this example, averaging the models weakens their skills, and adding them up breaks the "
    "model. See why, live, and what works."
)
_STEPS = {
    "merge": "Write the merged model, with its recipe and provenance.",
    "check": "Base, agents and merges answer the same held-out questions.",
    "history": "Past merges and checks, side by side.",
}


class Preview(NamedTuple):
    """The preview of a link. picture: set and row of the picture, None for none."""

    title: str
    description: str
    picture: tuple[str, int] | None


_OF_MODELS = ("tune", "merge", "check")
"""Steps that show the models of a set, or the user's own."""


def unknown_parts(query: Mapping[str, str], *, has_models: bool = True) -> list[str]:
    """Return a sentence for each unknown part of a link.

    has_models: whether models are loaded; without any most steps are empty.
    """
    link = read_link(query)
    parts = (
        ("set", "set", link.set_name, ", ".join(TITLES)),
        ("step", "step", link.step, ", ".join(STEPS)),
        ("rule", "method", link.settings.get("method"), ", ".join(SHOWN)),
        ("pin", "method of A", link.pin, ", ".join(SHOWN)),
        ("lesson", "scene", link.lesson, f"1 to {len(SCENES)}, {', '.join(SCENES)}"),
    )
    notes = [
        f"This link asks for the {noun} {query[key].partition('~')[0][:40]!r}, which does not "
        f"exist. Known: {known}."
        for key, noun, found, known in parts
        if query.get(key) and found is None
    ]
    if not has_models and link.step in _OF_MODELS and link.lesson is None:
        notes.append(
            f"This link opens {link.step.capitalize()}, but no models are loaded. "
            "Open the playground, or load your own."
        )
    return [*notes, *_notes_on(query), *_notes_on(pin_parts(query.get("pin"))[1], of="A's ")]


def _notes_on(values: Mapping[str, str], of: str = "") -> Iterator[str]:
    """Yield a sentence for each setting that is not used as written; of: its owner."""
    for name, most in RANGES.items():
        if not (text := values.get(name)):
            continue
        value, given = read_number(text, math.inf), f"This link gives {of}{name} as {text[:40]!r}, "
        if value is None:
            yield f"{given}which is not a number. The default is used."
        elif value != float(text) or value > 1.001 * most:  # pages round values
            yield f"{given}which is not from 0 to {most:.2g}. The nearest value is used."
    if (text := values.get("weights")) and (problem := unusable_text(text)):
        yield f"This link gives {of}weights as {text[:40]!r}. {problem}"


def preview_of(query: Mapping[str, str]) -> Preview:
    """Return the preview of the page that a query opens."""
    link = read_link(query)
    set_name = link.set_name or DEFAULT_SET
    try:
        found = outcomes_of(set_name)
        outcome = found.nearest(tune_settings_from(link.settings if link.set_name else {}))
        has_row = link.pin is not None and "weights" not in link.pin
        pinned = found.nearest(tune_settings_from(link.pin or {})) if has_row else None
    except (RamStudioError, KeyError):
        return Preview(NAME, _WHY, None)
    picture: tuple[str, int] | None = (set_name, outcome.number)
    if (scene := scene_of(link.lesson)) is not None:
        title = f"{SCENES[scene]} · the 5-minute lesson · {NAME}"
        return Preview(title, f"Guess first, then see. {_WHY}", picture)
    if link.set_name is None:
        if link.step in _STEPS:
            return Preview(f"{link.step.capitalize()} · {NAME}", _STEPS[link.step], picture)
        return Preview(f"{NAME}: merge trained models, see why it works", _WHY, picture)
    scores = ", ".join(
        f"{skill.name} {n}" for skill, n in zip(found.skills, outcome.solved, strict=True)
    )
    where = "" if outcome.is_exact else "Nearest measured setting: "
    setting = f" at {outcome.settings}" if outcome.settings else ""
    text = (
        f"{where}{outcome.title}{setting} of {TITLES[set_name]}. Solved: {scores} of "
        f"{outcome.n} questions. Average {found.find(AVERAGE).total}, sum "
        f"{found.find(SUM).total} of {outcome.prompts}."
    )
    title = headline(outcome)[:-1]
    if weights := link.settings.get("weights"):  # not measured here
        title, picture = f"{outcome.title} with weights", None
        text = f"{weights_text(weights)}: not tested with these weights. Without them: {text}"
    if pinned is not None:
        title = f"{title}, A ({pinned.title}) {pinned.total}"
    if link.step in _STEPS:
        title, text = f"{link.step.capitalize()} · {title}", f"{_STEPS[link.step]} {text}"
    return Preview(f"{title} · {NAME}", text, picture)


class Previews:
    """The tags of all pages, and the route of their pictures.

    is_space: behind the Hub's proxy, which answers under https.
    """

    def __init__(self, *, is_space: bool) -> None:
        self._is_space, self._pictures = is_space, Pictures()

    def tags(self, request: Request) -> str:
        """Return title and preview of the requested page, as HTML."""
        query = {k: v for k, v in request.query_params.items() if k in KEYS and len(v) <= 200}
        preview = preview_of(query)
        # The host is one of the server's own names (public/allowed_hosts.py).
        base = request.base_url.replace(scheme="https") if self._is_space else request.base_url
        home = str(base).rstrip("/") + "/"
        return render(
            "landing/tags.html.j2",
            preview=preview,
            url=f"{home}?{urlencode(query)}" if query else home,
            image=preview.picture and home + picture_path(*preview.picture),
            size=SIZE,
        )

    def send(self, request: Request) -> Response:
        """Send a picture."""
        set_name, number = request.path_params["set"], request.path_params["number"]
        if set_name not in TITLES:
            return Response(status_code=404)
        try:
            picture = self._pictures.picture(set_name, number)
        except (IndexError, RamStudioError):
            return Response(status_code=404)
        headers = {"Cache-Control": f"public, max-age={_DAY}"}
        return Response(picture, media_type="image/png", headers=headers)


def picture_path(set_name: str, number: int) -> str:
    """Return the path of a row's picture, below the page's address."""
    return f"ram/preview/{set_name}/{number}.png"
