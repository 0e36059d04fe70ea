"""mergekit's YAML in and out: what means the same passes, traps are told, the rest is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from ram_studio.algorithm.grouping import depths_of
from ram_studio.algorithm.methods import get_method
from ram_studio.checkpoints.record.filters import TensorChoice
from ram_studio.checkpoints.record.mergekit import export_mergekit, import_mergekit
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.errors import SettingsError, did_you_mean

HEAD = """
base_model: org/base
models:
  - model: org/base
  - model: org/coder@main
    parameters: {weight: 0.5}
  - model: ./agents/tool
    parameters: {weight: 0.5}
dtype: float32
out_dtype: bfloat16
"""


def imported(method: str, parameters: str = "", more: str = ""):
    return import_mergekit(f"{HEAD}merge_method: {method}\nparameters: {{{parameters}}}\n{more}")


@pytest.mark.parametrize(
    ("theirs", "parameters", "method", "settings"),
    [
        ("ram", "", "ram", {"epsilon": 1e-5, "shared": "mean"}),
        (
            *("ramplus_tl", "r: 0.2, alpha: 2.0, epsilon: 1e-6", "ram+"),
            {"epsilon": 1e-6, "r": 0.2, "alpha": 2.0, "scope": "tensor", "shared": "mean"},
        ),
        ("task_arithmetic", "", "task-arithmetic", {"scale": 1.0, "normalize": False}),
        (
            *("task_arithmetic", "normalize: true, lambda: 0.6", "task-arithmetic"),
            {"scale": 0.6, "normalize": True},
        ),
        (
            *("ties", "density: 0.3, lambda: 0.7", "ties"),
            {"density": 0.3, "scale": 0.7, "scope": "tensor"},
        ),
        ("dare_linear", "density: 0.25", "dare-ta", {"drop_rate": 0.75, "scale": 1.0}),
        (
            *("dare_linear", "density: 0.25, rescale: false", "dare-ta"),
            {"drop_rate": 0.75, "scale": 0.25},
        ),
        (
            *("dare_ties", "density: 0.5, normalize: true", "dare-ties"),
            {"drop_rate": 0.5, "scale": 1.0, "density": 1.0, "scope": "global"},
        ),
    ],
)
def test_what_both_have_is_imported(theirs, parameters, method, settings) -> None:
    recipe, _ = imported(theirs, parameters)
    assert (recipe.method, recipe.base) == (method, "org/base")
    assert settings.items() <= recipe.settings.items()
    # Not folded into the scale, though they are equal: mergekit rounds each product.
    assert recipe.weights == ({} if method.startswith("ram") else {"coder": 0.5, "tool": 0.5})
    assert recipe.agents == {"coder": "org/coder@main", "tool": "./agents/tool"}
    assert recipe.dtype == "bfloat16"


def test_the_traps_are_told() -> None:
    recipe, said = imported("ramplus_tl")
    assert any("alpha is not given" in s and "0.2" in s for s in said)
    assert any("in each tensor" in s for s in said)
    assert recipe.settings["alpha"] == 0.2
    half = HEAD.replace("dtype: float32\nout_dtype: bfloat16", "dtype: bfloat16")
    recipe, said = import_mergekit(half + "merge_method: ram")
    assert any("computes in bfloat16" in s for s in said)
    assert recipe.dtype == "bfloat16"
    assert not imported("ram")[1]
    assert any("trims nothing" in s for s in imported("ties")[1])


def test_linear_is_no_slip_of_dare_linear() -> None:
    assert imported("linear", "weight: 1")[0].method == "linear"
    assert did_you_mean("linear", ["slerp", "dare_linear", "ties"]) == ""
    with pytest.raises(SettingsError, match="must be one of") as refused:
        get_method("dare_linear")
    assert "did you mean" not in str(refused.value)


def test_equal_names_are_told_apart() -> None:
    text = """
base_model: org/base
models: [{model: one/agent}, {model: two/agent}, {model: three/base}]
merge_method: ram
"""
    assert list(import_mergekit(text)[0].agents) == ["agent", "agent-2", "base-2"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("slerp", "t: 0.5"), "slerp takes two models"),
        (("lerp",), "did you mean 'slerp'?"),
        (("Linear",), "did you mean 'linear'?"),
        (("della",), "the nearest is dare_ties"),
        (("dareties",), "did you mean 'dare_ties'?"),
        (("[ram]",), "merge_method is \"['ram']\""),
        (("ram", "", "slices: [{}]"), "expected sources with models"),
        (("ram", "", "slices: [{}, {}]"), "expected sources with models"),
        (("ram", "epsilon: [0.1, 0.9]"), "takes one value"),
        (("ties", "normalize: perhaps"), "expected true or false"),
        (("ties", "density: much"), "density is 'much'"),
        (("ties", f"density: 1{'0' * 400}"), "density is '1000"),
        (
            ("ties", "", "slices: [{sources: [{model: a, layer_range: [0, 100000000000]}]}]"),
            "layer_range is '[0, 100000000000]'; expected first and end, at most 1000",
        ),
        (("ties", "density: 0"), "density is 0.0"),
        (("ties", "rescale: true"), "rescale"),
        (("dare_linear", "density: 0"), "more than 0"),
        (("ram", "", "tokenizer_source: other"), "tokenizer_source is 'other'"),
        (("ram", "", "tokenizer: {source: base, tokens: {a: {}}}"), "sets tokens"),
        (("ramplus_tl", "r: -1"), "r is -1.0"),
    ],
)
def test_what_has_no_counterpart_is_refused_in_one_line(asked, said) -> None:
    with pytest.raises(SettingsError) as caught:
        imported(*asked)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [{model: a}]\nmerge_method: ram", "base_model is 'None'"),
        ("base_model: b\nmerge_method: ram", "only the base is listed"),
        (
            "base_model: b\nmodels: [{model: a}]\nmerge_method: ties\nparameters: [1]",
            "expected names and values",
        ),
        ("base_model: b\nmodels: 3\nmerge_method: ram", "expected a list"),
        ("base_model: b\nmodels: [{model: a+lora}]\nmerge_method: ram", "LoRA"),
        ("base_model: b\nmodels: [{model: {name: a}}]\nmerge_method: ram", "a model is"),
        ("base_model: b\nmodels: [{model: a}]\nmerge_method: task_arithmetic", "weight is missing"),
        ("base_model: b\nmodels: [{model: a}]\nmerge_method: ram\ndtype: int8", "dtype is 'int8'"),
    ],
)
def test_incomplete_configurations_are_refused(text, said) -> None:
    with pytest.raises(SettingsError, match=said):
        import_mergekit(text)


def cards_of(file: str) -> list[dict]:
    return yaml.safe_load((Path(__file__).parent / file).read_text(encoding="utf-8"))


CARDS = cards_of("mergekit_cards.yaml")
PUBLIC = cards_of("mergekit_public.yaml")


@pytest.mark.parametrize("card", CARDS + PUBLIC, ids=lambda c: c.get("about") or c["card"])
def test_what_model_cards_have_is_imported_or_refused_by_name(card) -> None:
    text = yaml.safe_dump(card["config"])
    if card["imports"]:
        recipe, _ = import_mergekit(text)
        assert make_recipe(recipe.model_dump()) == recipe
    else:
        with pytest.raises(SettingsError, match=r"the nearest is|layers would be|Merge it in"):
            import_mergekit(text)


def test_most_of_what_model_cards_have_is_imported() -> None:
    assert (len(CARDS), sum(card["imports"] for card in CARDS)) == (33, 29)
    assert (len(PUBLIC), sum(card["imports"] for card in PUBLIC)) == (38, 30)


def choices_of(text: str, names: list[str]) -> list[tuple]:
    recipe, _ = import_mergekit(text)
    return [(own.weights, own.densities) for own in recipe.choices(names)]


def test_slices_that_follow_each_other_run_over_the_layers() -> None:
    text = """
base_model: org/base
merge_method: ties
dtype: float32
parameters: {density: [0.2, 0.8], normalize: 0.0}
slices:
  - sources:
      - {model: org/one, layer_range: [0, 2], parameters: {weight: [0.1, 0.3]}}
      - {model: org/two, layer_range: [0, 2], parameters: {weight: 1}}
  - sources:
      - {model: org/two, layer_range: [2, 5], parameters: {weight: 2}}
      - model: org/one
        layer_range: [2, 5]
        parameters: {weight: [{filter: mlp, value: 0.5}, {value: [1, 0, 1]}]}
"""
    names = [
        f"model.layers.{i}.{part}.weight" for part in ("self_attn.q", "mlp.up") for i in range(5)
    ]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    found = choices_of(text, names)
    densities = [0.2, 0.8, 0.2, 0.5, 0.8]
    ours = [(0.1, 1), (0.3, 1), (1, 2), (0, 2), (1, 2)]
    ours += [*ours[:2], (0.5, 2), (0.5, 2), (0.5, 2)]
    # The last slice's first numbers hold behind its layers.
    ours, densities = [*ours, (0.1, 1), (1, 2), (1, 2)], [*densities, *densities, 0.2, 0.2, 0.2]
    for (weights, kept), wanted, density in zip(found, ours, densities, strict=True):
        assert weights == pytest.approx(wanted)
        assert kept == pytest.approx((density, density))
    assert import_mergekit(text)[0].settings["normalize"] is False
    for old, new, said in (
        ("[2, 5]", "[1, 5]", "repeated, left out or moved"),
        ("model: org/one\n", "model: org/three\n", "other models"),
        ("{model: org/two, layer_range: [0, 2]", "{model: org/one, layer_range: [0, 2]", "twice"),
        ("{weight: 2}", "{}", "weight is not a number in some slices"),
    ):
        assert old in text
        with pytest.raises(SettingsError, match=said):
            import_mergekit(text.replace(old, new))


@pytest.mark.parametrize(
    "models",
    [
        "models: [{model: a, paramters: {weight: 0.3}}, {model: c}]",
        "slices: [{sources: [{model: a, layer_range: [0, 4], paramters: {weight: 0.3}},"
        " {model: c, layer_range: [0, 4]}]}]",
    ],
)
def test_an_unknown_key_beside_a_model_is_told(models: str) -> None:
    """Misspelt, it gave the model the weight of all without a word."""
    text = f"{models}\nbase_model: b\nmerge_method: task_arithmetic\nparameters: {{weight: 0.5}}"
    _, warnings = import_mergekit(text)
    assert "The key paramters beside a model is left out." in warnings


def test_models_as_mergekit_writes_them_are_read() -> None:
    text = """
base_model: {model: {path: org/base, revision: v1}}
merge_method: dare_ties
modules:
  default:
    slices:
      - sources:
          - {layer_range: [0, 4], model: {model: {path: org/base, revision: v1}}}
          - layer_range: [0, 4]
            model: {model: {path: org/base, revision: v1}, lora: {path: org/lora}}
            parameters: {weight: 0.5, density: 0.5}
parameters: {normalize: 1.0, int8_mask: 1.0}
dype: float32
tokenizer_source: model:org/lora
tokenizer: {source: "model:org/lora", pad_to_multiple_of: 8}
"""
    recipe, said = import_mergekit(text)
    assert (recipe.base, recipe.agents) == ("org/base@v1", {"lora": "org/lora"})
    assert (recipe.tokenizer, recipe.settings["normalize"]) == ("lora", True)
    assert any("pad_to_multiple_of is left out" in one for one in said)
    assert any("dype is left out" in one for one in said)
    two = text.replace("default:", "text: {}\n  default:")
    with pytest.raises(SettingsError, match="`modules` has several"):
        import_mergekit(two)


def test_linear_without_a_base_takes_one_of_constant_weight() -> None:
    text = """
merge_method: linear
models:
  - {model: org/one, parameters: {weight: [0, 1]}}
  - {model: org/two, parameters: {weight: 0.5}}
"""
    recipe, _ = import_mergekit(text)
    assert (recipe.base, list(recipe.agents)) == ("org/two", ["one"])
    assert recipe.settings["base_weight"] == 0.5


def theirs(setting, name: str, depth: float):
    """Return what mergekit's documentation says a parameter is in a tensor."""
    if isinstance(setting, list) and isinstance(setting[0], dict):
        return next(
            theirs(one["value"], name, depth)
            for one in setting
            if "filter" not in one or one["filter"] in name
        )
    if not isinstance(setting, list):
        return setting
    return float(np.interp(depth, np.linspace(0, 1, len(setting)), setting))


NAMES = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
NAMES += [
    f"model.layers.{i}.{part}.weight"
    for i in range(5)
    for part in ("self_attn.q_proj", "mlp.up_proj", "input_layernorm")
]


@pytest.mark.parametrize(
    "card", [c for c in CARDS if c["imports"] and "models" in c["config"]], ids=lambda c: c["about"]
)
def test_every_tensor_gets_the_weights_and_densities_of_the_card(card) -> None:
    config = card["config"]
    recipe, _ = import_mergekit(yaml.safe_dump(config))
    if recipe.method not in ("linear", "task-arithmetic", "ties", "dare-ta", "dare-ties", "slerp"):
        return
    choices = recipe.choices(NAMES) or [TensorChoice()] * len(NAMES)
    entries = {m["model"].split("+")[-1]: m.get("parameters", {}) for m in config["models"]}
    shared = config.get("parameters", {})
    for name, depth, choice in zip(NAMES, depths_of(NAMES), choices, strict=True):
        settings = {**recipe.settings, **choice.settings}
        for t, source in enumerate(recipe.agents.values()):
            own = {**shared, **entries[source]}
            key = "t" if recipe.method == "slerp" else "weight"
            weight = 1.0 if choice.weights is None else choice.weights[t]
            got = weight * (settings.get("scale", 1.0) if key == "weight" else settings["t"])
            wanted = theirs(own[key], name, depth)
            if settings.get("normalize"):  # only their ratios count
                first = theirs(
                    {**shared, **entries[next(iter(recipe.agents.values()))]}[key], name, depth
                )
                base = 1.0 if choice.weights is None else choice.weights[0]
                assert weight * first == pytest.approx(wanted * base)
            elif key == "t" or not (recipe.method == "task-arithmetic" and shared.get("normalize")):
                assert got == pytest.approx(wanted), name
            if "density" in own:
                usual = 1 - settings.get("drop_rate", 1 - settings.get("density", 1.0))
                found = usual if choice.densities is None else choice.densities[t]
                assert found == pytest.approx(theirs(own["density"], name, depth)), name


ROUND_TRIPS = [
    ("ram", {"epsilon": 1e-6}),
    ("ram+", {"epsilon": 1e-5, "r": 0.2, "alpha": 1.5, "scope": "tensor"}),
    ("task-arithmetic", {"scale": 0.7}),
    ("ties", {"density": 0.3, "scale": 0.8, "scope": "tensor"}),
    ("dare-ta", {"drop_rate": 0.25, "scale": 0.5}),
    ("dare-ties", {"drop_rate": 0.75, "scale": 0.5, "density": 1.0}),
    ("model-stock", {}),
    ("sce", {"select": 0.3}),
    ("linear", {"base_weight": 0.5}),
]


@pytest.mark.parametrize(("method", "settings"), ROUND_TRIPS)
def test_what_is_exported_comes_back(method, settings) -> None:
    recipe = make_recipe(
        {
            "base": "org/base",
            "agents": {"coder": "org/coder", "tool": "org/tool"},
            "method": method,
            "settings": settings,
            "dtype": "bfloat16",
            "tokenizer": "tool",
        }
    )
    back, _ = import_mergekit(export_mergekit(recipe)[0])
    assert back.method == method
    assert {k: back.settings[k] for k in settings} == pytest.approx(settings)
    assert (back.base, back.agents) == (recipe.base, recipe.agents)
    assert (back.dtype, back.tokenizer) == ("bfloat16", "tool")


@pytest.mark.parametrize("method", ["task-arithmetic", "ties", "linear"])
def test_weights_and_filters_come_back(method) -> None:
    values = {
        "base": "org/base",
        "agents": {"coder": "org/coder", "tool": "org/tool"},
        "method": method,
        "settings": {} if method == "linear" else {"scale": 1.0},
        "weights": {"coder": 0.7, "tool": [0.2, 0.9]},
        "filters": [{"match": "*mlp*", "weights": {"tool": 0.3}}],
    }
    back, _ = import_mergekit(export_mergekit(make_recipe(values))[0])
    recipe = make_recipe(values)
    assert [c.weights for c in back.choices(NAMES)] == [c.weights for c in recipe.choices(NAMES)]
    for own in ({"match": "router"}, {"match": "*mlp*", "layers": [0, 1]}):
        asked = {**values, "filters": [{**own, "weights": {"tool": 0.3}}]}
        with pytest.raises(SettingsError, match="cannot be written for mergekit"):
            export_mergekit(make_recipe(asked))
    with pytest.raises(SettingsError, match="takes no weights"):
        export_mergekit(make_recipe({**values, "method": "ram", "settings": {}}))


def test_linear_is_exported_with_the_base_that_mergekit_adds() -> None:
    recipe = make_recipe({"base": "b", "agents": {"one": "x"}, "method": "linear"})
    config = yaml.safe_load(export_mergekit(recipe)[0])
    assert config["models"][0] == {"model": "b", "parameters": {"weight": 0.0}}


def test_exports_say_what_is_lost() -> None:
    values = {"base": "b", "agents": {"one": "x"}, "method": "ram+", "rounding": "stochastic"}
    text, warnings = export_mergekit(make_recipe(values))
    said = " ".join(warnings)
    assert "scope is global" in said
    assert "stochastic rounding is lost" in said
    assert "will write float32" in said
    assert "no counterpart" not in said
    unknown = {"rows": "common", "names": "mapped", "stop_tokens": "union"}
    unknown["experts_packing"] = {"one": "rank-major"}
    said = " ".join(export_mergekit(make_recipe({**values, **unknown}))[1])
    assert "no counterpart of rows, names, experts_packing, stop_tokens: left out" in said
    config = yaml.safe_load(text)
    assert config["parameters"]["alpha"] == 2.0
    assert config["dtype"] == "float32"
    assert "out_dtype" not in config
    known, _ = export_mergekit(make_recipe({**values, "dtype": "bfloat16"}))
    assert yaml.safe_load(known)["out_dtype"] == "bfloat16"


def test_ties_warns_of_equal_magnitudes_both_ways() -> None:
    recipe = make_recipe({"base": "b", "agents": {"one": "x"}, "method": "ties"})
    text, said = export_mergekit(recipe)
    _, also_said = import_mergekit(text)
    [told] = set(said) & set(also_said)
    assert "a tenth of all elements can differ" in told


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("ram+s", {}, "no counterpart of ram\\+s"),
        ("wudi", {}, "no counterpart of wudi"),
        ("ram", {"shared": "ties"}, "shared must be mean"),
        ("dare-ties", {}, "density must be 1"),
    ],
)
def test_what_mergekit_cannot_do_is_refused(method, settings, said) -> None:
    recipe = make_recipe(
        {"base": "b", "agents": {"one": "x"}, "method": method, "settings": settings}
    )
    with pytest.raises(SettingsError, match=said):
        export_mergekit(recipe)
