"""What the trainer hands over, read by SGLang's own code byte for byte: handles, CUDA handles, broadcasts."""

import hashlib
import inspect
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from rlrun.runner.contracts.weight_updates import TensorSlot, WeightBucket
from rlrun.runner.engines.client.wire import group_body
from rlrun.runner.weights.buckets import Bucket, WeightSet, plan_buckets
from rlrun.runner.weights.carriers.broadcast.sender import BroadcastGroup
from rlrun.runner.weights.carriers.broadcast.updates import broadcast_body
from rlrun.runner.weights.carriers.tensor import sharing
from rlrun.runner.weights.carriers.tensor.sharing import SharedBuffer, with_gpu_uuid
from rlrun.runner.weights.carriers.tensor.updates import handles_body
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.tensor_slots import tensors_in
from tests.sglang_cpu.servers import ENVIRONMENT, HERE, python
from tests.waiting import PATIENCE

SHAPES = {
    "model.layers.0.self_attn.q_proj.weight": (256, 130),
    "model.norm.weight": (7,),
    "model.layers.0.mlp.up_proj.weight": (128, 256),
    "lm_head.weight": (3, 5),
}
FORM = Form(torch.bfloat16, ("lm_head",))
"""FP8 with float32 scales, and bfloat16: three widths of numbers in one bucket."""
UUIDS = ["8a5b-first", "8a5b-second"]
"""The GPUs that the server's process sees; the trainer's process sees the second one, as its number 0."""
SMALL = TensorSlot("a", "float8_e4m3fn", (3, 3), 0)
ARGUMENTS = (  # of rebuild_cuda_tensor, as torch.multiprocessing.reductions.reduce_tensor gives them
    *(torch.Tensor, torch.Size([9]), (1,), 0, torch.storage.UntypedStorage, torch.uint8, 0),
    *(b"\x00handle\xff", 2048, 512, False, b"/torch_1_2", 3, b"\x01event", True),
)


def filled(bucket: Bucket) -> torch.Tensor:
    torch.manual_seed(0)
    buffer = torch.empty(bucket.size, dtype=torch.uint8)
    WeightSet(iter([(name, torch.randn(shape)) for name, shape in SHAPES.items()]), FORM).fill(buffer, bucket)
    return buffer


def digests(buffer: torch.Tensor, bucket: Bucket) -> dict[str, list[str]]:
    return {
        name: [
            str(view.dtype),
            str(list(view.shape)),
            hashlib.sha256(view.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest(),
        ]
        for name, view in tensors_in(buffer, bucket.slots).items()
    }


def body(raw: bytes) -> Any:
    return orjson.loads(raw)


@pytest.fixture(scope="module")
def bucket() -> Bucket:
    [whole] = plan_buckets(SHAPES, FORM, None)
    assert len({slot.dtype for slot in whole.slots}) == 3
    return whole


def cuda_payload() -> str:
    """As on a GPU: what torch would say of the buffer there, with the GPU's UUID instead of its number."""
    with pytest.MonkeyPatch.context() as patch:
        reduced = with_gpu_uuid((rebuild_cuda_tensor, ARGUMENTS), lambda device: UUIDS[1 + device])
        patch.setattr(sharing, "_reduced", lambda tensor: reduced)
        return sharing._payload(torch.empty(9, dtype=torch.uint8), Bucket(("a",), (SMALL,)))


@pytest.fixture(scope="module")
def found(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What SGLang's code finds, in a process of its environment."""
    folder = tmp_path_factory.mktemp("wire")
    shared = SharedBuffer(bucket.size, torch.device("cpu"))
    shared.bytes.copy_(filled(bucket))
    sent = WeightBucket(7, bucket.slots)
    groups = [
        BroadcastGroup(f"stage-{stage}", "127.0.0.1", 1, torch.device("cpu"), 120.0) for stage in (0, 1)
    ]
    sending = [group.send(filled(bucket)) for group in groups]
    asked = {
        "uuids": UUIDS,
        "cuda": body(handles_body(WeightBucket(7, (SMALL,)), [cuda_payload()], "target")),
        "shared": body(handles_body(sent, shared.payloads(bucket, 1), "target")),
        "broadcast": [
            [body(group_body(group.address, 1)), body(broadcast_body(sent, group.address.name, "all"))]
            for group in groups
        ],
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    try:
        subprocess.run(
            [python(), str(HERE / "wire_reader.py"), str(folder / "asked.json"), str(folder / "found.json")],
            env=os.environ | ENVIRONMENT,
            check=True,
            timeout=PATIENCE,
        )
        for one in sending:
            one.result(PATIENCE)
    finally:
        for group in groups:
            group.close()
        shared.close()
    return json.loads(Path(folder / "found.json").read_text())


def test_handles_are_read_byte_for_byte(found: Any, bucket: Bucket) -> None:
    assert found["shared"] == digests(filled(bucket), bucket)
    assert list(found["shared"]) == [slot.name for slot in bucket.slots]


def test_each_stages_group_is_joined_and_its_broadcast_read_byte_for_byte(found: Any, bucket: Bucket) -> None:
    assert found["broadcast"] == [digests(filled(bucket), bucket)] * 2


def test_cuda_handles_pass_the_servers_unpickler_and_name_its_own_gpu(found: Any) -> None:
    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    expected = dict(zip(names, map(repr, ARGUMENTS), strict=True)) | {"storage_device": "1"}
    assert dict(zip(names, found["cuda"]["arguments"], strict=True)) == expected
    content = hashlib.sha256(bytes(range(9))).hexdigest()
    assert found["cuda"]["tensors"] == {"a": ["torch.float8_e4m3fn", "[3, 3]", content]}
