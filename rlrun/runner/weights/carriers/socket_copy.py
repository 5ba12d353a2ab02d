"""Native engines on the trainer's host: a copy of the whole model over a Unix socket.

    trainer rank 0   tensors ─▶ one buffer of its own process, which a thread sends to whoever connects
    engine           connects, reads the buffer to its end, and computes with its own copy from then on

The socket's name is abstract, so nothing of it is left when the trainer ends. Anybody on the host can
connect, so the sender lets only processes of its own user read.
"""

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

import orjson

from rlrun.runner.contracts.weight_updates import ServerCalls
from rlrun.runner.host.segment_files import new_segment_name
from rlrun.runner.weights.carriers.bodies import TENSORS
from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.costs import Links, PlannedUpdate, SyncTime, stored_time
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.carriers.reader import NewWeights, Reader, ReadingEngine
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    import torch

    from rlrun.runner.weights.buckets import WeightSet
    from rlrun.runner.weights.rank_weights import RankWeights
    from rlrun.runner.weights.writer import Writer

LOAD_FORMAT = "socket"
_SECONDS = 120.0
"""How long either side waits for the other one."""


@dataclass(frozen=True, slots=True)
class SocketManifest(WeightManifest):
    """A complete set of weights behind a socket, whose name is `segment`."""

    async def give(self, server: ServerCalls) -> int:
        """Makes a native engine read the weights, and adopt them from its next forward pass on."""
        return await server.adopt(TENSORS, orjson.dumps({"load_format": LOAD_FORMAT, "manifest": self}))


class SocketCopy(Carrier):
    """A Unix socket."""

    def writer(self, spec: Spec, source: "RankWeights") -> "Writer":
        """Sends the model in `engine.dtype`, whatever the config.json."""
        from rlrun.runner.weights.writer import SentModel, StoredWriter

        return StoredWriter(SentModel(spec, source, converted=False), lambda: _Sender(spec, source))

    def reader(self, engine: "ReadingEngine") -> "Reader":
        """Reads what the sender of the engine's job sends."""
        return SocketReader(engine)

    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the time of a copy out of the trainer's memory and one into the engine's."""
        del spec
        return stored_time(update, links, {"model": "the whole model over a Unix socket"}, links.host)


class _Sender:
    """One buffer and one listening socket for each version; those of the version before are closed."""

    def __init__(self, spec: Spec, source: "RankWeights") -> None:
        from rlrun.runner.weights.tensor_slots import end_of, layout

        self._job = source.job
        self._slots = layout(source.shapes, spec.engine.dtype)
        self._size = end_of(self._slots)
        self._listener: socket.socket | None = None

    def write(self, weights: "WeightSet", version: int) -> SocketManifest:
        """Copies the weights into a new buffer, and sends it to every engine that connects."""
        import torch

        from rlrun.runner.weights.tensor_slots import copy_all, tensors_in

        buffer = torch.empty(self._size, dtype=torch.uint8)
        copy_all(tensors_in(buffer, self._slots), weights)
        self.close()
        name = new_segment_name(self._job)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        Thread(target=_serve, args=(self._listener, buffer), name="weight socket", daemon=True).start()
        return SocketManifest(name, self._size, version, self._slots)

    def close(self) -> None:
        """Lets no further engine connect; those that read get their copy to its end."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
            self._listener = None


def _serve(listener: socket.socket, buffer: "torch.Tensor") -> None:
    while True:
        try:
            engine, _ = listener.accept()
        except OSError:
            return  # closed
        Thread(target=_send, args=(engine, buffer), name="weight copy", daemon=True).start()


def _send(engine: socket.socket, buffer: "torch.Tensor") -> None:
    with engine:
        engine.settimeout(_SECONDS)
        if _user_of(engine) == os.geteuid():
            engine.sendall(memoryview(buffer.numpy()))


class SocketReader(Reader):
    """Reads from sockets of the job that started the engine."""

    load_format = LOAD_FORMAT

    def read(self, body: Mapping[str, Any]) -> "SocketModel":
        """Returns the model behind the socket of `manifest`."""
        from rlrun.runner.weights.carriers.native.reader import own_manifest

        return SocketModel(own_manifest(body.get("manifest"), self.engine), self.engine)


class SocketModel(NewWeights):
    """A copy of the whole model."""

    def __init__(self, manifest: WeightManifest, engine: ReadingEngine) -> None:
        super().__init__(manifest.version)
        self._manifest, self._engine = manifest, engine

    def open(self, held: int | None) -> None:
        """Receives the copy. ValueError if the sender ends before it does."""
        import torch

        from rlrun.runner.weights.tensor_slots import check_shapes, check_slots, tensors_in

        manifest = self._manifest
        check_shapes(manifest.shapes, self._engine.shapes, manifest.segment)
        check_slots(manifest.tensors, 0, manifest.size, manifest.segment)
        buffer = torch.empty(manifest.size, dtype=torch.uint8)
        left = memoryview(buffer.numpy())
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            try:
                connection.connect(f"\0{manifest.segment}")
                if _user_of(connection) != os.geteuid():
                    raise ValueError(f"the socket {manifest.segment} is another user's")
                while left and (count := connection.recv_into(left)):
                    left = left[count:]
            except OSError as error:
                raise ValueError(f"weights {self.version}: the socket cannot be read: {error}") from error
        if left:
            raise ValueError(f"weights {self.version}: the sender ended {len(left)} bytes before their end")
        self.tensors = tensors_in(buffer, manifest.tensors)


def _user_of(connection: socket.socket) -> int:
    """Returns the user of the process at the other end."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", packed)[1])
