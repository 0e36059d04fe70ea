"""Past merges and checks as HTML: the list to choose from, and chosen ones side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import RULES
from ram_studio.app import markup
from ram_studio.app.check import heat_table
from ram_studio.app.check import wording as words
from ram_studio.app.history.past import PastModel, SideBySide, suite_score
from ram_studio.app.merge.controls import TUNED
from ram_studio.app.wording import SETTING_SIGNS
from ram_studio.checkpoints.record.merge_log import PastMerge


def list_html(models: Sequence[PastModel], is_private: bool, chosen: Collection[str] = ()) -> str:
    """Return the list, a box in each row; those of the chosen ids are ticked."""
    scope = words.HISTORY_PRIVATE if is_private else words.HISTORY_PUBLIC
    if not models:
        return markup.empty_state(words.HISTORY_EMPTY)
    rows = "".join(_row(model, model.id in chosen) for model in models)
    heads = "".join(f'<th scope="col">{escape(c)}</th>' for c in words.HISTORY_COLUMNS)
    return (
        f'<div class="table-scroll"><table class="plain past"><thead><tr>{heads}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="fine">{escape(scope)}</p>'
    )


def _row(model: PastModel, is_chosen: bool) -> str:
    merge = model.merge
    tag = '<span class="merge-tag">merge</span>' if merge else ""
    title = f'<span class="ci">{escape(merge.title)}</span>' if merge else ""
    settings = escape(settings_text(merge)) if merge else '<span class="muted none">–</span>'
    scores = "".join(f"<li>{_score(model, suite)}</li>" for suite in model.suites)
    checked = f"<ul>{scores}</ul>" if scores else '<span class="muted">not checked</span>'
    link = _tune_link(merge)
    ticked = " checked" if is_chosen else ""
    label = f"Choose {model.name} of {_time(model.when)}"
    return (
        f'<tr data-kind="{"merge" if merge else "model"}"><td><input type="checkbox" '
        f'value="{escape(model.id)}" aria-label="{escape(label)}"{ticked}></td>'
        f'<th scope="row">{tag}{escape(model.name)}{title}</th><td>{_time(model.when)}</td>'
        f"<td>{settings}</td><td>{checked}</td><td>{link}</td></tr>"
    )


def _time(when: str) -> str:
    return escape(when[:16].replace("T", " "))


def _score(model: PastModel, suite: str) -> str:
    run = model.run_of(suite)
    assert run is not None, "callers name a suite of the model"
    score = suite_score(run)
    low, high = score.ci95
    return (
        f"{escape(suite)} <b>{100 * score.score:.0f} %</b> "
        f'<span class="muted">{100 * low:.0f}–{100 * high:.0f} · n {score.n}</span>'
    )


def settings_text(merge: PastMerge) -> str:
    """Return a merge's method and settings in one line."""
    settings = merge.settings
    defaults = _defaults(merge.method)
    parts = [merge.method]
    for name in _ordered(settings):
        text = _value(merge, name)
        # Tune's three are always told; the others where somebody chose them.
        if text is not None and (name in TUNED or settings[name] != defaults.get(name)):
            parts.append(f"{SETTING_SIGNS.get(name, name.replace('_', ' '))} {text}")
    return " · ".join(parts)


def _ordered(names: Iterable[str]) -> list[str]:
    """Return settings with Tune's three first."""
    own = list(names)
    return [*(n for n in TUNED if n in own), *(n for n in own if n not in TUNED)]


def _defaults(method: str) -> dict[str, Any]:
    if method not in METHODS:
        return {}
    fields = METHODS[method].settings.model_fields
    return {name: field.default for name, field in fields.items()}


def _tune_link(merge: PastMerge | None) -> str:
    """Return a link that opens Tune with a merge's settings; only RAM's rules have sliders."""
    if merge is None or merge.method not in RULES:
        return ""
    query = {"step": "tune"}
    if merge.example is not None:
        query["example"] = merge.example
    for name in ("epsilon", "r", "alpha"):
        value = merge.settings.get(name)
        if isinstance(value, (int, float)):
            query[name] = repr(value)
    query["rule"] = merge.method
    return f'<a class="link" href="?{escape(urlencode(query))}">{words.HISTORY_TUNE}</a>'


def side_by_side_html(found: SideBySide) -> str:
    """Return settings and scores of chosen models."""
    parts = [settings_html(found.models)]
    report = found.report
    if report is not None and found.base is not None:
        parts.append(f'<h3>{words.HISTORY_SCORES}</h3><div class="stack scores-box">')
        parts.append(
            heat_table.table_html(report, plain_names(found), found.comparisons, found.base)
        )
        parts.append(heat_table.pairs_html(found.comparisons))
        parts.append("</div>")
    else:
        parts.append(markup.callout(words.HISTORY_NO_CHECK, "note"))
    parts += [
        f'<p class="fine">{escape(words.HISTORY_SAME.format(names=" and ".join(names)))}</p>'
        for names in found.twins()
    ]
    parts += [
        f'<p class="fine">{escape(words.HISTORY_UNPAIRED.format(suite=suite, reason=reason))}</p>'
        for suite, reason in found.left_out.items()
    ]
    return f'<div class="stack">{"".join(parts)}</div>'


def plain_names(found: SideBySide) -> list[str]:
    """Return the names in the report that are no merges, the reference apart."""
    merges = {model.name for model in found.models if model.merge is not None}
    names = found.report.models if found.report is not None else ()
    return [name for name in names if name != found.base and name not in merges]


def settings_html(models: Sequence[PastModel]) -> str:
    """Return the settings of the merges among these models, a column for each."""
    merges = [model.merge for model in models if model.merge is not None]
    if not merges:
        return ""
    names = _ordered(dict.fromkeys(name for merge in merges for name in merge.settings))
    agents = list(dict.fromkeys(name for merge in merges for name in merge.agents))
    rows = [("method", *(markup.cell(m.method) for m in merges))]
    for name in names:
        values = [_value(merge, name) or "–" for merge in merges]
        if set(values) != {"–"}:
            label = SETTING_SIGNS.get(name, name.replace("_", " "))
            rows.append((escape(label), *(_marked(value, values) for value in values)))
    for key, usual in (("dtype", words.AS_BASE), ("rounding", "nearest"), ("seed", "0")):
        values = [str(merge.recipe.get(key) or usual) for merge in merges]
        rows.append((key, *(_marked(value, values) for value in values)))
    for agent in agents:
        values = [_factors(merge, agent) for merge in merges]
        rows.append((f"λ stored: {escape(agent)}", *(_marked(value, values) for value in values)))
    rows.append(("made", *(markup.cell(_time(m.when)) for m in merges)))
    rows.append(("merged in", *(markup.cell(markup.duration_text(m.seconds)) for m in merges)))
    heads = [words.HISTORY_SETTINGS, *(merge.name for merge in merges)]
    return f'<section class="box">{markup.table(heads, rows, css="past-settings")}</section>'


def _value(merge: PastMerge, name: str) -> str | None:
    """Return a setting as text; None for one that is left out or has no short form."""
    value = merge.settings.get(name)
    if value is None or isinstance(value, (dict, list)):
        return None
    return markup.epsilon_text(value) if name == "epsilon" else str(value)


def _factors(merge: PastMerge, agent: str) -> str:
    stored = merge.agents.get(agent, {}).get("effective_lambda")
    return "–" if stored is None else f"{stored:.3f}"


def _marked(value: str, values: Sequence[str]) -> str:
    """Return a cell that stands out where the merges differ."""
    return markup.cell(value, "strong" if len(set(values)) > 1 else "")
