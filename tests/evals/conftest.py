"""The shipped example models, loaded once for all tests here."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from ram_studio.evals.answering.local import LocalEngine
from ram_studio.resources import asset_path


@pytest.fixture(scope="session")
def base_engine() -> Iterator[LocalEngine]:
    with closing(LocalEngine(asset_path("independent", "base"), device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="session")
def coding_engine() -> Iterator[LocalEngine]:
    with closing(LocalEngine(asset_path("independent", "coding"), device="cpu")) as engine:
        yield engine
