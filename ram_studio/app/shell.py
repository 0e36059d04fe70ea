"""The frame of the steps: head, scripts and styles, further routes, launch options."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
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
from ram_studio.app.landing.document import Document
from ram_studio.app.landing.figure import landing_html
from ram_studio.app.landing.preview import NAME, Previews
from ram_studio.app.lesson import kit
from ram_studio.app.public.allowed_hosts import AllowedHosts
from ram_studio.app.public.queue_streams import QueueStreams
from ram_studio.app.public.request_bodies import UPLOAD_LIMITS
from ram_studio.app.public.request_guard import RequestGuard, security_headers
from ram_studio.app.public.user import duplicate_link
from ram_studio.app.room.routes import RoomRoutes
from ram_studio.app.session.sets import RECORD, SKILLS, shipped_file
from ram_studio.app.settings import Settings
from ram_studio.app.templates import render
from ram_studio.evals.report import canvas_page, colors
from ram_studio.resources import asset_path, asset_text

DOWNLOADS = "/downloads"

_MAX_GRADIO_SESSIONS = 50
"""Number of pages whose components Gradio caches, 0.9 MB each; its default is 10,000."""

ENTRY = "page.js"
"""The module of the landing page; it loads STUDIO and its imports when a step needs them."""

STUDIO = "studio.js"


def script_names() -> list[str]:
    """Return the page's modules, as paths under assets/."""
    root = asset_path(ENTRY).parent
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*.js"))


FIRST_STYLE = "landing.css"
"""Styles of the landing page, which is painted before Gradio's scripts are loaded."""

STYLES = ("app.css", "canvas.css", "check.css", "lesson.css")
"""The page's style sheets under assets/."""


def head_html() -> Markup:
    """Return the page's head: title, tagline, the button for light and dark."""
    return render("head.html.j2", title=NAME, duplicate=duplicate_link())


def _file(path: Path | None, kind: str, **headers: str) -> Response:
    """Return a file, revalidated at every visit, as its name contains no version."""
    if path is None:
        return Response(status_code=404)
    return FileResponse(path, media_type=kind, headers={"Cache-Control": "no-cache", **headers})


def _script(request: Request) -> Response:
    """Serve a module."""
    name = request.path_params["name"]
    return _file(asset_path(name) if name in script_names() else None, "text/javascript")


def _skills(request: Request) -> Response:
    """Serve the measured skills of a shipped set."""
    table = shipped_file(request.path_params["set"], SKILLS)
    return _file(table, "application/json", **{"Content-Encoding": "gzip"})


def _record(request: Request) -> Response:
    """Serve a shipped set's record: its training and measurements."""
    return _file(shipped_file(request.path_params["set"], RECORD), "application/json")


def _canvas(request: Request) -> Response:
    """Serve the canvas as one file without data, which the browser inserts."""
    return HTMLResponse(canvas_page.canvas_page(None), headers={"Cache-Control": "no-cache"})


def _here(request: Request) -> Response:
    """Answer a reloading page; only the request itself matters (public/heartbeat.py)."""
    return Response(status_code=204)


def download_link(key: str, folder: Path) -> str:
    """Return the URL of a merge's zip, relative to the page; only its user knows the key."""
    return f"{DOWNLOADS[1:]}/{key}/{folder.name}.zip"


def zip_route(find: Callable[[str, str], Path | None]) -> Route:
    """Return the route that streams merges as zips, without a copy on the disk.

    find: a merge's folder by session key and name, or None.
    """

    def send(request: Request) -> Response:
        name = request.path_params["name"].removesuffix(".zip")
        folder = find(request.path_params["key"], name)
        if folder is None:
            return PlainTextResponse("This merge no longer exists.", status_code=404)
        # Weights hardly compress; stored uncompressed, the size is known before the first byte.
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
    """Return the path of Gradio's figure library, 4.6 MB that it loads with the first figure."""
    found = sorted(Path(gr.__file__).parent.glob("templates/frontend/assets/PlotlyPlot-*.js"))
    return f"assets/{found[0].name}" if found else None


def document_head() -> str:
    """Return Gradio's part of the document's head: the styles of its components."""
    # In the head, unchanged: launch(css=) rewrites selectors, and those in @media wrongly.
    return f"<style>{asset_text(*STYLES)}</style>"


def document_opening() -> str:
    """Return the start of the head, before Gradio's scripts: colors, first styles and scripts.

    Gradio may mount a panel before the modules are loaded; it waits for the promise RAM_READY.
    """
    first = canvas_page.modules(ENTRY)
    preloads = "".join(f'<link rel="modulepreload" href="ram/{name}">' for name in first)
    preloads += "".join(
        f'<link rel="preload" as="font" type="font/woff2" crossorigin href="{font}">'
        for font in re.findall(r'url\("([^"]+)"\)', asset_text(FIRST_STYLE))
    )
    later = [name for name in canvas_page.modules(STUDIO) if name not in first]
    facts = {"SHAPES": colors.SHAPE_PATHS, "FIGURES": _figures_script(), "SCRIPTS": later}
    globals_js = "".join(f"window.RAM_{name} = {json.dumps(fact)};" for name, fact in facts.items())
    return (
        f"{render('back.html.j2')}"
        f"<style>{colors.css_variables()}\n{asset_text(FIRST_STYLE)}</style>"
        f"{preloads}<script>{globals_js}"
        f'window.RAM_READY = import("./ram/{ENTRY}").then(() => window.RAM);</script>'
    )


def _guard(app: gr.Blocks, settings: Settings) -> Callable[..., Any]:
    """Return the server's lifespan, which wraps the whole app in the request guard."""
    workspace = app.ram_workspace

    @contextlib.asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        # Middleware in ``app_kwargs`` would be inside Gradio's own, which answers preflights.
        # Before the first request the stack can still be rebuilt.
        server.middleware_stack = None
        server.add_middleware(QueueStreams)
        server.add_middleware(
            RequestGuard,
            heartbeats=workspace.heartbeats,
            hosts=AllowedHosts(settings),
            headers=security_headers(is_space=settings.is_space),
            uploads=workspace.gradio_folder,
            is_public=settings.is_public,
        )
        yield

    return lifespan


def launch_options(app: gr.Blocks, settings: Settings) -> dict[str, Any]:
    """Return arguments of ``gr.Blocks.launch``: styles, script, restrictions for other users."""
    workspace, previews = app.ram_workspace, Previews(is_space=settings.is_space)
    return {
        "server_name": settings.host,
        "server_port": settings.port,
        "theme": palette.build_theme(),
        "head": document_head(),
        "app_kwargs": {
            "routes": [
                Route("/ram/skills/{set}.json", _skills),
                Route("/ram/canvas.html", _canvas),
                Route("/ram/record/{set}.json", _record),
                Route("/ram/kit.html", kit.send_kit),
                Route("/ram/lesson.html", kit.send_file),
                Route("/ram/here/{key}", _here),
                Route("/ram/preview/{set}/{number:int}.png", previews.send),
                Route("/ram/{name:path}", _script),
                *RoomRoutes(settings).routes(),
                zip_route(workspace.merge_folder),
            ],
            "middleware": [
                Middleware(
                    Document,
                    opening=document_opening(),
                    first_view=render("landing/first_view.html.j2", landing=landing_html()),
                    tags=previews.tags,
                )
            ],
            "lifespan": _guard(app, settings),
        },
        # Each watched job uses one thread; light events need some too.
        "max_threads": 300,
        "state_session_capacity": _MAX_GRADIO_SESSIONS,
        "show_error": False,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": max(UPLOAD_LIMITS.values()),
        "footer_links": ["gradio"] if settings.is_public else ["api", "gradio"],
        # Gradio's page announces it when an event is done, and has no text for it.
        "i18n": gr.I18n(en={"common.complete": "Done"}),
        # The sessions' folders, with unguessable names.
        "allowed_paths": [str(workspace.root)],
    }
