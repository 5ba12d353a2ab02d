"""What a trainer rank does for an update, whatever the carrier.

    sharded parameters ──gather──▶ one full tensor at a time ──WeightSet──▶ buckets ──carrier──▶ engines

A carrier (rlrun.runner.weights.carriers) chooses one of two writers. A StoredWriter has a complete set when
`write` returns, and engines read it at any later time. A StreamWriter (rlrun.runner.weights.streams) only
announces it: then the driver (rlrun.runner.weights.delivery) calls `begin` once and `next_bucket` until a
bucket without tensors comes.

Streams of a pipeline may gather each tensor only within its stage, so that a bucket has tensors of one stage.
Everything else gathers every tensor on rank 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from rlrun.converters.tensors.precision import parse_dtype
from rlrun.models.json_files import read_json_object
from rlrun.runner.contracts.weight_updates import StoredWeights, WeightUpdate
from rlrun.runner.weights.buckets import Bucket, WeightSet, plan_buckets, plan_stage_buckets
from rlrun.runner.weights.form import Form, engine_form
from rlrun.runner.weights.rank_weights import RankWeights, Tensors, on_first_rank
from rlrun.runner.weights.server_checksums import ChecksumRecorder, ComparedTensors
from rlrun.specs.derived.engine_groups import server_ranks
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.weight_sync import bucket_bytes
from rlrun.specs.sections.job import Spec


class Writer(ABC):
    """One rank's part in handing the policy, or its adapters, to the engines."""

    @abstractmethod
    def write(self, version: int) -> WeightUpdate | None:
        """Stores the current weights where engines can read them, or announces a stream of them.

        Collective. Returns the update on rank 0 and None on other ranks. Raises OSError if a disk is full,
        SegmentError if shared memory is full.
        """

    def release_buffers(self) -> None:  # noqa: B027
        """Frees buffers on the device for the engines that share it; by default there are none."""

    @abstractmethod
    def close(self) -> None:
        """Removes files and segments that would outlive this process, and leaves process groups."""


class Store(Protocol):
    """Where rank 0 keeps complete sets of weights."""

    def write(self, weights: WeightSet, version: int, /) -> StoredWeights:
        """Stores one version."""

    def close(self) -> None:
        """Removes everything that was stored."""


class SentModel:
    """The form in which engines get the policy, and what is compared when they have it."""

    def __init__(self, spec: Spec, source: RankWeights, *, converted: bool = True) -> None:
        """`converted`: the engines may serve another form than `engine.dtype`, which their config.json names.

        Raises ValueError if engines hold weights in a form that rlrun cannot produce.
        """
        self.spec, self.source = spec, source
        self.form = Form(parse_dtype(spec.engine.dtype))
        if converted:
            config = read_json_object(source.model_folder / "config.json")
            self.form = engine_form(spec.engine.dtype, config, source.shapes)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that tensors are gathered in: the engines', unless they are quantised from float32.

        A trainer that multiplies in the engines' FP8 rounds what FSDP has cast to bfloat16, so that engines
        get the same numbers only if theirs are cast too.
        """
        precision = self.spec.trainer.low_precision
        rounds_alike = precision is not None and precision.blockwise
        return self.form.dtype if self.form.kept is None or rounds_alike else None

    def buckets(self, *, by_stage: bool = False) -> list[Bucket]:
        """Returns the buckets of all tensors; `by_stage`: each has tensors of one pipeline stage."""
        source, limit = self.source, bucket_bytes(self.spec)
        if by_stage:
            return plan_stage_buckets(source.shapes, source.stages.stage_of, self.form, limit)
        return plan_buckets(source.shapes, self.form, limit)

    def recorder(self, version: int) -> ChecksumRecorder | None:
        """Returns what records the checksums of a version, for the first rank of a stream.

        Only SGLang servers that this job started are compared: the layout of an external server is unknown,
        and native engines compute no checksums.
        """
        engine, source = self.spec.engine, self.source
        if engine.weight_check == "none" or engine.type != "sglang":
            return None
        model, ranks, wide = source.model, server_ranks(self.spec), rounds_as_target(self.spec)
        compared = ComparedTensors(model, engine.weight_check, version, self.form, ranks, wide=wide)
        return ChecksumRecorder(ranks, compared, source.device)


class StoredWriter(Writer):
    """Gathers all tensors on rank 0, which stores them."""

    def __init__(self, sent: SentModel, make_store: Callable[[], Store]) -> None:
        """`make_store`: called at the first write, on rank 0 only."""
        self._sent = sent
        self._make_store = make_store
        self._store: Store | None = None

    def write(self, version: int) -> StoredWeights | None:
        """Stores the current weights; see Writer."""
        source = self._sent.source
        return on_first_rank(source.rank, source.gather(self._sent.dtype), partial(self._keep, version))

    def close(self) -> None:
        """Removes what is stored."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _keep(self, version: int, tensors: Tensors) -> StoredWeights:
        self._store = self._store or self._make_store()
        return self._store.write(WeightSet(tensors, self._sent.form, self._sent.recorder(version)), version)
