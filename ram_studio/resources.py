"""Where files are: those shipped (example agents, JavaScript, CSS), and those of the user."""

from __future__ import annotations

import os
from pathlib import Path

from ram_studio.errors import CheckpointError

_PACKAGE = Path(__file__).resolve().parent


def asset_path(*parts: str) -> Path:
    """Return the path of a shipped file or folder.

    A wheel carries assets/ inside the package; a clone (also an editable install) has it beside
    the package.

    Raises: CheckpointError when the file was not shipped with this installation.
    """
    for root in (_PACKAGE / "assets", _PACKAGE.parent / "assets"):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise CheckpointError(
        f"The shipped file assets/{'/'.join(parts)} is missing from this installation; "
        "install the package again."
    )


def user_folder() -> Path:
    """Return where a user's answers and list of merges are kept; it need not exist.

    That is the environment's RAM_STUDIO_HOME, else the user's data folder of the system.
    """
    import platformdirs

    home = os.environ.get("RAM_STUDIO_HOME")
    return Path(home) if home else platformdirs.user_data_path("ram-studio", False)
