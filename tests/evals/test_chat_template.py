"""Chat templates are untrusted programs: rendered as transformers does, ended when they hang."""

import os
import signal

import pytest
from chat_model import TEMPLATE, TOOL_TEMPLATE, make_chat_model

from ram_studio.errors import EvaluationError, Stopped
from ram_studio.evals.answering import chat_template
from ram_studio.evals.answering.chat_template import render_chat
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.question import Question

SAID = [{"role": "user", "content": "Grüße, <b>you</b>\n"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HELLO = Question("chat", "chat", "chat", "hello", "", None, 4)
HUGE = "{{ 'x' * 10000000000 }}"

ASKS = chat_template
pytestmark = pytest.mark.usefixtures("quick")


def test_prompts_equal_transformers_rendered_in_one_process(quick):
    from transformers.utils.chat_template_utils import render_jinja_template

    render_chat(TEMPLATE, SAID)
    process, special = quick._process, {"bos_token": "<s>"}
    for template in (TEMPLATE, TOOL_TEMPLATE, "{{ bos_token }}" + TEMPLATE):
        how = {"tools": TOOLS, "chat_template": template, "add_generation_prompt": True}
        (expected,), _ = render_jinja_template(conversations=[SAID], **how, **special)
        assert render_chat(template, SAID, tools=TOOLS, special=special) == expected
    assert quick._process is process


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (HUGE, "memory|MemoryError"),
        ("{{ 'x' * 9000000 }}", "9000000 characters"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for %}", "Expected"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_what_fails_or_hangs_is_ended_and_the_next_prompt_works(template, reason):
    with pytest.raises(EvaluationError, match=reason):
        render_chat(template, SAID)
    assert "Grüße" in render_chat(TEMPLATE, SAID)


def test_a_model_whose_template_hangs_does_not_hang_the_engine(tmp_path):
    engine = LocalEngine(make_chat_model(tmp_path / "m", template=ENDLESS))
    with pytest.raises(EvaluationError, match=r"chat template .* longer than 0.3 s"):
        list(engine.answer([HELLO]))
    assert "Grüße" in render_chat(TEMPLATE, SAID)


def test_slow_prompts_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "SLOW_SECONDS", 0.02)
    monkeypatch.setattr(chat_template, "ALL_SLOW_SECONDS", 0.3)
    busy = "{% for a in range(500) %}{% for b in range(4000) %}{% endfor %}{% endfor %}" + TEMPLATE
    engine = LocalEngine(make_chat_model(tmp_path / "m", template=busy))
    with pytest.raises(EvaluationError, match=r"chat template .* longer than 0.3 s together"):
        list(engine.answer([HELLO] * 200))
    quick = LocalEngine(make_chat_model(tmp_path / "q", template=TEMPLATE))
    assert all("hello" in quick.prompt_of(HELLO) for _ in range(200))


def test_a_busy_machine_makes_no_template_a_broken_one(tmp_path, monkeypatch, quick):
    engine = LocalEngine(make_chat_model(tmp_path / "m", template=TEMPLATE))
    assert "hello" in engine.prompt_of(HELLO)
    # Stop acts between prompts.
    with pytest.raises(Stopped):
        list(engine.answer([HELLO], should_stop=lambda: True))
    process = quick._process
    assert process is not None
    # A process that gets no time at all computes nothing, however long it is waited for.
    os.kill(process.pid, signal.SIGSTOP)
    for patience, reason in ((0.3, "gave no answer"), (0.01, "did not start")):
        with monkeypatch.context() as short:
            # No Python starts in the second one.
            short.setattr(quick, "patience", patience)
            with pytest.raises(EvaluationError, match=f"{reason} within .* too busy") as found:
                engine.prompt_of(HELLO)
            assert "Repair" not in str(found.value)
    assert "hello" in engine.prompt_of(HELLO)
