"""Hands adapters alone to engines that have the frozen model. One AdapterWriter runs on every trainer rank.

    native engines    once: the frozen model ─▶ segment, mapped by all engines of the host
                      each update: factors ─▶ one of two small segments ─▶ every engine merges them
    SGLang servers    started with the frozen model, whose checksums are compared once
                      each update: factors ─▶ a new buffer ─▶ every server loads them as `policy-v<version>`

A native engine merges as the trainer would (rlrun.converters.families.lora.merge_factors), from the trainer's
own copy of the frozen model, so that it holds the same numbers as if the trainer had sent merged weights.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from rlrun.converters.tensors.precision import parse_dtype
from rlrun.models.adapters import LoraShape, adapters
from rlrun.models.architecture import Architecture
from rlrun.runner.contracts.weight_updates import (
    AdapterUpdate,
    Checksums,
    SegmentAdapters,
    SerializedWeights,
    ServerAdapters,
    WeightManifest,
)
from rlrun.runner.weights.buckets import WeightSet, plan_buckets, views_of
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.page_locking import HOST
from rlrun.runner.weights.serialized import COPIES
from rlrun.runner.weights.server_checksums import ChecksumRecorder, ComparedTensors
from rlrun.runner.weights.shared_memory import SharedWeights
from rlrun.runner.weights.sharing import SharedBuffer
from rlrun.runner.weights.writer import Gather, Tensors
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.lora_sync import adapter_room
from rlrun.specs.sections.job import Spec

Stored = TypeVar("Stored")


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """The policy's adapters and frozen model on one rank."""

    rank: int
    model: Architecture
    lora: LoraShape
    shapes: dict[str, tuple[int, ...]]
    """Shape of every tensor of the adapters, by peft's name."""
    base_shapes: dict[str, tuple[int, ...]]
    """Shape of every tensor of the frozen model, by Hugging Face name."""
    base_dtype: str
    """A precision that holds the frozen model without loss."""
    gather: Gather
    """Yields every tensor of the adapters in full on rank 0. It is collective."""
    gather_base: Gather
    """Yields every tensor of the frozen model in full on rank 0. It is collective."""
    device: torch.device
    job: str
    """Name of the job; part of the names of its shared-memory segments."""


class AdapterWriter:
    """One rank's part in handing adapters to the engines."""

    def __init__(self, spec: Spec, source: AdapterSource) -> None:
        """Nothing is gathered or allocated before the first write."""
        make = _ServerCarrier if spec.engine.type == "sglang" else _SegmentCarrier
        self._carrier: _ServerCarrier | _SegmentCarrier = make(spec, source)

    def write(self, version: int) -> AdapterUpdate | None:
        """Stores the current adapters where engines can read them; the first time also the frozen model, or
        its checksums.

        Collective. Returns the update on rank 0 and None on other ranks. Raises SegmentError if shared memory
        is full.
        """
        return self._carrier.write(version)

    def release_buffers(self) -> None:
        """Does nothing: no buffers are on the device."""

    def close(self) -> None:
        """Removes segments and buffers that would outlive this process."""
        self._carrier.close()


class _SegmentCarrier:
    """Writes to shared-memory segments, for native engines."""

    def __init__(self, spec: Spec, source: AdapterSource) -> None:
        self._source = source
        self._adapters = SharedWeights(source.job, source.shapes, "float32", device=source.device)
        self._base = SharedWeights(source.job, source.base_shapes, source.base_dtype, segments=1)
        self._base_manifest: WeightManifest | None = None
        self._has_base = False

    def write(self, version: int) -> SegmentAdapters | None:
        source = self._source
        if not self._has_base:
            self._base_manifest = _on_first_rank(
                source, source.gather_base, None, lambda tensors: self._base.write(tensors, version)
            )
            self._has_base = True
        manifest = _on_first_rank(
            source, source.gather, torch.float32, lambda tensors: self._adapters.write(tensors, version)
        )
        if manifest is None or self._base_manifest is None:
            return None
        return SegmentAdapters(manifest, self._base_manifest, source.lora.scale)

    def close(self) -> None:
        self._adapters.close()
        self._base.close()


class _ServerCarrier:
    """Writes to buffers in host memory, for SGLang servers."""

    def __init__(self, spec: Spec, source: AdapterSource) -> None:
        self._spec, self._source = spec, source
        self._form = Form(parse_dtype(spec.engine.dtype))
        [self._bucket] = plan_buckets(source.shapes, self._form, None)
        self._config = peft_config(source.model, source.lora)
        self._buffer: SharedBuffer | None = None
        self._base: Checksums | None = None
        self._has_base = False

    def write(self, version: int) -> ServerAdapters | None:
        if not self._has_base:
            self._base = self._base_checksums()
            self._has_base = True
        source = self._source
        return _on_first_rank(
            source, source.gather, self._form.dtype, lambda tensors: self._store(tensors, version)
        )

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def _store(self, tensors: Tensors, version: int) -> ServerAdapters:
        """Copies the adapters into a new buffer.

        A server keeps views of the buffer for as long as it has the adapters, so that the next version must
        not overwrite it. Removing its file leaves the server its memory.
        """
        self.close()
        self._buffer = SharedBuffer(self._bucket.size, HOST, self._source.device)
        WeightSet(tensors, self._form).fill(self._buffer.bytes, self._bucket)
        readers = layout_of(self._spec, rollout=True).engines * self._spec.engine.tensor
        payloads = self._buffer.payloads(self._bucket, readers * COPIES)
        weights = SerializedWeights(self._bucket.size, version, payloads, COPIES)
        views = views_of(self._buffer.bytes, self._bucket)
        checksums = {name: _sha256(view) for name, view in views.items()}
        return ServerAdapters(weights, self._config, checksums, self._base, adapter_room(self._spec))

    def _base_checksums(self) -> Checksums | None:
        """Returns the checksums of the whole frozen model on rank 0; collective."""
        source, engine = self._source, self._spec.engine
        if engine.weight_check == "none":
            return None
        compared = ComparedTensors(source.model, "all", 0, self._form, engine.tensor)

        def record(tensors: Tensors) -> Checksums:
            recorder = ChecksumRecorder(engine.tensor, compared, source.device)
            for name, tensor in tensors:
                recorder.add(name, tensor)
            return recorder.checksums()

        return _on_first_rank(source, source.gather_base, self._form.dtype, record)


def peft_config(model: Architecture, lora: LoraShape) -> dict[str, Any]:
    """Returns peft's settings of the adapters, with alpha such that alpha / rank is their scale.

    SGLang does not read `use_rslora`.
    """
    targets = list(dict.fromkeys(adapter.target for adapter in adapters(model, lora)))
    return {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": lora.scale * lora.rank,
        "target_modules": targets,
    }


def _on_first_rank(
    source: AdapterSource,
    gather: Gather,
    dtype: torch.dtype | None,
    store: Callable[[Tensors], Stored],
) -> Stored | None:
    """Gathers tensors on all ranks; returns what `store` makes of them on rank 0, None on others."""
    tensors = gather(dtype)
    if source.rank == 0:
        return store(tensors)
    for _ in tensors:  # takes part in gathering every tensor
        pass
    return None


def _sha256(tensor: torch.Tensor) -> str:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data).hexdigest()
