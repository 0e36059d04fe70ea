"""Ask base, agents and merges the same question, in the Check step; answers side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from ram_studio.app import markup
from ram_studio.app.check import chatting
from ram_studio.app.check import wording as words
from ram_studio.app.check.heat_table import model_head
from ram_studio.app.session import Chat, Said, Session
from ram_studio.app.settings import Settings
from ram_studio.app.workspace import Workspace
from ram_studio.evals import DOMAINS, make_items

DEFAULT_TOKENS = 64
# Not the seed of the checks: what is tried here should not be what is scored there.
_SEED = 7
_STATES = {
    "waiting": words.CHAT_WAITING,
    "loading": words.CHAT_LOADING,
    "reading": words.CHAT_READING,
    "writing": words.CHAT_WRITING,
}


@dataclass(frozen=True)
class ChatPanel:
    """The components of the panel."""

    examples: gr.Dropdown
    question: gr.Textbox
    tokens: gr.Slider
    template: gr.Checkbox
    ask: gr.Button
    stop: gr.Button
    status: gr.HTML
    answers: gr.HTML

    @property
    def shown(self) -> list[Any]:
        """What ``show`` returns updates of."""
        return [self.examples, self.answers]

    @property
    def outputs(self) -> list[Any]:
        """What ``run`` yields values for."""
        return [self.ask, self.stop, self.status, self.answers]


def show(session: Session) -> list[Any]:
    """Return updates of ``ChatPanel.shown`` for what a session has."""
    is_example = session.loaded is not None and session.loaded.example is not None
    agents = list(session.loaded.agents) if session.loaded else []
    answers = chat_html(session.chat, agents) if session.chat else ""
    return [gr.update(visible=is_example), answers]


def chat_html(chat: Chat, agents: list[str]) -> str:
    """Return the question and a card for each model."""
    cards = "".join(_card(said, agents) for said in chat.answers)
    return (
        f'<div class="chat"><p class="prompt"><span class="muted">{words.CHAT_QUESTION}</span>'
        f"<code>{escape(chat.question)}</code></p>"
        f'<div class="answer-cards" aria-live="polite">{cards}</div></div>'
    )


def _card(said: Said, agents: list[str]) -> str:
    facts = []
    if said.is_chat is not None:
        facts.append(words.CHAT_TEMPLATE if said.is_chat else words.CHAT_PLAIN)
    if said.tokens:
        facts.append(f"{said.tokens} tokens")
    if said.speed:
        facts.append(f"{said.speed:.0f} tokens/s")
    if said.state == "done":
        foot = (
            markup.callout(said.verdict, said.tone)
            if said.tone != "plain"
            else f'<p class="fine verdict">{escape(said.verdict)}</p>'
        )
    else:
        foot = f'<p class="fine verdict">{_STATES[said.state]} …</p>'
    text = f'<pre class="said">{escape(said.text.strip())}</pre>' if said.text.strip() else ""
    return (
        f'<article class="answer-card" data-model="{escape(said.model)}" data-state="{said.state}">'
        f"<header><h4>{model_head(said.model, agents)}</h4>"
        f'<span class="muted">{" · ".join(facts)}</span></header>{text}{foot}</article>'
    )


def run(values: tuple[Any, ...], session: Session, workspace: Workspace) -> Iterator[list[Any]]:
    """Ask, yielding updates of ``ChatPanel.outputs``."""
    question, names, tokens, template = values
    idle = [gr.update(interactive=True), gr.update(visible=False)]
    busy = [gr.update(interactive=False), gr.update(visible=True)]
    agents = list(session.loaded.agents) if session.loaded else []
    found = chatting.run_chat(
        names or (), question or "", tokens, bool(template), session, workspace
    )
    shown = None
    for status, chat in found:
        is_busy = session.is_busy
        # Only when they change: a button that is drawn anew under the pointer misses its click.
        buttons = [gr.skip()] * 2 if is_busy is shown else busy if is_busy else idle
        shown = is_busy
        yield [*buttons, status, gr.skip() if chat is None else chat_html(chat, agents)]


def _example_prompts() -> list[tuple[str, str]]:
    return [
        (f"{domain.capitalize()}: {item.prompt[:60].strip()}", item.prompt)
        for domain in DOMAINS
        for item in make_items(domain, 2, _SEED)
    ]


def build(settings: Settings) -> ChatPanel:
    """Lay the panel out inside the open Blocks."""
    with gr.Accordion(words.CHAT_HEADING, open=False, elem_id="chat", elem_classes="panel"):
        gr.HTML(f'<p class="lead">{words.CHAT_LEAD}</p>', apply_default_css=False)
        examples = gr.Dropdown(
            _example_prompts(),
            value=None,
            label=words.CHAT_EXAMPLES,
            filterable=False,
            elem_id="chat-examples",
        )
        question = gr.Textbox(
            label=words.CHAT_QUESTION,
            placeholder=words.CHAT_PLACEHOLDER,
            lines=3,
            max_lines=8,
            max_length=chatting.MOST_CHARACTERS,
            elem_id="chat-question",
        )
        with gr.Row(elem_classes="check-form"):
            tokens = gr.Slider(
                8,
                settings.max_chat_tokens,
                value=DEFAULT_TOKENS,
                step=8,
                label=words.CHAT_TOKENS,
                buttons=[],
                min_width=220,
                elem_id="chat-tokens",
            )
            template = gr.Checkbox(
                True, label=words.CHAT_USE_TEMPLATE, min_width=220, elem_id="chat-template"
            )
        with gr.Row(elem_classes="actions"):
            ask = gr.Button(words.CHAT_ASK, variant="primary", elem_id="chat-ask")
            stop = gr.Button(words.CHAT_STOP, variant="stop", visible=False, elem_id="stop-chat")
        status = gr.HTML("", elem_id="chat-status", apply_default_css=False)
        answers = gr.HTML("", elem_id="chat-answers", apply_default_css=False)
    return ChatPanel(examples, question, tokens, template, ask, stop, status, answers)


def wire(
    panel: ChatPanel,
    models: gr.CheckboxGroup,
    workspace: Workspace,
    *,
    waiting: str,
    quiet: dict[str, Any],
    heavy: dict[str, Any],
) -> None:
    """Connect the panel; its Stop is the page's. models: those to ask."""

    def run_chat(request: gr.Request, *values: Any) -> Iterator[list[Any]]:
        yield from run(values, workspace.session(request.session_hash), workspace)

    form = [panel.question, models, panel.tokens, panel.template]
    panel.ask.click(fn=None, js=waiting, outputs=panel.status)
    panel.ask.click(run_chat, form, panel.outputs, **heavy)
    panel.examples.input(
        fn=None, inputs=panel.examples, outputs=panel.question, js="(prompt) => prompt"
    )
