"""What a run of the app is told once, at its start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ram_studio.errors import SettingsError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7860
_SPACE_ITEMS = 24
_SPACE_TOKENS = 160
_OWN_HOSTS = ("127.0.0.1", "localhost", "::1")


def _default_work_dir() -> Path:
    # One folder per user: it is private, and another user's could not be entered.
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir()) / f"ram-studio{user}"


@dataclass(frozen=True)
class Settings:
    """Settings of one running app.

    host, port: where it listens.
    models_dir: folder whose checkpoints the Load step offers; None offers none.
    is_space: True on a public Space: Hub ids only, no local paths are taken or shown.
    work_dir: parent of the sessions' folders (merged checkpoints live there until they expire).
    max_download_bytes: most that one Hub checkpoint may weigh on a Space.
    max_zip_bytes: merged folders up to this size are offered as one zip.
    idle_seconds: a session untouched for this long is removed with its files.
    max_suite_items: most questions of one general suite. max_check_seconds: longest evaluation on a
        Space. max_chat_tokens: longest answer in the chat.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    models_dir: Path | None = None
    is_space: bool = False
    work_dir: Path = field(default_factory=_default_work_dir)
    max_download_bytes: int = 12_000_000_000
    max_zip_bytes: int = 1_000_000_000
    idle_seconds: float = 3 * 3600.0
    max_suite_items: int = 64
    max_check_seconds: float = 900.0
    max_chat_tokens: int = 512

    @property
    def is_private(self) -> bool:
        """Whether only this machine's user can come here; checks are then kept for good."""
        return not self.is_space and self.host in _OWN_HOSTS

    @classmethod
    def from_environment(
        cls,
        *,
        host: str | None = None,
        port: int | None = None,
        models_dir: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Return the settings from flags, then GRADIO_SERVER_NAME / _PORT and SPACE_ID.

        Raises: SettingsError for a port that is no port, or a models folder that is none.
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
                f"--models-dir is {folder}, which is no folder; give the folder that holds your "
                "checkpoints."
            )
        is_space = bool(env.get("SPACE_ID"))
        return cls(
            host=host or env.get("GRADIO_SERVER_NAME") or DEFAULT_HOST,
            port=number,
            models_dir=folder,
            is_space=is_space,
            max_suite_items=_SPACE_ITEMS if is_space else 64,
            max_chat_tokens=_SPACE_TOKENS if is_space else 512,
        )
