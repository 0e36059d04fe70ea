"""The vLLM engine against a stand-in of its documented API; vLLM itself is not run here."""

import importlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chat_model import TOOL_TEMPLATE, make_chat_model

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.answering.vllm_engine import VllmEngine
from ram_studio.evals.question import Question
from ram_studio.evals.run import evaluate
from ram_studio.resources import asset_path

CODING = asset_path("independent", "coding")


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """Put the stand-in where `import vllm` finds it."""
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("vllm_stand_in.py"), folder / "vllm.py")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield importlib.import_module("vllm")
    sys.modules.pop("vllm", None)


def test_without_vllm_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("ram_studio.evals.answering.vllm_engine.find_spec", lambda name: None)
    with pytest.raises(EvaluationError, match=r'pip install "ram-studio\[vllm\]"'):
        VllmEngine(CODING)
    with pytest.raises(EvaluationError, match="vLLM is not installed"):
        evaluate({"m": CODING}, "demo", limit=1, engine="vllm")


def test_answers_equal_the_transformers_engines_and_stay_apart(vllm, store):
    said = []
    options = {"limit": 3, "device": "cpu", "store": store}
    for engine in ("transformers", "vllm"):
        row = evaluate({"m": CODING}, "demo", engine=engine, **options).models["m"]
        answers = row.answers.items()
        said.append([(d, a.text, a.is_correct, a.note) for d, own in answers for a in own])
    assert len(store.runs()) == 2
    assert said[0] == said[1]


def test_tool_loop_goes_on_turn_by_turn_as_in_transformers(vllm, tmp_path):
    folder = make_chat_model(tmp_path / "m", template=TOOL_TEMPLATE, context=6000)
    how = {"limit": 2, "difficulty": 3, "max_tokens": 6, "device": "cpu"}
    said = []
    for engine in ("transformers", "vllm"):
        report = evaluate({"m": folder}, "tool-loop", engine=engine, **how)
        said.append([answer.text for answer in report.models["m"].answers["tool-loop"]])
    assert said[0] == said[1]
    roles = [json.loads(line)["role"] for line in said[1][0].splitlines()]
    assert roles == ["assistant", "user", "assistant"]


def test_cut_answers_long_prompts_and_stopping_are_told(vllm):
    engine = VllmEngine(CODING, device="cpu")
    said = "tool: clock(city) . user: time in rome . answer:"
    ask = Question("q", "d", "c", said, "", None, 1, is_raw=True)
    ((_, reply),) = next(engine.answer([ask]))
    assert (reply.finish, reply.note, reply.tokens) == ("length", "cut off after 1 tokens", 1)
    ((_, reply),) = next(engine.answer([replace(ask, prompt="word " * 9000)]))
    assert reply.finish == "too_long"
    with pytest.raises(Stopped):
        next(engine.answer([ask], lambda: True))
    assert engine.identity["engine"] == "vllm"
    plain = LocalEngine(CODING, device="cpu").identity
    assert engine.identity["fingerprint"] == plain["fingerprint"]
    with pytest.raises(EvaluationError, match=r'"m" is in an engine that gives no logits'):
        evaluate({"m": engine}, "health", store=None)
    engine.close()


def test_what_vllm_cannot_load_or_answer_is_one_error(vllm, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("No GPU was found.\nReally.")

    ask = Question("q", "d", "c", "hello", "", None, 4, is_raw=True)
    monkeypatch.setattr(vllm.LLM, "generate", broken)
    with pytest.raises(EvaluationError, match=r"failed while vLLM answered: No GPU was found\. R"):
        next(VllmEngine(CODING, device="cpu").answer([ask]))
    monkeypatch.setattr(vllm.LLM, "__init__", broken)
    with pytest.raises(EvaluationError, match=r"vLLM does not load .*: No GPU"):
        next(VllmEngine(CODING, device="cpu").answer([ask]))


def test_health_is_refused_before_anything_is_loaded(vllm):
    with pytest.raises(EvaluationError, match="does not give"):
        evaluate({"m": CODING}, "health", engine="vllm")
