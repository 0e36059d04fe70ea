"""Find or install a Chromium for the browser tests, and print its path.

Tried in this order:

1. the path in RAM_STUDIO_BROWSER;
2. a Chromium or Chrome on PATH;
3. the browser that Playwright downloaded earlier;
4. Debian's chromium through apt, for root on a machine that has apt;
5. Playwright's own download.

Each candidate is started once with --version: some distributions ship a command that only prints
where to get the browser. Everything but the path goes to standard error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEBIAN_PACKAGES = ("chromium", "fonts-dejavu-core")
ADVICE = (
    "error: no browser for the tests: none was found, and neither apt nor Playwright could install "
    "one. Install Chromium or Chrome so that `chromium` or `google-chrome` is on PATH, or give its "
    "path: make test RAM_STUDIO_BROWSER=/path/to/chrome"
)


def find_chromium() -> Path | None:
    """Return the path of a browser that starts, or None; installs nothing."""
    asked = os.environ.get("RAM_STUDIO_BROWSER")
    # Playwright is imported where nothing else starts: it takes half a second.
    known = [*(partial(shutil.which, name) for name in COMMANDS), _playwright_path]
    for find in [lambda: asked] if asked else known:
        if (path := find()) and _starts(path):
            return Path(path)
    return None


def _starts(path: str) -> bool:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _playwright_path() -> str | None:
    """Return the path of Playwright's own Chromium, downloaded or not."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


def _run(*command: str) -> bool:
    """Run a command with its output on standard error; return whether it succeeded."""
    print("+", *command, file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, stdout=sys.stderr, stdin=subprocess.DEVNULL, env=environment, check=False
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return False
    return done.returncode == 0


def install_from_debian() -> None:
    """Install Debian's chromium, when this is root on a machine with apt."""
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    _run("apt-get", "update")  # a failing third-party list may not matter: try the install anyway
    _run("apt-get", "install", "--yes", "--no-install-recommends", *DEBIAN_PACKAGES)


def install_from_playwright() -> None:
    """Download Playwright's own Chromium (for root with the system libraries it needs)."""
    _run(sys.executable, "-m", "playwright", "install", "chromium")
    if os.name == "posix" and os.geteuid() == 0 and find_chromium() is None:
        _run(sys.executable, "-m", "playwright", "install-deps", "chromium")


def main() -> int:
    if os.environ.get("RAM_STUDIO_BROWSER") and find_chromium() is None:
        print(
            f"error: RAM_STUDIO_BROWSER is {os.environ['RAM_STUDIO_BROWSER']}, which does not "
            "start; give the path of Chromium or Chrome.",
            file=sys.stderr,
        )
        return 1
    for install in (None, install_from_debian, install_from_playwright):
        if install is not None:
            install()
        if path := find_chromium():
            print(path)
            return 0
    print(ADVICE, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
