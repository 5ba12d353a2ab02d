"""Every carrier, by its name in the spec."""

from rlrun.runner.weights.carriers.broadcast.carrier import Broadcast
from rlrun.runner.weights.carriers.carrier import Carrier
from rlrun.runner.weights.carriers.disk.carrier import Disk
from rlrun.runner.weights.carriers.native.carrier import SharedMemory
from rlrun.runner.weights.carriers.tensor.carrier import SharedBuffers
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.sections import weight_carriers
from rlrun.specs.sections.job import Spec

CARRIERS: dict[weight_carriers.Carrier, Carrier] = {
    "native": SharedMemory(),
    "tensor": SharedBuffers(),
    "broadcast": Broadcast(),
    "disk": Disk(),
}


def carrier_for(spec: Spec) -> Carrier:
    """Returns the carrier of a job."""
    return CARRIERS[carrier_of(spec)]
