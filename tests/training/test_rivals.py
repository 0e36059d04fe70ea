"""Rivals that RAM is measured against: their formulas, and what is offered only then."""

from __future__ import annotations

import pytest
import torch

from ram_studio.algorithm.methods import METHODS
from ram_studio.algorithm.methods.base import BlockInput, Facts, PreparedMethod
from ram_studio.algorithm.methods.magmax import MAGMAX
from training.shipped.rival_methods import SCALES_BY_AGENT, rival_methods
from training.shipped.rivals import BEYOND, SCALE_PER_AGENT, SCALES, axes_for

BASE = (1.0, -2.0, 0.5, 4.0, 0.0)
AGENTS = ((1.5, -2.0, 0.25, 4.0, -1.0), (0.75, -2.5, 0.5, 4.0, 1.5), (1.0, -1.0, 1.0, 4.0, 0.5))


def merged(method, **settings):
    """Return the merged values and who changed what."""
    block = BlockInput(torch.tensor(BASE), torch.tensor(AGENTS), 0, "w", 0)
    facts = Facts(("a", "b", "c"), 0, ("w",))
    found = method.merge(block, PreparedMethod(method.settings(**settings), facts))
    return found.values.tolist(), found.active.tolist()


def changes(i):
    return [agent[i] - BASE[i] for agent in AGENTS]


PATTERNS = [sum((tau != 0) << t for t, tau in enumerate(changes(i))) for i in range(len(BASE))]


def test_magmax_takes_the_agent_that_moved_furthest():
    values, active = merged(MAGMAX, scale=0.5)
    expected = [base + 0.5 * max(changes(i), key=abs) for i, base in enumerate(BASE)]
    assert values == pytest.approx(expected, abs=1e-12)
    assert active == PATTERNS == [0b011, 0b110, 0b101, 0, 0b111]


@pytest.mark.parametrize("scales", [(0.3, 1.0, 0.0), ()])
def test_every_agent_has_its_own_scale_or_all_an_equal_share(scales):
    values, active = merged(SCALES_BY_AGENT, scales=scales)
    factors = scales or (1 / 3,) * 3
    expected = [
        base + sum(f * tau for f, tau in zip(factors, changes(i), strict=True))
        for i, base in enumerate(BASE)
    ]
    assert values == pytest.approx(expected, abs=1e-12)
    assert active == PATTERNS


def test_rival_methods_are_offered_while_they_are_measured_only():
    before = dict(METHODS)
    measured = {method for method, _, _ in BEYOND.values()}
    with rival_methods():
        assert measured <= METHODS.keys()
    assert before == METHODS
    assert not measured <= METHODS.keys()


def test_a_scale_per_agent_is_chosen_from_every_combination():
    found = axes_for(BEYOND[SCALE_PER_AGENT][2], 3)["scales"]
    assert len(set(found)) == len(found) == len(SCALES) ** 3
    assert axes_for({"scale": (1.0,)}, 3) == {"scale": (1.0,)}
