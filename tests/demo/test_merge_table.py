"""The record's plain merge formulas against hand-computed elements."""

import pytest
import torch

from ram_studio.demo.merge_table import load_into, merged_vectors, overlap_numbers

BASE = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
# Element by element: nobody, first alone, second alone, both, both with opposite signs.
FIRST = BASE + torch.tensor([0.0, 0.5, 0.0, 0.25, 0.5])
SECOND = BASE + torch.tensor([0.0, 0.0, 1.0, 0.75, -1.0])


def test_overlap_numbers_count_unique_and_shared_elements():
    first, second = overlap_numbers(BASE, [FIRST, SECOND])
    assert (first["changed"], first["unique"], first["rho"]) == (3, 1, 2.0)
    assert first["density"] == pytest.approx(3 / 5)
    assert first["lambda"] == pytest.approx(1.2)
    assert second == first
    # Without a unique element rho is unbounded and lambda capped.
    same = overlap_numbers(BASE, [FIRST, FIRST])[0]
    assert (same["rho"], same["lambda"]) == (None, pytest.approx(1.2))


def test_ram_averages_what_is_shared_and_task_arithmetic_sums_everything():
    merged = merged_vectors(BASE, [FIRST, SECOND])
    expected = BASE + torch.tensor([0.0, 0.5, 1.0, 0.5, -0.25])
    torch.testing.assert_close(merged["ram"], expected)
    rescaled = BASE + torch.tensor([0.0, 0.6, 1.2, 0.5, -0.25])
    torch.testing.assert_close(merged["ram+"], rescaled)
    total = torch.tensor([0.0, 0.5, 1.0, 1.0, -0.5])
    torch.testing.assert_close(merged["task-arithmetic 1"], BASE + total)
    torch.testing.assert_close(merged["task-arithmetic 1/N"], BASE + total / 2)


def test_ties_keeps_the_largest_fifth_and_the_elected_sign():
    # One of five elements per agent survives the trim; of two survivors the larger mass decides.
    first = BASE + torch.tensor([0.0, 0.1, 0.0, 0.2, 0.5])
    second = BASE + torch.tensor([0.0, 0.0, 0.3, 0.2, -1.0])
    merged = merged_vectors(BASE, [first, second])["ties 0.2 / 1"]
    torch.testing.assert_close(merged, BASE + torch.tensor([0.0, 0.0, 0.0, 0.0, -1.0]))


@pytest.mark.parametrize("agents", [[BASE, BASE], [BASE.clone()]])
def test_agents_equal_to_the_base_change_nothing(agents):
    for vector in merged_vectors(BASE, agents).values():
        assert torch.equal(vector, BASE)
    assert overlap_numbers(BASE, agents)[0]["rho"] == 0.0


def test_loading_a_vector_rounds_to_bfloat16():
    model = torch.nn.Linear(2, 1)
    load_into(model, torch.tensor([1.001, -2.0, 0.1]))
    assert model.weight.tolist() == [[1.0, -2.0]]
    assert model.bias.item() == torch.tensor(0.1).bfloat16().item()
