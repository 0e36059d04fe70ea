"""The file check, as the page tells it: in Load from headers, after the pass, in the details."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from random_analyses import make_analysis
from safetensors.torch import load_file, save_file

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX
from ram_studio.app.load.view import fit_html, report_of, storage_html
from ram_studio.app.merge.recipes import recipe_from
from ram_studio.app.merge.view import rounding_caution
from ram_studio.app.session.session import LoadedModels
from ram_studio.app.session.sets import load_set
from ram_studio.app.tune import details_panel as details
from ram_studio.checkpoints.fit.storage_report import storage_report
from ram_studio.engine.analyze import analyze_report, load
from ram_studio.resources import asset_path


def words(html: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)))


def cells(html: str, model: str) -> list[str]:
    """Return the cells of a model's row in the table of what is stored."""
    table = html[html.index("stored-table") :]
    row = next(r for r in re.findall(r"<tr>.*?</tr>", table, re.S) if words(r).split()[0] == model)
    return [words(c).strip() for c in re.findall(r"<t[dh].*?</t[dh]>", row, re.S)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[dict[str, Path], LoadedModels]:
    """The example's base and tool agent, a float32 copy with too small noise, and a twin."""
    folder = tmp_path_factory.mktemp("mixed")
    sources = {"base": "base", "tool": "tool", "noisy": "base", "twin": "base"}
    paths = {}
    for name, source in sources.items():
        paths[name] = shutil.copytree(asset_path("independent", source), folder / name)
    rng = torch.Generator().manual_seed(0)
    tensors = load_file(paths["base"] / "model.safetensors")
    noisy = {
        # A quarter of the last place of bfloat16 at most: rounding takes it away again.
        n: t.float() * (1 + (torch.rand(t.shape, generator=rng) - 0.5) * 2.0**-10)
        for n, t in tensors.items()
    }
    save_file(noisy, paths["noisy"] / "model.safetensors", {"format": "pt"})
    config = json.loads((paths["tool"] / "config.json").read_text())
    (paths["tool"] / "config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    settings = paths["tool"] / "tokenizer_config.json"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps({**known, "chat_template": "{{ 'other' }}"}))
    agents = {name: str(path) for name, path in paths.items() if name != "base"}
    fit = load(paths["base"], agents)
    analysis = analyze_report(fit, device="cpu")
    return paths, LoadedModels("mixed", None, str(paths["base"]), agents, analysis)


def test_headers_tell_dtypes_configs_and_tokenizers_first(mixed) -> None:
    _, loaded = mixed
    html = fit_html(load(loaded.base, loaded.agents), is_public=False, merges=Path())
    assert re.search(r"noisy /\S+ \d.\d MB float32", words(html))
    assert re.search(r"tool /\S+ \d.\d MB bfloat16", words(html))
    assert "Verdict" not in html  # that takes a pass
    told = words(html)
    assert "rope_theta is 12345.0" in told
    assert "chat template" in told
    assert "holds the same files as the base" in told or "same tensors" in told


def test_free_space_is_that_of_the_disk_of_merges(mixed, tmp_path, monkeypatch) -> None:
    _, loaded = mixed
    free = {tmp_path: 3_000_000}
    monkeypatch.setattr(
        "shutil.disk_usage", lambda folder: SimpleNamespace(free=free.get(folder, 10**12))
    )
    html = fit_html(load(loaded.base, loaded.agents), is_public=False, merges=tmp_path)
    assert "3.0 MB are free" in words(html)


def test_after_the_pass_densities_and_verdict_are_side_by_side(mixed) -> None:
    _, loaded = mixed
    fit = load(loaded.base, loaded.agents)
    html = fit_html(fit, loaded.analysis, is_public=False, merges=Path())
    preview = loaded.analysis.preview()
    stored, rounded = preview["agents"], preview["as_base_dtype"]["agents"]
    for name in loaded.agents:
        row = cells(html, name)
        assert f"{stored[name]['density']:.2%}".replace("%", " %") in row
        assert f"{rounded[name]['density']:.2%}".replace("%", " %") in row
    assert stored["noisy"]["density"] > 0.4
    assert rounded["noisy"]["density"] == 0.0
    assert cells(html, "noisy")[-1] == "storage, not training"
    assert cells(html, "tool")[-1] == "trained"
    assert cells(html, "twin")[-1] == "equals the base"
    # Rho of the trained agent suffers from the noise of the other one, and is shown both ways.
    assert f"{stored['tool']['rho']:.3f}" in cells(html, "tool")
    assert f"{rounded['tool']['rho']:.3f}" in cells(html, "tool")
    assert "<details open>" in html


def test_details_follow_tunes_epsilon_without_the_files(mixed, tmp_path) -> None:
    _, loaded = mixed
    stored, _ = details.details_of(loaded, DEFAULT_INDEX + 8, False)
    density = loaded.analysis.preview(DEFAULT_INDEX + 8)["agents"]["tool"]["density"]
    assert f"{density:.2%}".replace("%", " %") in cells(stored, "tool")
    gone = LoadedModels("gone", None, str(tmp_path / "no"), loaded.agents, loaded.analysis)
    html = storage_html(report_of(gone, DEFAULT_INDEX))
    assert cells(html, "noisy")[-1] == "storage, not training"
    assert "Head and embedding" not in html


def test_details_say_what_projection_would_remove(mixed, tmp_path) -> None:
    html = details.projection_html(load_set("independent"))
    assert re.search(r"coding\s+61\.7 %", words(html))
    _, loaded = mixed
    gone = LoadedModels("gone", None, str(tmp_path / "no"), loaded.agents, loaded.analysis)
    assert "Not measured" in details.projection_html(gone)


def test_projection_is_measured_once_for_all_epsilons(monkeypatch) -> None:
    loaded = dataclasses.replace(load_set("independent"), set_name=None)
    asked = []
    removed = details.removed_shares
    monkeypatch.setattr(details, "removed_shares", lambda r: (asked.append(r), removed(r))[1])
    drawn = [details.details_of(loaded, point, False)[0] for point in (DEFAULT_INDEX, 40)]
    assert all("61.7" in html for html in drawn)
    assert len(asked) == 1
    # Files that changed are opened anew.
    loaded.opened[next(iter(loaded.opened))] = dataclasses.replace(asked[0])
    details.projection_html(loaded)
    assert len(asked) == 2


def test_the_file_check_of_the_example_finds_no_problem() -> None:
    html = storage_html(report_of(load_set("shared-style"), DEFAULT_INDEX))
    assert "All differences from the base come from training" in html
    assert "<details>" in html
    assert "callout" not in html
    assert "rounded" not in words(html)
    assert [cells(html, name)[-1] for name in ("coding", "tool", "memory")] == ["trained"] * 3


def test_the_merge_step_names_who_loses_the_rescaling(mixed) -> None:
    paths, _ = mixed
    agents = {}
    rng = torch.Generator().manual_seed(1)
    base = load_file(paths["base"] / "model.safetensors")
    for name in ("one", "two"):
        agents[name] = str(shutil.copytree(paths["base"], paths["base"].parent / name))
        moved = {
            n: (t.view(torch.int16) + (torch.rand(t.shape, generator=rng) < 0.3)).view(t.dtype)
            for n, t in base.items()
        }
        save_file(moved, Path(agents[name]) / "model.safetensors", {"format": "pt"})
    analysis = analyze_report(load(paths["base"], agents), device="cpu")
    loaded = LoadedModels("steps", None, str(paths["base"]), agents, analysis)
    recipe = recipe_from(loaded, "ram+", {})
    factor = analysis.preview()["agents"]["one"]["lambda"]
    told = rounding_caution(loaded, recipe, "bfloat16")
    assert f"one 1.000 instead of {factor:.3f}; two 1.000" in told
    for quiet in (
        recipe_from(loaded, "ram+", {}, rounding="stochastic"),
        recipe_from(loaded, "ram", {}),
        recipe_from(loaded, "ram+", {"r": 0.0}),
    ):
        assert rounding_caution(loaded, quiet, "bfloat16") == ""
    assert rounding_caution(loaded, recipe, "float32") == ""
    # Weights are part of what is requested.
    weighted = recipe_from(loaded, "ram+", {}, weights={"one": 0.5})
    told = rounding_caution(loaded, weighted, "bfloat16")
    assert "two 1.000 instead" in told
    assert "one 1" not in told
    over_layers = recipe_from(loaded, "ram+", {}, weights={"one": [0.5, 1.0]})
    assert "can lose" in rounding_caution(loaded, over_layers, "bfloat16")
    # Layer by layer there is more than one lambda: what can happen is said instead.
    by_layer = recipe_from(loaded, "ram+", {"scope": "layer"})
    assert "can lose" in rounding_caution(loaded, by_layer, "bfloat16")


def test_names_are_escaped() -> None:
    analysis = make_analysis(2)
    object.__setattr__(analysis, "agents", ("<img src=x>", "b&b"))
    html = storage_html(storage_report(None, analysis))
    assert "<img" not in html
    assert "&lt;img src=x&gt;" in html
