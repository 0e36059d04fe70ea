"""Above the canvas: what to watch in a shipped set, or what to know of one's own models.

The figures of a shipped set's sentence are read from its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app import templates
from ram_studio.app.boxes import html
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import REAL, TITLES, record_of
from ram_studio.app.session.shared import Shared


def best_rival(seed: dict[str, Any]) -> str:
    """Return the best of all methods whose settings were tuned on other questions.

    seed: of a record, with its rows, and the settings that were chosen.
    """
    return max(seed["chosen"], key=lambda name: seed["rows"][name]["average"])


@lru_cache(maxsize=len(TITLES))
def watch_html(set_name: str) -> Markup:
    """Return the sentence of a shipped set."""
    record = record_of(set_name)
    if set_name == REAL:
        return templates.render("load/watch_real.html.j2", **_real_facts(record))
    seed = record.get("seeds", {}).get(str(record["seed"]), {})
    return templates.render(
        "load/watch.html.j2",
        folder=set_name,
        scores=record["scores"],
        merges=record["merges"],
        share=max(agent["unique_share"] for agent in record["agents"].values()),
        n=record["evaluation"]["n"],
        rows=seed.get("rows"),
        rival=best_rival(seed) if seed.get("chosen") else None,
    )


def _real_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what there is to know of the real model's set: its scores, and how it was made."""
    every = {**record["scores"], **record["merges"]}
    means = {name: fmean(own.values()) for name, own in every.items()}
    return {
        **record,
        "agents": [name for name in record["scores"] if name != "base"],
        "means": means,
        "seeds": {run["settings"].get("seed", 0) for run in record["training"].values()},
    }


def caution_html(cautions: Sequence[str]) -> Markup:
    """Return the first thing to know before a merge, and where the others stand."""
    if not cautions:
        return Markup("")
    return templates.render("load/caution.html.j2", first=cautions[0], more=len(cautions) - 1)


def build(shared: Shared) -> None:
    """Lay the sentence out where one stands, shown while there is one."""
    box = html("", elem_id="watch", visible=False)

    def show(session: Session) -> dict[Any, Any]:
        loaded, text = session.loaded, Markup("")
        if loaded is not None:
            is_shipped = loaded.set_name is not None
            text = watch_html(loaded.set_name) if is_shipped else caution_html(loaded.cautions)
        return {box: gr.update(value=text, visible=bool(text))}

    shared.loaded.listen([box], show)
