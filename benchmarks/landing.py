"""The landing page: requests of a first visit, and its first paint.

The app and an empty Gradio page run in separate processes. A headless Chromium with an empty cache
opens each in turn; requests and transferred bytes are counted until the page is idle. The first
paint is the browser's first contentful paint. After a pointer move, Gradio's scripts and all panels
load behind the landing page.

    python benchmarks/landing.py [--visits 5] [--query '?step=load'] [--browser PATH] [--list]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from measuring import ROOT, machine_facts, table
from preview import find_browser

# The app of the tests.
sys.path.append(str(ROOT / "tests"))
from app_process import running_app

EMPTY = """
import gradio as gr
with gr.Blocks(analytics_enabled=False) as app:
    pass
app.launch(quiet=True, ssr_mode=False, footer_links=["gradio"])
"""
QUIET_MS = 1500
"""Milliseconds without a request after which a page is loaded."""

STREAM = "/heartbeat/"
"""Streams that stay open without data."""

READY = "#to-load[aria-current=step]"

PAINT = """() => performance.getEntriesByType("paint")
  .find((entry) => entry.name === "first-contentful-paint")?.startTime ?? NaN"""


class Opened(NamedTuple):
    """One visit: what was fetched, and the first paint in milliseconds. urls: with bytes."""

    requests: int
    nbytes: int
    paint: float
    urls: list[tuple[str, int]]


def visit(browser: Any, url: str, ready: str = "") -> Opened:
    """Open a page with an empty cache and return the measurements.

    ready: selector that shows that the app is loaded; the pointer moves, and it is awaited.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    asked: dict[str, str] = {}
    sizes: dict[str, int] = {}
    failed: set[str] = set()
    session.on(
        "Network.requestWillBeSent",
        lambda event: asked.update({event["requestId"]: event["request"]["url"]}),
    )
    session.on(
        "Network.loadingFinished",
        lambda event: sizes.update({event["requestId"]: int(event["encodedDataLength"])}),
    )
    session.on("Network.loadingFailed", lambda event: failed.add(event["requestId"]))
    page.goto(url)
    if ready:
        page.mouse.move(300, 300)
        page.wait_for_selector(ready, timeout=120_000)
    seen = -1
    while seen != len(asked) or any(
        STREAM not in u for i, u in asked.items() if i not in sizes and i not in failed
    ):
        seen = len(asked)
        page.wait_for_timeout(QUIET_MS)
    urls = [(u, sizes.get(i, 0)) for i, u in asked.items() if u.startswith("http")]
    paint = float(page.evaluate(PAINT))
    context.close()
    return Opened(len(urls), sum(size for _, size in urls), paint, urls)


def main() -> None:
    """Read the command line, measure, and print the table."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--query", default="", help="of the app's page")
    parser.add_argument("--browser", type=Path, help="Chromium; found or fetched by default")
    parser.add_argument("--list", action="store_true", help="print what the app's page fetches")
    options = parser.parse_args()
    names = ("an empty Gradio page", "the landing page", "and the app behind it")
    found: dict[str, list[Opened]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(options.browser or find_browser()), args=["--no-sandbox"]
        )
        folders = [Path(name) / "empty", Path(name) / "app"]
        for folder in folders:
            folder.mkdir()
        environment = {**os.environ, "TMPDIR": name, "PYTHONPATH": str(ROOT)}
        commands = ([sys.executable, "-c", EMPTY], [sys.executable, ROOT / "app.py"])
        with (
            running_app(commands[0], folders[0], environment) as empty,
            running_app(commands[1], folders[1], environment) as app,
        ):
            home = app + options.query
            pages = dict(zip(names, ((empty,), (home,), (home, READY)), strict=True))
            for page in pages.values():
                visit(browser, *page)  # warms the disk cache for the server's files
            for _ in range(options.visits):
                for kind, page in pages.items():
                    found[kind].append(visit(browser, *page))
        browser.close()
    print(f"{options.visits} visits in turns. {machine_facts()}")
    rows = [
        (
            kind,
            f"{statistics.median(v.requests for v in visits):.0f}",
            f"{statistics.median(v.nbytes for v in visits) / 1000:.0f}",
            f"{statistics.median(v.paint for v in visits):.0f}",
            f"{min(v.paint for v in visits):.0f} to {max(v.paint for v in visits):.0f}",
        )
        for kind, visits in found.items()
    ]
    print(table(("page", "requests", "kB", "first paint, ms", "of all visits"), rows))
    if options.list:
        empty_urls = {url.rpartition("/")[2] for url, _ in found[names[0]][-1].urls}
        for url, size in found[names[-1]][-1].urls:
            mark = " " if url.rpartition("/")[2] in empty_urls else "+"
            print(f"{mark} {size:8} {url[:150]}")


if __name__ == "__main__":
    main()
