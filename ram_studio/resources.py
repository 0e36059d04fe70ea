"""Where files are: those shipped (example agents, JavaScript, CSS, templates), and the user's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ram_studio.errors import CheckpointError

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = Path(__file__).resolve().parent

ROOTS = (_PACKAGE / "assets", _PACKAGE.parent / "assets")
"""Where shipped files may lie: inside the package in a wheel, beside it in a clone."""


def asset_path(*parts: str) -> Path:
    """Return the path of a shipped file or folder.

    Raises: CheckpointError when the file was not shipped with this installation.
    """
    for root in ROOTS:
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise CheckpointError(
        f"The shipped file assets/{'/'.join(parts)} is missing from this installation; "
        "install the package again."
    )


def asset_text(*names: str) -> str:
    """Return shipped text files, one after the other.

    Raises: CheckpointError as ``asset_path`` does.
    """
    return "\n".join(asset_path(name).read_text(encoding="utf-8") for name in names)


def templates(folder: Path, **options: Any) -> Environment:
    """Return the templates of a folder: every value is escaped, a missing one is an error.

    options: further ones of Jinja2's.
    """
    # Imported here: the command line's help needs none.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def user_folder() -> Path:
    """Return where a user's answers and list of merges are kept; it need not exist.

    That is the environment's RAM_STUDIO_HOME, else the user's data folder of the system.
    """
    import platformdirs

    home = os.environ.get("RAM_STUDIO_HOME")
    return Path(home) if home else platformdirs.user_data_path("ram-studio", False)
