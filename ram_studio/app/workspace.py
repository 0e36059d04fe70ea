"""The sessions of all visitors, and the folder that holds their files.

A session belongs to one browser tab (or one API client). Its key is 128 random bits that the tab
keeps, so that a reloaded page finds its work again; nobody else can name the folder. Sessions that
were idle for long are removed with their files.
"""

from __future__ import annotations

import atexit
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ram_studio.app.check.loaded_engines import Engines
from ram_studio.app.public import disk
from ram_studio.app.public.keeper import Keeper
from ram_studio.app.public.lanes import Lanes
from ram_studio.app.public.presence import Presence
from ram_studio.app.public.visitor import address_of, token_of, way_out
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings

_KEY = re.compile(r"[0-9a-f]{32}")
_EXPIRE_SECONDS = 5.0
_DISK_SECONDS = 20.0
_MOST_SESSIONS = 2000
_CLOSE_SECONDS = 5.0


class Workspace:
    """All sessions of one running app."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._root: Path | None = None
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        self._lock = threading.Lock()
        self.engines = Engines()
        self.presence = Presence()
        self.lanes = Lanes(
            per_address=settings.jobs_per_address if settings.is_public else 0,
            hint=way_out() if settings.is_public else "",
        )
        self._keeper: Keeper | None = None

    @property
    def gradio_folder(self) -> Path:
        """Where Gradio keeps what it caches and what is uploaded."""
        return self.root / "gradio"

    @property
    def root(self) -> Path:
        """The folder that holds the sessions' folders; made, private to this user, when needed."""
        with self._lock:
            if self._root is None:
                parent = self.settings.work_dir
                parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._root = parent / f"app-{secrets.token_hex(8)}"
                self._root.mkdir(mode=0o700)
                atexit.register(self.close)
            return self._root

    def open(self) -> None:
        """Start looking after jobs, sessions and the disk; called when the app is launched."""
        settings = self.settings
        chores: list[tuple[float, Callable[[], object]]] = [(_EXPIRE_SECONDS, self.expire)]
        if settings.is_public:
            chores.append((_DISK_SECONDS, self.tidy))
        self._keeper = Keeper(
            self.lanes.jobs,
            self.presence,
            most_seconds=settings.max_job_seconds if settings.is_public else float("inf"),
            chores=chores,
        )
        self.lanes.is_kept = True
        self._keeper.start()

    def session_of(self, request: Any, kind: str = "") -> Session:
        """Return the session of whoever sent a (Gradio) request; kind: "api-" for an endpoint."""
        client = request.session_hash
        session = self.session(f"{kind}{client}" if client else None)
        session.client = client or ""
        session.token = token_of(request)
        session.address = address_of(request, is_space=self.settings.is_space)
        return session

    def session(self, client: str | None) -> Session:
        """Return the session of a client (Gradio's session hash), a new one if it has none.

        A caller without a hash gets one that nobody else has, also not its own next call.
        """
        root = self.root
        with self._lock:
            return self._of(client, root) if client else self._new(root, secrets.token_hex(16))

    def _of(self, client: str, root: Path) -> Session:
        key = self._keys.setdefault(client, secrets.token_hex(16))
        if key not in self._sessions:
            self._make_room()
            self._sessions[key] = self._new(root, key)
        session = self._sessions[key]
        session.client = client
        session.touched = time.monotonic()
        return session

    def _new(self, root: Path, key: str) -> Session:
        is_public = self.settings.is_public
        return Session(key, root / key, lanes=self.lanes, is_public=is_public)

    def attach(self, client: str | None, key: str) -> Session:
        """Give a client the session of the key that its tab kept; a new one under that key if gone.

        A key of the wrong form (it comes from the browser) is ignored.
        """
        if not client or not _KEY.fullmatch(key or ""):
            return self.session(client)
        root = self.root
        # In one go: between the two, a look for idle sessions would forget the key.
        with self._lock:
            self._keys[client] = key
            return self._of(client, root)

    def merge_folder(self, key: str, name: str) -> Path | None:
        """Return the folder of a session's merge by its own name, None when there is none."""
        with self._lock:
            session = self._sessions.get(key)
            folders = [m.folder for m in session.merges.values()] if session else []
        return next((folder for folder in folders if folder.name == name), None)

    # ------------------------------------------------------------------ what nobody needs any more

    def expire(self) -> None:
        """Remove the sessions that were idle, or whose page was closed, for long enough."""
        now = time.monotonic()
        settings = self.settings
        with self._lock:
            for session in list(self._sessions.values()):
                gone = self.presence.gone_since(session.client)
                left = max(session.touched, gone) if gone is not None else now
                if now - session.touched > settings.idle_seconds or (
                    settings.is_public and now - left > settings.gone_seconds
                ):
                    self._remove(session)
            self._keys = {c: k for c, k in self._keys.items() if k in self._sessions}

    def _make_room(self) -> None:
        if len(self._sessions) >= _MOST_SESSIONS:
            idle = [session for session in self._sessions.values() if not session.is_busy]
            for session in sorted(idle, key=lambda s: s.touched)[: _MOST_SESSIONS // 10]:
                self._remove(session)

    def _remove(self, session: Session) -> None:
        if not session.is_busy:
            del self._sessions[session.key]
            shutil.rmtree(session.folder, ignore_errors=True)

    def tidy(self) -> int:
        """Remove the oldest of what visitors left while it takes too much; return bytes freed."""
        now, wall = time.monotonic(), time.time()
        with self._lock:
            sessions = list(self._sessions.values())
        used = disk.folder_bytes(self.root)
        loaded = {source.split("@")[0] for s in sessions if s.loaded for source in s.loaded.sources}
        cached, entries = disk.hub_models(loaded) if self.settings.is_space else (0, [])
        entries += disk.files_in(self.gradio_folder)
        for session in sessions:
            if not session.is_busy:
                used_at = wall - (now - session.touched)
                entries += disk.merges_in(session.merges, used_at)
        return disk.tidy(entries, used + cached, self.settings.max_disk_bytes)

    def close(self) -> None:
        """Stop all jobs, wait for them a little, and remove all files."""
        if self._keeper is not None:
            self._keeper.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        jobs = self.lanes.jobs()
        for job in jobs:
            job.stop("closed")
        while any(not job.is_done for job in jobs) and time.monotonic() < deadline:
            time.sleep(0.02)
        with self._lock:
            self._sessions.clear()
            self._keys.clear()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
