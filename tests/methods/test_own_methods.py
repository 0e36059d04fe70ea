"""Methods of one's own: files, entry points, what verify says of them, who refuses them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from engine_zoo import Zoo, model_options, read_folder, run_command
from random_zoo import write_zoo

import ram_studio as rs
from ram_studio.algorithm.methods import OWN
from ram_studio.app.merge.recipes import read_upload, recipe_from
from ram_studio.app.session.sets import load_set
from ram_studio.checkpoints import own_methods
from ram_studio.engine.analyze import load
from ram_studio.engine.job import recipe_of
from ram_studio.engine.merge import merge
from ram_studio.errors import SettingsError, VerificationError
from ram_studio.evals.experiment.answers import identify
from ram_studio.resources import asset_path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "median_method.py"


@pytest.fixture(autouse=True)
def forget():
    """Leave no method to other tests."""
    yield
    OWN.clear()


def merged_by_median(folder: Path) -> tuple[Zoo, Path]:
    """Return models, and what the base and half of the medians of their changes make."""
    zoo, out = write_zoo(folder / "zoo", 2, dtype=torch.float32), folder / "out"
    how = ("--method", f"{EXAMPLE}:MEDIAN", "--set", "scale=0.5", "--out", out)
    run_command("merge", *model_options(zoo.recipe()), *how)
    return zoo, out


def test_a_file_merges_and_verify_says_what_it_can_redo(tmp_path):
    zoo, out = merged_by_median(tmp_path)
    for name, stored in read_folder(out).items():
        x = zoo.base[name].double()
        taus = torch.stack([own[name].double() - x for own in zoo.agents.values()])
        want = x + 0.5 * taus.sort(dim=0).values[1]
        torch.testing.assert_close(stored.double(), want, rtol=2**-23, atol=1e-12)
    written = json.loads((out / "ram_studio.json").read_text())
    digest = hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()
    assert written["own_method"] == {"source": "median_method.py:MEDIAN", "sha256": digest}
    assert written["recipe"]["method"] == "median"
    assert "are the same" in run_command("verify", out, "--full", "--method", f"{EXAMPLE}:MEDIAN")
    OWN.clear()  # as in another process
    told = run_command("verify", out, "--full")
    assert "a method of its own, median (median_method.py:MEDIAN" in told
    assert "recomputed from the" not in told
    other = tmp_path / "median_method.py"
    other.write_text(EXAMPLE.read_text() + "# changed\n")
    rs.use_method(f"{other}:MEDIAN")
    with pytest.raises(VerificationError, match="Give the file that was used"):
        rs.verify(out, with_sources=True)


def test_a_formula_that_changes_its_input_is_measured_alike(tmp_path):
    """What it did to the base in place went into what the merge says of itself."""
    text, returned = EXAMPLE.read_text(), "    return rs.BlockOutput("
    assert text.count(returned) == 1
    changing = "    block.base.fill_(7.0)\n    block.agents.zero_()\n"
    zoo = write_zoo(tmp_path / "zoo", 2, dtype=torch.float32)
    found = []
    for name, more in ("as it is", ""), ("changing", changing):
        file = tmp_path / f"{name}.py"
        file.write_text(text.replace(returned, f"{more}{returned}"))
        rs.use_method(f"{file}:MEDIAN")
        result = merge(zoo.recipe(method="median"), tmp_path / name, device="cpu", threads=1)
        found.append(result.agents)
    assert found[0] == found[1]


def test_an_entry_point_is_loaded_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "their_methods.py").write_text(EXAMPLE.read_text())
    info = tmp_path / "their-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[ram_studio.methods]\nmedian = their_methods:MEDIAN\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "median" in importlib.metadata.entry_points(group=own_methods.GROUP).names
    assert "their_methods" not in sys.modules
    assert own_methods.bring_method("median") == "median"
    assert own_methods.own_record("median").source == "their 1.2, their_methods:MEDIAN"
    assert own_methods.bring_method("ties") == "ties"
    sys.modules.pop("their_methods")


def test_the_microscope_shows_what_a_merge_by_it_stores(tmp_path):
    zoo, out = merged_by_median(tmp_path)
    name, stored = next(iter(read_folder(out).items()))
    told = run_command(
        *("microscope", *model_options(zoo.recipe()), "--tensor", name, "--count", 9, "--json"),
        *("--method", f"{EXAMPLE}:MEDIAN:scale=0.5", "--method", "ties"),
    )
    methods = json.loads(told)["methods"]
    seen = methods["median:scale=0.5"]
    assert set(methods) == {"median:scale=0.5", "ties"}
    assert seen["stored"] == stored.flatten()[:9].tolist()
    np.testing.assert_allclose(seen["exact"], seen["stored"], rtol=2**-23)
    assert seen["worked"][0].startswith("median of ")


def test_another_file_of_the_same_name_is_another_merge(tmp_path):
    other = tmp_path / "median_method.py"
    other.write_text(EXAMPLE.read_text().replace(".median(dim=0).values", ".sum(dim=0)"))
    own_methods.bring_method(f"{EXAMPLE}:MEDIAN")
    with pytest.raises(SettingsError, match="Two methods are called 'median'"):
        own_methods.bring_method(f"{other}:MEDIAN")
    report = load(asset_path("independent", "base"), {"tool": asset_path("independent", "tool")})
    found = []
    for file in (EXAMPLE, other):
        OWN.clear()
        method = own_methods.bring_method(f"{file}:MEDIAN")
        found.append(identify(report, recipe_of(report, method, {})).digest)
    assert found[0] != found[1]


@pytest.mark.slow
def test_rows_and_sweeps_ask_merges_by_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RAM_STUDIO_HOME", str(tmp_path / "home"))
    sources = [f"--base={asset_path('independent', 'base')}"]
    sources += [f"--agent={n}={asset_path('independent', n)}" for n in ("coding", "tool")]
    csv, few = tmp_path / "rows.csv", ("--device=cpu", "--suite=demo")
    rows = (f"--row={EXAMPLE}:MEDIAN", f"--row={EXAMPLE}:MEDIAN:scale=0", "--row=ram")
    run_command("compare", *sources, *rows, *few, "--limit=2", "--no-sources", "--csv", csv)
    assert {"median (scale 1)", "median (scale 0)", "ram"} <= set(pd.read_csv(csv).label)
    OWN.clear()
    out = tmp_path / "found.json"
    over = ("--over=median.scale=0,1", f"--method={EXAMPLE}:MEDIAN", "--limit=2", "--held-out=2")
    out.write_text(run_command("sweep", *sources, *over, *few, "--no-early-stop", "--json"))
    labels = {row["label"] for row in json.loads(out.read_text())["rows"]}
    assert {"median (scale 0)", "median (scale 1)"} <= labels
    OWN.clear()
    merged = ("--from-sweep", out, "--method", f"{EXAMPLE}:MEDIAN", "--out", tmp_path / "merged")
    run_command("merge", *sources, *merged)
    written = json.loads((tmp_path / "merged" / "ram_studio.json").read_text())
    assert written["own_method"]["source"] == "median_method.py:MEDIAN"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "MEDIAN", "cannot be read"),
        ("raise OSError('no')", "MEDIAN", "does not run: OSError"),
        ("MEDIAN = 3", "MEDIAN", "is int; expected a Method"),
        ("from ram_studio.algorithm.methods.ties import TIES", "TIES", "'ties' is built in"),
    ],
)
def test_what_is_no_method_is_refused(tmp_path, text, name, said):
    file = tmp_path / "own.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        rs.use_method(f"{file}:{name}")


def test_the_app_and_recipes_never_load_one(tmp_path):
    mark, file = tmp_path / "mark", tmp_path / "evil.py"
    file.write_text(f"open({str(mark)!r}, 'w')")
    loaded = load_set("shared-style")
    for method in (f"{file}:EVIL", "median"):
        with pytest.raises(SettingsError):
            recipe_from(loaded, method, {})
        uploaded = tmp_path / "recipe.yaml"
        agents = "".join(f"  {n}: {p}\n" for n, p in loaded.agents.items())
        uploaded.write_text(f"base: {loaded.base}\nagents:\n{agents}method: {method}\n")
        with pytest.raises(SettingsError):
            read_upload(str(uploaded), loaded)
    assert not mark.exists()
    rs.use_method(f"{EXAMPLE}:MEDIAN")  # by whoever runs the server
    with pytest.raises(SettingsError, match="is your own"):
        recipe_from(loaded, "median", {})
    uploaded.write_text(uploaded.read_text())
    with pytest.raises(SettingsError, match="uses the method median"):
        read_upload(str(uploaded), loaded)


WRONG = """
import torch
from ram_studio.algorithm.methods.base import BlockOutput, Method, MethodSettings

def merge_block(block, prepared):
    x, active = block.base.double(), torch.zeros(block.base.shape, dtype=torch.int64)
    return {}

WRONG = Method("wrong", "Wrong", "?", "?", MethodSettings, merge_block=merge_block)
"""


@pytest.mark.parametrize(
    "made",
    [
        "BlockOutput(x, active[:1])",
        "BlockOutput(x[:1], active)",
        "BlockOutput(x[None], active)",
        "BlockOutput(x.long(), active)",
        "BlockOutput(x, active.double())",
        "BlockOutput(x, active + 8)",
        "BlockOutput(x, active - 1)",
        "BlockOutput(x.numpy(), active)",
        "(x, active)",
        "None",
    ],
)
def test_what_is_not_of_the_blocks_elements_is_refused(tmp_path, made):
    """A pattern of one element was taken for all of them; others ended in a traceback."""
    zoo = write_zoo(tmp_path / "zoo", 2, dtype=torch.float32)
    (tmp_path / "own.py").write_text(WRONG.format(made))
    rs.use_method(f"{tmp_path}/own.py:WRONG")
    with pytest.raises(SettingsError, match=r"The method wrong: merge_block returned .*; expected"):
        merge(zoo.recipe(method="wrong"), tmp_path / "out", device="cpu", threads=1)
