"""A server on this machine that speaks the OpenAI protocol, well or badly."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


@dataclass
class LoopbackEndpoint:
    """requests: what came in, (path, headers, body)."""

    url: str
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)


@contextmanager
def serve(answer: Answer, models: tuple[str, ...] = ("one",)) -> Iterator[LoopbackEndpoint]:
    """Serve completions from a function for the block.

    answer: request body -> the answer's text; or a dict, sent as the JSON body; or bytes, sent as
    they are; or (status, bytes), or (status, bytes, headers); "endless": one byte after the other
    until the server ends.
    """
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            data = {"data": [{"id": name} for name in models]}
            self.reply(200, json.dumps(data).encode())

        def endless(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not stopping.wait(0.02):
                self.wfile.write(b" ")
                self.wfile.flush()

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            endpoint.requests.append((self.path, dict(self.headers), body))
            try:
                result = answer(body)
                if result == "endless":
                    self.endless()
                    return
                if isinstance(result, str):
                    is_chat = self.path.endswith("/chat/completions")
                    part = {"message": {"content": result}} if is_chat else {"text": result}
                    usage = {"completion_tokens": len(result.split())}
                    result = {"choices": [{**part, "finish_reason": "stop"}], "usage": usage}
                if isinstance(result, dict):
                    result = json.dumps(result).encode()
                self.reply(*(result if isinstance(result, tuple) else (200, result)))
            except (BrokenPipeError, ConnectionResetError):
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint = LoopbackEndpoint(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
