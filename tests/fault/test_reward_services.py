"""Reward services that are down, slow, or answer rubbish: one clear error in time, or none at all."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.fault.ids import check_each_once
from tests.integration.jobs import ROLLOUT_ONLY, Jobs
from tests.waiting import PATIENCE


class Service(BaseHTTPRequestHandler):
    """`/slow` answers when nobody waits any more, `/rubbish` in HTML, `/flaky` from the ninth request on."""

    asked = 0
    ended = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        if self.path == "/slow":
            self.ended.wait(PATIENCE)
        if self.path == "/flaky" and self.asked <= 8:
            self.send_error(503)
            return
        body = b"<html>busy</html>" if self.path == "/rubbish" else json.dumps(0.5).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Service.ended.set()
    server.shutdown()


ERRORS = {
    "down": "gave no answer in 2 attempts; the last: ClientConnectorError",
    "slow": "took longer than 2 s",
    "rubbish": "gave no answer in 2 attempts; the last: ",
}


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=() if path == "down" else pytest.mark.slow) for path in ERRORS]
)
def test_a_service_that_does_not_serve_ends_the_job_in_time(
    joining_jobs: Jobs, address: str, path: str
) -> None:
    url = "http://127.0.0.1:9/score" if path == "down" else f"{address}/{path}"
    settings = ROLLOUT_ONLY | {"scoring__timeout": 2.0 if path == "slow" else 60.0}
    reward = {"type": "remote", "url": url, "attempts": 2}
    ended = joining_jobs.run(f"service-{path}", rewards=[reward], **settings)
    assert ended.code == 3
    [failed] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert "reward 'remote' on sample" in failed
    assert ERRORS[path] in failed


@pytest.mark.slow
def test_a_service_that_fails_now_and_then_costs_no_sample(joining_jobs: Jobs, address: str) -> None:
    reward = {"type": "remote", "url": f"{address}/flaky", "attempts": 20}
    settings = {"rewards": [reward], "scoring__timeout": 60.0, "trainer__steps": 2}
    ended = joining_jobs.run("service-flaky", **settings)
    assert ended.code == 0, ended.output
    assert all(line["rollout/failed"] == 0 for line in ended.metrics)
    check_each_once(ended)
