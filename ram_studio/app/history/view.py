"""Past merges and checks as HTML: the list, and the chosen ones side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import has_lambda
from ram_studio.app.asking.suites import title_of
from ram_studio.app.check.view import heat_table
from ram_studio.app.history.work import PastModel, SideBySide
from ram_studio.app.numbers import (
    duration_text,
    factor_text,
    retained_text,
    setting_text,
    value_text,
)
from ram_studio.app.session.deep_link import tune_query
from ram_studio.app.templates import render
from ram_studio.checkpoints.record.filters import choices_text
from ram_studio.engine.merge_log import PastMerge
from ram_studio.evals.report.canvas_page import can_show
from ram_studio.evals.report.skill_table import TUNED

_PUBLIC = "Only you see these, and only until your session expires."
_PRIVATE = "Answers are stored in your user folder. The same list as a command: ram-studio history."


def list_html(
    models: Sequence[PastModel], is_private: bool, chosen: Collection[str] = ()
) -> Markup:
    """Return the list with a check box in each row, ticked for the chosen ids."""
    return render(
        "history/list.html.j2",
        models=models,
        chosen=chosen,
        scope=_PRIVATE if is_private else _PUBLIC,
        time=_time,
        settings=settings_text,
        suite_title=title_of,
        link=_tune_link,
    )


def _tune_link(merge: PastMerge | None) -> str:
    """Return a query of Tune with a merge's settings, "" where Tune cannot show all of them."""
    if merge is None or choices_text(merge.recipe).keys() - {"weights"}:
        return ""
    if not can_show(merge.method, merge.settings):
        return ""
    settings = {**merge.settings, "weights": merge.recipe.get("weights")}
    return tune_query(merge.set_name, merge.method, settings)


def side_by_side_html(found: SideBySide) -> Markup:
    """Return settings and scores of chosen models."""
    merges = [model.merge for model in found.models if model.merge is not None]
    heat = None
    if found.result is not None and found.base is not None:
        merged = {merge.name for merge in merges}
        plain = [name for name in found.result.models if name not in merged]
        # As they were merged; the markers of agents alone are unknown.
        order = dict.fromkeys(name for merge in merges for name in merge.recipe.get("agents", {}))
        heat = heat_table(found.result, plain, found.base, list(order))
    return render(
        "history/side_by_side.html.j2",
        found=found,
        merges=[merge.name for merge in merges],
        settings=_settings(merges),
        heat=heat,
    )


def _time(when: str) -> str:
    return when[:16].replace("T", " ")


def settings_text(merge: PastMerge) -> str:
    """Return a merge's method and settings in one line."""
    settings = merge.settings
    method = METHODS.get(merge.method)
    fields = method.settings.model_fields if method else {}
    parts = [_method_title(merge)]
    for name in _tune_first(settings):
        text = _value(merge, name)
        usual = fields[name].default if name in fields else None
        # Tune's three are always shown; the others where they differ from the default.
        if text is not None and (name in TUNED or settings[name] != usual):
            parts.append(f"{setting_text(name)} {text}")
    parts += [f"{name} {text}" for name, text in choices_text(merge.recipe).items()]
    return " · ".join(parts)


def _method_title(merge: PastMerge) -> str:
    """Return the title of its method; a user's method has its name."""
    method = METHODS.get(merge.method)
    return method.title if method else merge.method


def _tune_first(names: Iterable[str]) -> list[str]:
    """Return settings with Tune's three first."""
    own = list(names)
    return [*(n for n in TUNED if n in own), *(n for n in own if n not in TUNED)]


def _settings(merges: Sequence[PastMerge]) -> list[tuple[str, list[Any]]]:
    """Return the settings of merges, a row (label, a value for each merge) for each."""
    rows: list[tuple[str, list[Any]]] = [("method", [_method_title(m) for m in merges])]
    for name in _tune_first(dict.fromkeys(name for merge in merges for name in merge.settings)):
        values = [_value(merge, name) or "–" for merge in merges]
        if set(values) != {"–"}:
            rows.append((setting_text(name), values))
    choices = [choices_text(merge.recipe) for merge in merges]
    for name in dict.fromkeys(name for own in choices for name in own):
        rows.append((name, [own.get(name, "–") for own in choices]))
    for key, usual in (("dtype", "as the base"), ("rounding", "nearest"), ("seed", "0")):
        rows.append((key, [str(merge.recipe.get(key) or usual) for merge in merges]))
    scaled = [merge.agents if has_lambda(merge.method) else {} for merge in merges]
    for agent in dict.fromkeys(name for merge in merges for name in merge.agents):
        if any(scaled):
            stored = [own.get(agent, {}).get("effective_lambda") for own in scaled]
            rows.append((f"Effective λ: {agent}", [factor_text(value) for value in stored]))
        retained = [merge.agents.get(agent, {}).get("retained") for merge in merges]
        rows.append((f"retained: {agent}", [retained_text(value) for value in retained]))
    rows.append(("made", [_time(m.when) for m in merges]))
    rows.append(("merged in", [duration_text(m.seconds) for m in merges]))
    return rows


def _value(merge: PastMerge, name: str) -> str | None:
    """Return a setting as text; None for one that is left out or has no short form."""
    value = merge.settings.get(name)
    if value is None or isinstance(value, (dict, list)):
        return None
    return value_text(name, value)
