"""Reads weights with SGLang's own code; run by SGLang's Python: `wire_reader.py REQUEST.json ANSWER.json`.

Nothing here is from rlrun. Only the last step of a CUDA payload is replaced, the driver's call that opens
memory of another process: it needs a GPU.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from sglang.srt.managers.io_struct import (
    InitWeightsUpdateGroupReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromTensorReqInput,
)
from sglang.srt.utils import MultiprocessingSerializer, init_custom_process_group
from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions
from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket, FlattenedTensorMetadata
from torch.multiprocessing import reductions

FIELDS = ("name", "shape", "dtype", "start_idx", "end_idx", "numel")


def main() -> None:
    """Does everything that is asked for, and writes down what was found."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    torch.multiprocessing.set_sharing_strategy("file_system")
    monkey_patch_torch_reductions()
    answer = {
        "shared": digests(unpacked(UpdateWeightsFromTensorReqInput(**asked["shared"]))),
        "cuda": opened_on_gpu(asked["cuda"], asked["uuids"]),
        "broadcast": [digests(received(*bodies)) for bodies in asked["broadcast"]],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))
    # As a server that is killed: while Python ends, the process groups' threads may abort it.
    os._exit(0)


def unpacked(request: UpdateWeightsFromTensorReqInput) -> list[tuple[str, torch.Tensor]]:
    """The tensors of the first rank's payload, as WeightUpdater takes them apart."""
    assert request.load_format == "flattened_bucket"
    held = MultiprocessingSerializer.deserialize(request.serialized_named_tensors[0])
    metadata = [
        FlattenedTensorMetadata(**{field: getattr(one, field) for field in FIELDS})
        for one in held["metadata"]
    ]
    bucket = FlattenedTensorBucket(flattened_tensor=held["flattened_tensor"], metadata=metadata)
    return bucket.reconstruct_tensors()


def opened_on_gpu(body: dict[str, Any], uuids: list[str]) -> dict[str, Any]:
    """The arguments with which torch would open the payload on this process's GPUs, and the tensors."""
    arguments: list[str] = []

    def rebuild(*given: Any) -> torch.Tensor:
        arguments.extend(map(repr, given))
        return torch.arange(given[1].numel(), dtype=torch.uint8)

    reductions._rebuild_cuda_tensor_original = rebuild
    torch.cuda.device_count = lambda: len(uuids)
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=uuids[device])
    tensors = digests(unpacked(UpdateWeightsFromTensorReqInput(**body)))
    return {"arguments": arguments, "tensors": tensors}


def received(join: dict[str, Any], load: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a broadcast, as WeightUpdater joins its group and receives them."""
    where, what = InitWeightsUpdateGroupReqInput(**join), UpdateWeightsFromDistributedReqInput(**load)
    assert what.load_format == "flattened_bucket"
    assert what.group_name == where.group_name
    group = init_custom_process_group(
        backend=where.backend,
        init_method=f"tcp://{where.master_address}:{where.master_port}",
        world_size=where.world_size,
        rank=where.rank_offset,
        group_name=where.group_name,
    )
    bucket = FlattenedTensorBucket.empty(what.names, what.dtypes, what.shapes, "cpu")
    dist.broadcast(bucket.get_flattened_tensor(), src=0, group=group)
    return bucket.reconstruct_tensors()


def digests(tensors: list[tuple[str, torch.Tensor]]) -> dict[str, list[str]]:
    """Dtype, shape and SHA-256 of each tensor's bytes, by name."""
    return {
        name: [
            str(tensor.dtype),
            str(list(tensor.shape)),
            hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest(),
        ]
        for name, tensor in tensors
    }


main()
