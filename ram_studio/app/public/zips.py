"""Merged folders go home as zips that are made while they are sent: no second copy on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from zipstream import ZIP_STORED, ZipStream

DOWNLOADS = "/downloads"


def download_link(key: str, folder: Path) -> str:
    """Return the address of a merge's zip, relative to the page; only its visitor knows the key."""
    return f"{DOWNLOADS[1:]}/{key}/{folder.name}.zip"


def zip_route(find: Callable[[str, str], Path | None]) -> Route:
    """Return the route that sends zips; find: a merge's folder by session key and name, or None."""

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
