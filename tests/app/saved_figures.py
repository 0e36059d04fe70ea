"""Every figure of Tune's details as a file, told by one table."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

from ram_studio.algorithm.figures.catalog import FIGURES as DRAWN

FIGURES = {
    "Stored after rounding, by layer": "[data-part=rounding-chart] path",
    "Shared weights, by layer": "[data-part=relations-chart] rect.bar",
    **{figure.title: f"#chart-{name} .js-plotly-plot svg" for name, figure in DRAWN.items()},
    "Layer by module": "#chart-map .js-plotly-plot svg",
}
"""Every figure of the details, and what is there once it is drawn."""

AS_PNG = ("Stored after rounding, by layer", "Overlap of agents", "Layer by module")
"""One of each kind is saved as PNG too, which is its SVG painted: ours, marks, and an image."""


def save_every_figure(it) -> None:
    """Save each figure of the details as SVG and as PNG, and look at what comes."""
    page = it.page
    page.click("#open-details")
    for title, drawn in FIGURES.items():
        # There, if not tall: where nothing conflicts, a bar has no height.
        page.wait_for_selector(f".cv-details {drawn}", state="attached")
        it.settle()
        for kind in ("SVG", "PNG") if title in AS_PNG else ("SVG",):
            with page.expect_download() as download:
                page.click(f".cv-details [aria-label='Save {title} as {kind}']")
            saved = Path(download.value.path()).read_bytes()
            name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
            assert download.value.suggested_filename == f"ram-{name}.{kind.lower()}"
            if kind == "SVG":
                # Stands by itself: no style of the page, nothing fetched; and it has marks.
                root = ElementTree.fromstring(saved)
                assert title in "".join(root.itertext())
                marks = [node.tag.rpartition("}")[2] for node in root.iter()]
                assert {"path", "rect", "image"} & set(marks[2:]), title
                assert b'href="http' not in saved
                if title == "Overlap of agents":  # blue is only what one agent changed
                    assert b"rgb(42, 91, 215)" in saved
                size = [float(root.get(side)) for side in ("width", "height")]
            else:
                assert saved.startswith(b"\x89PNG\r\n\x1a\n")
                # Twice as many pixels, and more than one color.
                assert list(struct.unpack(">II", saved[16:24])) == [2 * x for x in size]
                assert len(set(zlib.decompress(_image_data(saved)))) > 10, title
    assert "stored" in page.text_content("#details-stored")
    page.keyboard.press("Escape")


def _image_data(png: bytes) -> bytes:
    at, data = 8, b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    return data
