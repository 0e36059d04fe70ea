"""Figures say what the analysis says, and work in the bundled plotly.js."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from random_analyses import make_analysis

from ram_studio.algorithm.epsilon_grid import DEFAULT_INDEX, EPSILON_GRID
from ram_studio.algorithm.figures import palette
from ram_studio.algorithm.figures.catalog import FIGURES
from ram_studio.algorithm.figures.layer_map import layer_map
from ram_studio.algorithm.figures.parts_charts import experts, towers
from ram_studio.algorithm.figures.patterns import patterns
from ram_studio.app.session.sets import load_set
from ram_studio.app.tune.details_panel import details_of
from ram_studio.evals.report import colors


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("side", [0, 1])
def test_texts_and_marks_are_legible(side: int) -> None:
    background = colors.PAGE["panel"][side]
    for name in ("ink", "muted", "unique-ink", "shared-ink", "good", "bad", "warn"):
        assert _contrast(colors.PAGE[name][side], background) >= 4.5, name
    for name in ("good", "bad", "warn"):
        assert _contrast(colors.PAGE[name][side], colors.PAGE[f"{name}-soft"][side]) >= 4.5
    assert _contrast(colors.PAGE["accent"][side], colors.PAGE["accent-ink"][side]) >= 4.5
    for color in ((colors.AGENTS_LIGHT, colors.AGENTS_DARK)[side], palette.AGENTS_FIGURE):
        assert min(_contrast(one, background) for one in color) >= 3.0, color


@pytest.mark.parametrize("n_agents", [1, 3, 7])
@pytest.mark.parametrize("narrow", [False, True])
def test_every_figure_draws_at_the_ends_of_the_epsilon_grid(n_agents: int, narrow: bool) -> None:
    analysis = make_analysis(n_agents)
    for name, figure in FIGURES.items():
        for point in (0, DEFAULT_INDEX, len(EPSILON_GRID) - 1):
            drawn = figure.draw(analysis, point, narrow)
            if drawn is None:
                assert name in ("towers", "experts")
                continue
            layout = json.loads(drawn.to_json())["layout"]
            assert layout["paper_bgcolor"] == "rgba(0,0,0,0)"
            assert layout["dragmode"] is False


def test_the_examples_figures_are_drawn_once_for_all_users() -> None:
    first, second = (details_of(load_set("shared-style"), DEFAULT_INDEX, False) for _ in range(2))
    assert all(second[1][name] is figure for name, figure in first[1].items())
    other = details_of(load_set("shared-style"), DEFAULT_INDEX, True)
    assert other[1]["patterns"] != first[1]["patterns"], "a phone has its own"


def test_bars_carry_the_preview_s_numbers() -> None:
    analysis = make_analysis(3)
    tops = patterns(analysis, DEFAULT_INDEX).data[0].y
    counts = analysis.preview(DEFAULT_INDEX)["patterns"].values()
    assert sorted(tops) == sorted(c for c in counts if c)
    # Sets of seven are not counted: what each changed alone is.
    many = make_analysis(7)
    figure = patterns(many, 0)
    assert set(figure.data[0].y) <= {int(n) for n in many.model.shared[0, 0, :, 0]}
    assert "More than six agents" in figure.layout.annotations[0].text


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("point", [0, DEFAULT_INDEX, len(EPSILON_GRID) - 1])
def test_a_map_has_one_agents_shares_on_its_own_scale(is_log: bool, point: int) -> None:
    analysis = make_analysis(3)
    agent = analysis.agents[1]
    (drawn,) = layer_map(analysis, point, agent, is_log=is_log).data
    frame = analysis.to_frame("tensor", point)
    own = frame[frame["agent"] == agent].groupby(["module", "layer"])[["active", "total"]].sum()
    shares = (100 * own["active"] / own["total"]).to_dict()
    layers, modules = analysis.group_labels("layer"), analysis.group_labels("module")
    for i, module in enumerate(modules):
        for j, layer in enumerate(layers):
            expected = shares.get((module, layer), math.nan)
            assert drawn.customdata[i][j] == pytest.approx(expected, nan_ok=True)
            if is_log and expected > 0:
                assert 10 ** drawn.z[i][j] == pytest.approx(expected)
    if not is_log:
        assert drawn.zmax == pytest.approx(max(shares.values()) or 1)


def test_towers_and_experts_are_drawn_of_models_that_have_them() -> None:
    plain = make_analysis(2, layers=3)
    names = ["model.embed_tokens.weight", "visual.blocks.0.attn.qkv.weight"]
    parts = ("0.mlp.gate", "0.mlp.experts.7.w1", "1.mlp.gate", "1.mlp.experts.7.w1")
    names += [f"model.layers.{part}.weight" for part in (*parts, "1.mlp.experts.9.w1")]
    entries = tuple(t._replace(name=n) for t, n in zip(plain.tensors, names, strict=False))
    analysis = replace(plain, tensors=(*entries, *plain.tensors[len(entries) :]))
    assert towers(plain, DEFAULT_INDEX) is experts(plain, DEFAULT_INDEX) is None
    bars = towers(analysis, DEFAULT_INDEX).data
    frame = analysis.to_frame("tower").set_index(["agent", "tower"])
    assert [list(bar.x) for bar in bars] == [["language", "vision"]] * 2
    assert bars[1].y[1] == pytest.approx(100 * frame.loc[("agent1", "vision"), "density"])
    maps = experts(analysis, DEFAULT_INDEX).data
    frame = analysis.to_frame("expert").set_index(["agent", "expert"])
    assert list(maps[0].x) == ["router", "7", "9"]
    assert maps[0].z[1][2] == pytest.approx(100 * frame.loc[("agent0", "1/9"), "density"])
    assert math.isnan(maps[0].z[0][2]), "layer 0 has no such expert"
    both = analysis.experts.counts.by_count[
        analysis.experts.labels.index("0/router"), DEFAULT_INDEX
    ]
    assert maps[2].z[0][0] == pytest.approx(100 * both[2] / both[1:].sum())
