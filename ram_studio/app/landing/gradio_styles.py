"""Gradio's style sheets as one: its page asks for one or two a kind of component, thirty files.

Its scripts name the sheets of what they load next, and take a link that stands in the page already
for a sheet that is there. So the page links them switched off, which fetches nothing, and loads one
answer with their text. Of a Gradio that is built otherwise none is found, and it loads its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response

_FRONTEND = Path(gr.__file__).parent / "templates/frontend"
_ENTRIES = re.compile(r"\./assets/([\w.-]+\.(?:js|css))")
_FILES = re.compile(r"m\.f=(\[[^\]]*\])")
_LOADS = re.compile(r"import\(`\./([\w.-]+)`\)[^`]*?__vite__mapDeps\(\[([\d,]*)\]")
_KIND = re.compile(r"\b(\w+):\{[^{}]*?\bcomponent:\(\)=>[^`]*`\./([\w.-]+)`")


def _script(name: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return what a script loads later with what each of it needs, and its kinds' scripts."""
    text = (_FRONTEND / "assets" / name).read_text(encoding="utf-8")
    found = _FILES.search(text)
    files = [Path(file).name for file in json.loads(found[1])] if found else []
    loads = {
        script: [files[int(i)] for i in numbers.split(",") if i]
        for script, numbers in _LOADS.findall(text)
    }
    return loads, dict(_KIND.findall(text))


def style_names(kinds: Collection[str]) -> list[str]:
    """Return the sheets that a page with these kinds of components loads."""
    needed = _ENTRIES.findall((_FRONTEND / "index.html").read_text(encoding="utf-8"))
    starts = [_script(name)[0] for name in needed if name.endswith(".js")]
    first = {name: needs for start in starts for name, needs in start.items()}
    needed += [name for needs in first.values() for name in needs]
    for script in first:
        loads, scripts = _script(script)
        used = [scripts[kind] for kind in sorted(kinds) if kind in scripts] if scripts else loads
        needed += [name for later in used for name in loads.get(later, ())]
    return [name for name in dict.fromkeys(needed) if name.endswith(".css")]


class GradioStyles:
    """The sheets of a page as one answer.

    kinds: of the page's components. names: the sheets in it; address: where it is, with its text's
    digest, so that a browser keeps it for good.
    """

    def __init__(self, kinds: Collection[str]) -> None:
        self.names = style_names(kinds)
        sheets = (_FRONTEND / "assets" / name for name in self.names)
        self._text = "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
        self.address = f"ram/gradio.css?{hashlib.sha256(self._text.encode()).hexdigest()[:16]}"

    def send(self, request: Request) -> Response:
        """Serve it."""
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(self._text, media_type="text/css", headers=headers)
