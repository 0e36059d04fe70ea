"""README.md of a merged checkpoint: a model card as people publish them on the Hub.

Written from the passport alone. Sources that are local folders appear by their last name only, and
whatever users or checkpoints supply is escaped.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import yaml

from ram_studio.checkpoints.checkpoint import split_hub_id
from ram_studio.checkpoints.describe import plural, printable
from ram_studio.checkpoints.passport import PASSPORT_FILE, AgentRecord, Passport, SourceRecord
from ram_studio.checkpoints.recipe import recipe_yaml

PAPER_TITLE = "Behavior Knowledge Merge in Reinforced Agentic Models"
PAPER_ID = "2601.13572"
PAPER_URL = f"https://arxiv.org/abs/{PAPER_ID}"

_RAM_RULES = {
    "ram": r"\lambda_t = 1",
    "ram+": r"\lambda_t = 1 + r \cdot \mathrm{clip}(\rho_t, 0, \alpha)",
    "ram+s": r"\lambda_t = 1 + r \cdot \frac{\rho_t}{1 + \rho_t}",
    "ram+m": r"\lambda_t = 1 + r \cdot \mathrm{clip}(\rho_t, 0, \alpha)",
}

_RHO = (
    r"\rho_t = \frac{\#\,\text{changed by } t \text{ and others}}"
    r"{\#\,\text{changed by } t \text{ alone}}"
)
_RHO_BY_MAGNITUDE = (
    r"\rho_t = \frac{\sum |\tau_t| \text{ over what } t \text{ and others changed}}"
    r"{\sum |\tau_t| \text{ over what } t \text{ alone changed}}"
)
_OURS = (
    "The paper counts changed elements; weighing them by how far they moved is RAM Studio's "
    "variant of its rule (the table's rho is the count).\n\n"
)


def model_card(passport: Passport, *, title: str | None = None) -> str:
    """Return the model card as Markdown with YAML front matter.

    Args:
        passport: of the merge.
        title: heading (default: the base's name and the method).
    """
    base = _display_name(passport.base)
    method = passport.recipe.method
    parts = [
        f"---\n{_front_matter(passport)}---",
        f"# {_escape(title or f'{base} merged with {method}')}",
        _introduction(passport, base),
        "## Method\n\n" + _method(passport),
        "## Agents\n\n" + _agent_table(passport),
        "## Details\n\n" + _details(passport),
    ]
    if passport.warnings:
        notes = "\n".join(f"- {_escape(warning)}" for warning in passport.warnings)
        parts.append(f"## Notes on the sources\n\n{notes}")
    parts.append("## Reproduce\n\n" + _reproduce(passport))
    if method in _RAM_RULES:
        parts.append("## Citation\n\n" + _CITATION)
    return "\n\n".join(parts) + "\n"


def _front_matter(passport: Passport) -> str:
    ids = [_hub_id(record) for record in (passport.base, *passport.agents.values())]
    known = list(dict.fromkeys(i for i in ids if i is not None))
    fields: dict[str, Any] = {}
    if known:
        fields |= {"base_model": known, "base_model_relation": "merge"}
    if passport.license is not None:
        fields["license"] = passport.license
    fields |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    tags = ["merge", "ram-studio"]
    if passport.recipe.method in _RAM_RULES:
        tags = ["merge", "ram", "reinforced-agent-merging", "ram-studio", f"arxiv:{PAPER_ID}"]
    fields["tags"] = tags
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)


def _hub_id(record: SourceRecord) -> str | None:
    """Return the repository of a source that came from the Hub, which alone has a revision."""
    parts = split_hub_id(record.source) if record.revision is not None else None
    return parts[0] if parts else None


def _display_name(record: SourceRecord) -> str:
    return _hub_id(record) or PurePath(record.source).name or "base"


def _link(record: SourceRecord) -> str:
    hub_id = _hub_id(record)
    if hub_id is None:
        return f"{_escape(_display_name(record))} (local)"
    return f"[{_escape(hub_id)}](https://huggingface.co/{hub_id}/tree/{record.revision})"


def _introduction(passport: Passport, base: str) -> str:
    names = list(passport.agents)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return (
        f"One model that merges {plural(len(names), 'agent')} ({listed}) trained by reinforcement "
        f"learning from {_link(passport.base)}. No training took place: the weights were combined "
        f"with RAM Studio {_escape(passport.ram_studio_version)}."
    )


def _method(passport: Passport) -> str:
    method = passport.recipe.method
    settings = ", ".join(
        f"{_escape(key)} = {_escape(value)}" for key, value in passport.recipe.settings.items()
    )
    used = f"Settings: {settings}." if settings else "Settings: the method's defaults."
    rule = _RAM_RULES.get(method)
    if rule is None:
        return f"Task vectors are combined with **{_escape(method)}**. {used}"
    shared = passport.recipe.settings.get("shared", "mean")
    region = (
        "the mean over the agents that changed it"
        if shared == "mean"
        else f"combined among the agents that changed it ({_escape(shared)})"
    )
    return (
        f"[Reinforced Agent Merging]({PAPER_URL}), rule **{_escape(method)}**. With task vectors "
        r"$\tau_t = \theta_t - \theta_{\mathrm{base}}$, an element is changed by agent $t$ when "
        r"$|\tau_t| > \epsilon$. An element that one agent alone changed takes "
        r"$\lambda_t \tau_t$; one that several changed takes "
        f"{region}; all others stay as in the base.\n\n"
        "$$" + rule + r", \qquad " + (_RHO_BY_MAGNITUDE if method == "ram+m" else _RHO) + "$$"
        f"\n\n{_OURS if method == 'ram+m' else ''}{used}"
    )


def _agent_table(passport: Passport) -> str:
    heads = ["agent", "source"]
    columns = [
        ("density", _density),
        ("unique", lambda a: _count(a.unique)),
        ("shared", lambda a: _count(a.shared)),
        ("rho", _rho),
        ("lambda asked", lambda a: _number(a.scaling_factor)),
        ("lambda stored", lambda a: _number(a.effective_scaling_factor)),
    ]
    # Methods that count nothing get no empty columns.
    records = list(passport.agents.values())
    used = [(head, show) for head, show in columns if any(show(a) != "-" for a in records)]
    heads += [head for head, _ in used]
    rows = [
        [_escape(name), _link(record), *(show(record) for _, show in used)]
        for name, record in passport.agents.items()
    ]
    align = ["---", "---", *("---:" for _ in used)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [heads, align, *rows])
    if not used:
        return table
    return (
        f"{table}\n\nDensity is the fraction of elements the agent changed; unique and shared "
        "count elements that it alone, or others too, changed. *Lambda stored* is what remains of "
        "the scaling factor after rounding to the output dtype, measured on the unique elements."
    )


def _density(agent: AgentRecord) -> str:
    if agent.changed is None or not agent.total:
        return "-"
    return f"{agent.changed / agent.total:.4f}"


def _rho(agent: AgentRecord) -> str:
    if agent.rho is None and agent.unique == 0 and agent.shared:
        return "∞"
    return _number(agent.rho)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _details(passport: Passport) -> str:
    rounding = f"{passport.rounding} (seed {passport.seed})"
    if passport.rounding == "nearest":
        rounding = "nearest"
    size = sum(shard.nbytes for shard in passport.shards.values())
    return "\n".join(
        [
            f"- Merged elements: {passport.elements:,}",
            f"- Stored as: {_escape(passport.dtype)}, rounding {rounding}",
            f"- Weights: {plural(len(passport.shards), 'safetensors file')}, {size:,} bytes",
            f"- Every source's fingerprint and every file's digest: `{PASSPORT_FILE}`",
        ]
    )


def _reproduce(passport: Passport) -> str:
    recipe = passport.recipe
    # A local path says nothing to a reader and something about its owner.
    shown = recipe.model_copy(
        update={
            "base": _shown_source(recipe.base, passport.base),
            "agents": {
                name: _shown_source(source, passport.agents[name])
                for name, source in recipe.agents.items()
            },
        }
    )
    # Recipes hold no backticks in a row: YAML quotes what users may put into settings.
    text = recipe_yaml(shown).replace("```", "` ` `")
    return (
        "Save as `recipe.yaml`, adjust folders to yours, then run "
        "`ram-studio merge recipe.yaml --out merged`.\n\n"
        f"```yaml\n{text}```"
    )


def _shown_source(source: str, record: SourceRecord) -> str:
    hub_id = _hub_id(record)
    return f"./{PurePath(source).name}" if hub_id is None else f"{hub_id}@{record.revision}"


def _escape(text: object) -> str:
    """Return text that Markdown, its tables, its formulas and HTML show as it is, on one line."""
    shown = printable(text, limit=600)
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|$~#])", r"\\\1", shown)


_CITATION = f"""```bibtex
@misc{{yuan2026ram,
  title         = {{{PAPER_TITLE}}},
  author        = {{Yuan, Xiangchi and Shi, Dachuan and Zhang, Chunhui and Liu, Zheyuan and
                   Yao, Shenglong and Vosoughi, Soroush and Lee, Wenke}},
  year          = {{2026}},
  eprint        = {{{PAPER_ID}}},
  archivePrefix = {{arXiv}},
  url           = {{{PAPER_URL}}}
}}
```"""
