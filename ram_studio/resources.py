"""Where the shipped files are: the example agents, the app's JavaScript and CSS."""

from __future__ import annotations

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
