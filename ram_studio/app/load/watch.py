"""The sentence above the canvas: on a shipped set, or a caution about the user's own models.

The numbers of a shipped set's sentence are read from its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app import templates
from ram_studio.app.boxes import html
from ram_studio.app.session.deep_link import method_title
from ram_studio.app.session.session import Session
from ram_studio.app.session.sets import REAL, TITLES, record_of, shipped_table
from ram_studio.app.session.shared import PageContext
from ram_studio.evals.report.comparison import Comparison, PairedCounts, holm


def best_rival(seed: dict[str, Any]) -> str:
    """Return the best of all methods whose settings were tuned on other questions.

    seed: of a record, with its rows and chosen settings.
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
        of_all=sum(a["density"] * a["unique_share"] for a in record["agents"].values()),
        share=max(agent["unique_share"] for agent in record["agents"].values()),
        n=record["evaluation"]["n"],
        rows=seed.get("rows"),
        rival=best_rival(seed) if seed.get("chosen") else None,
    )


def _real_facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts on the real model's set: its scores and training."""
    rival, table = record.get("rival"), shipped_table(REAL)
    versus: dict[str, Any] = {"rival": None}  # unknown without the table
    if rival is not None and table is not None:
        method, *settings = rival.split()
        parts = [method_title(method), *(pair.replace("=", " ") for pair in settings)]
        texts = record["evaluation"]["texts"]
        found = _against_ram_plus(rival, record["merges"], table, texts)
        versus = {"rival": rival, "against": found, "rival_title": ", ".join(parts)}
    return {
        **record,
        **versus,
        "agents": [name for name in record["scores"] if name != "base"],
        "means": _means({**record["scores"], **record["merges"]}),
        "other_seeds": {n: _means(own["merges"]) for n, own in record["other_seeds"].items()},
        "seeds": {run["settings"].get("seed", 0) for run in record["training"].values()},
    }


def _means(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(own.values()) for name, own in scores.items()}


def _against_ram_plus(
    rival: str, names: Iterable[str], table: Mapping[str, Any], texts: Mapping[str, int]
) -> Comparison:
    """Return the comparison of a merge with default RAM+ on all questions of a table.

    Corrected for all merges of the table (Holm). names: of its merges, in order. texts: their
    number by skill; questions about one text are adjacent.
    """
    n = table["n"]
    groups = [
        prompt.rpartition("\n")[0] if texts[skill] < n else prompt
        for place, skill in enumerate(table["domains"])
        for prompt in table["prompts"][place * n : (place + 1) * n]
    ]
    rows = [row["right"] for row in table["rows"] if row["kind"] == "merge"]
    rights = dict(zip(names, rows, strict=True))
    usual = rights.pop("ram+")
    pairs = {
        name: PairedCounts.of(
            ((a == "1", b == "1") for a, b in zip(right, usual, strict=True)), groups
        )
        for name, right in rights.items()
    }
    adjusted = dict(zip(pairs, holm([pair.p_value for pair in pairs.values()]), strict=True))
    return Comparison("skills", rival, "ram+", "merge", pairs[rival], adjusted[rival])


def caution_html(cautions: Sequence[str]) -> Markup:
    """Return the most serious caution before a merge, and where to find the others."""
    if not cautions:
        return Markup("")
    return templates.render("load/caution.html.j2", first=cautions[0], more=len(cautions) - 1)


def build(shared: PageContext) -> None:
    """Lay out the place of the sentence, visible while there is one."""
    box = html("", elem_id="watch", visible=False)

    def show(session: Session) -> dict[Any, Any]:
        loaded, text = session.loaded, Markup("")
        if loaded is not None:
            is_shipped = loaded.set_name is not None
            text = watch_html(loaded.set_name) if is_shipped else caution_html(loaded.cautions)
        return {box: gr.update(value=text, visible=bool(text))}

    shared.loaded.listen([box], show)
