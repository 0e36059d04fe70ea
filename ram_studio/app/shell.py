"""What surrounds the steps: head, scripts and styles, what else is served, how it is launched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from zipstream import ZIP_STORED, ZipStream

from ram_studio.app import palette
from ram_studio.app.load.examples import RECORD, SKILLS, shipped_file
from ram_studio.app.public.doorway import MOST_RECIPE_BYTES, Doorway, security_headers
from ram_studio.app.public.visitor import duplicate_link
from ram_studio.app.settings import Settings
from ram_studio.app.templates import render
from ram_studio.evals.report import canvas_page, colors
from ram_studio.resources import asset_path

TITLE = "RAM Studio"

DOWNLOADS = "/downloads"

ENTRY = "page.js"
"""The page's first module, which imports the others."""


def script_names() -> list[str]:
    """Return the page's modules, as paths under assets/."""
    root = asset_path(ENTRY).parent
    return sorted(
        p.relative_to(root).as_posix() for p in (*root.glob("*.js"), *root.glob("*/*.js"))
    )


STYLES = ("app.css", "canvas.css", "check.css", "lesson.css")
"""The page's style sheets under assets/."""


def head_html() -> Markup:
    """Return the page's head: title, tagline, the button for light and dark."""
    return render("head.html.j2", title=TITLE, duplicate=duplicate_link())


def _file(path: Path | None, kind: str, **headers: str) -> Response:
    """Return a file, asked for anew at every visit: their names carry no version."""
    if path is None:
        return Response(status_code=404)
    return FileResponse(path, media_type=kind, headers={"Cache-Control": "no-cache", **headers})


def _script(request: Request) -> Response:
    """Serve a module."""
    name = request.path_params["name"]
    return _file(asset_path(name) if name in script_names() else None, "text/javascript")


def _skills(request: Request) -> Response:
    """Serve the measured skills of a shipped set."""
    table = shipped_file(request.path_params["example"], SKILLS)
    return _file(table, "application/json", **{"Content-Encoding": "gzip"})


def _record(request: Request) -> Response:
    """Serve how a shipped set was trained and what was measured of it."""
    return _file(shipped_file(request.path_params["example"], RECORD), "application/json")


def _canvas(request: Request) -> Response:
    """Serve the canvas as one file, without data: the browser puts in what it shows."""
    return HTMLResponse(canvas_page.canvas_page(None), headers={"Cache-Control": "no-cache"})


def _here(request: Request) -> Response:
    """Answer a page that is coming back; that it asked is what counts (public/presence.py)."""
    return Response(status_code=204)


def download_link(key: str, folder: Path) -> str:
    """Return the address of a merge's zip, relative to the page; only its visitor knows the key."""
    return f"{DOWNLOADS[1:]}/{key}/{folder.name}.zip"


def zip_route(find: Callable[[str, str], Path | None]) -> Route:
    """Return the route that sends merges as zips, made while they are sent: no copy on the disk.

    find: a merge's folder by session key and name, or None.
    """

    def send(request: Request) -> Response:
        name = request.path_params["name"].removesuffix(".zip")
        folder = find(request.path_params["key"], name)
        if folder is None:
            return PlainTextResponse("There is no such merge any more.", status_code=404)
        # Weights hardly compress; stored as they are, the size is known before the first byte.
        archive = ZipStream(compress_type=ZIP_STORED, sized=True)
        for file in sorted(folder.iterdir()):
            if file.is_file():
                archive.add_path(file, f"{folder.name}/{file.name}")
        headers = {
            "content-length": str(len(archive)),
            "content-disposition": f'attachment; filename="{folder.name}.zip"',
        }
        return StreamingResponse(archive, media_type="application/zip", headers=headers)

    return Route(f"{DOWNLOADS}/{{key}}/{{name}}", send, methods=["GET"])


def _figures_script() -> str | None:
    """Return where Gradio serves what draws its figures, 4.6 MB that it asks for with the first."""
    found = sorted(Path(gr.__file__).parent.glob("templates/frontend/assets/PlotlyPlot-*.js"))
    return f"assets/{found[0].name}" if found else None


def document_head() -> str:
    """Return what goes into the document's head: styles, colours, and the start of the scripts.

    Gradio may mount a panel before the modules are there; it waits for the promise RAM_READY.
    """
    css = "\n".join(asset_path(name).read_text(encoding="utf-8") for name in STYLES)
    preloads = "".join(f'<link rel="modulepreload" href="ram/{name}">' for name in script_names())
    # In the head as it is: launch(css=) rewrites selectors, those in @media wrongly.
    return (
        f"<style>{colors.css_variables()}\n{css}</style>{preloads}<script>"
        f"window.RAM_SHAPES = {json.dumps(colors.SHAPE_PATHS)};"
        f"window.RAM_FIGURES = {json.dumps(_figures_script())};"
        f'window.RAM_READY = import("./ram/{ENTRY}").then(() => window.RAM);</script>'
    )


def launch_options(app: gr.Blocks, settings: Settings) -> dict[str, Any]:
    """Return the arguments of ``gr.Blocks.launch``: looks, script, what strangers may not do."""
    workspace = app.ram_workspace
    headers = security_headers(is_space=settings.is_space)
    return {
        "server_name": settings.host,
        "server_port": settings.port,
        "theme": palette.build_theme(),
        "head": document_head(),
        "app_kwargs": {
            "routes": [
                Route("/ram/skills/{example}.json", _skills),
                Route("/ram/canvas.html", _canvas),
                Route("/ram/record/{example}.json", _record),
                Route("/ram/here/{key}", _here),
                Route("/ram/{name:path}", _script),
                zip_route(workspace.merge_folder),
            ],
            "middleware": [
                Middleware(
                    Doorway,
                    presence=workspace.presence,
                    headers=headers,
                    opening=render("back.html.j2"),
                )
            ],
        },
        # A job that waits or runs holds one while it is watched; light events need some too.
        "max_threads": 300,
        "show_error": False,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": MOST_RECIPE_BYTES,
        "footer_links": ["api", "gradio"],
        # The sessions' folders, whose names cannot be guessed.
        "allowed_paths": [str(workspace.root)],
    }
