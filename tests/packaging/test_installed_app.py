"""The wheel in an environment of its own: the command answers and the app opens the example."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from gradio_client import Client
from installation import Installation, run, running_app

from ram_studio import __version__
from ram_studio.resources import asset_path


@pytest.fixture(scope="module")
def address(installation: Installation) -> Iterator[str]:
    """Where the app answers; it must be gone once it was asked to stop."""
    with running_app(installation) as found:
        yield found
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", urlsplit(found).port), timeout=5)


@pytest.fixture(autouse=True)
def _what_the_app_said(installation: Installation) -> Iterator[None]:
    """Print the app's own lines, which pytest shows when the test failed."""
    yield
    for log in sorted(installation.work.glob("app-*.log")):
        print(log.read_text(encoding="utf-8"))


def test_the_command_and_the_module_say_their_version(installation: Installation) -> None:
    for command in ((installation.command,), (installation.python, "-m", "ram_studio")):
        answer = run(*command, "--version", cwd=installation.work).stdout
        assert answer.strip() == f"ram-studio {__version__}"


def test_help_lists_the_commands(installation: Installation) -> None:
    answer = run(installation.command, "--help", cwd=installation.work).stdout
    for command in ("app", "analyze", "preview", "merge", "verify", "evaluate"):
        assert command in answer


def test_the_page_carries_its_script_and_style(address: str) -> None:
    with urllib.request.urlopen(address, timeout=30) as answer:
        page = answer.read().decode()
    assert "window.RAM" in page
    style = asset_path("app.css").read_text(encoding="utf-8")
    selectors = set(re.findall(r"^(#[\w-]+|\.[\w-]+) \{", style, flags=re.MULTILINE))
    assert len(selectors) > 5
    assert not [selector for selector in selectors if selector not in page]


def test_the_example_can_be_tuned_and_merged(address: str, installation: Installation) -> None:
    client = Client(address, verbose=False)
    try:
        preview = client.predict("example", api_name="/preview")
        assert list(preview["agents"]) == ["coding", "tool", "memory"]
        for numbers in preview["agents"].values():
            assert numbers["unique"] + numbers["shared"] == numbers["active"] > 0
            assert numbers["lambda"] >= 1.0

        merged = client.predict("example", "ram+", api_name="/merge")
    finally:
        client.close()
    out = Path(merged["out"])
    assert not out.is_relative_to(installation.bin.parent), "merges are kept out of the package"
    passport = json.loads((out / "ram_studio.json").read_text(encoding="utf-8"))
    assert __version__ in json.dumps(passport)
    for name, numbers in merged["agents"].items():
        assert numbers["lambda"] == pytest.approx(preview["agents"][name]["lambda"], rel=1e-12)
