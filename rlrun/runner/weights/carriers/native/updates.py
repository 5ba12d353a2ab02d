"""The updates of native engines on the trainer's host, and how engines are given them.

driver ──POST /update_weights_from_tensor (numbers and names only, nothing pickled)──▶ native engine
"""

from dataclasses import dataclass
from typing import Any

import orjson

from rlrun.runner.contracts.weight_updates import Recipient, ServerCalls, TensorSlot
from rlrun.runner.weights.carriers.bodies import TENSORS

LOAD_FORMAT = "shared_memory"
"""The `load_format` of requests that name segments."""


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

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, by name."""
        return {slot.name: slot.shape for slot in self.tensors}

    def for_engine(self, recipient: Recipient) -> "WeightManifest":
        """Returns itself: every engine of this host maps the same segment, as often as it likes."""
        return self

    async def give(self, server: ServerCalls) -> int:
        """Makes a native engine adopt the segment from its next forward pass on."""
        return await server.adopt(TENSORS, _body(self.version, manifest=self))


@dataclass(frozen=True, slots=True)
class SegmentAdapters:
    """The adapters of one version in shared memory, for native engines, which merge them into the model."""

    adapters: WeightManifest
    """The two factors of each adapter, by peft's names, in float32."""
    base: WeightManifest
    """The frozen model. An engine maps it once."""
    scale: float
    """The factor of the product of an adapter's two factors."""

    @property
    def size(self) -> int:
        """Bytes that are written for this version."""
        return self.adapters.size

    @property
    def version(self) -> int:
        """Version of the adapters."""
        return self.adapters.version

    def for_engine(self, recipient: Recipient) -> "SegmentAdapters":
        """Returns itself: every engine of this host maps the same segment, as often as it likes."""
        return self

    async def give(self, server: ServerCalls) -> int:
        """Makes a native engine merge the adapters into the frozen model."""
        body = _body(self.version, manifest=self.adapters, base=self.base, scale=self.scale)
        return await server.adopt(TENSORS, body)


def _body(version: int, **fields: Any) -> bytes:
    common = {"weight_version": str(version), "flush_cache": False}
    return orjson.dumps({"load_format": LOAD_FORMAT, **fields, **common})
