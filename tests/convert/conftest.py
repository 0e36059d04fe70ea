"""What trainers save, made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainers import saved_by_trainers


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Path:
    """What two processes saved."""
    return saved_by_trainers(tmp_path_factory.mktemp("ranks"), 2)
