"""The settings of a run of the app, fixed at its start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from ram_studio.errors import SettingsError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7860
_SPACE_ITEMS = 24
_SPACE_TOKENS = 160
_PUBLIC_SWEEP_MINUTES = 3.0
# The paper's protocol; and three stages of asking until decided.
_PUBLIC_SAMPLES = 4
_PUBLIC_MADE_ITEMS = 200
OWN_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Host names that only this machine can use."""


def _default_work_dir() -> Path:
    # One folder per user: it is private, so another user's could not be read.
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir()) / f"ram-studio{user}"


def _authority(url: str) -> str:
    """Return host and port of a URL, "" for a path.

    Raises: SettingsError for a URL without a readable host.
    """
    try:
        return urlsplit(url).netloc
    except ValueError as error:
        raise SettingsError(f"GRADIO_ROOT_PATH is {url!r}; it must be a URL or a path.") from error


@dataclass(frozen=True)
class Settings:
    """Settings of one running app.

    host, port: to listen on.
    allowed_hosts: further names for browsers, with optional ports: a Space's own (SPACE_HOST), and
        that of a proxy in front (in GRADIO_ROOT_PATH).
    models_dir: folder whose checkpoints the Load step offers; None offers none.
    is_space: True on a public Space: only Hub ids, no local paths.
    work_dir: parent of the sessions' folders (with merged checkpoints, until they expire).
    max_download_bytes: largest Hub checkpoint on a Space.
    idle_seconds: a session idle for this long is removed with its files.
    gone_seconds: the same for a session with a closed page, on a shared server.
    max_suite_items: most questions of one general suite; max_made_items: of a generated one;
        max_samples: answers to each question. max_check_seconds: longest evaluation on a Space,
        whose answers are stored. max_chat_tokens: longest answer in the chat.
    max_job_seconds: longest run of any job on a shared server. max_sweep_minutes: longest time
        limit of a sweep.
    max_merges, max_session_bytes: most merges of a user; the oldest are removed first.
    max_disk_bytes: of all users and caches together, on a shared server.
    jobs_per_address: most jobs of one address, half of them running; 0 is no limit.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    models_dir: Path | None = None
    is_space: bool = False
    work_dir: Path = field(default_factory=_default_work_dir)
    max_download_bytes: int = 12_000_000_000
    idle_seconds: float = 3 * 3600.0
    max_suite_items: int = 64
    max_made_items: int = 1600
    max_samples: int = 16
    max_check_seconds: float = 240.0
    max_chat_tokens: int = 512
    max_job_seconds: float = 300.0
    max_sweep_minutes: float = 30.0
    gone_seconds: float = 600.0
    max_merges: int = 8
    max_session_bytes: int = 12_000_000_000
    max_disk_bytes: int = 30_000_000_000
    jobs_per_address: int = 2

    @property
    def is_private(self) -> bool:
        """Whether only this machine's user has access; checks are then stored permanently."""
        return not self.is_space and self.host in OWN_HOSTS

    @property
    def is_public(self) -> bool:
        """Whether the server is shared: a Space, a container, a laptop with several users."""
        return not self.is_private

    @classmethod
    def from_environment(
        cls,
        *,
        host: str | None = None,
        port: int | None = None,
        models_dir: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Return the settings from flags, then GRADIO_SERVER_NAME / _PORT, SPACE_ID and SPACE_HOST.

        RAM_STUDIO_JOBS_PER_ADDRESS is for many users behind one address.

        Raises: SettingsError for an invalid port, or a models folder that is not a folder.
        """
        env = os.environ if environ is None else environ
        wanted = port if port is not None else env.get("GRADIO_SERVER_PORT") or DEFAULT_PORT
        try:
            number = int(wanted)
        except ValueError:
            number = -1
        if not 0 < number < 65536:
            raise SettingsError(f"The port is {wanted!r}; it must be a number from 1 to 65535.")
        folder = Path(models_dir).expanduser().resolve() if models_dir else None
        if folder is not None and not folder.is_dir():
            raise SettingsError(
                f"--models-dir is {folder}, which is not a folder; give the folder that holds "
                "your checkpoints."
            )
        jobs = env.get("RAM_STUDIO_JOBS_PER_ADDRESS", "2")
        if not jobs.isdecimal():
            raise SettingsError(
                f"RAM_STUDIO_JOBS_PER_ADDRESS is {jobs!r}; it must be a whole number (0: no limit)."
            )
        is_space = bool(env.get("SPACE_ID"))
        # A Space with its own domain has several.
        named = [*env.get("SPACE_HOST", "").split(","), _authority(env.get("GRADIO_ROOT_PATH", ""))]
        settings = cls(
            host=host or env.get("GRADIO_SERVER_NAME") or DEFAULT_HOST,
            port=number,
            allowed_hosts=tuple(name.strip() for name in named if name.strip()),
            models_dir=folder,
            is_space=is_space,
            jobs_per_address=int(jobs),
        )
        if is_space:
            settings = replace(
                settings, max_suite_items=_SPACE_ITEMS, max_chat_tokens=_SPACE_TOKENS
            )
        if settings.is_public:
            settings = replace(
                settings,
                max_sweep_minutes=_PUBLIC_SWEEP_MINUTES,
                max_samples=_PUBLIC_SAMPLES,
                max_made_items=_PUBLIC_MADE_ITEMS,
            )
        return settings
