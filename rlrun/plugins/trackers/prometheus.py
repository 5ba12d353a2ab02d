"""Serves the newest metrics over HTTP, for Prometheus to collect."""

import math
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import Field

from rlrun.plugins.http_guard import is_known_host, is_loopback
from rlrun.specs.sections.section import Section

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class PrometheusParams(Section):
    """The address at which metrics are served."""

    port: int = Field(default=9400, ge=0, le=65535)
    """TCP port of `/metrics`. 0: a free port, which the log names."""
    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all. There is no key: every client that reaches it may read the
    metrics."""


class Prometheus:
    """Serves one gauge per metric: `rollout/reward/mean` becomes `rlrun_rollout_reward_mean{run="…"}`.

    The gauge `rlrun_step` is the newest step.
    """

    Params = PrometheusParams
    api_version = 1

    def __init__(self, params: PrometheusParams) -> None:
        self.params = params
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """The address of the metrics, once started."""
        assert self._server is not None, "start() comes first"
        return f"http://{self._server.server_address[0]!s}:{self._server.server_port}/metrics"

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Starts the server. Raises OSError if the port is in use."""
        self._server = _Server((self.params.host, self.params.port), _Handler)
        self._server.run = name
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Updates the gauges. Metrics that a step does not have keep their values."""
        assert self._server is not None, "start() comes first"
        self._server.gauges = {**self._server.gauges, **metrics, "step": step}

    def close(self) -> None:
        """Stops the server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    """Serves the current gauges."""

    daemon_threads = True
    run = ""
    gauges: Mapping[str, float] = {}


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds: a connection that sends nothing does not keep its thread

    def do_GET(self) -> None:
        """Answers every path with the metrics; 403 for an unknown Host header, against DNS rebinding."""
        address = str(self.server.server_address[0])
        # If it listens to other hosts, they may use any name for it, and may all read the metrics anyway.
        if is_loopback(address) and not is_known_host(self.headers.get("Host", ""), address):
            self.send_error(403, "unknown host")
            return
        body = exposition(self.server.run, self.server.gauges).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing, since collectors send a request every few seconds."""


def exposition(run: str, gauges: Mapping[str, float]) -> str:
    """Returns the metrics in Prometheus' text format."""
    lines = []
    for metric, value in sorted(gauges.items()):
        name = "rlrun_" + _NOT_IN_NAMES.sub("_", metric)
        number = "NaN" if math.isnan(value) else f"{value:+}" if math.isinf(value) else repr(float(value))
        lines.append(f'# TYPE {name} gauge\n{name}{{run="{run.translate(_ESCAPES)}"}} {number}\n')
    return "".join(lines).replace("+inf", "+Inf").replace("-inf", "-Inf")
