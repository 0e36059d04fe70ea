"""The sessions of all users, and the folder that holds their files.

A session belongs to one browser tab (or one API client). Its key is 128 random bits that the tab
stores, so that a reloaded page finds its work again, and other users cannot guess the folder.
Sessions that were idle too long are removed with their files; above the limit, the least valuable
one is removed too, since a user can create any number of clients.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ram_studio.app.public.heartbeat import Heartbeats
from ram_studio.app.public.job_queue import JobQueue
from ram_studio.app.public.session_reaper import SessionReaper
from ram_studio.app.public.user import address_of, own_copy_hint, token_of
from ram_studio.app.session import disk
from ram_studio.app.session.loaded_engines import Engines
from ram_studio.app.session.session import Session
from ram_studio.app.settings import Settings

_KEY = re.compile(r"[0-9a-f]{32}")
_EXPIRE_SECONDS = 5.0
_DISK_SECONDS = 20.0
_EMPTY_SECONDS = 60.0
_MAX_SESSIONS = 2000
_MAX_PER_ADDRESS = 200
"""Sessions per address: a class or an office may share one."""
_MAX_ANALYSIS_BYTES = 1_000_000_000
"""Most bytes of opened models on a shared server; the analysis of a 7B model takes 10 to 60 MB."""
_CLOSE_SECONDS = 5.0


class Workspace:
    """All sessions of one running app. clock: monotonic seconds."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self._clock = settings, clock
        self._root: Path | None = None
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        self._lock = threading.Lock()
        self.engines = Engines()
        self.heartbeats = Heartbeats(clock)
        self.job_queue = JobQueue(
            per_address=settings.jobs_per_address if settings.is_public else 0,
            hint=own_copy_hint() if settings.is_public else "",
            clock=clock,
        )
        self._reaper: SessionReaper | None = None

    @property
    def gradio_folder(self) -> Path:
        """Gradio's folder of cached and uploaded files."""
        return self.root / "gradio"

    @property
    def root(self) -> Path:
        """The parent of the sessions' folders; created, private to this user, when needed."""
        with self._lock:
            if self._root is None:
                parent = self.settings.work_dir
                parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._root = parent / f"app-{secrets.token_hex(8)}"
                self._root.mkdir(mode=0o700)
                atexit.register(self.close)
            return self._root

    def open(self) -> None:
        """Start supervising jobs, sessions and the disk; called at the app's launch."""
        settings = self.settings
        chores: list[tuple[float, Callable[[], object]]] = [(_EXPIRE_SECONDS, self.expire)]
        if settings.is_public:
            chores.append((_DISK_SECONDS, self.tidy))
        self._reaper = SessionReaper(
            self.job_queue.jobs,
            self.heartbeats,
            most_seconds=settings.max_job_seconds if settings.is_public else float("inf"),
            chores=chores,
            clock=self._clock,
        )
        self.job_queue.is_supervised = True
        self._reaper.start()

    def session_of(self, request: Any, kind: str = "", key: str = "") -> Session:
        """Return the session of a (Gradio) request's sender.

        kind: "api-" for an endpoint. key: see ``session``.
        """
        client = request.session_hash
        address = address_of(request, is_space=self.settings.is_space)
        session = self.session(f"{kind}{client}" if client else None, address=address, key=key)
        session.client = client or ""
        session.token = token_of(request)
        return session

    def session(self, client: str | None, *, address: str = "", key: str = "") -> Session:
        """Return the session of a client (Gradio's session hash), a new one if it has none.

        Each call without a hash gets a new session of its own.

        address: of the client. key: stored by its tab: the session with this key becomes the
            client's, or a new one if it was removed. A key in a wrong form (it comes from the
            browser) is ignored.
        """
        root = self.root
        if not client:
            return self._new(root, secrets.token_hex(16))
        with self._removing() as remove:
            if _KEY.fullmatch(key):
                self._keys[client] = key
            known = self._keys.setdefault(client, secrets.token_hex(16))
            if known not in self._sessions:
                self._make_room(address, remove)
                self._sessions[known] = self._new(root, known)
            session = self._sessions[known]
            session.client = client
            session.address = address or session.address
            session.touched = self._clock()
            return session

    def _new(self, root: Path, key: str) -> Session:
        is_public = self.settings.is_public
        return Session(
            key, root / key, touched=self._clock(), job_queue=self.job_queue, is_public=is_public
        )

    def merge_folder(self, key: str, name: str) -> Path | None:
        """Return the folder of a session's merge by its own name, None when there is none."""
        with self._lock:
            session = self._sessions.get(key)
            folders = [m.folder for m in session.merges.values()] if session else []
        return next((folder for folder in folders if folder.name == name), None)

    # ------------------------------------------------------------------ clean-up

    def expire(self) -> None:
        """Remove the sessions that were idle, or whose page was closed, for too long."""
        now = self._clock()
        settings = self.settings
        with self._removing() as remove:
            for session in list(self._sessions.values()):
                closed_at = self.heartbeats.closed_since(session.client)
                away = 0.0 if closed_at is None else now - max(session.touched, closed_at)
                if (
                    now - session.touched > settings.idle_seconds
                    or (settings.is_public and away > settings.gone_seconds)
                    or (session.is_empty and away > _EMPTY_SECONDS)
                ):
                    remove(session)
            self._keys = {c: k for c, k in self._keys.items() if k in self._sessions}
        self.free_memory()

    def free_memory(self) -> None:
        """Remove sessions while opened models take too much memory on a shared server.

        From the address with the most memory, the least valuable session is removed first.
        """
        if not self.settings.is_public:
            return
        with self._removing() as remove:
            while True:
                own = [s for s in self._sessions.values() if s.loaded is not None]
                nbytes_of: Counter[str] = Counter()
                for session in own:
                    nbytes_of[session.address] += session.models.nbytes
                if nbytes_of.total() <= _MAX_ANALYSIS_BYTES:
                    return
                ((address, _),) = nbytes_of.most_common(1)
                own = [s for s in own if s.address == address and s.models.nbytes]
                idle = [s for s in own if not s.is_busy]
                if not idle:
                    return
                remove(min(idle, key=self._worth))

    def _make_room(self, address: str, remove: Callable[[Session], None]) -> None:
        """Remove sessions until one more fits, of one address and of all."""
        found = list(self._sessions.values())
        own = [session for session in found if address and session.address == address]
        if (excess := len(own) + 1 - _MAX_PER_ADDRESS) > 0:
            found = own
        elif (excess := len(found) + 1 - _MAX_SESSIONS) <= 0:
            return
        idle = [session for session in found if not session.is_busy]
        for session in sorted(idle, key=self._worth)[:excess]:
            remove(session)

    def _worth(self, session: Session) -> tuple[bool, bool, float]:
        """Return the sort key of sessions; the smallest is removed first."""
        is_there = self.heartbeats.closed_since(session.client) is None
        return bool(session.merges) or is_there, not session.is_empty, session.touched

    @contextlib.contextmanager
    def _removing(self) -> Iterator[Callable[[Session], None]]:
        """Hold the lock and yield a session remover; delete the files after unlocking."""
        folders: list[Path] = []

        def remove(session: Session) -> None:
            if session.is_busy:
                return
            del self._sessions[session.key]
            # Renamed first: the tab with this key may return to a new session.
            with contextlib.suppress(OSError):
                folders.append(
                    session.folder.rename(session.folder.with_name(f"gone-{secrets.token_hex(8)}"))
                )

        with self._lock:
            yield remove
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def tidy(self) -> int:
        """Remove the oldest files of users while they take too much; return the bytes freed."""
        now, wall = self._clock(), time.time()
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
        """Stop all jobs, wait for them briefly, and remove all files."""
        if self._reaper is not None:
            self._reaper.close()
        # Not by the sessions' clock, which may be frozen in tests.
        deadline = time.monotonic() + _CLOSE_SECONDS
        jobs = self.job_queue.jobs()
        for job in jobs:
            job.stop("closed")
        while any(not job.is_done for job in jobs) and time.monotonic() < deadline:
            time.sleep(0.02)
        with self._lock:
            self._sessions.clear()
            self._keys.clear()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
