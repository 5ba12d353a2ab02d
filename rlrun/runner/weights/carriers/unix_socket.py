"""SGLang servers on the trainer's host through a Unix socket: the driver copies files to a folder of theirs.

rank 0 ──bucket──▶ files in memory ──socket──▶ driver ──▶ /dev/shm ──POST /update_weights_from_disk──▶ server
"""

import asyncio
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from rlrun.runner.contracts.weight_updates import Checksums, Recipient, ServerCalls
from rlrun.runner.host.segment_files import FOLDER
from rlrun.runner.weights.carriers.bodies import version_fields
from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.costs import Links, PlannedUpdate, SyncTime, stored_time
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.buckets import WeightSet
    from rlrun.runner.weights.source import WeightSource
    from rlrun.runner.weights.writer import SentModel, Writer

_SIZE_BYTES = 8
"""Each file begins with its size in bytes, big-endian."""


class UnixSocket(Carrier):
    """A socket at which rank 0 sends the last version to whoever connects."""

    def writer(self, spec: Spec, source: "WeightSource") -> "Writer":
        """Keeps the whole model as files in rank 0's memory."""
        from rlrun.runner.weights.writer import SentModel, StoredWriter

        sent = SentModel(spec, source)
        return StoredWriter(sent, lambda: SocketStore(sent))

    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the time of copies through host memory."""
        del spec
        return stored_time(update, links, {"model": "the whole model over a Unix socket"}, links.host)


class SocketStore:
    """Rank 0's side: the files of the last version, and the socket."""

    def __init__(self, sent: "SentModel") -> None:
        self._buckets = sent.buckets()
        self._folder = tempfile.mkdtemp(prefix="rlrun-")  # a path that is short enough for a socket
        self._path = f"{self._folder}/weights"
        self._files: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        threading.Thread(target=self._serve, name="unix socket", daemon=True).start()

    def write(self, weights: "WeightSet", version: int) -> "SocketWeights":
        """Keeps one version, which is sent from now on."""
        import torch
        from safetensors.torch import save

        from rlrun.runner.weights.buckets import views_of

        files = []
        for bucket in self._buckets:
            buffer = torch.empty(bucket.size, dtype=torch.uint8)
            weights.fill(buffer, bucket)
            files.append(save(views_of(buffer, bucket), {"format": "pt"}))
        self._files = files
        return SocketWeights(self._path, sum(map(len, files)), version, weights.checksums())

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):  # an engine's client that is gone
                    for file in self._files:
                        connection.sendall(len(file).to_bytes(_SIZE_BYTES) + file)


@dataclass(frozen=True, slots=True)
class SocketWeights:
    """A complete set of weights that rank 0 sends over a Unix socket."""

    path: str
    size: int
    version: int
    checksums: Checksums | None

    def for_engine(self, recipient: Recipient) -> "SocketWeights":
        """Returns itself: every engine's client reads everything."""
        del recipient
        return self

    async def give(self, server: ServerCalls) -> int:
        """Copies the files to a folder and makes a server load it."""
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            reader, writer = await asyncio.open_unix_connection(self.path)
            number = 0
            while head := await reader.read(_SIZE_BYTES):
                head += await reader.readexactly(_SIZE_BYTES - len(head))
                content = await reader.readexactly(int.from_bytes(head))
                file = Path(folder, f"model-{number}.safetensors")
                await asyncio.to_thread(file.write_bytes, content)
                number += 1
            writer.close()
            body = orjson.dumps({"model_path": folder} | version_fields(self.version))
            return await server.read_folder("/update_weights_from_disk", [body], [], self.checksums)
