"""A user's visit of the app in a browser, and what is looked for on pages."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

WAIT_MS = 300_000
"""How long anything in a page may take before a test gives up: machines differ, and are busy."""


# What is queued in a page is done before it is idle. After a click or a key Chromium calls no page
# idle before a frame, which is drawn where it is asked for, if nothing changed. Where none is drawn
# its turn comes after a second, behind what was queued before.
_IDLE = """() => new Promise((done) => {
  setTimeout(() => {
    requestAnimationFrame(() => {});
    requestIdleCallback(() => done(), { timeout: 1000 });
  }, 100);
})"""


@functools.cache
def _axe_script() -> str:
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")


# Faults by axe-core's rules, in the theme that is shown; of the other one those of color. Where the
# system forces its colors, which are the same in both, those of color alone.
_FAULTS = """async ([root, isForced]) => {
  const isEndless = (a) => a.effect.getTiming().iterations === Infinity;
  const run = async (options) => {
    await Promise.all(document.getAnimations()
      .filter((a) => !isEndless(a)).map((a) => a.finished.catch(() => {})));
    return (await axe.run(root, { resultTypes: ["violations"], ...options })).violations;
  };
  const colors = { runOnly: { type: "tag", values: ["cat.color"] } };
  if (isForced) return run(colors);
  const here = await run({});
  document.body.classList.toggle("dark");
  const there = await run(colors);
  document.body.classList.toggle("dark");
  return [...here, ...there];
}"""

# What can be pressed and is nearer than 40 px to something else; links within a text may be.
_SMALL = """(root) => {
  const kinds = "button, input, select, textarea, summary, [role=slider]";
  const found = [];
  for (const node of document.querySelector(root).querySelectorAll(kinds)) {
    const isSeen = node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const isMeant = !node.disabled && !node.closest("[inert], .unseen") && !node.matches(".link");
    if (!isSeen || !isMeant) continue;
    node.scrollIntoView({ block: "center", inline: "center" });
    const label = node.closest("label");
    const isTicked = node.matches("[type=radio], [type=checkbox]");
    const box = (isTicked && label ? label : node).getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const isOwn = (hit) => hit && (hit === node || node.contains(hit)
      || (label && hit.closest("label") === label));
    const reach = (dx, dy) => {
      let n = 0;
      while (n < 24 && isOwn(document.elementFromPoint(x + dx * n, y + dy * n))) n += 1;
      return n;
    };
    const [wide, tall] = [reach(1, 0) + reach(-1, 0) - 1, reach(0, 1) + reach(0, -1) - 1];
    if (Math.min(wide, tall) < 39) {
      const name = node.getAttribute("aria-label") || node.textContent.trim() || node.type;
      found.push(`${node.tagName} ${node.id} ${name}: ${wide} x ${tall}`);
    }
  }
  return found;
}"""


# What is read from the last row of a room: no text below 20 px.
_SMALL_TEXT = """() => {
  const small = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    const text = walk.currentNode.textContent.trim();
    const isSeen = node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const { width, height } = node.getBoundingClientRect();
    const isLeftOut = node.closest(".unseen, .ex-head, #top, script, style");
    if (!text || !isSeen || !width || !height || isLeftOut) continue;
    // An SVG's text is as large as its picture is drawn.
    const svg = node.closest("svg");
    const scale = svg?.viewBox.baseVal?.width
      ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(getComputedStyle(node).fontSize) * scale;
    if (size < 20) small.push([size, text]);
  }
  return small;
}"""


Fault = tuple[str, list[object], str]
"""What axe says of a fault: its rule, where, and how bad."""


def find_faults(page: object, root: str, *, forced: bool = False) -> list[Fault]:
    """Return what axe finds below ``root``.

    forced: in colors that the system forces, on light and on dark ground, too.
    """
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(_axe_script())

    def found(*, is_forced: bool) -> list[Fault]:
        return [
            (fault["id"], [node["target"] for node in fault["nodes"]], fault["impact"])
            for fault in page.evaluate(_FAULTS, [root, is_forced])
        ]

    faults = found(is_forced=False)
    if forced:
        media = page.emulate_media
        is_dark = "() => matchMedia('(prefers-color-scheme: dark)').matches"
        before = "dark" if page.evaluate(is_dark) else "light"
        for scheme in ("light", "dark"):
            media(forced_colors="active", color_scheme=scheme)
            faults += found(is_forced=True)
        media(forced_colors="none", color_scheme=before)
    return faults


class Visit:
    """A page with everything it said and asked for, so that a test can require silence."""

    def __init__(
        self, context: object, url: str, size: tuple[int, int] = (1280, 800), **media: object
    ) -> None:
        self.url, self.is_silent = url, True
        self.page = context.new_page()
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        # What moves is painted sixty times a second by a processor that tests wait for.
        self.page.emulate_media(**{"reduced_motion": "reduce", **media})
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._under_way: list[object] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("requestfinished", self._answered)
        self.page.on("requestfailed", self._answered)

    def _console(self, message: object) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _asked(self, request: object) -> None:
        url = request.url
        self.requests.append(url)
        if url.startswith("http") and "/heartbeat/" not in url:
            self._under_way.append(request)

    def _answered(self, request: object) -> None:
        with contextlib.suppress(ValueError):
            self._under_way.remove(request)

    def settle(self) -> None:
        """Return once the page waits for no answer and has nothing left to draw.

        Not while a job runs: its news are an answer that is under way.
        """
        asked = -1
        while self._under_way or asked != len(self.requests):
            asked = len(self.requests)
            self.page.evaluate(_IDLE)

    def open(self, query: str = "?step=load") -> None:
        """Open the app, not only its landing page, and wait until its first answer came."""
        self.page.goto(self.url + query)
        self.page.wait_for_selector("#to-load[aria-current=step], #to-tune[aria-current=step]")

    def go(self, step: str) -> None:
        """Press a step's button and wait until it is open and all of it has come."""
        self.page.click(f"#to-{step}")
        self.page.wait_for_selector(f"#to-{step}[aria-current=step]")
        self.settle()

    def write(self, element: str, value: object) -> None:
        """Write into a field, a number or a text, and leave it."""
        field = self.page.locator(f"#{element} :is(input[type=number], input[type=text], textarea)")
        field.first.fill(str(value))
        field.first.press("Tab")

    def download(self, button: str) -> Path:
        """Press what takes a file home; return where it lies."""
        with self.page.expect_download() as download:
            self.page.click(button)
        return Path(download.value.path())

    def check_width(self, what: str = "") -> None:
        """Fail where the page is wider than its window."""
        wide = "() => document.documentElement.scrollWidth - window.innerWidth"
        assert self.page.evaluate(wide) <= 0, what

    def use_example(self) -> None:
        """Press the big button and wait for the canvas."""
        self.page.click("[data-opens=shared-style]")
        self.page.wait_for_selector("[data-agent]", state="visible")

    def open_layer(self) -> None:
        """Open the microscope at layer 1 by keyboard: the third row from the top."""
        self.page.focus(".cv-rows")
        for _ in range(3):
            self.page.keyboard.press("ArrowDown")
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector(".scope-cell[aria-selected]:focus")

    def choose(self, box: str, option: str) -> None:
        """Choose an option of a drop-down list, again if the list closed under the click."""
        field = self.page.locator(f"{box} input").first
        while option not in field.input_value():
            field.blur()
            self.settle()
            field.click()
            self.page.click(f"[role=option]:has-text('{option}')")
            self.settle()

    def set_slider(self, name: str, value: float) -> None:
        """Pull a slider of Gradio's to a value."""
        self.page.evaluate(
            """([id, value]) => {
              const input = document.querySelector(`#${id} input[type=range]`);
              Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")
                .set.call(input, value);
              input.dispatchEvent(new Event("input", {bubbles: true}));
            }""",
            [name, value],
        )

    def stop(self, button: str, status: str, after: str = "body") -> None:
        """Press a Stop as soon as it and what is waited for are there, until it is said."""
        # In one step of the page: work may end, and news take the button away, between two. Again
        # while it is there: Gradio draws a button some time before it listens to it.
        self.page.wait_for_function(
            "([button, status, after]) => { const found = document.querySelector(button);"
            " if (document.querySelector(after)) found?.click();"
            " return document.querySelector(status)?.textContent.match(/stopped/i); }",
            arg=[button, status, after],
            polling=250,
        )

    def check_access(self, what: str, root: str = "html", *, forced: bool = False) -> None:
        """Fail on serious faults for those who cannot see, or see little, in light and dark.

        forced: in colors that the system forces, too.
        """
        self.settle()
        faults = find_faults(self.page, root, forced=forced)
        serious = [told for *told, impact in faults if impact in ("serious", "critical")]
        assert serious == [], what

    def check_targets(self, root: str) -> None:
        """Fail where a finger has less than 40 px of something below ``root``."""
        self.settle()
        assert self.page.evaluate(_SMALL, root) == [], root

    def check_text_size(self) -> None:
        """Fail where a projector would show a text too small for the last row."""
        assert self.page.evaluate(_SMALL_TEXT) == []

    def cards(self) -> dict[str, dict[str, str]]:
        """Return the numbers of each agent's row, its data attributes."""
        return self.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('[data-agent]')]"
            ".map(e => [e.dataset.agent, {...e.dataset}]))"
        )

    def check_silence(self) -> None:
        """Fail on console errors and on requests that left this machine."""
        assert not self.is_silent or self.complaints == []
        foreign = [
            url
            for url in self.requests
            if not url.startswith((self.url.rstrip("/"), "data:", "blob:"))
        ]
        assert foreign == []
