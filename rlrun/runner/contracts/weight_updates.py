"""What trainer, driver and engines exchange when the weights change, whatever the carrier.

A carrier's own updates are beside it in rlrun.runner.weights.carriers: each is a StoredWeights, which engines
can read at any time, or a StreamedWeights, which the trainer sends bucket by bucket.
"""

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor of a segment or bucket, and its position there."""

    name: str
    """Hugging Face name."""
    dtype: Literal["float32", "bfloat16", "float16", "float8_e4m3fn"]
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums that an SGLang server's tensors must have after an update."""

    ranks: tuple[Mapping[str, str], ...]
    """For each tensor-parallel rank, the first 16 hexadecimal digits of SHA-256 by the server's name of the
    tensor."""
    skipped_names: tuple[str, ...]
    """Parts of the names of tensors that are not compared after this update."""

    @classmethod
    def merge(cls, parts: Sequence["Checksums | None"]) -> "Checksums | None":
        """Returns the checksums of several streams, which carried different tensors; None if any has none."""
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        tables = zip(*(part.ranks for part in known), strict=True)
        return cls(
            tuple(dict(ChainMap(*tables_of_rank)) for tables_of_rank in tables), known[0].skipped_names
        )


@dataclass(frozen=True, slots=True)
class Readers:
    """The engines that read a set of streamed weights."""

    engines: tuple[int, ...]
    """Numbers of the engines."""
    restarts: tuple[int, ...]
    """How often each engine was started again: a restarted engine has new processes."""
    processes: int
    """Processes of each engine."""

    @property
    def count(self) -> int:
        """Processes of all engines together."""
        return len(self.engines) * self.processes

    @property
    def process_numbers(self) -> tuple[int, ...]:
        """The numbers of these engines' processes, counted over the processes of all engines."""
        return tuple(
            engine * self.processes + process for engine in self.engines for process in range(self.processes)
        )


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """The address at which servers' processes join a trainer rank, which is rank 0 of the process group."""

    name: str
    host: str
    port: int
    size: int
    """Processes, rank 0 included."""
    backend: Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class StreamMember:
    """One trainer rank's part in streaming weights."""

    stream: int
    """Ranks with the same number fill the buckets of one stream together. A broadcast from a pipeline has one
    stream per stage, everything else has a single stream."""
    group: GroupAddress | None = None
    """Set on the rank that broadcasts the stream's buckets."""


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """Some tensors of a streamed set; a bucket without tensors ends the set."""

    version: int
    tensors: tuple[TensorSlot, ...] = ()
    payloads: Mapping[int, str] = field(default_factory=dict)
    """Base64, by the number of the process that reads it (`Readers.process_numbers`); empty if the tensors
    are broadcast."""
    checksums: Checksums | None = None
    """Set in the last bucket."""
    error: str | None = None
    """Why the trainer cannot continue; None if it can."""

    @classmethod
    def merge(cls, buckets: Sequence["WeightBucket"]) -> "WeightBucket":
        """Returns one bucket with the payloads of all sending ranks, and the first rank's checksums."""
        for bucket in buckets:
            if bucket.error is not None:
                return cls(bucket.version, error=bucket.error)
        payloads: dict[int, str] = {}
        for bucket in buckets:
            payloads |= bucket.payloads
        return replace(buckets[0], payloads=payloads)

    def of_engine(self, engine: int, processes: int) -> tuple[str, ...]:
        """Returns the payloads of one engine's processes, in order."""
        own = range(engine * processes, (engine + 1) * processes)
        return tuple(self.payloads[process] for process in own)


UpdatedModels = Literal["target", "all"]
"""Which models of an SGLang server an update is for: the model that it serves, or also the draft model of
speculative decoding. SGLang loads tensors into a draft model by their names, also those of another model."""


class AdapterVersion(Protocol):
    """The adapters of one version, for servers that apply them to the frozen model that they have."""

    @property
    def version(self) -> int:
        """Version of the adapters."""

    @property
    def base(self) -> Checksums | None:
        """Checksums of the frozen model; None: it is not compared."""

    @property
    def room(self) -> int:
        """How many versions a server has room for."""


class ServerCalls(Protocol):
    """An engine's calls from which carriers make an update (rlrun.runner.engines.client.weight_client).

    A call raises EngineError if the engine refuses it or answers with something else.
    """

    @property
    def name(self) -> str:
        """The engine's name in messages."""

    @property
    def models(self) -> UpdatedModels:
        """Which models of the server updates are for."""

    async def adopt(self, path: str, body: bytes) -> int:
        """Makes a native engine serve the weights that the body names; returns the version it answers."""

    async def begin_update(self, groups: "Sequence[GroupAddress]" = (), first_rank: int = 0) -> None:
        """Stops generating and prepares for tensors, in process groups if there are any."""

    async def send(self, path: str, body: bytes) -> None:
        """Makes a call that must not reach the engine twice."""

    async def end_update(self, checksums: Checksums | None) -> int:
        """Makes the engine serve what was loaded, after a comparison; returns the version."""

    async def give_up_update(self) -> None:
        """Ends an update that failed; the engine stays paused."""

    async def read_folder(
        self, path: str, bodies: Sequence[bytes], deltas: Sequence[bytes], checksums: Checksums | None
    ) -> int:
        """Pauses, makes these calls and those of deltas, compares, resumes; returns the version."""

    async def load_adapters(self, update: AdapterVersion, path: str, body: bytes) -> int:
        """Makes adapters those of later requests; returns their version."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """One engine that is given a version of the weights."""

    engine: int
    """Number of the engine."""
    engines: int
    """Number of engines in the pool."""
    served: int | None = None
    """The version that the engine has; None: it has none of the trainer's."""
    reads: int = 0
    """How often the engine was given this version before: it was lost each time."""


class StoredWeights(Protocol):
    """A complete version of the weights, or what an engine lacks of it, stored where engines can read it."""

    @property
    def version(self) -> int:
        """Version of the weights."""

    @property
    def size(self) -> int:
        """Bytes that were written for this version."""

    def for_engine(self, recipient: Recipient) -> "StoredWeights":
        """Returns what one engine has to read. Raises EngineError if it cannot read this version again."""

    async def give(self, server: ServerCalls) -> int:
        """Makes an engine read it; returns the version that the engine serves then."""


@dataclass(frozen=True, slots=True)
class WeightStream:
    """Weights that some ranks of a trainer are streaming: all of them, or those of one pipeline stage."""

    group: GroupAddress | None
    """Address of the process group of a broadcast; None for shared buffers."""
    next: Callable[[], Awaitable[WeightBucket]]
    """Returns the next bucket; one without tensors at the end, or after an error."""
    abort: Callable[[str], Awaitable[None]]
    """Makes a call of `next` that waits for engines return an error; the argument is the reason."""


class WeightsMoved(Exception):
    """Raised when the trainer no longer has the version of the weights that it is asked for."""


class WeightStreamer(Protocol):
    """The trainer, which streams the weights it has announced (rlrun.runner.cluster.trainer_group)."""

    def hand_over(
        self, version: int, readers: Readers
    ) -> AbstractAsyncContextManager[Sequence[WeightStream]]:
        """Streams the weights of a version, which do not change until the context ends.

        Raises WeightsMoved when the trainer has other weights by now.
        """


@dataclass(frozen=True, slots=True)
class StreamedWeights(ABC):
    """A complete set of weights that the trainer sends bucket by bucket, once engines are ready for it."""

    size: int
    """Bytes of the weights."""
    version: int
    readers: int
    """Processes of each engine."""
    trainer: WeightStreamer | None = None
    """The trainer; set on the driver."""
    is_collective: ClassVar[bool]
    """Whether all engines receive a bucket in one call of a process group: an engine that fails breaks it for
    the others."""

    @abstractmethod
    async def load(
        self, server: ServerCalls, bucket: WeightBucket, group: GroupAddress | None, engine: int
    ) -> None:
        """Makes an engine load one bucket of a stream; `group`: its process group, if it has one."""


WeightUpdate = StoredWeights | StreamedWeights
"""A version of the weights as the trainer gives it to engines; the carrier decides which of these it is."""
