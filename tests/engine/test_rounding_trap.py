"""Updates of one unit in the last place: what each output dtype and rounding keeps of lambda."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from engine_zoo import Zoo, bits_of, read_folder, values_of, write_folder

from ram_studio.engine.merge import merge

ELEMENTS = 60_000
FALSE_ALARM = 1e-9


@pytest.fixture(scope="module")
def ulp_zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Two agents that moved by +-1 unit in the last place: rho 2, so lambda is 1.2."""
    folder = tmp_path_factory.mktemp("ulp")
    rng = torch.Generator().manual_seed(30)
    base = (torch.randn(ELEMENTS, generator=rng) * 0.05).clamp(1e-3, 1).bfloat16()
    place = torch.rand(ELEMENTS, generator=rng)
    moved = {}
    for name, alone in (("a", (0.0, 0.1)), ("b", (0.1, 0.2))):
        mine = ((place >= alone[0]) & (place < alone[1])) | (place >= 0.8)
        sign = torch.randint(0, 2, (ELEMENTS,), generator=rng) * 2 - 1
        steps = (sign * mine).short()
        moved[name] = {"model.layers.0.w": (base.view(torch.int16) + steps).view(torch.bfloat16)}
        write_folder(folder / name, moved[name])
    write_folder(folder / "base", {"model.layers.0.w": base})
    return Zoo(folder, {"model.layers.0.w": base}, moved, ("model.layers.0.w",))


def merged_with(zoo: Zoo, out, **changes):
    settings = {"epsilon": 0.0, "r": 0.1, "alpha": 2.0}
    result = merge(zoo.recipe(settings=settings, **changes), out)
    base, agents = zoo.values("model.layers.0.w")
    stored = values_of(read_folder(out)["model.layers.0.w"])
    for t, agent in enumerate(result.agents.values()):
        again = reference.effective_scaling(base, agents, 0.0, t, stored)
        assert agent.effective_scaling_factor == pytest.approx(again, rel=1e-6)
        assert agent.scaling_factor == pytest.approx(zoo.factors(epsilon=0.0)[t], rel=1e-12)
        assert agent.scaling_factor > 1.19
    return result


def test_nearest_bfloat16_stores_the_agents_themselves(ulp_zoo, tmp_path):
    result = merged_with(ulp_zoo, tmp_path / "out")
    for agent in result.agents.values():
        assert agent.effective_scaling_factor == pytest.approx(1.0, abs=0.01)


def test_float32_stores_what_was_asked_for(ulp_zoo, tmp_path):
    result = merged_with(ulp_zoo, tmp_path / "out", dtype="float32")
    for agent in result.agents.values():
        # A step is 2**-8 of its number or more, and float32 rounds at 2**-25 of it.
        assert agent.effective_scaling_factor == pytest.approx(agent.scaling_factor, abs=2.0**-16)


def test_stochastic_bfloat16_keeps_lambda_within_its_error(ulp_zoo, tmp_path):
    result = merged_with(ulp_zoo, tmp_path / "out", rounding="stochastic", seed=11)
    base, agents = ulp_zoo.values("model.layers.0.w")
    masks = reference.patterns(base, agents, 0.0)
    for t, agent in enumerate(result.agents.values()):
        squares = [
            (y - x) ** 2 for x, y, m in zip(base, agents[t], masks, strict=True) if m == 1 << t
        ]
        # Each element stores one or two steps (two finer ones below a power of two) with mean
        # lambda: weighted by tau**2, a term lies in a range of at most 1 and Hoeffding bounds the
        # sum. Float32 before the draw shifts the mean by less than 2**-16.
        spread = math.sqrt(sum(s * s for s in squares)) / sum(squares)
        allowed = spread * math.sqrt(math.log(2 / FALSE_ALARM) / 2) + 2.0**-16
        assert allowed < 0.15
        assert abs(agent.effective_scaling_factor - agent.scaling_factor) < allowed
        # And that is nearer to what was asked for than nearest rounding comes.
        assert agent.effective_scaling_factor - 1.0 > 0.5 * (agent.scaling_factor - 1.0)


def test_stochastic_rounding_moves_neither_unchanged_nor_exact_elements(ulp_zoo, tmp_path):
    result = merge(
        ulp_zoo.recipe(method="ram", settings={"epsilon": 0.0}, rounding="stochastic"),
        tmp_path / "out",
    )
    stored = bits_of(read_folder(result.out)["model.layers.0.w"])
    base, agents = ulp_zoo.values("model.layers.0.w")
    masks = torch.tensor(reference.patterns(base, agents, 0.0))
    tensors = [ulp_zoo.base, *ulp_zoo.agents.values()]
    for mask in (0, 1, 2):
        expected = bits_of(tensors[mask]["model.layers.0.w"])
        assert torch.equal(stored[masks == mask], expected[masks == mask])
    # Where both moved, by the same step or by opposite ones, the mean may lie between two numbers.
    for agent in result.agents.values():
        assert agent.effective_scaling_factor == pytest.approx(1.0, rel=1e-12)
