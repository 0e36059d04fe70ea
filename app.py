"""Run RAM Studio's app: ``python app.py [--host H] [--port P] [--models-dir DIR]``.

Also the entry point of a Hugging Face Space.
"""

import argparse
import sys

from ram_studio.app import Settings, launch
from ram_studio.errors import RamStudioError


def main(arguments: list[str] | None = None) -> int:
    """Parse the flags, launch, return the exit code."""
    parser = argparse.ArgumentParser(description="RAM Studio in the browser.")
    parser.add_argument("--host", help="address (default GRADIO_SERVER_NAME, else 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port (default GRADIO_SERVER_PORT, else 7860)")
    parser.add_argument("--models-dir", help="folder whose checkpoints the app offers")
    flags = parser.parse_args(arguments)
    try:
        launch(
            Settings.from_environment(host=flags.host, port=flags.port, models_dir=flags.models_dir)
        )
    except (RamStudioError, OSError) as error:
        print(f"ram-studio: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
