"""``ram-studio app``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def app(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on [default: GRADIO_SERVER_NAME, else 127.0.0.1]."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to listen on [default: GRADIO_SERVER_PORT, else 7860]."),
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(help="Folder whose checkpoints the app offers.")
    ] = None,
) -> None:
    """Open the app in the browser: load, tune, merge, check."""
    from ram_studio.app import Settings, launch

    launch(Settings.from_environment(host=host, port=port, models_dir=models_dir))
