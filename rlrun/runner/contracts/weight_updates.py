"""What the trainer hands to the engines when their weights change, by kind of carrier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal


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
class WeightManifest:
    """A complete set of weights in a shared-memory segment of this host, for native engines."""

    segment: str
    """Name of the segment."""
    size: int
    """Bytes of the weights."""
    version: int
    tensors: tuple[TensorSlot, ...]
    """q, k, v of a layer are adjacent, as are gate and up, so that an engine can use them as one fused
    matrix without a copy."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums that an SGLang server's tensors must have after an update."""

    ranks: tuple[Mapping[str, str], ...]
    """For each tensor-parallel rank, the first 16 hexadecimal digits of SHA-256 by the server's name of the
    tensor."""
    skipped_names: tuple[str, ...]
    """Parts of the names of tensors that are not compared after this update."""


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

    def for_engine(self, engine: int, engines: int, copy: int = 0) -> "SerializedWeights":
        """Returns the payloads of one of several engines that have the same number of processes."""
        count, remainder = divmod(len(self.payloads), engines * self.copies)
        assert not remainder, "every engine has the same number of payloads"
        first = (copy * engines + engine) * count
        payloads = self.payloads[first : first + count]
        return SerializedWeights(self.size, self.version, payloads, checksums=self.checksums)


@dataclass(frozen=True, slots=True)
class FolderWeights:
    """A complete set of weights as safetensors in a folder that SGLang servers can read."""

    folder: str
    size: int
    """Bytes of the weights."""
    version: int
    changed: str | None = None
    """Folder with only what changed since version `changed_since`; None: it was not recorded."""
    changed_since: int = -1
    checksums: Checksums | None = None

    def only_changed(self) -> "FolderWeights":
        """Returns the update for an engine that serves version `changed_since`."""
        return replace(self, folder=self.changed or self.folder)


@dataclass(frozen=True, slots=True)
class StreamedWeights:
    """A complete set of weights that the trainer sends bucket by bucket, once engines are ready for it."""

    size: int
    """Bytes of the weights."""
    version: int
    readers: int
    """Processes of each engine."""
    broadcast: bool
    """All engines receive a bucket in one collective: an engine that fails breaks it for the others."""


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


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """The address at which servers' processes join trainer rank 0, which is rank 0 of the process group."""

    name: str
    host: str
    port: int
    size: int
    """Processes, rank 0 included."""
    backend: Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """Some tensors of a streamed set; a bucket without tensors ends the set."""

    version: int
    tensors: tuple[TensorSlot, ...] = ()
    payloads: tuple[str, ...] = ()
    """Base64, one for each reading process, in order; empty if the tensors are broadcast."""
    checksums: Checksums | None = None
    """Set in the last bucket."""
    error: str | None = None
    """Why the trainer cannot continue; None if it can."""

    @classmethod
    def merge(cls, buckets: Sequence["WeightBucket"]) -> "WeightBucket":
        """Returns one bucket with the payloads of all sending ranks, in order."""
        for bucket in buckets:
            if bucket.error is not None:
                return cls(bucket.version, error=bucket.error)
        return replace(
            buckets[0], payloads=tuple(payload for bucket in buckets for payload in bucket.payloads)
        )

    def for_engine(self, engine: int, readers: int) -> "WeightBucket":
        """Returns the bucket with only the payloads of one engine, which has `readers` processes."""
        return replace(self, payloads=self.payloads[engine * readers : (engine + 1) * readers])


WeightUpdate = WeightManifest | SerializedWeights | FolderWeights | StreamedWeights
"""A set of weights as the trainer gives it to engines; the kind of engine decides which of these it is."""
