"""README.md of a merged checkpoint: a model card as people publish them on the Hub.

Written from the passport alone. Sources that are local folders appear by their last name only, and
whatever users or checkpoints supply is escaped.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import yaml

from ram_studio.algorithm.methods import METHODS
from ram_studio.checkpoints.read.describe import plural
from ram_studio.checkpoints.record.card_licence import licence_fields, licence_section
from ram_studio.checkpoints.record.card_markup import display_name, escaped, hub_id_of, linked
from ram_studio.checkpoints.record.passport import (
    PASSPORT_FILE,
    AgentRecord,
    Passport,
    SourceRecord,
)
from ram_studio.checkpoints.record.recipe import recipe_yaml

PAPER_TITLE = "Behavior Knowledge Merge in Reinforced Agentic Models"
PAPER_ID = "2601.13572"
PAPER_URL = f"https://arxiv.org/abs/{PAPER_ID}"

_CLIPPED = r"\lambda_t = 1 + r \cdot \mathrm{clip}(\rho_t, 0, \alpha)"
_RAM_RULES = {
    "ram": r"\lambda_t = 1",
    "ram+": _CLIPPED,
    "ram+s": r"\lambda_t = 1 + r \cdot \frac{\rho_t}{1 + \rho_t}",
    "ram+m": _CLIPPED,
}
_COUNTED = (
    r"\rho_t = \frac{\#\,\text{changed by } t \text{ and others}}"
    r"{\#\,\text{changed by } t \text{ alone}}"
)
_WEIGHTED = (
    r"\rho_t = \frac{\sum |\tau_t| \text{ where others changed it too}}"
    r"{\sum |\tau_t| \text{ where } t \text{ alone did}}"
)

_OURS = (
    "\n\nThe paper counts changed elements; weighing them by how far they moved is RAM Studio's "
    "variant of its rule."
)


def model_card(passport: Passport, *, title: str | None = None) -> str:
    """Return the model card as Markdown with YAML front matter.

    Args:
        passport: of the merge.
        title: heading (default: the base's name and the method).
    """
    base = display_name(passport.base)
    parts = [
        f"---\n{_front_matter(passport)}---",
        f"# {escaped(title or f'{base} merged with {_title(passport)}')}",
        _introduction(passport),
        "## Use\n\n" + _use(passport),
        "## Agents\n\n" + _agent_table(passport),
        "## Method\n\n" + _method(passport),
        "## Settings\n\n" + _settings(passport),
    ]
    if passport.warnings:
        notes = "\n".join(f"- {escaped(warning)}" for warning in passport.warnings)
        parts.append(f"## Notes on the sources\n\n{notes}")
    parts += [
        "## Reproduce and verify\n\n" + _reproduce(passport),
        "## Licence\n\n" + licence_section(passport),
        "## Limitations\n\n" + _limitations(passport),
    ]
    if passport.recipe.method in _RAM_RULES:
        parts.append("## Citation\n\n" + _CITATION)
    return "\n\n".join(parts) + "\n"


def _front_matter(passport: Passport) -> str:
    ids = [hub_id_of(record) for record in passport.sources.values()]
    known = list(dict.fromkeys(i for i in ids if i is not None))
    fields: dict[str, Any] = {}
    if known:
        fields |= {"base_model": known, "base_model_relation": "merge"}
    fields |= licence_fields(passport.license)
    fields |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    tags = ["merge", "ram-studio"]
    if passport.recipe.method in _RAM_RULES:
        tags = ["merge", "ram", "reinforced-agent-merging", "ram-studio", f"arxiv:{PAPER_ID}"]
    fields["tags"] = tags
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)


def _title(passport: Passport) -> str:
    known = METHODS.get(passport.recipe.method)
    return passport.recipe.method if known is None else known.title


def _introduction(passport: Passport) -> str:
    names = [escaped(name) for name in passport.agents]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return (
        f"One model that merges {plural(len(names), 'agent')} ({listed}) trained by reinforcement "
        f"learning from {linked(passport.base)}. No training took place: the weights were combined "
        f"by {escaped(_title(passport))}, with RAM Studio {escaped(passport.ram_studio_version)}."
    )


def _use(passport: Passport) -> str:
    dtype = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(passport.dtype, "auto")
    return (
        "It has the base's architecture, tokenizer and chat template"
        + ("" if passport.recipe.tokenizer == "base" else " (tokenizer: see Settings)")
        + " and loads like it:\n\n"
        "```python\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'path = "."  # this folder, or its id on the Hub\n'
        "tokenizer = AutoTokenizer.from_pretrained(path)\n"
        f'model = AutoModelForCausalLM.from_pretrained(path, dtype="{dtype}")\n'
        "```"
    )


def _method(passport: Passport) -> str:
    method = passport.recipe.method
    rule = _RAM_RULES.get(method)
    if rule is None:
        known = METHODS.get(method)
        if known is None:
            return f"Task vectors are combined with **{escaped(method)}**."
        return (
            rf"**{escaped(known.title)}** ({_linked_source(known.source)}) combines the task "
            r"vectors $\tau_t = \theta_t - \theta_{\mathrm{base}}$ and adds the result to the "
            f"base: {escaped(known.formula)}."
        )
    shared = passport.recipe.settings.get("shared", "mean")
    region = (
        "the mean over the agents that changed it"
        if shared == "mean"
        else f"combined among the agents that changed it ({escaped(shared)})"
    )
    ratio = "" if method == "ram" else rf", \qquad {_WEIGHTED if method == 'ram+m' else _COUNTED}"
    return (
        f"[Reinforced Agent Merging]({PAPER_URL}), rule **{escaped(method)}**. With task vectors "
        r"$\tau_t = \theta_t - \theta_{\mathrm{base}}$, an element is changed by agent $t$ when "
        r"$|\tau_t| > \epsilon$. An element that one agent alone changed takes "
        r"$\lambda_t \tau_t$; one that several changed takes "
        f"{region}; all others stay as in the base.\n\n$$"
        + rule
        + ratio
        + "$$"
        + (_OURS if method == "ram+m" else "")
    )


def _linked_source(source: str) -> str:
    return re.sub(
        r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", escaped(source)
    )


def _settings(passport: Passport) -> str:
    recipe = passport.recipe
    rounding = f"stochastic, seed {passport.seed}"
    rows = [
        ("method", recipe.method),
        *recipe.settings.items(),
        ("stored as", passport.dtype),
        ("rounding", "nearest" if passport.rounding == "nearest" else rounding),
        ("tokenizer", "the base's" if recipe.tokenizer == "base" else recipe.tokenizer),
    ]
    if passport.rounding == "nearest" and passport.seed:
        rows.append(("seed", passport.seed))
    rows += [
        (key, value)
        for key, value, usual in (
            ("missing", recipe.missing, "error"),
            ("extra", recipe.extra, "error"),
            ("rows", recipe.rows, "exact"),
        )
        if value != usual
    ]
    size = sum(shard.nbytes for shard in passport.shards.values())
    table = "\n".join(f"| {escaped(key)} | {escaped(value)} |" for key, value in rows)
    return (
        f"| setting | value |\n| --- | --- |\n{table}\n\n"
        f"{passport.elements:,} elements were merged into "
        f"{plural(len(passport.shards), 'safetensors file')} of {size:,} bytes."
    )


def _agent_table(passport: Passport) -> str:
    heads = ["agent", "source"]
    columns = [
        ("density", _density),
        ("unique", lambda a: _count(a.unique)),
        ("shared", lambda a: _count(a.shared)),
        ("rho", _rho),
        ("rho by magnitude", _rho_m),
        ("lambda asked", lambda a: _number(a.scaling_factor)),
        ("lambda kept", lambda a: _number(a.effective_scaling_factor)),
    ]
    # Methods that count nothing get no empty columns.
    records = list(passport.agents.values())
    used = [(head, show) for head, show in columns if any(show(a) != "-" for a in records)]
    heads += [head for head, _ in used]
    rows = [
        [escaped(name), linked(record), *(show(record) for _, show in used)]
        for name, record in passport.agents.items()
    ]
    align = ["---", "---", *("---:" for _ in used)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [heads, align, *rows])
    if not used:
        return table
    notes = (
        "Density is the fraction of elements the agent changed; unique and shared count elements "
        "that it alone, or others too, changed."
    )
    if any(a.effective_scaling_factor is not None for a in records):
        notes += (
            " *Lambda kept* is what remains of the scaling factor after rounding to the output "
            "dtype, measured on the unique elements."
        )
        lost = [name for name, a in passport.agents.items() if _loses_rescaling(a)]
        if lost and passport.rounding == "nearest":
            notes += (
                f" Rounding to {escaped(passport.dtype)} kept only part of the rescaling of "
                f"{escaped(', '.join(lost))}: most changes are about one unit in the last place."
            )
    return f"{table}\n\n{notes}"


def _loses_rescaling(agent: AgentRecord) -> bool:
    asked, kept = agent.scaling_factor, agent.effective_scaling_factor
    return asked not in (None, 1) and kept is not None and abs(kept - asked) > 0.1 * abs(asked - 1)


def _density(agent: AgentRecord) -> str:
    if agent.changed is None or not agent.total:
        return "-"
    return f"{agent.changed / agent.total:.4f}"


def _rho(agent: AgentRecord) -> str:
    if agent.rho is None and agent.unique == 0 and agent.shared:
        return "∞"
    return _number(agent.rho)


def _rho_m(agent: AgentRecord) -> str:
    if agent.is_rho_m_infinite:
        return "∞"
    return _number(agent.rho_m)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


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
    libraries = ", ".join(f"{escaped(n)} {escaped(v)}" for n, v in passport.libraries.items())
    hashed = "every source and output file"
    if any(record.files is None for record in passport.sources.values()):
        hashed = "every output file"
    return (
        f"`{PASSPORT_FILE}` is the passport: the recipe, content hashes of {hashed}, all counts, "
        "lambda asked and kept"
        + (f", and versions ({libraries})" if libraries else "")
        + ". The same recipe on the same sources gives the same bytes. Save it as `recipe.yaml`, "
        "adjust folders to yours:\n\n"
        f"```yaml\n{text}```\n\n"
        "```bash\n"
        "ram-studio merge recipe.yaml --out merged\n"
        "ram-studio verify merged                   # every file is as the passport says\n"
        "ram-studio verify merged --sources --full  # and is what the sources give, byte by byte\n"
        "```"
    )


def _limitations(passport: Passport) -> str:
    lines = [
        "The merge was not evaluated by the tool that made it: check every skill, and what lies "
        "between them, before you rely on it (`ram-studio evaluate`).",
        "Merging keeps what agents learned in their weights; their faults and biases, and the "
        "base's, come along.",
    ]
    if passport.recipe.method in _RAM_RULES:
        dense = [
            n for n, a in passport.agents.items() if a.changed and (a.unique or 0) < a.changed / 10
        ]
        if dense:
            lines.append(
                f"Less than a tenth of the changes of {escaped(', '.join(dense))} is unique to it; "
                "the rest is averaged with other agents' changes, so that it may lose skill."
            )
        if passport.recipe.method in ("ram+", "ram+s"):
            lines.append(
                "The scaling factor weighs all changed elements alike, whatever their size (a "
                "limitation the paper names)."
            )
    if passport.rounding == "nearest" and any(map(_loses_rescaling, passport.agents.values())):
        lines.append("Rounding lost part of the rescaling; see the table above.")
    return "\n".join(f"- {line}" for line in lines)


def _shown_source(source: str, record: SourceRecord) -> str:
    hub_id = hub_id_of(record)
    return f"./{PurePath(source).name}" if hub_id is None else f"{hub_id}@{record.revision}"


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
