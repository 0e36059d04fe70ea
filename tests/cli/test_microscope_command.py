"""``ram-studio microscope``: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json

import pytest

from ram_studio.resources import asset_path

TENSOR = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def analysis() -> tuple[str, str]:
    return ("--analysis", str(asset_path("independent", "analysis.safetensors")))


def test_the_table_and_the_worked_example(cli, example, analysis):
    code, out, err = cli(
        "microscope",
        *example,
        *analysis,
        "--tensor",
        TENSOR,
        "--find",
        "unique:tool",
        "--count",
        "3",
    )
    assert (code, err) == (0, "")
    assert "(384 x 128, BF16), 3 of 49,152 elements, epsilon 1e-05" in " ".join(out.split())
    assert "only tool changed it" in out
    assert "fisher: not shown. It needs a Fisher file" in out
    assert "Read 24 bytes of tensor data after the search." in out


def test_the_json_is_the_merge(cli, example, analysis, tmp_path):
    from safetensors import safe_open

    from ram_studio.algorithm import rounding

    out_dir = tmp_path / "merged"
    how = ("--rounding", "stochastic", "--seed", "3")
    settings = ("--r", "0.5", "--alpha", "1")
    code, _, err = cli("merge", *example, *analysis, *how, *settings, "--out", out_dir)
    assert code == 0, err
    code, out, _ = cli(
        *("microscope", *example, *analysis, *how, "--tensor", TENSOR, "--at", "5,7"),
        *("--window", "30x20", "--method", "ram+:r=0.5,alpha=1", "--json"),
    )
    assert code == 0
    view = json.loads(out)
    with safe_open(out_dir / "model.safetensors", "pt") as file:
        merged = file.get_tensor(TENSOR)
    assert view["index"] == [128 * r + c for r in range(5, 35) for c in range(7, 27)]
    seen = view["methods"]["ram+:r=0.5,alpha=1"]
    assert seen["stored"] == merged.flatten()[view["index"]].float().tolist()
    assert seen["stored"] != view["base"]
    assert view["bytes_read"] == 600 * 2 * 4
    assert rounding.STORAGE[seen["dtype"]].itemsize == 2


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "no tensor was given"),
        (("--tensor", TENSOR, "--at", "here"), 2, "'here' is not of that form"),
        (("--tensor", TENSOR, "--window", "3"), 2, "'3' is not of that form"),
        (("--tensor", "up_proj"), 2, f"similar names are `{TENSOR}`"),
        (("--tensor", TENSOR, "--at", "400,0"), 2, "has 49152 elements"),
        (("--tensor", TENSOR, "--method", "ram++"), 2, "it must be one of ram, ram+"),
        (("--tensor", TENSOR, "--find", "unique:nobody"), 2, "unique:memory"),
        (("--tensor", "model.norm.weight", "--find", "shared"), 2, "Choose another tensor"),
    ],
)
def test_what_is_wrong_is_said(cli, example, arguments, code, told):
    got, out, err = cli("microscope", *example, *arguments)
    assert (got, out) == (code, "")
    assert told in " ".join(err.split())


def test_a_search_without_a_find_is_a_json_error(cli, example):
    how = ("--tensor", "model.norm.weight", "--find", "conflict", "--json")
    code, out, _ = cli("microscope", *example, *how)
    assert (code, json.loads(out)["error"]["code"]) == (2, "settings_error")
