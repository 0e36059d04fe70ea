"""The single table of colors: for the page's CSS variables, exported files, theme and figures.

Contrast (WCAG): every agent color keeps 3:1 or more against both page backgrounds it is used on,
and each agent also has a marker shape and its name, so color is never the only sign.
"""

from __future__ import annotations

from collections.abc import Mapping

from ram_studio.algorithm.figures.palette import OVERLAP

AGENTS = (
    ("#b814a0", "#d93fb0"),
    ("#1f6157", "#53eaad"),
    ("#e73c00", "#ff6433"),
    ("#a66af0", "#cdbfff"),
    ("#3aa2b1", "#beedff"),
    ("#5a2a10", "#9a6238"),
    ("#787f5c", "#fbf9a0"),
    ("#3a1f68", "#7f5ae0"),
)
"""Agent colors (on white, on dark): they, unique and shared differ in all color vision types."""

AGENTS_LIGHT, AGENTS_DARK = zip(*AGENTS, strict=True)

SHAPE_PATHS = (
    "M6 1.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6Z",
    "M1.6 1.6h8.8v8.8H1.6Z",
    "M6 .8 11.4 10.6H.6Z",
    "M6 .3 11.7 6 6 11.7.3 6Z",
    "M2.6.8 6 4.2 9.4.8l1.8 1.8L7.8 6l3.4 3.4-1.8 1.8L6 7.8l-3.4 3.4L.8 9.4 4.2 6 .8 2.6Z",
    "m6 .3 1.7 3.7 4 .5-3 2.7.8 4L6 9.2l-3.5 2 .8-4-3-2.7 4-.5Z",
    "M6 .6 11.6 4.7 9.5 11.2h-7L.4 4.7Z",
    "M3.1 1h5.8l2.9 5-2.9 5H3.1L.2 6Z",
)
"""The marker of each agent in the page: outlines in a 12 by 12 box."""

PAGE: Mapping[str, tuple[str, str]] = {
    # name: (on white, on dark)
    "ink": ("#16202e", "#e8edf4"),
    "muted": ("#566171", "#a6b1c0"),
    "line": ("#dfe4ea", "#2c3543"),
    "hair": ("#eceff3", "#222a36"),
    "panel": ("#ffffff", "#141a23"),
    "sunken": ("#f1f3f6", "#1c2430"),
    "page": ("#f7f8fa", "#0c1017"),
    # Accents use the text color, so that blue only means unique.
    "accent": ("#16202e", "#e8edf4"),
    "accent-ink": ("#ffffff", "#0c1017"),
    "unchanged": ("#d3d8df", "#3a4351"),
    "outline": ("#aab2bd", "#6b7687"),
    "left": ("rgba(86, 97, 113, .075)", "rgba(166, 177, 192, .085)"),
    "unique": ("#2a5bd7", "#6f9dff"),
    "unique-soft": ("#c3d2f6", "#2b3f70"),
    "unique-ink": ("#2350c0", "#8fb3ff"),
    "shared": ("#d9981a", "#f2bf4a"),
    "shared-soft": ("#f2ddb3", "#5b4a22"),
    "shared-ink": ("#8a5b00", "#f2c765"),
    "good": ("#0b6e4f", "#4fd3a5"),
    "good-soft": ("#e3f4ed", "#12332a"),
    "bad": ("#b3261e", "#ff9a90"),
    "bad-soft": ("#fdecea", "#3b1a18"),
    # Not amber, which means shared.
    "warn": ("#16202e", "#e8edf4"),
    "warn-soft": ("#e9ecf1", "#252f3d"),
}
"""Shared on white has less than 3:1, so its number is always shown too."""

FORCED: Mapping[str, str] = {
    **dict.fromkeys(("ink", "muted", "line", "outline", "good", "bad", "warn"), "CanvasText"),
    **dict.fromkeys(("unique-ink", "shared-ink"), "CanvasText"),
    **dict.fromkeys(("panel", "sunken", "page", "good-soft", "bad-soft", "warn-soft"), "Canvas"),
    **dict.fromkeys(("unique-soft", "shared-soft"), "Canvas"),
    **dict.fromkeys(("hair", "unchanged", "left"), "GrayText"),
    "accent": "Highlight",
    "accent-ink": "HighlightText",
}
"""For systems with forced colors: figures use them, as text does."""


def css_variables() -> str:
    """Return the CSS rules that define every color for the light, dark and forced page."""

    def block(selector: str, side: int, agents: tuple[str, ...]) -> str:
        rules = [f"--ram-{name}: {pair[side]};" for name, pair in PAGE.items()]
        rules += [f"--ram-agent-{i}: {color};" for i, color in enumerate(agents)]
        rules += [f"--ram-overlap-{i}: {color};" for i, color in enumerate(OVERLAP)]
        return f"{selector} {{ {' '.join(rules)} }}"

    forced = " ".join(f"--ram-{name}: {color};" for name, color in FORCED.items())
    rules = block(":root", 0, AGENTS_LIGHT), block(".dark", 1, AGENTS_DARK)
    return "\n".join((*rules, f"@media (forced-colors: active) {{ :root, .dark {{ {forced} }} }}"))
