"""A random model in the layout of the real set's base."""

from __future__ import annotations

import pytest
import torch
from real_set_folder import make_agents, make_answers, make_base


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums are added up in the same order whatever else the machine does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random bfloat16 model in the layout of the base."""
    return make_base(tmp_path_factory.mktemp("real-set") / "base")


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """What training and measuring leave."""
    folder = make_agents(base, tmp_path_factory.mktemp("real-set") / "all")
    make_answers(folder)
    return folder
