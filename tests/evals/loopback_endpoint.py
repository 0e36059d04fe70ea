"""A server on this machine that speaks the OpenAI protocol, well or badly."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


class LoopbackEndpoint:
    """Serves completions from a function.

    answer: request body -> the answer's text; or a dict, sent as the JSON body; or bytes, sent as
    they are; or (status, bytes). `requests` holds what came in: (path, headers, body).
    """

    def __init__(self, answer: Answer, models: tuple[str, ...] = ("one",)) -> None:
        self.answer, self.models = answer, models
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.url = ""
        self.stopping = threading.Event()

    def endless(self, handler: BaseHTTPRequestHandler) -> None:
        """Send one byte after the other until the server ends."""
        handler.send_response(200)
        handler.end_headers()
        while not self.stopping.is_set():
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)


@contextmanager
def serve(answer: Answer, models: tuple[str, ...] = ("one",)) -> Iterator[LoopbackEndpoint]:
    """Run the server for the block."""
    endpoint = LoopbackEndpoint(answer, models)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            data = {"data": [{"id": name} for name in endpoint.models]}
            self.reply(200, json.dumps(data).encode())

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            endpoint.requests.append((self.path, dict(self.headers), body))
            try:
                result = endpoint.answer(body)
                if result == "endless":
                    endpoint.endless(self)
                    return
                if isinstance(result, str):
                    is_chat = self.path.endswith("/chat/completions")
                    part = {"message": {"content": result}} if is_chat else {"text": result}
                    result = {
                        "choices": [{**part, "finish_reason": "stop"}],
                        "usage": {"completion_tokens": len(result.split())},
                    }
                if isinstance(result, dict):
                    result = json.dumps(result).encode()
                status, content = result if isinstance(result, tuple) else (200, result)
                self.reply(status, content)
            except (BrokenPipeError, ConnectionResetError):
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
