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
from pathlib import Path

from ram_studio.app.check.loaded_engines import Engines
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings

_KEY = re.compile(r"[0-9a-f]{32}")
_SWEEP_SECONDS = 60.0


class Workspace:
    """All sessions of one running app."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._root: Path | None = None
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, str] = {}
        self._lock = threading.Lock()
        self._swept = time.monotonic()
        self.engines = Engines()

    @property
    def root(self) -> Path:
        """The folder that holds the sessions' folders; made, private to this user, when needed."""
        with self._lock:
            if self._root is None:
                parent = self.settings.work_dir
                parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._root = parent / f"app-{secrets.token_hex(8)}"
                self._root.mkdir(mode=0o700)
                atexit.register(shutil.rmtree, self._root, ignore_errors=True)
            return self._root

    def session(self, client: str | None) -> Session:
        """Return the session of a client (Gradio's session hash), a new one if it has none."""
        root = self.root
        with self._lock:
            self._sweep()
            key = self._keys.setdefault(client or "", secrets.token_hex(16))
            if key not in self._sessions:
                self._sessions[key] = Session(key, root / key)
            session = self._sessions[key]
            session.touched = time.monotonic()
            return session

    def attach(self, client: str | None, key: str) -> Session:
        """Give a client the session of the key that its tab kept; a new one under that key if gone.

        A key of the wrong form (it comes from the browser) is ignored.
        """
        if _KEY.fullmatch(key or ""):
            with self._lock:
                # Before: it forgets keys that have no session yet.
                self._sweep()
                self._keys[client or ""] = key
        return self.session(client)

    def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept < _SWEEP_SECONDS:
            return
        self._swept = now
        idle = self.settings.idle_seconds
        for key, session in list(self._sessions.items()):
            if now - session.touched > idle and not session.is_busy:
                del self._sessions[key]
                shutil.rmtree(session.folder, ignore_errors=True)
        self._keys = {c: k for c, k in self._keys.items() if k in self._sessions}

    def close(self) -> None:
        """Stop all jobs and remove all files."""
        with self._lock:
            for session in self._sessions.values():
                if session.job is not None:
                    session.job.stop()
            self._sessions.clear()
            self._keys.clear()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
