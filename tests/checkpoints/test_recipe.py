"""Recipes: what a YAML file may say, and one line for everything it may not."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import pytest
from checkpoint_zoo import refused
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ram_studio.checkpoints.record import filters
from ram_studio.checkpoints.record.recipe import Recipe, dump_recipe, load_recipe, make_recipe
from ram_studio.checkpoints.record.strict_yaml import dump_yaml, parse_yaml
from ram_studio.errors import SettingsError

TEXT = """
base: Qwen/Qwen2.5-7B-Instruct
agents:
  memory: /models/memory
  coding: Gen-Verse/ReasonFlux-Coder-7B@main
settings: {epsilon: 1e-5, r: 0.1, scope: tensor}
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_recipe_is_read_with_its_defaults_and_order(tmp_path):
    recipe = load_recipe(write(tmp_path, TEXT))
    assert list(recipe.agents) == ["memory", "coding"]
    assert recipe.method == "ram+"
    given = {"epsilon": 1e-5, "r": 0.1, "scope": "tensor"}
    assert recipe.settings == {**given, "shared": "mean", "alpha": 2.0}
    assert (recipe.dtype, recipe.rounding, recipe.seed) == (None, "nearest", 0)
    assert (recipe.missing, recipe.extra, recipe.rows) == ("error", "error", "exact")
    assert recipe.tokenizer == "base"
    with pytest.raises(ValidationError):
        recipe.base = "c"


_names = st.text("abcXYZ019._-", min_size=1, max_size=8).filter(
    lambda name: name[0].isalnum() and name != "base"
)
_numbers = st.floats(0, 1, exclude_min=True) | st.sampled_from([1e-5, 1e-30, 1])
_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(
    agents=st.dictionaries(_names, st.text(min_size=1).filter(str.strip), min_size=1, max_size=4),
    settings=st.dictionaries(st.sampled_from(["epsilon", "r", "alpha"]), _numbers),
    seed=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([None, "bfloat16", "float32"]),
)
def test_what_is_dumped_is_loaded_back_equal(tmp_path_factory, agents, settings, seed, dtype):
    recipe = make_recipe(
        {"base": "b", "agents": agents, "settings": settings, "seed": seed, "dtype": dtype}
    )
    path = tmp_path_factory.getbasetemp() / "sub" / "recipe.yaml"
    path.parent.mkdir(exist_ok=True)
    dump_recipe(recipe, path)
    loaded = load_recipe(path)
    assert loaded == recipe
    assert list(loaded.agents) == list(agents)


@given(st.dictionaries(st.text(max_size=8), _values | st.lists(_values, max_size=3)))
def test_plain_data_comes_back_from_yaml(values):
    assert parse_yaml(dump_yaml(values).encode(), "it") == values


ONE = "base: b\nagents: {a: x}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no recipe"),
        ("- a", "holds no recipe"),
        ("agents: {a: x}", "base: is required"),
        ("base: b", "agents: is required"),
        ("base: b\nagents: {}", "agents: "),
        ("base: b\nagents: [x]", "agents: "),
        ("base: ''\nagents: {a: x}", "base: "),
        ("base: b\nagents: {a: 3}", "agents.a: "),
        (ONE + "epsilon: 1", "epsilon: unknown field"),
        (ONE + "seed: -1", "seed: "),
        (ONE + "seed: 18446744073709551616", "seed: "),
        (ONE + "seed: true", "seed: "),
        (ONE + "dtype: int8", "dtype: "),
        (ONE + "rounding: up", "rounding: "),
        (ONE + "rows: some", "rows: "),
        (ONE + "method: 'RAM plus'", "method: "),
        (ONE + "settings: 3", "settings: "),
        (ONE + "settings: {alpha: .inf}", "settings: alpha is inf"),
        (ONE + "tokenizer: z", "tokenizer is 'z'"),
        ("base: b\nagents: {a+b: x}", "agent name 'a+b'"),
        ("base: b\nagents: {'a,b': x}", "agent name"),
        ("base: b\nagents: {base: x}", 'agent name "base": this name is reserved'),
        (f"base: b\nagents: {{{'a' * 65}: x}}", "agent name"),
        ("base: b\nbase: c\nagents: {a: x}", "line 2: not valid YAML: 'base' appears twice"),
        ("base: b\nagents:\n  a: x\n  a: y", "line 4: not valid YAML: 'a' appears twice"),
        ("base: &b x\nagents: {a: *b}", "aliases are not allowed"),
        ("base: b\nagents: {a: x", "not valid YAML"),
        ("base: !!python/object/apply:os.system ['true']\nagents: {a: x}", "not valid YAML"),
        ("? [a]\n: b", "a name must be plain text"),
        ("base: b\nagents: {a: \x07}", "not valid YAML"),
        (b"base: \xff", "not valid YAML"),
        *(
            (ONE + f"seed: {tagged}", "line 3: not valid YAML: tags are not allowed")
            for tagged in ("!!bool x", "!!int ''", "!!timestamp x", "!!float " + "1:" * 300 + "1")
        ),
        ("[" * 600, "not valid YAML"),
        (ONE + "seed: 1:30", "seed: "),
        ("x" * 64_001, "larger than"),
        *(
            (ONE + f"filters: [{{match: 're:{regex}', keep: base}}]", "not a regex of ASCII char")
            for regex in ("é", r"[\0-\U0010ffff]", r"\u00e9", r"\N{BULLET}")
        ),
        (ONE + f"settings: {{r: 0x{'f' * 9000}}}", "r is '0xff"),
        (ONE + f"settings: {{r: 0b{'1' * 20_000}}}", "r is '0b11"),
        # A wrong name or value is told with what is allowed.
        (f"{ONE}settings: {{epsilonn: 3}}", "ram+ has no setting 'epsilonn', did you mean 'epsilo"),
        (f"{ONE}settings: {{epsilonn: 3}}", "(it has epsilon, shared, r, scope, alpha)"),
        (f"{ONE}settings: {{scale: 1}}", "ram+ has no setting 'scale' (it has"),
        (f"{ONE}settings: {{zzz: 1}}", "ram+ has no setting 'zzz' (it has"),
        (f"{ONE}settings: {{r: much}}", "r is 'much'"),
        (f"{ONE}settings: {{epsilon: -1}}", "epsilon is -1"),
        *(
            (f"{ONE}method: {method}\nsettings: {{{key}: {value}}}", f"{key} is {value}")
            for method, key, value in (
                *(("ties", "density", 0), ("ties", "density", 1.1), ("ties", "scope", "'layer'")),
                *(("ties", "density", "'nan'"), ("dare-ta", "drop_rate", 1)),
                *(("dare-ties", "drop_rate", -0.1), ("task-arithmetic", "scale", "'much'")),
            )
        ),
        (f"{ONE}method: ties\nsettings: {{scale: .nan}}", "scale is nan"),
        (f"{ONE}method: nonsense", "The method is 'nonsense'; it must be one of ram, ram+,"),
        (f"{ONE}method: tie", "did you mean 'ties'?"),
        (f"{ONE}method: ram++", "two-regions, did you mean 'ram+'?"),
        (
            f"{ONE}weights: {{a: 1.0e+5}}",
            "weights.a: 100000.0 is not a number from -100 to 100",
        ),
        (f"{ONE}densities: {{a: [1, 2]}}", "densities.a: [1, 2] is not a number from 0 to 1, or a"),
        (f"{ONE}setings: {{}}", "setings: unknown field, did you mean 'settings'? (fields"),
    ],
)
def test_a_wrong_recipe_gives_one_line_with_file_and_field(tmp_path, text, words):
    path = write(tmp_path, text)
    message = refused(lambda: load_recipe(path), words, kind=SettingsError)
    assert message.startswith(str(path))
    with contextlib.suppress(SettingsError):  # of what is no YAML nothing can be made
        values = parse_yaml(path.read_bytes(), "it")
        made = refused(lambda: make_recipe(values), kind=SettingsError)
        assert made.removeprefix("recipe") == message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("7", 7), ("-1_000", -1000), ("0x1F", 31), ("010", 8), ("1.5", 1.5), (".5", 0.5)),
        *((text, 1e-5) for text in ("1e-5", "1E-05", "0.00001", "1.0e-5")),
        # YAML 1.1 makes 90 of 1:30, in time that grows with the square of the length.
        *((text, text) for text in ("1:30", "1:30.5", "1:1:1:1", "-1:00")),
    ],
)
def test_numbers_stay_numbers_and_sexagesimal_ones_are_text(text, value):
    assert parse_yaml(f"x: {text}".encode(), "it") == {"x": value}
    assert parse_yaml(dump_yaml({"x": value}).encode(), "it") == {"x": value}


def test_a_long_sexagesimal_number_takes_no_time(tmp_path):
    start = time.process_time()
    parse_yaml(b"x: " + b"1:" * 30_000 + b"1", "it")
    assert time.process_time() - start < 4


def test_regexes_of_a_whole_file_take_no_time(tmp_path):
    ranges = "(?i)" + "[!-\U0010ffff]" * 49
    match = ", ".join(f'"re:{ranges}{n}"' for n in range(120))
    path = write(tmp_path, f"{ONE}filters: [{{match: [{match}], keep: base}}]")
    start = time.process_time()
    refused(lambda: load_recipe(path), kind=SettingsError)
    assert time.process_time() - start < 4


def regexes(*own: dict) -> Recipe:
    """Return a recipe with these filters."""
    return make_recipe({"base": "b", "agents": {"a": "x"}, "filters": own})


@pytest.mark.parametrize("regex", ["^(([a-z0-9_.])+)+X", "(?:a?){1000000000}"])
def test_a_regex_without_end_is_refused_by_its_filter(regex, monkeypatch):
    monkeypatch.setattr(filters, "REGEX_SECONDS", 2)
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
    first = {"match": "re:embed", "keep": "a"}
    recipe = regexes(first, {"match": ["re:embed", f"re:{regex}"], "keep": "base"})
    started = time.monotonic()
    refused(
        lambda: recipe.choices(names),
        f"Filter 2 (re:{regex}): its regex takes more than",
        "Use * and ?",
        kind=SettingsError,
    )
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("program", ["/no/such/python", "false"])
def test_a_search_that_does_not_start_blames_no_regex(program, monkeypatch):
    monkeypatch.setattr(filters.sys, "executable", program)
    told = refused(
        lambda: regexes({"match": "re:embed", "keep": "a"}).choices(["model.embed_tokens.weight"]),
        "The process that searches by the recipe's regexes did not start",
        kind=SettingsError,
    )
    assert "Filter" not in told


def test_regexes_find_in_names_what_python_finds():
    names = ['a"b\\c', "\ud800.é\n", "layers.10.w", "layers.1.w", "x"]
    found = [r"(.)\.w$", r"(?<=s\.)(\d)(?!\1|0)\.", r'["\\]', "(?i)LAYERS", r"[^\0-\x7f]", "x{,2}"]
    for regex in found:
        caught = [n for n in names if re.search(regex, n)]
        choices = regexes({"match": f"re:{regex}", "keep": "a"}).choices(names)
        assert [n for n, choice in zip(names, choices, strict=True) if choice.keep] == caught != []


def test_a_missing_recipe_is_named_and_problems_are_counted(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        dump_recipe(make_recipe({"base": "b", "agents": {"a": "x"}}), tmp_path / "file" / "r.yaml")
    with pytest.raises(SettingsError, match=r"^recipe: .*; and 2 more\.$"):
        make_recipe({"v": 1, "w": 2, "x": 3, "base": "b", "agents": {}, "seed": "?"})
    told = r"^recipe: settings: should be a valid mapping, not 3; filters: should be a valid list, "
    with pytest.raises(SettingsError, match=told):
        make_recipe({"base": "b", "agents": {"a": "x"}, "filters": {}, "settings": 3})


def test_dotted_sources_are_found_beside_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "recipes" / "m").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "recipes" / "owner" / "name").mkdir(parents=True)
    text = "base: ./m\nagents: {a: ../elsewhere, b: ./not-there, c: m, d: owner/name, e: o/n}"
    write(tmp_path / "recipes", text)
    # A relative path to the recipe stays good when the working directory changes afterwards.
    recipe = load_recipe(os.path.relpath(tmp_path / "recipes" / "recipe.yaml"))
    assert recipe.base == str(tmp_path / "recipes" / "m")
    assert recipe.agents["a"] == str(tmp_path / "elsewhere")
    assert recipe.agents["d"] == str(tmp_path / "recipes" / "owner" / "name")
    assert [recipe.agents[name] for name in "bce"] == ["./not-there", "m", "o/n"]
    assert isinstance(recipe, Recipe)


def test_a_stopped_write_leaves_the_older_recipe(tmp_path, small_files):
    path = tmp_path / "r.yaml"
    recipe = make_recipe({"base": "b", "agents": {"a": "x"}})
    dump_recipe(recipe, path)
    with small_files(20), pytest.raises(SettingsError, match="cannot be written: File too large"):
        dump_recipe(recipe.model_copy(update={"seed": 1}), path)
    assert load_recipe(path) == recipe
    assert list(tmp_path.iterdir()) == [path]
