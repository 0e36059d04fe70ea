"""Recipes from mergekit's YAML, for the methods that both programs have.

Only configurations with the same merge on both sides are imported; where they differ in more than
rounding or randomness an error names the difference, and unexpected results are warnings.

    mergekit            RAM Studio
    linear              linear; the base among the models becomes base_weight
    slerp               slerp, t as the agent's weight
    task_arithmetic     task-arithmetic, scale = lambda
    ties                ties with scope tensor, scale = lambda
    dare_linear         dare-ta, drop_rate = 1 - density
    dare_ties           dare-ties without trimming
    model_stock, sce    model-stock, sce
    ram                 ram
    ramplus_tl          ram+ with scope tensor; its alpha is 0.2 unless given, the paper's is 2.0
    passthrough         layers of models in their order, as filters that keep them
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PureWindowsPath
from typing import Any

from ram_studio.checkpoints.read.describe import BASE_NAME, printable
from ram_studio.checkpoints.record.mergekit.layers import (
    layer_runs,
    reference,
    unwrap_module,
    whole_models,
)
from ram_studio.checkpoints.record.mergekit.parameters import (
    FINAL,
    Configuration,
    ModelEntry,
    are_equal,
    mapping,
)
from ram_studio.checkpoints.record.recipe import Recipe, make_recipe
from ram_studio.checkpoints.record.strict_yaml import parse_yaml
from ram_studio.checkpoints.write.sidecars import OUTPUT_DTYPES
from ram_studio.errors import SettingsError, did_you_mean

TIES_DIFFER = (
    "Equal magnitudes at the threshold all survive here, only some in mergekit. Where task vectors "
    "cancel exactly the base stays here; mergekit takes the positive ones. In bfloat16 agents, "
    "whose changes have few different sizes, a tenth of all elements can differ."
)
_PARAMETERS = {"weight", "density", "lambda", "normalize", "rescale", "t", "epsilon", "r", "alpha"}
_PARAMETERS |= {"select_topk", "int8_mask", "filter_wise"}
_KEYS = {"merge_method", "base_model", "models", "slices", "modules", "parameters", "dtype", "name"}
_KEYS |= {"out_dtype", "tokenizer", "tokenizer_source", "chat_template"}
_MODEL_KEYS = {"model", "layer_range", "parameters"}
_NEAREST = {
    "della": "dare_ties, which drops at random instead of by magnitude",
    "della_linear": "dare_linear, which drops at random instead of by magnitude",
    "breadcrumbs": "ties, which keeps the largest changes too",
    "breadcrumbs_ties": "ties, which keeps the largest changes too",
    "nuslerp": "slerp (between models) or warp (between task vectors)",
    "multislerp": "warp",
    "karcher": "warp",
    "nearswap": "linear with filters",
    "arcee_fusion": "ties",
    "core_space": "tsv-m",
}
"""The nearest methods to mergekit's methods that are not supported."""


def import_mergekit(text: str, *, where: str = "mergekit YAML") -> tuple[Recipe, list[str]]:
    """Return the recipe of a mergekit configuration, and sentences on differences.

    text: the YAML; where: the start of messages (a file name).

    Raises: SettingsError, one line, for anything that RAM Studio cannot do in the same way.
    """
    config = parse_yaml(text.encode(), where)
    try:
        return _import(config)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _import(config: dict[str, Any]) -> tuple[Recipe, list[str]]:
    config = dict(unwrap_module(config))
    method = config.get("merge_method")
    if isinstance(method, str) and method in _NEAREST:
        raise SettingsError(f"{method} is not supported; the nearest is {_NEAREST[method]}.")
    if not isinstance(method, str) or method not in _METHODS:
        raise SettingsError(
            f"merge_method is {printable(method, 40)!r}; can be imported: {', '.join(_METHODS)}"
            f"{did_you_mean(method, _METHODS) or '.'}"
        )
    warnings = [f"The key {printable(key, 40)} is left out." for key in config if key not in _KEYS]
    if method == "passthrough":
        values, found = _passthrough(config), Configuration("", [], None, ModelEntry("", ()))
    else:
        found = _configuration(config, method)
        beside = [k for one in _listed_models(config) for k in one if k not in _MODEL_KEYS]
        warnings += [f"The key {printable(k, 40)} beside a model is left out." for k in beside]
        values = _METHODS[method](found)
        for entry in (*found.entries, found.common):
            unknown = [k for level in entry.levels for k in level if k not in _PARAMETERS]
            warnings += [f"The parameter {k} is left out." for k in unknown]
    base, agents = values.pop("base", found.base), values.pop("agents", None)
    if agents is None:
        agents = _name_agents([entry.source for entry in found.entries])
    warnings = list(dict.fromkeys(found.warnings + warnings))
    values |= {"base": base, "agents": agents, "dtype": _dtype(config, warnings)}
    values["tokenizer"] = _tokenizer(config, base, agents, warnings)
    return make_recipe(values), warnings


def _listed_models(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the models that a checked configuration lists, of every slice."""
    lists = [part["sources"] for part in config.get("slices") or ()]
    for listed in lists or [config.get("models") or ()]:
        yield from (one for one in listed if isinstance(one, dict))


def _configuration(config: Mapping[str, Any], method: str) -> Configuration:
    """Return the models and their parameters.

    Raises: SettingsError.
    """
    shared = mapping(config.get("parameters"))
    listed, own_of_all = whole_models(config)
    given = config.get("base_model")
    named = None if given is None else reference(given)
    entries = []
    for entry in listed:
        source = reference(entry.get("model") if isinstance(entry, dict) else entry, named)
        own = mapping(entry.get("parameters")) if isinstance(entry, dict) else {}
        entries.append(ModelEntry(source, (own, own_of_all, shared)))
    base = named
    if base is None and method == "linear" and entries:  # mergekit needs none there
        of_one_weight = (e.source for e in entries if isinstance(e.number("weight"), float))
        base = next(of_one_weight, entries[0].source)
    if base is None:
        raise SettingsError("base_model is 'None'; expected one model.")
    agents = [entry for entry in entries if entry.source != base]
    if not agents:
        raise SettingsError("only the base is listed; list at least one agent.")
    own_base = next((entry for entry in entries if entry.source == base), None)
    return Configuration(base, agents, own_base, ModelEntry("", (own_of_all, shared)))


def _name_agents(sources: list[str]) -> dict[str, str]:
    agents: dict[str, str] = {}
    for source in sources:
        stem = PureWindowsPath(source.partition("@")[0]).name  # of both kinds of paths
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "agent"
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        agents[next(n for n in names if n != BASE_NAME and n not in agents)] = source
    return agents


_Values = dict[str, Any]
_Numbers = Callable[[str | None], _Values]


def _by_filters(found: Configuration, of: _Numbers) -> _Values:
    """Return a recipe's values, with a filter for each condition whose numbers differ.

    of: a text in tensors' names (None: all others) -> settings, weights and densities of these
    tensors.
    """
    values = of(None)
    filters: list[_Values] = []
    for where in found.wheres():
        own = {
            key: {k: v for k, v in part.items() if values[key][k] != v}
            for key, part in of(where).items()
        }
        own = {key: part for key, part in own.items() if part}
        # A filter with the common values is needed, too: it precedes others.
        match = "final" if where == FINAL else f"*{where}*"
        filters.append({"match": match, **(own or {"weights": values["weights"]})})
    return {**values, "filters": filters}


def _sums(found: Configuration, *, has_density: bool) -> _Numbers:
    """Return the values of task_arithmetic, ties and dare: weights, densities and a factor."""
    names = list(_name_agents([entry.source for entry in found.entries]))

    def of(where: str | None) -> _Values:
        weights = found.numbers("weight", where=where)
        values: _Values = {
            "settings": {"scale": found.scalar("lambda", 1.0, where)},
            "weights": dict(zip(names, weights, strict=True)),
        }
        if has_density:
            densities = found.numbers("density", 1.0, where)
            values["densities"] = dict(zip(names, densities, strict=True))
        return values

    return of


def _weighted_values(
    found: Configuration, *, has_density: bool, normalize: bool = False
) -> _Values:
    """Return the values of a sum; normalize: default where the configuration has none.

    Even equal weights are not merged with the factor: mergekit rounds each product.
    """
    values = _by_filters(found, _sums(found, has_density=has_density))
    values["settings"]["normalize"] = found.flag("normalize", default=normalize)
    if not values["filters"] and all(weight == 1 for weight in values["weights"].values()):
        del values["weights"]
    return values


def _from_task_arithmetic(found: Configuration) -> _Values:
    return {"method": "task-arithmetic", **_weighted_values(found, has_density=False)}


def _from_ties(found: Configuration) -> _Values:
    if found.flag("rescale", default=False):
        raise SettingsError("ties with rescale has no counterpart here; set rescale: false.")
    if all(entry.get("density") is None for entry in found.entries):
        found.warnings.append("density is not given: mergekit then trims nothing (TIES uses 0.2).")
    found.warnings.append(TIES_DIFFER)
    values = _weighted_values(found, has_density=True, normalize=True)
    values = _one_density(values, lambda density: {"density": density})
    values["settings"]["scope"] = "tensor"
    return {"method": "ties", **values}


def _one_density(values: _Values, settings: Callable[[Any], _Values]) -> _Values:
    densities = list(values["densities"].values())
    if are_equal(densities) and not any("densities" in own for own in values["filters"]):
        del values["densities"]
        values["settings"] |= settings(densities[0])
    return values


def _dropping(found: Configuration, values: _Values) -> _Values:
    found.warnings.append("Dropped elements are drawn differently than in mergekit.")
    densities = list(values["densities"].values())

    def rate(density: float) -> _Values:
        if not 0 < density <= 1:
            raise SettingsError(f"density is {density:g}; expected more than 0 and at most 1.")
        return {"drop_rate": 1.0 - density}

    is_one = are_equal(densities) and not any("densities" in own for own in values["filters"])
    if found.flag("rescale", default=True):
        found.warnings.append(
            "mergekit rescales the remaining elements to each tensor's L1 norm, RAM Studio by "
            "1 / (1 - drop_rate), as published: the same on average."
        )
    elif not is_one:
        raise SettingsError(
            "rescale is false and density differs by model or tensor; RAM Studio divides by each "
            "density. Set rescale: true."
        )
    else:  # RAM Studio always divides by the share that survives
        values["settings"]["scale"] *= densities[0]
    return _one_density(values, rate)


def _from_dare_linear(found: Configuration) -> _Values:
    return {"method": "dare-ta", **_dropping(found, _weighted_values(found, has_density=True))}


def _from_dare_ties(found: Configuration) -> _Values:
    found.warnings.append("mergekit's dare_ties does not trim by magnitude: density 1 here.")
    values = _dropping(found, _weighted_values(found, has_density=True))
    values["settings"]["density"] = 1.0
    return {"method": "dare-ties", **values}


def _from_linear(found: Configuration) -> _Values:
    names = list(_name_agents([entry.source for entry in found.entries]))
    base = found.base_entry

    def of(where: str | None) -> _Values:
        own = 0.0 if base is None else base.number("weight", where=where)
        if isinstance(own, list):
            raise SettingsError("the base's weight runs over the layers; give it one number.")
        weights = found.numbers("weight", where=where)
        return {
            "settings": {"base_weight": own},
            "weights": dict(zip(names, weights, strict=True)),
        }

    values = _by_filters(found, of)
    values["settings"]["normalize"] = found.flag("normalize", default=True)
    return {"method": "linear", **values}


def _from_slerp(found: Configuration) -> _Values:
    if len(found.entries) != 1:  # mergekit adds the base where it is not listed
        raise SettingsError("slerp takes two models, one of which is base_model.")
    name = next(iter(_name_agents([found.entries[0].source])))

    def of(where: str | None) -> _Values:
        t = found.entries[0].number("t", None, where)
        return {"settings": {"t": 1.0}, "weights": {name: t}}

    return {"method": "slerp", **_by_filters(found, of)}


def _from_model_stock(found: Configuration) -> _Values:
    if found.flag("filter_wise", default=False):
        raise SettingsError("model_stock with filter_wise has no counterpart here.")
    found.warnings.append("mergekit divides by at least 1e-6; small updates merge otherwise here.")
    return {"method": "model-stock", "settings": {}}


def _from_sce(found: Configuration) -> _Values:
    found.warnings.append(
        "mergekit weighs agents alike where their mean square is below 1e-6; here by energy."
    )
    return {"method": "sce", "settings": {"select": found.scalar("select_topk", 1.0)}}


def _from_ram(found: Configuration) -> _Values:
    return {"method": "ram", "settings": {"epsilon": found.scalar("epsilon", 1e-5)}}


def _from_ramplus_tl(found: Configuration) -> _Values:
    if found.common.get("alpha") is None:
        found.warnings.append(
            "alpha is not given: mergekit's default is 0.2, so that lambda is at most 1 + 0.2 r; "
            "the paper uses 2.0."
        )
    found.warnings.append(
        "ramplus_tl counts rho in each tensor (scope tensor), the paper in the model."
    )
    settings = {k: found.scalar(k, v) for k, v in {"epsilon": 1e-5, "r": 0.1, "alpha": 0.2}.items()}
    return {"method": "ram+", "settings": {**settings, "scope": "tensor"}}


def _passthrough(config: Mapping[str, Any]) -> _Values:
    """Return the recipe's values of layers of several models, in their order."""
    runs = layer_runs(config)
    given = config.get("base_model")
    base = runs[0][0] if given is None else reference(given)
    agents = _name_agents(list(dict.fromkeys(s for s, *_ in runs if s != base)))
    if not agents:
        raise SettingsError("passthrough of one model merges nothing; use that model.")
    name_of = {source: name for name, source in agents.items()} | {base: BASE_NAME}
    filters: list[_Values] = [
        {"layers": [first, stop - 1], "keep": name_of[source]} for source, first, stop in runs
    ]
    first, last = name_of[runs[0][0]], name_of[runs[-1][0]]
    filters.append({"match": ["embeddings"], "keep": first})
    filters.append({"match": "*", "keep": last})  # final norm and head
    return {
        "method": "linear",
        "base": base,
        "agents": agents,
        "settings": {},
        "filters": filters,
    }


_METHODS: dict[str, Callable[[Configuration], _Values]] = {
    "linear": _from_linear,
    "slerp": _from_slerp,
    "task_arithmetic": _from_task_arithmetic,
    "ties": _from_ties,
    "dare_linear": _from_dare_linear,
    "dare_ties": _from_dare_ties,
    "model_stock": _from_model_stock,
    "sce": _from_sce,
    "ram": _from_ram,
    "ramplus_tl": _from_ramplus_tl,
    "passthrough": lambda found: {},
}


def _dtype(config: Mapping[str, Any], warnings: list[str]) -> str | None:
    computed, stored = config.get("dtype"), config.get("out_dtype")
    for name, value in (("dtype", computed), ("out_dtype", stored)):
        if value not in (None, *OUTPUT_DTYPES):
            raise SettingsError(
                f"{name} is {printable(value, 40)!r}; it must be one of {', '.join(OUTPUT_DTYPES)}."
            )
    if computed != "float32":
        warnings.append(
            f"mergekit computes in {computed or 'the dtype the models are stored in'}, which "
            "rounds task vectors and sums; RAM Studio computes with at least twice the output's "
            "digits and rounds once."
        )
    return stored or computed


def _tokenizer(
    config: Mapping[str, Any], base: str, agents: Mapping[str, str], warnings: list[str]
) -> str:
    if config.get("chat_template"):
        warnings.append("chat_template is left out; the tokenizer's own stays.")
    block = config.get("tokenizer")
    source = config.get("tokenizer_source")
    if isinstance(block, dict):
        source = block.get("source")
        if block.get("tokens"):
            raise SettingsError(
                "tokenizer sets tokens; RAM Studio keeps one tokenizer as it is. Leave them out."
            )
        if block.get("pad_to_multiple_of"):
            warnings.append("pad_to_multiple_of is left out; the vocabulary's size stays.")
    elif block:
        raise SettingsError(f"tokenizer is {printable(block, 80)!r}; expected source and more.")
    if isinstance(source, (dict, str)):
        source = reference(source).removeprefix("model:")  # as mergekit writes it
    if source == "union":
        warnings.append(
            "tokenizer_source union: the base's tokenizer stays. Agents with other tokens do not "
            "fit, and the merge reports it."
        )
        return BASE_NAME
    if source in (None, "base", base):
        return BASE_NAME
    for name, path in agents.items():
        if source == path:
            return name
    raise SettingsError(
        f"tokenizer_source is {printable(source, 80)!r}; expected base, union or one of the models."
    )
