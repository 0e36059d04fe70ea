"""The routes of a live classroom: three plain pages, and JSON that they poll.

| route below ``room/`` | user | response |
| --- | --- | --- |
| ``.``, ``teach``, ``screen`` | anyone | the pages; codes and tokens are in their fragments |
| ``material/{set}.json`` | the teacher's page | the analysis of a shipped set, for its questions |
| ``api`` POST | a teacher | opens a room: code and token |
| ``api/{code}`` GET | the screen, or a student with an id | the view; ETag |
| ``api/{code}/join``, ``vote``, ``link`` POST | students | an id; an answer; a canvas |
| ``api/{code}/teacher`` GET, POST | holder of the token | the view; one action; ETag |
| ``api/{code}/report`` GET | holder of the token | results, or CSV with ``?as=csv`` |
| ``api/{code}/qr.svg`` GET | anyone | the link for students as a QR code |

Secrets travel in headers only, ``Room-Token`` and ``Room-Student``: never in a URL, which logs and
histories store. All handlers run in the event loop and take a millisecond or less; slower work (the
QR code, the pages) runs in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import socket
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ram_studio.app.public.user import address_of
from ram_studio.app.room import report, views
from ram_studio.app.room.questions import NewRoom, Question, RoomError, canvas_link
from ram_studio.app.room.rooms import LIFE_SECONDS, Room, Rooms
from ram_studio.app.session.sets import TITLES, set_profile
from ram_studio.app.settings import OWN_HOSTS, Settings
from ram_studio.app.templates import render
from ram_studio.evals.report import colors
from ram_studio.resources import asset_text

MAX_OPENING_BYTES = 80_000
MAX_ACTION_BYTES = 8_000

Handler = Callable[[Request], Awaitable[Response]]


def _json(value: dict[str, Any], **headers: str) -> Response:
    return Response(
        orjson.dumps(value),
        media_type="application/json",
        headers={"Cache-Control": "no-store", **headers},
    )


def _json_refusals(handle: Handler) -> Handler:
    """Return a handler whose refusals are JSON responses."""

    async def answer_request(request: Request) -> Response:
        try:
            return await handle(request)
        except RoomError as refused:
            answer = _json({"error": str(refused)})
            answer.status_code = refused.status
            return answer

    return answer_request


async def _read_body(request: Request, limit: int) -> dict[str, Any]:
    """Return a request's JSON object. Raises: RoomError for anything else, or a large one."""
    text = await request.body()
    if len(text) > limit:
        raise RoomError(f"The request is too large; the limit is {limit} bytes.", 413)
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise RoomError("The body of the request is not a JSON object.")
    return found


def own_network_address() -> str | None:
    """Return this machine's address in its network, None where it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a reserved address
            found = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if found.startswith("127.") else found


class RoomRoutes:
    """The handlers of one app. clock: of its rooms."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self.rooms = settings, Rooms(clock)

    def routes(self) -> list[Route]:
        """Return all routes of the rooms."""
        made = [
            Route("/room", self._page, methods=["GET"]),
            Route("/room/{view}", self._page, methods=["GET"]),
            Route("/room/material/{set}.json", _material, methods=["GET"]),
        ]
        api: list[tuple[str, Handler, str]] = [
            ("", self._open_room, "POST"),
            ("/{code}", self._show_room, "GET"),
            ("/{code}/join", self._join, "POST"),
            ("/{code}/vote", self._vote, "POST"),
            ("/{code}/link", self._hand_in, "POST"),
            ("/{code}/teacher", self._watch, "GET"),
            ("/{code}/teacher", self._act, "POST"),
            ("/{code}/report", self._report, "GET"),
            ("/{code}/qr.svg", self._qr, "GET"),
        ]
        # The longer paths first: `room/api` is not a view.
        return [
            *(
                Route(f"/room/api{path}", _json_refusals(h), methods=[verb])
                for path, h, verb in api
            ),
            *made,
        ]

    # ------------------------------------------------------------ helpers

    def _address(self, request: Request) -> str:
        return address_of(request, is_space=self._settings.is_space)

    def _room(self, request: Request) -> Room:
        code, student = request.path_params["code"], request.headers.get("room-student", "")
        return self.rooms.find(code, student)

    def _student(self, request: Request, room: Room) -> str:
        """Return the student of a request.

        Unknown ids are refused before they are counted, as many of them would evict others' counts.
        """
        student = request.headers.get("room-student", "")
        room.note(student, self.rooms.clock())
        return student

    def _led_room(self, request: Request) -> Room:
        token = request.headers.get("room-token", "")
        return self.rooms.lead(request.path_params["code"], token)

    def _state(self, request: Request, view: dict[str, Any]) -> Response:
        """Return a view, or 304 if the page already has it."""
        body = orjson.dumps(view)
        headers = {
            "Cache-Control": "no-store",
            "ETag": f'"{hashlib.blake2b(body, digest_size=9).hexdigest()}"',
            "Room-Clock": f"{self.rooms.clock():.3f}",
        }
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    def students_link(self, request: Request, code: str) -> str:
        """Return the address that students open.

        A teacher who opened the app as localhost shares it under this machine's own address.
        """
        url = request.base_url
        if self._settings.is_space:
            url = url.replace(scheme="https")
        elif url.hostname in OWN_HOSTS and self._settings.is_public:
            url = url.replace(hostname=own_network_address() or url.hostname)
        return f"{str(url).rstrip('/')}/room#{code}"

    # ------------------------------------------------------------ all users

    def _page(self, request: Request) -> Response:
        view = request.path_params.get("view", "student")
        if view not in ("student", "teach", "screen"):
            return Response(status_code=404)
        # Relative to the app's root, as a proxy may change it.
        is_below = "view" in request.path_params
        page = _page_html(view, "../" if is_below else "./")
        return HTMLResponse(page, headers={"Cache-Control": "no-cache"})

    async def _show_room(self, request: Request) -> Response:
        room = self._room(request)
        student = request.headers.get("room-student")
        now = self.rooms.clock()
        if student is None:
            view = views.screen_view(room, now)
            return self._state(request, {**view, "link": self.students_link(request, room.code)})
        room.note(student, now)
        return self._state(request, views.student_view(room, student))

    async def _qr(self, request: Request) -> Response:
        link = self.students_link(request, self._room(request).code)
        svg = await asyncio.to_thread(_qr_svg, link)
        return Response(svg, media_type="image/svg+xml", headers={"Cache-Control": "no-store"})

    # ------------------------------------------------------------ students

    async def _join(self, request: Request) -> Response:
        code = request.path_params["code"]
        return _json({"student": self.rooms.join(code, self._address(request))})

    async def _vote(self, request: Request) -> Response:
        room, body = self._room(request), await _read_body(request, MAX_ACTION_BYTES)
        student = self._student(request, room)
        self.rooms.spend("vote", student)
        room.vote(student, body.get("place"), body.get("round"), body.get("value"))
        return _json(views.student_view(room, student))

    async def _hand_in(self, request: Request) -> Response:
        room, body = self._room(request), await _read_body(request, MAX_ACTION_BYTES)
        student = self._student(request, room)
        self.rooms.spend("link", student)
        room.hand_in(student, canvas_link(body.get("link")))
        return _json(views.student_view(room, student))

    # ------------------------------------------------------------ the teacher

    async def _open_room(self, request: Request) -> Response:
        new = NewRoom.read(await _read_body(request, MAX_OPENING_BYTES))
        room = self.rooms.open(new, self._address(request))
        # No requests are possible after its end.
        asyncio.get_running_loop().call_later(LIFE_SECONDS + 1, self.rooms.sweep)
        return _json({"code": room.code, "token": room.token})

    async def _watch(self, request: Request) -> Response:
        return self._teacher_state(request, self._led_room(request))

    def _teacher_state(self, request: Request, room: Room) -> Response:
        view = views.teacher_view(room, self.rooms.clock())
        link = self.students_link(request, room.code)
        is_reachable = urlsplit(link).hostname not in OWN_HOSTS
        return self._state(request, {**view, "link": link, "is_reachable": is_reachable})

    async def _act(self, request: Request) -> Response:
        room = self._led_room(request)
        body = await _read_body(request, MAX_ACTION_BYTES)
        now = self.rooms.clock()
        match body.get("action"):
            case "next":
                # A double click on a button is one step.
                if [body.get("place"), body.get("phase")] == [room.place, room.phase]:
                    room.go_on(now)
            case "reveal":
                room.reveal(now)
            case "reset":
                room.reset()
            case "go":
                room.go_to(body.get("place"))
            case "ask":
                room.ask(Question.read(body.get("question")))
            case "show":
                link = body.get("link")
                room.show(None if link is None else canvas_link(link))
            case "end":
                results = report.results(room)
                self.rooms.end(room)
                return _json({"ended": True, "report": results, "csv": report.csv_text(results)})
            case other:
                raise RoomError(f"There is no action {other!r:.40}.")
        return self._teacher_state(request, room)

    async def _report(self, request: Request) -> Response:
        results = report.results(self._led_room(request))
        if request.query_params.get("as") == "csv":
            return Response(report.csv_text(results), media_type="text/csv; charset=utf-8")
        return _json(results)


def _material(request: Request) -> Response:
    """Serve the analysis of a shipped set, from which the teacher's page makes its questions."""
    name = request.path_params["set"]
    if name not in TITLES:
        return Response(status_code=404)
    headers = {"Cache-Control": "no-cache"}
    return Response(set_profile(name), media_type="application/json", headers=headers)


@lru_cache(maxsize=8)
def _page_html(view: str, root: str) -> str:
    return render(
        "room/room.html.j2",
        view=view,
        root=root,
        title={"student": "Room", "teach": "Teach live", "screen": "Screen"}[view],
        styles=f"{colors.css_variables()}\n{asset_text('room/room.css')}",
    )


@lru_cache(maxsize=64)
def _qr_svg(link: str) -> bytes:
    import segno

    out = io.BytesIO()
    # Dark on white in any theme, as scanners need it.
    segno.make(link, error="m").save(out, kind="svg", scale=8, border=3, light="#fff")
    return out.getvalue()
