"""The updates of SGLang servers through torch's handles of shared buffers, and how servers are given them.

whole model    one handle for each process     begin ─▶ POST /update_weights_from_tensor ─▶ end
buckets        one for each, per bucket        begin ─▶ POST … bucket after bucket ─▶ end
adapters       one for each process            POST /load_lora_adapter_from_tensors, without a pause
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import orjson

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.weight_updates import (
    Checksums,
    GroupAddress,
    Recipient,
    ServerCalls,
    StreamedWeights,
    UpdatedModels,
    WeightBucket,
)
from rlrun.runner.weights.carriers.bodies import TENSORS, adapter_name, handles, update_fields

_ADAPTERS = "/load_lora_adapter_from_tensors"


@dataclass(frozen=True, slots=True)
class SerializedWeights:
    """A complete set of weights as torch's handles of this host's shared memory, for SGLang servers."""

    size: int
    """Bytes of the weights."""
    version: int
    payloads: tuple[str, ...]
    """Base64, one for each reading process; a payload can be read once."""
    copies: int = 1
    """Payloads per reading process: an engine that is started again reads the weights a second time."""
    checksums: Checksums | None = None

    def for_engine(self, recipient: Recipient) -> "SerializedWeights":
        """Returns the payloads of one of several engines that have the same number of processes.

        Raises EngineError if the engine has read all of its payloads.
        """
        if recipient.reads >= self.copies:
            raise EngineError(f"engine {recipient.engine} was lost {recipient.reads} times within one step")
        count, remainder = divmod(len(self.payloads), recipient.engines * self.copies)
        assert not remainder, "every engine has the same number of payloads"
        first = (recipient.reads * recipient.engines + recipient.engine) * count
        payloads = self.payloads[first : first + count]
        return SerializedWeights(self.size, self.version, payloads, checksums=self.checksums)

    async def give(self, server: ServerCalls) -> int:
        """Makes an SGLang server copy the weights."""
        await server.begin_update()
        try:
            body = handles(self.payloads) | update_fields(self.version, server.models)
            await server.send(TENSORS, orjson.dumps(body))
        except (EngineError, TimeoutError):
            await server.give_up_update()
            raise
        return await server.end_update(self.checksums)


@dataclass(frozen=True, slots=True)
class SharedBuckets(StreamedWeights):
    """Buckets in buffers that trainer and servers share, in host memory or on a GPU."""

    is_collective: ClassVar[bool] = False

    async def load(
        self, server: ServerCalls, bucket: WeightBucket, group: GroupAddress | None, engine: int
    ) -> None:
        """Makes a server copy the bucket from the buffers that its processes read."""
        del group
        payloads = bucket.of_engine(engine, self.readers)
        await server.send(TENSORS, handles_body(bucket, payloads, server.models))


@dataclass(frozen=True, slots=True)
class ServerAdapters:
    """The adapters of one version, for SGLang servers, which have the frozen model and apply them to it."""

    weights: SerializedWeights
    """The two factors of each adapter, by peft's names."""
    config: Mapping[str, Any]
    """peft's settings of the adapters."""
    checksums: Mapping[str, str]
    """SHA-256 of each tensor as 64 hexadecimal digits. A server that received other bytes ends."""
    base: Checksums | None
    """Checksums of the frozen model; None: it is not compared."""
    room: int
    """How many versions a server has room for."""

    @property
    def size(self) -> int:
        """Bytes of the adapters."""
        return self.weights.size

    @property
    def version(self) -> int:
        """Version of the adapters."""
        return self.weights.version

    def for_engine(self, recipient: Recipient) -> "ServerAdapters":
        """Returns the update of one of several engines (see `SerializedWeights.for_engine`)."""
        return replace(self, weights=self.weights.for_engine(recipient))

    async def give(self, server: ServerCalls) -> int:
        """Makes an SGLang server load the adapters, while requests go on with older ones."""
        body = {
            "lora_name": adapter_name(self.version),
            "config_dict": self.config,
            "expected_checksums": self.checksums,
            **handles(self.weights.payloads),
        }
        return await server.load_adapters(self, _ADAPTERS, orjson.dumps(body))


def handles_body(bucket: WeightBucket, payloads: Sequence[str], models: UpdatedModels) -> bytes:
    """Returns one bucket of a weight update as handles, one for each of the server's processes."""
    return orjson.dumps(handles(payloads) | update_fields(bucket.version, models))
