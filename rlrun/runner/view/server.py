"""Serves the page and its answers on the loopback address.

    GET /<token>/             the page
    GET /<token>/api/<name>   an answer as JSON

It refuses every other request: other methods, wrong tokens, and a Host header that does not name this host.
With such a header a web site could make a browser ask on its behalf (DNS rebinding).
"""

import gzip
import hmac
import json
import logging
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rlrun.runner.view.answers import Answers, NotFound
from rlrun.runner.view.page import Page, to_json

LOOPBACK = "127.0.0.1"
_HOSTS = {"127.0.0.1", "localhost", "[::1]"}
"""Names of this machine. The port may differ where an SSH tunnel leads here."""
_MIN_COMPRESSED = 2000
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

logger = logging.getLogger(__name__)


class ViewServer(ThreadingHTTPServer):
    """The server of one view; it listens on the loopback address only."""

    daemon_threads = True

    def __init__(self, answers: Answers, page: Page, port: int = 0) -> None:
        """`port`: 0 takes any that is free. Raises OSError if it cannot be used."""
        self.answers = answers
        self.page = page
        self.token = secrets.token_urlsafe(24)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page, which contains the token."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs an error of a connection, such as a page that was closed, instead of printing it."""
        logger.debug("a connection failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    server_version = "rlrun"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answers one request."""
        address = urlsplit(self.path)
        if not is_own_host(self.headers.get_all("Host") or []):
            return self._refuse(HTTPStatus.FORBIDDEN, "the Host header is not that of this machine")
        token, _, rest = address.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self._refuse(HTTPStatus.FORBIDDEN, "open the address that rlrun view printed")
        if rest == "":
            return self._send(self.server.page.html, "text/html; charset=utf-8")
        if rest.startswith("api/"):
            return self._answer(rest.removeprefix("api/"), dict(parse_qsl(address.query)))
        return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _answer(self, name: str, query: dict[str, str]) -> None:
        try:
            body = to_json(self.server.answers.answer(name, query))
        except NotFound as error:
            return self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except (ValueError, KeyError, OverflowError) as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}")
        except ModuleNotFoundError as error:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.name} is not installed")
        except Exception as error:  # the boundary to files that may be broken in any way: the page shows it
            logger.exception("the question %r failed", name)
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        return self._send(body, "application/json; charset=utf-8")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        body = json.dumps({"problem": reason}).encode()
        self._send(body, "application/json; charset=utf-8", status)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        if len(body) > _MIN_COMPRESSED and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", f"{self.server.page.policy}; frame-ancestors 'none'")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses a request that is not a GET, or not HTTP, without repeating any of it."""
        self.close_connection = True
        self._refuse(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: addresses contain the token."""


def is_own_host(hosts: list[str]) -> bool:
    """Returns whether a request has one Host header, which names this machine."""
    if len(hosts) != 1:
        return False
    name, colon, port = hosts[0].rpartition(":")
    if hosts[0].endswith("]") or not colon:
        name, port = hosts[0], ""
    return name.lower() in _HOSTS and (not port or port.isdecimal())
