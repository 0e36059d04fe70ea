"""Ask base, agents and merges the same question, in the Check step; answers side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from ram_studio.app.boxes import choice, html, slider
from ram_studio.app.check import chatting
from ram_studio.app.check.work import agents_of, choose_models
from ram_studio.app.session.jobs import Updates, Work, connect, watch
from ram_studio.app.session.session import Chat, Session
from ram_studio.app.session.shared import PageContext
from ram_studio.app.templates import render
from ram_studio.evals.suites.demo.tasks import DOMAINS, make_items

_DEFAULT_TOKENS = 64
# Not the seed of the checks: questions tried here should not be scored there.
_SEED = 7


def chat_html(chat: Chat, agents: list[str]) -> Markup:
    """Return the question and a card for each model."""
    return render("check/chat.html.j2", chat=chat, agents=agents)


def _example_prompts() -> list[tuple[str, str]]:
    return [
        (item.prompt[:60].strip(), item.prompt)
        for domain in DOMAINS
        for item in make_items(domain, 2, _SEED)
    ]


class ChatPanel:
    """The panel with its events. models: the component with the models to ask."""

    def __init__(self, shared: PageContext, models: gr.CheckboxGroup) -> None:
        self.shared, self._models = shared, models
        with gr.Accordion("Chat with the models", open=False, elem_id="chat", elem_classes="panel"):
            self._lay_out(shared.settings.max_chat_tokens)
        form = {self.question, models, self.tokens, self.template}
        connect(self.controls, shared.workspace, self._run, form, [self.answers])
        self.examples.input(
            fn=None, inputs=self.examples, outputs=self.question, js="(prompt) => prompt"
        )
        shared.loaded.listen([self.examples, self.answers], self._show)

    def _lay_out(self, most_tokens: int) -> None:
        html(
            '<p class="lead">The models ticked above answer one question in turn, with '
            "the most likely word at every step. A model without a chat format continues your "
            "text.</p>"
        )
        prompts = _example_prompts()
        self.examples = choice("Example questions", prompts, None, elem_id="chat-examples")
        self.question = gr.Textbox(
            label="Question",
            placeholder="Write anything, or choose an example",
            lines=3,
            max_lines=8,
            max_length=chatting.MOST_CHARACTERS,
            elem_id="chat-question",
        )
        with gr.Row(elem_classes="check-form"):
            shape = {"min_width": 220, "elem_id": "chat-tokens"}
            ends = (8, most_tokens)
            self.tokens = slider("Longest answer (tokens)", ends, _DEFAULT_TOKENS, 8, **shape)
            self.template = gr.Checkbox(
                True,
                label="Use the models' own chat format",
                min_width=220,
                elem_id="chat-template",
            )
        ids = {"start": "chat-ask", "stop": "stop-chat", "status": "chat-status"}
        self.controls = self.shared.job_controls("Ask", **ids)
        self.answers = html(elem_id="chat-answers")

    def _show(self, session: Session) -> Updates:
        is_example = session.loaded is not None and session.loaded.is_example
        answers = chat_html(session.chat, agents_of(session)) if session.chat else ""
        return {self.examples: gr.update(visible=is_example), self.answers: answers}

    def _run(self, data: Mapping[Any, Any], session: Session) -> Iterator[Updates]:
        agents = agents_of(session)

        def prepare() -> Work[Chat]:
            return chatting.chat_work(
                choose_models(data[self._models] or (), session),
                data[self.question] or "",
                data[self.tokens],
                bool(data[self.template]),
                session,
                self.shared.workspace,
            )

        def show_progress(chat: Chat | None) -> Updates:
            return {self.controls.status: "", self.answers: chat_html(chat, agents) if chat else ""}

        def finish(chat: Chat) -> Updates:
            session.chat = chat
            return {self.answers: chat_html(chat, agents)}

        yield from watch(session, self.controls, prepare, show_progress, finish)
