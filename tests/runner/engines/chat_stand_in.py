"""A real HTTP server with `/v1/chat/completions`, whose faults are scripted, in a thread of its own."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, Mapping[str, str]]
"""A status, a body and headers."""


def choices(*texts: Any, reason: Any = "stop", tokens: Any = None, **message: Any) -> Answer:
    """Returns a completion with these texts."""
    messages = [{"role": "assistant", "content": text, **message} for text in texts]
    found = [{"finish_reason": reason, "message": one} for one in messages]
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return 200, json.dumps({"choices": found, **usage}), {}


def fault(status: int, text: str = "no", **headers: str) -> Answer:
    """Returns an error."""
    return status, text, {name.replace("_", "-"): value for name, value in headers.items()}


class ChatStandIn(ThreadingHTTPServer):
    """Answers with a script, whose last entry repeats, or by a function of the request's body."""

    daemon_threads = True

    def __init__(self, script: Sequence[Answer] | Callable[[Mapping[str, Any]], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self._script = script
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, body: dict[str, Any], key: str | None) -> Answer:
        with self._lock:
            self.bodies.append(body)
            self.keys.append(key)
            if callable(self._script):
                return self._script(body)
            return self._script[min(len(self.bodies), len(self._script)) - 1]

    def __enter__(self) -> "ChatStandIn":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ChatStandIn

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(*self.server.answer(body, self.headers.get("Authorization")))

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self._send(200, json.dumps({"data": [{"id": "org/toy"}]}), {})

    def _send(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Prints no line for each request."""
