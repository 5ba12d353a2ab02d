"""The updates of SGLang servers through a process group, and how servers are given them.

driver ──POST /update_weights_from_distributed (names, dtypes, shapes)──▶ every server, which then waits
for the bytes in the group that it joined when the update began
"""

from dataclasses import dataclass
from typing import ClassVar

import orjson

from rlrun.runner.contracts.weight_updates import (
    GroupAddress,
    ServerCalls,
    StreamedWeights,
    UpdatedModels,
    WeightBucket,
)
from rlrun.runner.weights.carriers.bodies import FLATTENED, update_fields

_BROADCAST = "/update_weights_from_distributed"


@dataclass(frozen=True, slots=True)
class BroadcastWeights(StreamedWeights):
    """Buckets that one rank per pipeline stage broadcasts to the processes of all servers."""

    is_collective: ClassVar[bool] = True

    async def load(
        self, server: ServerCalls, bucket: WeightBucket, group: GroupAddress | None, engine: int
    ) -> None:
        """Makes a server receive the bucket in the stream's process group."""
        del engine
        assert group is not None, "a broadcast has a process group"
        await server.send(_BROADCAST, broadcast_body(bucket, group.name, server.models))


def broadcast_body(bucket: WeightBucket, group: str, models: UpdatedModels) -> bytes:
    """Returns one bucket of a weight update as the description of a broadcast of bytes in a process group."""
    slots = bucket.tensors
    return orjson.dumps(
        {
            "names": [slot.name for slot in slots],
            "dtypes": [slot.dtype for slot in slots],
            "shapes": [slot.shape for slot in slots],
            "group_name": group,
            "load_format": FLATTENED,
        }
        | update_fields(bucket.version, models)
    )
