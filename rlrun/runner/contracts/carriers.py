"""What the driver hands to the trainer and the engines, and gets back.

    Prompt -> GenerateRequest -> engine -> Generation -> Sample
           -> TrainSequence, TrainStep -> trainer -> metrics

Plain numpy, so that every carrier crosses process borders cheaply and tests need no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlrun.plugins.generation import Generation as Generation  # noqa: PLC0414
from rlrun.plugins.generation import Sampling as Sampling  # noqa: PLC0414
from rlrun.plugins.sampling_mask import SamplingMask


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """n samples of one prompt, each with its own seed."""

    id: str
    """`rid` on the wire; sample k is `<id>-<k>`."""
    tokens: NDArray[np.int32]
    """`[P]` prompt."""
    seeds: tuple[int, ...]
    """One for each sample; their number is n."""
    sampling: Sampling
    session: str = ""
    """Requests of one session go on from each other: the engine that answered the last has their tokens in
    its cache. Sessions `x/1` and `x/2` begin with the same tokens, those of `x`. "": of none."""
    record_mask: bool = False
    """Trained tokens: the engine returns what each was drawn from, where `sampling` cuts the vocabulary."""

    @property
    def returns_mask(self) -> bool:
        """The answer has sampling masks."""
        return self.record_mask and self.sampling.cuts_vocabulary


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One training sample: a prompt of P tokens and a response of R."""

    tokens: NDArray[np.int32]
    """`[P + R]`"""
    prompt_length: int
    """P, at least 1."""
    loss_mask: NDArray[np.float32]
    """`[R]`"""
    advantages: NDArray[np.float32]
    """`[R]`"""
    rollout_log_probs: NDArray[np.float32]
    """`[R]`; zeros where there was no rollout (SFT)."""
    execution: str
    """Sequences of one agent execution share it and count once."""
    old_log_probs: NDArray[np.float32] | None = None
    """`[R]`; None: the detached new ones (one optimizer step), or the rollout's, by the spec."""
    reference_log_probs: NDArray[np.float32] | None = None
    """`[R]`; None unless the algorithm needs the reference."""
    values: NDArray[np.float32] | None = None
    """`[R]` of the critic before the update; None unless the algorithm needs one."""
    returns: NDArray[np.float32] | None = None
    """`[R]` what the critic is fitted to; None unless the algorithm needs one."""
    experts: NDArray[np.int16] | None = None
    """`[P + R, layers × K]` the experts to route each token to; -1: the router decides. None: it does for
    all."""
    sampling_mask: SamplingMask | None = None
    """The tokens that the softmax of each of the R runs over; None: the whole vocabulary for all."""


MicroBatches = tuple[tuple[tuple[int, ...], ...], ...]
"""`[data rank][micro-batch]` -> indices of sequences."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One optimizer step: which data rank runs which sequences together, and how their tokens weigh.

    loss = sum over sequences i and response tokens t of scale[i] * loss_mask[i][t] * token_loss[i][t]
    """

    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]
    """`[data rank][micro-batch]` -> indices into the step's sequences; every rank has the same number."""
    scale: Mapping[int, float]
    """Weight of a sequence's tokens, denominators already divided by (rlrun.runner.batches.reduction)."""


Role = Literal["policy", "reference", "teacher", "critic"]
"""A model that the trainer's ranks hold."""

Output = Literal["log_probs", "values"]
"""What a forward pass of a model returns for every response token; only a critic returns values."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where one tensor lies in a segment or bucket."""

    name: str
    """Hugging Face name."""
    dtype: Literal["float32", "bfloat16", "float16", "float8_e4m3fn"]
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start."""


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A complete set of weights in a named shared-memory segment of this host."""

    segment: str
    size: int
    version: int
    tensors: tuple[TensorSlot, ...]
    """q, k, v of a layer lie side by side, and gate, up: an engine can adopt each run as one fused matrix."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """What an SGLang server's tensors must be after an update."""

    ranks: tuple[Mapping[str, str], ...]
    """By tensor-parallel rank: the first 16 hexadecimal digits of SHA-256, by the server's own name."""
    skipped_names: tuple[str, ...]
    """Parts of the names of tensors that are not looked at this time."""


@dataclass(frozen=True, slots=True)
class SerializedWeights:
    """A complete set of weights as torch's handles to shared memory of this host, for SGLang servers."""

    size: int
    """Bytes of the weights."""
    version: int
    payloads: tuple[str, ...]
    """Base64, each for one reading process; a payload is read once."""
    copies: int = 1
    """Times that every process may read, each time its own payload: an engine may have to start again."""
    checksums: Checksums | None = None

    def for_engine(self, engine: int, engines: int, copy: int = 0) -> "SerializedWeights":
        """What one of several engines, of equally many processes each, is to read."""
        count, rest = divmod(len(self.payloads), engines * self.copies)
        assert not rest, "as many payloads for each engine"
        first = (copy * engines + engine) * count
        payloads = self.payloads[first : first + count]
        return SerializedWeights(self.size, self.version, payloads, checksums=self.checksums)


@dataclass(frozen=True, slots=True)
class FolderWeights:
    """A complete set of weights as safetensors in a folder, for SGLang servers that see it."""

    folder: str
    size: int
    """Bytes of the weights."""
    version: int
    changed: str | None = None
    """Folder of what changed since version `since`; None: not known."""
    changed_since: int = -1
    checksums: Checksums | None = None

    def only_changed(self) -> "FolderWeights":
        """For an engine that serves version `since`."""
        return replace(self, folder=self.changed or self.folder)


@dataclass(frozen=True, slots=True)
class StreamedWeights:
    """A set of weights that the trainer hands over bucket by bucket, once engines are ready for it."""

    size: int
    """Bytes of the weights."""
    version: int
    readers: int
    """Processes of each engine."""
    broadcast: bool
    """All engines take part in every bucket (a broadcast): one that fails breaks it for the others."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Who reads a set of weights that is handed over."""

    engines: tuple[int, ...]
    """Numbers of the engines."""
    restarts: tuple[int, ...]
    """How often each was started again: its processes are others then."""
    processes: int
    """Of each engine."""

    @property
    def count(self) -> int:
        """Processes of all of them."""
        return len(self.engines) * self.processes


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where the processes of servers meet trainer rank 0, which is rank 0 of the group."""

    name: str
    host: str
    port: int
    size: int
    """Processes, rank 0 included."""
    backend: Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """Some tensors of a streamed set; at its end one without tensors."""

    version: int
    tensors: tuple[TensorSlot, ...] = ()
    payloads: tuple[str, ...] = ()
    """Base64, each for one reading process, in order; none where the tensors are broadcast."""
    checksums: Checksums | None = None
    """At the end."""
    error: str | None = None
    """Why it cannot go on."""

    @classmethod
    def merge(cls, parts: Sequence["WeightBucket"]) -> "WeightBucket":
        """One bucket of the ranks that hand it over, in order: each has payloads for other readers."""
        for part in parts:
            if part.error is not None:
                return cls(part.version, error=part.error)
        return replace(parts[0], payloads=tuple(payload for part in parts for payload in part.payloads))

    def for_engine(self, engine: int, readers: int) -> "WeightBucket":
        """What one of several engines, of so many processes each, is to load."""
        return replace(self, payloads=self.payloads[engine * readers : (engine + 1) * readers])


WeightUpdate = WeightManifest | SerializedWeights | FolderWeights | StreamedWeights
"""What a trainer hands to engines: by kind of engine."""


@dataclass(frozen=True, slots=True)
class TrainerSetup:
    """What one trainer rank needs to start."""

    spec_json: str
    """The resolved spec (rlrun.specs.sections.job.Spec), as JSON."""
    model_folder: str
    """Local HF folder with config.json, tokenizer and weights."""
    rank: int
    local_rank: int
    world_size: int
    master_addr: str
    master_port: int
    threads: int
    optimizer_steps: int
    """Of the whole job; the schedules end there."""
    critic_only: int = 0
    """How many of them, the first, the critic alone takes; the policy's schedule does not count them."""
    teacher_folder: str | None = None
    """Local HF folder of the teacher; None unless the algorithm needs one."""
    weights_folder: str = ""
    """Where weights go that engines read from a disk; engines see it too."""
