"""Live preview: from a key press on the line of epsilon to the painted canvas, in a real browser.

The app runs in a separate process; a headless Chromium opens Tune and presses arrow keys on the
line, 60 times per profile. A move is timed in the page, from the key event's time stamp to the
first task after the frame in which an agent's row shows the new epsilon. An empty page that only
writes one number is measured too: no page can be faster on that machine.

    python benchmarks/preview.py [--moves 60] [--browser PATH]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measuring import ROOT, machine_facts, table

# The app of the tests.
sys.path.append(str(ROOT / "tests"))
from app_process import running_app

LARGE = ((28, 5), (80, 8))
"""Layers and agents of the made-up profiles."""
EMPTY = "an empty page"
MOST_BEYOND_MS = 15

WATCH = """() => {
  const slider = document.querySelector("#epsilon-line");
  const card = document.querySelector("[data-agent]");
  slider.addEventListener("keydown", (event) => {
    window.painted = new Promise((done) => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => done(performance.now() - event.timeStamp);
      // The row changes while a frame is prepared; a message sent there arrives after its paint.
      const observer = new MutationObserver(() => {
        observer.disconnect();
        channel.port2.postMessage(0);
      });
      observer.observe(card, { attributes: true, attributeFilter: ["data-epsilon"] });
    });
  });
  slider.focus();
}"""

EMPTY_PAGE = """<input id="epsilon-line" type="range" max="60" value="30">
<p data-agent="none" data-epsilon="30">0</p><script>
  const card = document.querySelector("[data-agent]");
  document.querySelector("input").addEventListener("input", (event) => {
    requestAnimationFrame(() => { card.dataset.epsilon = card.textContent = event.target.value; });
  });
</script>"""
"""The lower limit of any page: one number changes in the next frame."""


def large_profile(layers: int, agents: int) -> dict:
    """Return the client profile of an artificial analysis, with artificial sums."""
    from ram_studio.algorithm.analysis import Analysis, TensorEntry
    from ram_studio.algorithm.epsilon_grid import BIN_COUNT, EPSILON_GRID
    from ram_studio.algorithm.overlap import OverlapCounts
    from ram_studio.app.session.sets import build_profile

    random = np.random.default_rng(0)
    names = [f"model.layers.{k}.mlp.up_proj.weight" for k in range(layers)]
    numel = np.full(len(names), 1 << 22)
    # Each pattern's count falls along the grid; the rest changed in no agent.
    falling = np.exp(-np.linspace(0, 6, len(EPSILON_GRID)))[:, None]
    patterns = 2**agents - 1
    share = random.uniform(0, 1 / patterns, (len(names), 1, patterns))
    changed = np.floor(numel[:, None, None] * share * falling).astype(np.int64)
    unchanged = numel[:, None, None] - changed.sum(-1, keepdims=True)
    analysis = Analysis(
        agents=tuple(f"agent {t + 1}" for t in range(agents)),
        tensors=tuple(TensorEntry(n, int(k)) for n, k in zip(names, numel, strict=True)),
        counts=OverlapCounts.from_patterns(numel, np.concatenate([unchanged, changed], axis=-1)),
        magnitudes=np.zeros((agents, BIN_COUNT), dtype=np.int64),
        dtypes={"base": "BF16"},
    )
    profile = build_profile(analysis)
    counts = np.array(profile["overlap"], dtype=float)
    profile |= {
        "energy": (counts / counts[0].sum(-1)[None, :, None]).tolist(),
        "cross": np.zeros_like(counts).tolist(),
        "norm2": [1.0] * agents,
        # Factors of own and shared parts: a + sum of lambda times b.
        "parts": dict.fromkeys(("own", "shared"), [[[0.5, *[0.1] * agents]] * agents] * 58),
        "sum": {"own": [1.0] * agents, "shared": [2.0] * agents},
    }
    return profile


def find_browser() -> str:
    """Return the browser that scripts/chromium.py finds."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "chromium.py")],
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


def time_moves(page, moves: int) -> list[float]:
    """Press the arrow keys on the slider and return the milliseconds of each move."""
    page.evaluate(WATCH)
    found = []
    for number in range(moves + 2):
        key = "ArrowRight" if number % 30 < 15 else "ArrowLeft"
        page.keyboard.press(key)
        found.append(page.evaluate("() => window.painted"))
        page.wait_for_timeout(30)
    return found[2:]  # the first moves compile the page's code


def main() -> None:
    """Read the command line, measure both profiles, and print the table."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--browser", type=Path, help="Chromium; found or fetched by default")
    options = parser.parse_args()
    browser_path = str(options.browser or find_browser())
    profiles = {EMPTY: None, "example": None}
    profiles |= {f"{n} layers, {m} agents": large_profile(n, m) for n, m in LARGE}
    rows: list[list[str]] = []
    empty = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        running_app(
            [sys.executable, ROOT / "app.py"],
            Path(folder),
            {**os.environ, "TMPDIR": folder, "PYTHONPATH": str(ROOT)},
        ) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, profile in profiles.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            if name == EMPTY:
                page.set_content(EMPTY_PAGE)
            else:
                page.goto(url + "?set=shared-style")
                page.wait_for_selector("[data-agent]", state="visible", timeout=60_000)
            if profile is not None:
                page.evaluate("(profile) => RAM.setProfile(profile)", profile)
                agents = len(profile["agents"])
                wanted = f"document.querySelectorAll('[data-agent]').length === {agents}"
                page.wait_for_function(wanted)
            found = sorted(time_moves(page, options.moves))
            p95 = found[max(0, -(-95 * len(found) // 100) - 1)]
            empty = empty or p95
            beyond = "" if name == EMPTY else f"{p95 - empty:+.0f}"
            rows.append([name, f"{len(found)}", f"{statistics.median(found):.0f}", f"{p95:.0f}"])
            rows[-1].append(beyond)
            page.close()
        version = browser.version
        browser.close()
    print(table(("profile", "moves", "p50 ms", "p95 ms", "p95 beyond the empty page's, ms"), rows))
    print(f"\nAsked: at most {MOST_BEYOND_MS} ms beyond the empty page's.")
    print(f"Chromium {version}, headless. {machine_facts()}")


if __name__ == "__main__":
    main()
