"""Single questions of a report: which fit a filter, and one with every model's answer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ram_studio.app.check import wording as words
from ram_studio.app.check.heat_table import model_head
from ram_studio.app.check.scoring import BASE
from ram_studio.evals import EvalReport

FILTERS = words.FILTERS
_FOLD_OVER = 700
_SHOWN = 400


def matching_items(report: EvalReport, domain: str, which: str, agents: Sequence[str]) -> list[int]:
    """Return the indices of a domain's questions that fit a filter (a key of FILTERS)."""
    names = list(report.models)
    merges = [n for n in names if n != BASE and n not in agents]
    found = []
    for i in range(len(report.items[domain])):
        right = {n: report.models[n].answers[domain][i].is_correct for n in names}
        any_agent = any(right[a] for a in agents if a in right)
        won, lost = any(right[m] for m in merges), any(not right[m] for m in merges)
        keep = {
            "all": True,
            "differ": len(set(right.values())) > 1,
            "base-lost": right.get(BASE, False) and lost,
            "base-won": not right.get(BASE, True) and won,
            "merge-lost": any_agent and lost,
            "merge-won": not any_agent and won,
        }[which]
        if keep:
            found.append(i)
    return found


def item_html(report: EvalReport, domain: str, index: int, agents: Sequence[str]) -> str:
    """Return one question, its known answer and every model's answer side by side."""
    item = report.items[domain][index]
    cards = []
    for name, result in report.models.items():
        answer = result.answers[domain][index]
        tone, said = ("better", "✓ right") if answer.is_correct else ("worse", "✗ wrong")
        note = f'<p class="fine">{escape(answer.note)}</p>' if answer.note else ""
        cards.append(
            f'<article class="answer-card"><header><h4>{model_head(name, agents)}</h4>'
            f'<span class="key {tone}">{said}</span></header>{folded(answer.text)}{note}</article>'
        )
    return (
        f'<div class="item-view"><div class="prompt"><span class="muted">{words.PROMPT}</span>'
        f'{folded(item.prompt)}</div><div class="prompt"><span class="muted">{words.GOLD}</span>'
        f"{folded(item.gold)}</div></div>"
        f'<div class="answer-cards">{"".join(cards)}</div>'
    )


def folded(text: str) -> str:
    """Return a text as it stands; of a long one the beginning, the rest behind a fold."""
    text = text.strip()
    if not text:
        return f'<p class="said muted">{words.NOTHING_SAID}</p>'
    if len(text) <= _FOLD_OVER:
        return f'<pre class="said">{escape(text)}</pre>'
    return (
        f'<pre class="said">{escape(text[:_SHOWN])} …</pre><details><summary class="fine">'
        f"{words.WHOLE_ANSWER.format(n=f'{len(text):,}')}</summary>"
        f'<pre class="said">{escape(text)}</pre></details>'
    )
