"""What users are told about the machine, and answers on ZeroGPU."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import gradio as gr
import pytest

from ram_studio.app.check import work as check
from ram_studio.app.check import zerogpu
from ram_studio.app.public import machine
from ram_studio.engine.events import CancelToken
from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.load import resolve_device
from ram_studio.evals.settings import EvalSettings


class Spaces(ModuleType):
    """A stand-in for the Hub's package: notes what was decorated, and pickles what crosses."""

    def __init__(self) -> None:
        super().__init__("spaces")
        self.__spec__ = importlib.machinery.ModuleSpec("spaces", None)
        self.seconds: list[int] = []
        self.calls: list[str] = []

    def GPU(self, duration: int) -> Callable[[Any], Any]:
        def decorate(work: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            def on_gpu(*arguments: Any) -> Iterator[Any]:
                self.calls.append(work.__name__)
                for batch in work(*pickle.loads(pickle.dumps(arguments))):
                    yield pickle.loads(pickle.dumps(batch))

            return on_gpu

        self.seconds.append(duration)
        return decorate


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spaces]:
    made = Spaces()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "spaces", made)
        importlib.reload(zerogpu)
        patch.setattr(check, "ZeroGpuEngine", zerogpu.ZeroGpuEngine)
        yield made
    importlib.reload(zerogpu)


def score(workspace: Any, session: Any, cancel: CancelToken) -> Any:
    plan = EvalSettings(limit=4)
    models = check.choose_models(["base", "coding"], session)
    return check.score_work(models, plan, session, workspace)(lambda event: None, cancel)


def test_zerogpu_answers_equal_local_ones(workspace, session, spaces, monkeypatch):
    shared = score(workspace, session, CancelToken())
    assert spaces.seconds == [zerogpu.ZEROGPU_SECONDS]
    assert spaces.calls == ["_answers", "_answers"]
    monkeypatch.setattr(check, "has_zerogpu", lambda: False)
    own = score(workspace, session, CancelToken())

    def texts(report: Any) -> list[Any]:
        return [
            [(a.text, a.is_correct) for part in model.answers.values() for a in part]
            for model in report.models.values()
        ]

    assert texts(shared) == texts(own)
    assert len(spaces.calls) == 2


def test_a_missing_zerogpu_is_told_and_stop_read_in_between(
    workspace: Any, session: Any, spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Stopped):
        score(workspace, session, cancel)

    def refuse(*_: Any) -> Iterator[Any]:
        raise gr.Error("You have exceeded your GPU quota")
        yield

    monkeypatch.setattr(zerogpu, "_answers", refuse)
    with pytest.raises(EvaluationError, match=r"No GPU was available .* exceeded your GPU quota"):
        score(workspace, session, CancelToken())


def test_a_gpu_that_is_only_lent_is_not_taken_for_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.with_zerogpu(60)(resolve_device) is resolve_device, "without the package"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.empty", lambda *_, **__: None)  # tried on a GPU that is named
    assert resolve_device("auto") == "cuda"
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert (resolve_device("auto"), resolve_device("cuda")) == ("cpu", "cuda")
    assert "ZeroGPU for answers" in machine.hardware_text()


def test_the_machine_is_what_its_container_may_use(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert re.search(r"has \d+ processors?.* and .*\d+ GB of memory", machine.hardware_text())
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    (tmp_path / "memory.max").write_text("1000000000\n")
    assert "This server has 2 processors and 1.0 GB of memory" in machine.hardware_text()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert re.search(r"has \d+ processor", machine.hardware_text())
