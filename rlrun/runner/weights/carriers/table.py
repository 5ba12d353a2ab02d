"""Every carrier, by its name in the spec."""

from typing import TYPE_CHECKING

from rlrun.runner.weights.carriers.broadcast.carrier import Broadcast
from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.disk.carrier import Disk
from rlrun.runner.weights.carriers.native.carrier import SharedMemory
from rlrun.runner.weights.carriers.tensor.carrier import SharedBuffers
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.sections import weight_carriers
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.carriers.reader import Reader, ReadingEngine

CARRIERS: dict[weight_carriers.Carrier, Carrier] = {
    "native": SharedMemory(),
    "tensor": SharedBuffers(),
    "broadcast": Broadcast(),
    "disk": Disk(),
}


def carrier_for(spec: Spec) -> Carrier:
    """Returns the carrier of a job."""
    return CARRIERS[carrier_of(spec)]


def readers_of(engine: "ReadingEngine") -> "dict[str, Reader]":
    """Returns a native engine's readers by the `load_format` of their requests."""
    readers = (carrier.reader(engine) for carrier in CARRIERS.values())
    return {reader.load_format: reader for reader in readers if reader is not None}
