"""Presses in quick succession: every one is answered, however late a stream's end is read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr
import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import expect
from starlette.types import Message, Receive, Scope, Send

from ram_studio.app.public.queue_streams import QueueStreams

DATA = "/gradio_api/queue/data"
JOIN = "/gradio_api/queue/join"
CLOSE = b'data: {"msg":"close_stream","event_id":null}\n\n'
LATE = 1.0
"""Seconds after which a page reads that its stream was closed."""


async def gradio(scope: Scope, receive: Receive, send: Send) -> None:
    """Close a stream at once, and queue what is asked."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == DATA:
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": CLOSE, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class Asked:
    """A request under way, and what came back of it."""

    def __init__(self, app: QueueStreams, path: str, query: bytes = b"", body: bytes = b"") -> None:
        self.got: list[Message] = []
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.messages.put_nowait({"type": "http.request", "body": body})
        scope = {"type": "http", "path": path, "query_string": query}
        self.task = asyncio.create_task(app(scope, self.messages.get, self._take))

    async def _take(self, message: Message) -> None:
        self.got.append(message)

    @property
    def is_ended(self) -> bool:
        return bool(self.got) and not self.got[-1].get("more_body", self.got[-1] is self.got[0])


async def press_behind_a_closed_stream(app: QueueStreams) -> tuple[Asked, Asked]:
    """Return the stream and the press; nobody has read that the stream was closed."""
    stream = Asked(app, DATA, b"session_hash=mine")
    await asyncio.sleep(0.01)
    assert stream.got[-1]["body"] == CLOSE
    pressed = Asked(app, JOIN, body=json.dumps({"data": [], "session_hash": "mine"}).encode())
    await asyncio.sleep(0.01)
    return stream, pressed


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end in a thread: a browser of other tests holds a loop open in this one."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, work).result()


def test_a_press_is_told_when_its_page_hung_up() -> None:
    async def run() -> None:
        app = QueueStreams(gradio, seconds=60)
        stream, pressed = await press_behind_a_closed_stream(app)
        assert not stream.is_ended
        assert pressed.got == []
        # Whoever has no closed stream is told at once; Gradio refuses what is none of its requests.
        for body in (b'{"session_hash": "other"}', b'{"data": []}', b"[1]", b"not json", b""):
            other = Asked(app, JOIN, body=body)
            await other.task
            assert other.is_ended
        stream.messages.put_nowait({"type": "http.disconnect"})
        await asyncio.gather(stream.task, pressed.task)
        assert stream.is_ended
        assert pressed.is_ended
        later = Asked(app, JOIN, body=b'{"session_hash": "mine"}')
        await later.task
        assert later.is_ended

    finish(run())


def test_a_page_that_never_hangs_up_holds_nothing_up() -> None:
    async def run() -> None:
        stream, pressed = await press_behind_a_closed_stream(QueueStreams(gradio, seconds=0.05))
        await asyncio.wait_for(asyncio.gather(stream.task, pressed.task), 30)
        assert stream.is_ended
        assert pressed.is_ended

    finish(run())


def test_a_result_that_names_the_end_does_not_end_a_stream() -> None:
    told = json.dumps({"msg": "process_completed", "output": {"msg": "close_stream"}}).encode()

    async def telling(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = b"data: " + told + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        stream = Asked(QueueStreams(telling, seconds=60), DATA, b"session_hash=mine")
        await asyncio.wait_for(stream.task, 30)
        assert stream.is_ended

    finish(run())


def carry(source: socket.socket, to: socket.socket) -> None:
    """Pass on what comes until one side hangs up; the end of a stream late."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            before, end, after = data.partition(CLOSE[:26])
            to.sendall(before)
            if end:
                time.sleep(LATE)
                to.sendall(end + after)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def in_thread(run: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """Run something until the block ends."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


@pytest.fixture
def slow_url() -> Iterator[str]:
    """A page that counts presses, over a network that is slow to tell that a stream was closed."""
    with gr.Blocks() as page:
        count = gr.Textbox("0", elem_id="count")
        gr.Button("Add", elem_id="add").click(lambda n: str(int(n) + 1), count, count)
    behind = QueueStreams(gr.mount_gradio_app(FastAPI(), page.queue(), "/"))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(behind, log_level="error"))

    class Slow(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(listening.getsockname()) as far:
                asking = threading.Thread(target=carry, args=(self.request, far))
                asking.start()
                carry(far, self.request)
                asking.join()

    def stop() -> None:
        server.should_exit = server.force_exit = True

    with (
        in_thread(lambda: server.run([listening]), stop),
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as proxy,
        in_thread(proxy.serve_forever, proxy.shutdown),
    ):
        proxy.daemon_threads = True
        yield f"http://127.0.0.1:{proxy.server_address[1]}/"


@pytest.mark.browser
def test_a_press_before_the_end_was_read_is_answered(context: Any, slow_url: str) -> None:
    page = context.new_page()
    page.goto(slow_url)
    count = page.locator("#count textarea")
    for presses in (1, 2, 3):
        # From the second on: its answer is here, and what closes its stream still on its way.
        page.click("#add")
        expect(count).to_have_value(str(presses), timeout=10_000)
    page.close()
