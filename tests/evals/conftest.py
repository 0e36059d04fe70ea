"""The shipped example models, loaded once for all tests here."""

from collections.abc import Iterator

import pytest

from ram_studio.evals.answering import LocalEngine
from ram_studio.resources import asset_path


@pytest.fixture(scope="session")
def base_engine() -> Iterator[LocalEngine]:
    yield from _engine("base")


@pytest.fixture(scope="session")
def coding_engine() -> Iterator[LocalEngine]:
    yield from _engine("coding")


def _engine(name: str) -> Iterator[LocalEngine]:
    engine = LocalEngine(asset_path("example", name), device="cpu")
    yield engine
    engine.close()
