"""The teacher's kit: worksheet and answers to print, and the lesson as an offline file.

Both are made once from the shipped sets: every number is read from their tables and records.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from functools import cache

import orjson
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ram_studio._version import __version__
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.app.landing.outcomes import outcomes_of
from ram_studio.app.lesson.scene_answers import alone_text, scene_answers
from ram_studio.app.session.sets import (
    DEFAULT_SET,
    REAL,
    TITLES,
    load_set,
    record_of,
    shipped_table,
)
from ram_studio.app.templates import render
from ram_studio.errors import RamStudioError
from ram_studio.evals.report import canvas_page, colors
from ram_studio.resources import asset_text

FILE_ENTRY = "lesson_file.js"
"""The first module of the lesson's file."""

STYLES = ("lesson.css", "kit.css")


@cache
def kit_html() -> Markup:
    """Return worksheet and answers.

    Raises: RamStudioError where a shipped file is missing or damaged.
    """
    found = outcomes_of(DEFAULT_SET)
    questions = found.table["n"]
    return render(
        "lesson/kit.html.j2",
        agents=len(found.analysis.agents),
        questions=questions,
        prompts=questions * len(found.skills),
        alone=alone_text(),
        scenes=scene_answers(),
        version=__version__,
    )


@cache
def kit_page() -> str:
    """Return the kit as a page."""
    body = "body { margin: 0; background: var(--ram-page); }"
    style = f"{colors.css_variables()}\n{body}\n{asset_text('kit.css')}"
    return render("lesson/kit_page.html.j2", style=style, kit=kit_html())


@cache
def lesson_file() -> str:
    """Return the lesson as one HTML file: the stage, the measurements of all sets, and the kit."""
    sets = {
        name: {
            "profile": client_profile(load_set(name).analysis),
            "table": shipped_table(name),
            "record": record_of(name),
        }
        for name in TITLES
        if name != REAL  # no scene uses it
    }
    packed = base64.b64encode(gzip.compress(orjson.dumps(sets), mtime=0)).decode()
    return canvas_page.canvas_page(
        {"title": "the lesson", "sets": packed},
        entry=FILE_ENTRY,
        style=asset_text(*STYLES),
        more=render("lesson/kit_in_file.html.j2", kit=kit_html()),
    )


def send_kit(request: Request) -> Response:
    """Send the kit as a page."""
    return _send(kit_page)


def send_file(request: Request) -> Response:
    """Send the lesson as a download."""
    return _send(lesson_file, **{"Content-Disposition": 'attachment; filename="ram-lesson.html"'})


def _send(page: Callable[[], str], **headers: str) -> Response:
    try:
        text = page()
    except RamStudioError as error:  # a shipped file is missing
        return Response(str(error), status_code=500, media_type="text/plain")
    return HTMLResponse(text, headers={"Cache-Control": "no-cache", **headers})
