"""Small pieces of HTML. Every text that is not ours goes through ``escape``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

from ram_studio.app.palette import SHAPE_PATHS
from ram_studio.errors import RamStudioError, Stopped

Tone = Literal["good", "note", "warn", "bad", "plain"]


def callout(text: str, tone: Tone = "plain") -> str:
    """Return a highlighted sentence."""
    return f'<p class="callout" data-tone="{tone}" role="status"><span>{escape(text)}</span></p>'


def failure(error: RamStudioError | None, stopped: str) -> str:
    """Return why a job has no result; ``stopped`` is said when it was asked to stop."""
    if isinstance(error, Stopped):
        return callout(stopped)
    return callout(str(error), "bad")


def empty_state(text: str) -> str:
    """Return the text shown where a result will be."""
    return f'<p class="empty-state">{escape(text)}</p>'


def step_head(title: str, lead: str = "") -> str:
    """Return a step's heading and its one-sentence lead."""
    lead_html = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<h2 class="step-title">{escape(title)}</h2>{lead_html}'


def marker(agent: int) -> str:
    """Return the coloured shape of an agent, as nodes.js draws it."""
    return (
        '<svg class="marker" viewBox="0 0 12 12" aria-hidden="true">'
        f'<path d="{SHAPE_PATHS[agent % 8]}" style="fill:var(--ram-agent-{agent % 8})"/></svg>'
    )


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", css: str = ""
) -> str:
    """Return a table; cells are HTML already, columns and caption are text."""
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in columns)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(rest) + "</tr>" for first, *rest in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="table-scroll"><table class="plain {css}">{title}<thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def cell(text: str, css: str = "") -> str:
    """Return one table cell of plain text."""
    return f'<td class="{css}">{escape(text)}</td>' if css else f"<td>{escape(text)}</td>"


def progress(fraction: float | None, title: str, details: str = "") -> str:
    """Return a progress bar; ``fraction`` None shows work of unknown length."""
    if fraction is None:
        value, style = "", 'class="unknown"'
    else:
        percent = 100 * min(max(fraction, 0.0), 1.0)
        value = f' aria-valuenow="{percent:.0f}"'
        style = f'style="width:{percent:.2f}%"'
    return (
        f'<div class="progress"><div class="progress-text"><b>{escape(title)}</b>'
        f"<span>{escape(details)}</span></div>"
        f'<div class="track" role="progressbar" aria-valuemin="0" aria-valuemax="100"{value} '
        f'aria-label="{escape(title)}"><i {style}></i></div></div>'
    )


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon as numbers.js shows it: 0, 10⁻⁵, 3 · 10⁻⁶, 0.002."""
    if epsilon == 0:
        return "0"
    exponent = math.floor(math.log10(epsilon) + 1e-9)
    if exponent >= -3:
        return f"{epsilon:.3g}"
    head = f"{epsilon / 10**exponent:.3g}"
    power = f"10⁻{str(-exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return power if head == "1" else f"{head} · {power}"


def size_text(nbytes: float) -> str:
    """Return a size in decimal units, as disks are sold."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= limit:
            value = nbytes / limit
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{nbytes:.0f} bytes"


def duration_text(seconds: float) -> str:
    """Return a duration in the largest fitting units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
