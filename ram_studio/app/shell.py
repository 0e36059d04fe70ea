"""What surrounds the steps: the head, the devices of this machine, how the page is launched."""

from __future__ import annotations

import importlib.util
import json
from html import escape
from typing import Any

import gradio as gr

from ram_studio.app import palette, theme, wording
from ram_studio.app.check import wording as check_wording
from ram_studio.app.settings import Settings
from ram_studio.resources import asset_path

SCRIPTS = ("numbers.js", "nodes.js", "bars.js", "details.js", "live.js", "microscope.js", "page.js")
"""The page's scripts under assets/, in the order in which they are loaded."""

STYLES = ("app.css", "check.css")
"""The page's style sheets under assets/."""

_THEME_ICON = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16Zm0 '
    '1.6v12.8a6.4 6.4 0 0 1 0-12.8Z"/></svg>'
)


def head_html() -> str:
    """Return the page's head: title, tagline, the button for light and dark."""
    return (
        f'<div class="head"><h1>{escape(wording.TITLE)}</h1><p>{escape(wording.TAGLINE)}</p>'
        f'<button id="open-history" type="button" data-open="history">{check_wording.HISTORY}'
        "</button>"
        f'<button id="theme" type="button" title="{wording.THEME}" aria-label="{wording.THEME}">'
        f"{_THEME_ICON}</button></div>"
    )


def devices() -> list[tuple[str, str]]:
    """Return the choices of the device box; CUDA only where torch is there and sees a GPU."""
    choices = [("Automatic", "auto"), ("CPU", "cpu")]
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            choices.append(("GPU (CUDA)", "cuda"))
    return choices


def launch_options(app: gr.Blocks, settings: Settings) -> dict[str, Any]:
    """Return the arguments of ``gr.Blocks.launch``: looks, script, what strangers may not do."""
    text = json.dumps(wording.LIVE).replace("</", "<\\/")
    css = "\n".join(asset_path(name).read_text(encoding="utf-8") for name in STYLES)
    shapes = json.dumps(palette.SHAPE_PATHS)
    scripts = (asset_path(name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = "\n".join(scripts).replace("</script", "<\\/script")
    return {
        "server_name": settings.host,
        "server_port": settings.port,
        "theme": theme.build_theme(),
        # In the head as it is: launch(css=) rewrites selectors, those in @media wrongly.
        "head": f"<style>{palette.css_variables()}\n{css}</style><script>window.RAM_TEXT = {text}; "
        f"window.RAM_SHAPES = {shapes};\n{script}</script>",
        "show_error": False,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": "1mb",
        "footer_links": ["api", "gradio"],
        # The sessions' folders, whose names cannot be guessed.
        "allowed_paths": [str(app.ram_page.workspace.root)],
    }
