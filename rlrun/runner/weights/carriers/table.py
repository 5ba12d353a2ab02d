"""Every carrier, by what the spec knows of it."""

from typing import TYPE_CHECKING

from rlrun.runner.weights.carriers.broadcast.carrier import Broadcast
from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.disk.carrier import Disk
from rlrun.runner.weights.carriers.native.carrier import SharedMemory
from rlrun.runner.weights.carriers.tensor.carrier import SharedBuffers
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.weight_carriers import BROADCAST, DISK, NATIVE, TENSOR, WeightCarrier

if TYPE_CHECKING:
    from rlrun.runner.weights.carriers.reader import Reader, ReadingEngine

CARRIERS: dict[WeightCarrier, Carrier] = {
    NATIVE: SharedMemory(),
    TENSOR: SharedBuffers(),
    BROADCAST: Broadcast(),
    DISK: Disk(),
}


def carrier_for(spec: Spec) -> Carrier:
    """Returns the carrier of a job."""
    return CARRIERS[carrier_of(spec)]


def readers_of(engine: "ReadingEngine") -> "dict[str, Reader]":
    """Returns a native engine's readers by the `load_format` of their requests."""
    readers = (carrier.reader(engine) for carrier in CARRIERS.values())
    return {reader.load_format: reader for reader in readers if reader is not None}
