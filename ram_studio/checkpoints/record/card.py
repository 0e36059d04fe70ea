"""README.md of a merged checkpoint: a model card for the Hub.

Written from the provenance alone, by the template beside this file. Sources that are local folders
appear by their last name only. All values of the template are escaped for Markdown, unless a
function here returned ``Markdown``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS
from ram_studio.algorithm.meters.rounding_meter import LOSS_LIMIT, lost_rescaling
from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.scaling import has_lambda
from ram_studio.checkpoints.fit.licenses import License
from ram_studio.checkpoints.read.describe import plural, printable
from ram_studio.checkpoints.record.provenance import (
    AgentRecord,
    Provenance,
    SourceRecord,
)
from ram_studio.checkpoints.record.recipe import Recipe, recipe_yaml
from ram_studio.resources import templates

if TYPE_CHECKING:
    from jinja2 import Template

PAPER_ID = "2601.13572"

_CLIPPED = r"\lambda_t = 1 + r \cdot \mathrm{clip}(\rho_t, 0, \alpha)"
_COUNTED = (
    r", \qquad \rho_t = \frac{\#\,\text{changed by } t \text{ and others}}"
    r"{\#\,\text{changed by } t \text{ alone}}"
)
_WEIGHTED = (
    r", \qquad \rho_t = \frac{\sum |\tau_t| \text{ where others changed it too}}"
    r"{\sum |\tau_t| \text{ where } t \text{ alone did}}"
)
_RAM_RULES = {
    "ram": r"\lambda_t = 1",
    "ram+": _CLIPPED + _COUNTED,
    "ram+s": r"\lambda_t = 1 + r \cdot \frac{\rho_t}{1 + \rho_t}" + _COUNTED,
    "ram+m": _CLIPPED + _WEIGHTED,
}
_PLAIN_LINK = re.compile(r"https://[A-Za-z0-9./_%~?=&+-]{1,280}")


class Markdown(str):
    """Text that is already Markdown: a template inserts it unchanged."""

    def __html__(self) -> str:
        return self


def escaped(value: object) -> Markdown:
    """Return text on one line, escaped for Markdown, its tables, its formulas and HTML.

    ``Markdown`` (also a template's macro) is returned unchanged.
    """
    if hasattr(value, "__html__"):
        return Markdown(value)
    shown = printable(value, limit=600)
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Markdown(re.sub(r"([\\`*_{}\[\]|$~#])", r"\\\1", shown))


def model_card(provenance: Provenance) -> str:
    """Return a merge's model card as Markdown with YAML front matter."""
    recipe, agents = provenance.recipe, provenance.agents
    method = METHODS.get(recipe.method)
    method_title = recipe.method if method is None else method.title
    # Methods that count nothing get no empty columns.
    columns = [
        head
        for head, show in _COLUMNS.items()
        if any(show(a) != "-" for a in agents.values())
        and (has_lambda(recipe.method) or head not in ("requested lambda", "effective lambda"))
    ]
    rule = _RAM_RULES.get(recipe.method)
    return _template().render(
        provenance=provenance,
        recipe=recipe,
        front_matter=Markdown(_front_matter(provenance)),
        title=f"{_display_name(provenance.base)} merged with {method_title}",
        method=method,
        method_title=method_title,
        load_dtype=DTYPE_WORDS.get(provenance.dtype, "auto"),
        columns=columns,
        cells={name: [_COLUMNS[head](a) for head in columns] for name, a in agents.items()},
        lost=_with_lost_rescaling(provenance),
        overshot=_overshot(provenance),
        dominated=[name for name, a in agents.items() if _is_dominated(a)],
        licenses_differ=len({s.license for s in provenance.sources.values()}) > 1,
        rule=None if rule is None else Markdown(rule),
        shared=recipe.settings.get("shared", "mean"),
        settings=_settings(provenance),
        nbytes=sum(shard.nbytes for shard in provenance.shards.values()),
        all_hashed=all(record.files is not None for record in provenance.sources.values()),
        recipe_text=_recipe_text(provenance),
        dense=[n for n, a in agents.items() if a.changed and (a.unique or 0) < a.changed / 10],
    )


@cache
def _template() -> Template:
    # Jinja's own escaping is for HTML; it runs after this one and then changes nothing.
    environment = templates(Path(__file__).parent, finalize=escaped, keep_trailing_newline=True)
    environment.filters |= {
        "count": _count,
        "license": _license_link,
        "link": _source_link,
        "papers": _linked_papers,
        "plural": plural,
    }
    return environment.get_template("card.md.j2")


def _front_matter(provenance: Provenance) -> str:
    known = list(dict.fromkeys(s.repository for s in provenance.sources.values() if s.repository))
    fields: dict[str, Any] = {}
    if known:
        fields |= {"base_model": known, "base_model_relation": "merge"}
    fields |= _license_fields(provenance.license)
    fields |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    tags = ["merge", "ram-studio"]
    if provenance.recipe.method in _RAM_RULES:
        tags = ["merge", "ram", "reinforced-agent-merging", "ram-studio", f"arxiv:{PAPER_ID}"]
    fields["tags"] = tags
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)


def _license_fields(license: License) -> dict[str, str]:
    """Return the license in the Hub's form; invalid values are left out."""
    if license.id is None or not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{0,60}", license.id):
        return {"license": "unknown"}
    fields = {"license": license.id}
    name, link = license.name or "", license.link or ""
    if license.id == "other" and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,95}", name):
        fields["license_name"] = name
    if license.id == "other" and _PLAIN_LINK.fullmatch(link):
        fields["license_link"] = link
    return fields


def _license_link(license: License) -> Markdown:
    shown = escaped(license.shown)
    if license.id != "other" or not _PLAIN_LINK.fullmatch(license.link or ""):
        return shown
    return Markdown(f"[{shown}]({license.link})")


def _display_name(record: SourceRecord) -> str:
    """Return a source's name without a path: its Hub id, or its folder's last name."""
    return record.repository or PurePath(record.source).name or "base"


def _source_link(record: SourceRecord) -> Markdown:
    """Return a link to a source's commit on the Hub, or a local one's name."""
    name = record.repository
    if name is None:
        return Markdown(f"{escaped(_display_name(record))} (local)")
    return Markdown(f"[{escaped(name)}](https://huggingface.co/{name}/tree/{record.revision})")


def _linked_papers(source: str) -> Markdown:
    return Markdown(
        re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", escaped(source))
    )


def _settings(provenance: Provenance) -> list[tuple[str, object]]:
    recipe = public_recipe(provenance)
    rounding = f"stochastic, seed {provenance.seed}"
    rows: list[tuple[str, object]] = [
        ("method", recipe.method),
        *recipe.settings.items(),
        ("stored as", provenance.dtype),
        ("rounding", "nearest" if provenance.rounding == "nearest" else rounding),
        ("tokenizer", "the base's" if recipe.tokenizer == "base" else recipe.tokenizer),
    ]
    if provenance.rounding == "nearest" and provenance.seed:
        rows.append(("seed", provenance.seed))
    usual = (
        ("missing", recipe.missing, "error"),
        ("extra", recipe.extra, "error"),
        ("rows", recipe.rows, "exact"),
    )
    return rows + [(key, value) for key, value, default in usual if value != default]


def _with_lost_rescaling(provenance: Provenance) -> list[str]:
    """Return the agents that lost part of the rescaling by rounding to nearest."""
    agents = provenance.agents if provenance.rounding == "nearest" else {}
    return list(
        lost_rescaling(
            {n: (a.scaling_factor, a.effective_scaling_factor) for n, a in agents.items()}
        )
    )


def _overshot(provenance: Provenance) -> list[str]:
    """Return the agents with a tenth more rescaling stored than requested."""
    return [
        name
        for name, a in provenance.agents.items()
        if a.scaling_factor is not None
        and a.scaling_factor > 1
        and a.effective_scaling_factor is not None
        and a.effective_scaling_factor - 1 > (1 + LOSS_LIMIT) * (a.scaling_factor - 1)
    ]


def _is_dominated(agent: AgentRecord) -> bool:
    """Return whether few large weights dominate the effective lambda, so that it needs a range."""
    requested, interval = agent.scaling_factor, agent.effective_interval
    if requested is None or requested <= 1 or interval is None:
        return False
    return interval[1] - interval[0] > 2 * LOSS_LIMIT * (requested - 1)


def _stored_factor(agent: AgentRecord) -> str:
    shown = _number(agent.effective_scaling_factor)
    if agent.effective_interval is None or not _is_dominated(agent):
        return shown
    low, high = agent.effective_interval
    return f"{shown} ({low:.4f} to {high:.4f})"


def _density(agent: AgentRecord) -> str:
    return "-" if agent.changed is None or not agent.total else _number(agent.changed / agent.total)


def _rho(agent: AgentRecord) -> str:
    is_infinite = agent.rho is None and agent.unique == 0 and agent.shared
    return "∞" if is_infinite else _number(agent.rho)


def _by_rounding(agent: AgentRecord) -> str:
    """Return the effect of rounding on retained and interference."""
    if agent.retained is None or agent.interference_rounding is None:
        return "-"
    return f"{agent.retained.rounding:+z.1%}, {agent.interference_rounding:+z.2f} x"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


_COLUMNS: Mapping[str, Callable[[AgentRecord], str]] = {
    "density": _density,
    "unique": lambda a: _count(a.unique),
    "shared": lambda a: _count(a.shared),
    "rho": _rho,
    "rho by magnitude": lambda a: "∞" if a.is_rho_m_infinite else _number(a.rho_m),
    "requested lambda": lambda a: _number(a.scaling_factor),
    "effective lambda": _stored_factor,
    "retained": lambda a: "-" if a.retained is None else f"{a.retained.total:.1%}",
    "interference": lambda a: "-" if a.interference is None else f"{a.interference:.2f} x",
    "by rounding": _by_rounding,
}
"""Heading -> an agent's cell; "-" for no value."""


def public_recipe(provenance: Provenance) -> Recipe:
    """Return a merge's recipe to publish: without local paths, which may reveal their owner.

    Sources are commits on the Hub, or the last names of folders, as is the folder of Fisher files.
    """
    recipe = provenance.recipe
    files = recipe.settings.get("files")
    beside = {} if files is None else {"files": f"./{PurePath(str(files)).name}"}
    return recipe.model_copy(
        update={
            "settings": {**recipe.settings, **beside},
            "base": _shown_source(recipe.base, provenance.base),
            "agents": {
                name: _shown_source(source, provenance.agents[name])
                for name, source in recipe.agents.items()
            },
        }
    )


def _recipe_text(provenance: Provenance) -> Markdown:
    """Return the recipe as YAML, for a block between backticks."""
    # Recipes hold no backticks in a row: YAML quotes what users may put into settings.
    return Markdown(recipe_yaml(public_recipe(provenance)).replace("```", "` ` `"))


def _shown_source(source: str, record: SourceRecord) -> str:
    return f"./{PurePath(source).name}" if record.repository is None else record.place
