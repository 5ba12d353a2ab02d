"""The updates of engines through a folder, and how engines are given them.

whole model         pause ─▶ POST /update_weights_from_disk ─▶ compare, resume
changed elements    SGLang: the same, then each delta as tensors, which our loader applies in the server
                    native: in one request
adapters            POST /load_lora_adapter, without a pause
"""

import pickle
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from rlrun.runner.contracts.weight_updates import Checksums, Recipient, ServerCalls
from rlrun.runner.weights.carriers.bodies import adapter_name, update_fields, version_fields

_DISK = "/update_weights_from_disk"
_ADAPTER_FOLDER = "/load_lora_adapter"
DELTA_LOADER = "rlrun_weight_delta.apply"
"""The function of rlrun.runner.weights.deltas.server_path with which SGLang servers apply deltas."""


@dataclass(frozen=True, slots=True)
class WeightDelta:
    """The elements that changed between two versions, as files in a folder."""

    folder: str
    since: int
    """The version that an engine must have, to apply the delta to it."""
    version: int
    files: tuple[str, ...]
    """Their paths; none if nothing changed."""
    size: int
    """Bytes of the files."""


@dataclass(frozen=True, slots=True)
class FolderWeights:
    """A complete set of weights as safetensors in a folder that engines can read."""

    folder: str | None
    """None: the engine already has the version to which the deltas apply."""
    size: int
    """Bytes that were written for this version."""
    version: int
    changed: str | None = None
    """Folder with only the files that changed since version `changed_since`; None: it was not recorded."""
    changed_since: int = -1
    checksums: Checksums | None = None
    full_version: int = -1
    """The version of the weights in `folder`, if deltas follow."""
    deltas: tuple[WeightDelta, ...] = ()
    """What changed from version to version, oldest first. The first may be older than `full_version`."""
    processes: int | None = None
    """Processes of each SGLang server that apply deltas; None: engines read no deltas, or are native."""

    def for_engine(self, recipient: Recipient) -> "FolderWeights":
        """Returns what an engine has to read, which depends on the version that it has."""
        if self.changed is not None and recipient.served == self.changed_since:
            return replace(self, folder=self.changed)
        for number, delta in enumerate(self.deltas):
            if recipient.served == delta.since:
                return replace(self, folder=None, deltas=self.deltas[number:])
        return replace(self, deltas=tuple(d for d in self.deltas if d.since >= self.full_version))

    async def give(self, server: ServerCalls) -> int:
        """Makes an engine read the folder, then apply the deltas after it."""
        processes = self.processes
        whole = [] if processes is not None and self.folder is None else [self._body()]
        deltas = [] if processes is None else [_delta_body(delta, processes) for delta in self.deltas]
        return await server.read_folder(_DISK, whole, deltas, self.checksums)

    def _body(self) -> bytes:
        """Returns the request to read the folder; for native engines with the deltas to apply."""
        body: dict[str, Any] = {"model_path": self.folder} | version_fields(self.version)
        if self.processes is None and self.full_version >= 0:
            body["deltas"] = [{"since": delta.since, "files": delta.files} for delta in self.deltas]
        return orjson.dumps(body)


@dataclass(frozen=True, slots=True)
class FolderAdapters:
    """The adapters of one version in a folder of peft's layout, for SGLang servers on any node."""

    folder: str
    size: int
    """Bytes of the adapters."""
    version: int
    base: Checksums | None
    """Checksums of the frozen model; None: it is not compared."""
    room: int
    """How many versions a server has room for."""

    def for_engine(self, recipient: Recipient) -> "FolderAdapters":
        """Returns itself: every engine reads the same folder."""
        return self

    async def give(self, server: ServerCalls) -> int:
        """Makes an SGLang server load the adapters, while requests go on with older ones."""
        body = {"lora_name": adapter_name(self.version), "lora_path": self.folder}
        return await server.load_adapters(self, _ADAPTER_FOLDER, orjson.dumps(body))


def _delta_body(delta: WeightDelta, processes: int) -> bytes:
    """Returns a delta for an SGLang server: the names of its tensors, which have no elements, are paths.

    It is for the served model only: a draft model shares its embedding, which would change twice.
    """
    payload = b64encode(_pickled_names(delta.files)).decode()
    body = {"serialized_named_tensors": [payload] * processes, "load_format": DELTA_LOADER}
    return orjson.dumps(body | update_fields(delta.version, "target"))


def _pickled_names(names: Sequence[str]) -> bytes:
    """Returns a list of pairs of a name and an empty tensor as Python pickles it, without importing torch.

    `torch.ByteTensor` is among the few things that servers unpickle.
    """
    tensor = pickle.GLOBAL + b"torch\nByteTensor\n" + pickle.EMPTY_TUPLE + pickle.REDUCE
    texts = [name.encode() for name in names]
    pairs = b"".join(
        pickle.BINUNICODE + len(text).to_bytes(4, "little") + text + tensor + pickle.TUPLE2 for text in texts
    )
    return pickle.PROTO + b"\x02" + pickle.EMPTY_LIST + pickle.MARK + pairs + pickle.APPENDS + pickle.STOP
