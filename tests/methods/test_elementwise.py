"""Task arithmetic, TIES and DARE against plain Python, and their kernels against their formulas."""

from __future__ import annotations

import method_reference
import numpy as np
import pytest
import reference
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_zoo import AGENTS, random_elements

from ram_studio.algorithm import epsilon_grid
from ram_studio.algorithm.kernels import cpu
from ram_studio.algorithm.methods import METHODS, BlockInput, Facts, Magnitudes
from ram_studio.algorithm.methods import make_settings as settings_of
from ram_studio.algorithm.methods.trimming import retained_count

TENSOR = "model.layers.0.mlp.up_proj.weight"
SEED = 7

draws = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7, 64, 333]),
    st.sampled_from([1, 3]),
    st.booleans(),
)


def magnitudes_of(base: np.ndarray, agents: np.ndarray) -> Magnitudes:
    bins = np.zeros((1, len(agents), epsilon_grid.BIN_COUNT), dtype=np.int64)
    for t, agent in enumerate(agents):
        keys = epsilon_grid.key_of(agent - base)
        np.add.at(bins[0, t], keys[keys >= 0], 1)
    return Magnitudes(bins, np.array([len(base)]), np.zeros(1, dtype=np.int64))


def prepared(
    method: str,
    base: np.ndarray,
    agents: np.ndarray,
    names: tuple[str, ...] = AGENTS,
    ratio: float = 0.0,
    **values: float,
):
    """Return a method, and it made ready for one tensor; ratio: rho of every agent."""
    chosen = METHODS[method]
    facts = Facts(
        agents=names[: len(agents)],
        seed=SEED,
        tensors=(TENSOR,),
        ratios=np.full((1, len(agents)), ratio),
        magnitudes=magnitudes_of(base, agents),
    )
    return chosen, chosen.prepare(settings_of(method, values), facts)


def merge_all(method: str, base: np.ndarray, agents: np.ndarray, cut: int = 0, **values: float):
    """Return (values, active) through torch, in two blocks when cut is inside."""
    chosen, rule = prepared(method, base, agents, **values)
    parts = []
    for start, stop in ((0, cut), (cut, len(base))):
        x, y = torch.from_numpy(base[start:stop]), torch.from_numpy(agents[:, start:stop])
        parts.append(chosen.merge(BlockInput(x, y, 0, TENSOR, start), rule))
    return (
        torch.cat([p.values for p in parts]).numpy(),
        torch.cat([p.active for p in parts]).numpy(),
    )


def kernel_all(method: str, base: np.ndarray, agents: np.ndarray, start: int = 0, **values: float):
    chosen, prepared_rule = prepared(method, base, agents, **values)
    rule = chosen.rule(prepared_rule, 0, TENSOR)
    merged, active = np.empty(len(base)), np.empty(len(base), dtype=np.uint8)
    assert cpu.merge(rule, base, tuple(agents), merged, active, start=start)
    return merged, active


def expected_taus(method: str, base, agents, density=1.0, drop_rate=0.0) -> list[list[float]]:
    """Return per element the task vectors that are left after dropping and trimming."""
    trimming = method in ("ties", "dare-ties")
    share = min(1.0, density / (1 - drop_rate))
    left = []
    for name, agent in zip(AGENTS, agents, strict=False):
        pairs = list(zip(base.tolist(), agent.tolist(), strict=True))
        sizes = [abs(reference.tau(x, y)) for x, y in pairs]
        kept = method_reference.survives_trimming(sizes, share) if trimming else [True] * len(sizes)
        dropped = [
            method_reference.is_dropped(SEED, name, TENSOR, i, drop_rate) for i in range(len(sizes))
        ]
        left.append(
            [
                y - x if k and not d else 0.0
                for (x, y), k, d in zip(pairs, kept, dropped, strict=True)
            ]
        )
    return [list(column) for column in zip(*left, strict=True)]


CASES = [
    ("task-arithmetic", {}),
    ("task-arithmetic", {"scale": 1.0}),
    ("task-arithmetic", {"scale": -0.7}),
    ("ties", {}),
    ("ties", {"density": 0.5, "scale": 0.3}),
    ("ties", {"density": 1.0}),
    ("dare-ta", {}),
    ("dare-ta", {"drop_rate": 0.9, "scale": 1.0}),
    ("dare-ta", {"drop_rate": 0.0, "scale": 1.0}),
    ("dare-ties", {}),
    ("dare-ties", {"drop_rate": 0.25, "density": 0.5, "scale": 0.4}),
    ("dare-ties", {"drop_rate": 0.8, "density": 1.0}),
]


@pytest.mark.parametrize(("method", "values"), CASES)
@settings(max_examples=12)
@example(draw=(34809, 64, 3, True))  # a sign vote that cancels exactly
@given(draw=draws)
def test_every_element_follows_the_published_equation(method, values, draw) -> None:
    seed, n, n_agents, bfloat16 = draw
    base, agents = random_elements(seed, n, n_agents, bfloat16)
    got, active = merge_all(method, base, agents, cut=n // 3, **values)
    if n_agents == 3:  # loops are compiled for each number
        looped, pattern = kernel_all(method, base, agents, **values)
        assert looped.tobytes() == got.tobytes()
        assert pattern.tolist() == active.tolist()
    chosen = settings_of(method, values).model_dump()
    scale = chosen["scale"] if chosen["scale"] is not None else 1 / n_agents
    p = chosen.get("drop_rate", 0.0)
    taus = expected_taus(method, base, agents, chosen.get("density", 1.0), p)
    for i, left in enumerate(taus):
        x = float(base[i])
        if method in ("ties", "dare-ties"):
            # Dividing by 1 - p first would round, and move votes off an exact tie.
            want = method_reference.elect(x, left, scale / (1 - p))
        else:
            rescaled = [tau / (1 - p) for tau in left]
            want = method_reference.task_arithmetic(x, [x + tau for tau in rescaled], scale)
        assert got[i] == pytest.approx(want, rel=1e-12, abs=1e-15)
        assert active[i] == sum(1 << t for t, agent in enumerate(agents) if agent[i] != base[i])
        if not any(left):
            assert got[i] == x


@pytest.mark.parametrize("method", ["task-arithmetic", "ties", "dare-ta", "dare-ties"])
@settings(max_examples=15)
@given(draw=draws)
def test_the_order_of_agents_does_not_matter(method, draw) -> None:
    seed, n, _, bfloat16 = draw
    base, agents = random_elements(seed, n, 3, bfloat16)
    forward, _ = merge_all(method, base, agents)
    turned = np.ascontiguousarray(agents[::-1])
    chosen, rule = prepared(method, base, turned, AGENTS[::-1])
    block = BlockInput(torch.from_numpy(base), torch.from_numpy(turned), 0, TENSOR, 0)
    backward = chosen.merge(block, rule).values.numpy()
    # Float64 sums of three in another order differ by their last bits at most.
    np.testing.assert_allclose(forward, backward, rtol=1e-12, atol=1e-17)


def test_dropping_keeps_the_mean_and_the_share() -> None:
    # 20,000 elements: the share of drops has a standard error of .0035, 5 of them are .018.
    rng = np.random.default_rng(1)
    base = rng.normal(0, 1, 20_000).astype(np.float32)
    agents = (base + np.float32(0.5))[None]
    got, _ = merge_all("dare-ta", base, agents, drop_rate=0.4, scale=1.0)
    assert (got != base).mean() == pytest.approx(0.6, abs=0.018)
    assert (got - base).mean() == pytest.approx(0.5, abs=0.02)


def test_a_drop_depends_on_seed_agent_tensor_and_index_alone() -> None:
    base = np.zeros(400, dtype=np.float32)
    agents = np.stack([base + 1, base + 16])
    both, _ = merge_all("dare-ta", base, agents, scale=1.0)
    alone, _ = merge_all("dare-ta", base, agents[:1], scale=1.0)
    # With half dropped, 2 and 32 are left of 1 and 16.
    assert (both % 32 == 2).tolist() == (alone == 2).tolist()
    assert (both % 32 == 2).tolist() != (both >= 32).tolist()


@pytest.mark.parametrize(
    ("density", "total", "k"),
    [(0.2, 15, 3), (0.2, 1, 1), (0.2, 0, 0), (1.0, 9, 9), (0.5, 9, 4), (1e-9, 9, 1), (0.3, 10, 3)],
)
def test_how_many_elements_a_density_keeps(density, total, k) -> None:
    assert retained_count(density, total) == k


def test_equal_magnitudes_are_all_kept() -> None:
    base = np.zeros(10, dtype=np.float32)
    agents = np.full((1, 10), 0.5, dtype=np.float32)
    got, _ = merge_all("ties", base, agents, density=0.2)
    assert got.tolist() == [0.5] * 10


def test_an_agent_that_changed_little_loses_nothing() -> None:
    base = np.zeros(100, dtype=np.float32)
    agents = np.zeros((1, 100), dtype=np.float32)
    agents[0, :3] = (1e-12, 1e-3, -5.0)
    got, _ = merge_all("ties", base, agents, density=0.2)
    assert (got != 0).sum() == 3


def test_what_cancels_exactly_stays_at_the_base() -> None:
    base = np.full(4, 0.5, dtype=np.float32)
    agents = np.stack([base + np.float32(0.25), base - np.float32(0.25)])
    got, _ = merge_all("ties", base, agents, density=1.0)
    assert got.tolist() == [0.5] * 4
