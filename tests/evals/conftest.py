"""The shipped example models, loaded once for all tests here, and workers of little patience."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.sandbox.worker import Worker
from ram_studio.evals.store import AnswerStore
from ram_studio.resources import asset_path


@pytest.fixture(scope="session")
def base_engine() -> Iterator[LocalEngine]:
    with closing(LocalEngine(asset_path("independent", "base"), device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="session")
def coding_engine() -> Iterator[LocalEngine]:
    with closing(LocalEngine(asset_path("independent", "coding"), device="cpu")) as engine:
        yield engine


@pytest.fixture
def store(tmp_path) -> Iterator[AnswerStore]:
    with AnswerStore(tmp_path / "answers.sqlite3") as opened:
        yield opened


@pytest.fixture(scope="module")
def quick(request) -> Iterator[Worker]:
    """Let the worker of the module that a test file names ASKS take three tenths of a second."""
    module = request.module.ASKS
    with pytest.MonkeyPatch.context() as patch:
        made = replace(module.WORKER, seconds=0.3)
        patch.setattr(module, "WORKER", made)
        with closing(made):
            yield made
