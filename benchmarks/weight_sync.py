"""Weights from a trainer process to an engine process on one host, against memcpy in the same run.

    python benchmarks/weight_sync.py [--megabytes 1000] [--dtype bfloat16] [--bucket 64]

`write`: a whole model copied into shared memory. `write and adopt`: and taken over by another process,
which fuses q, k, v and gate, up without a copy. `engine`: writing, and a running native engine that takes
over, over HTTP. `engine's first pass`: packing for oneDNN, which the engine does before it generates with new
weights.

The carriers for SGLang servers go to a process that copies everything into weights of its own, as a server
does: `tensor` (one shared buffer, torch's handles), `tensor in buckets`, `broadcast` (gloo) and `disk` (files
in /dev/shm), with other numbers each time. `gloo`: as many bytes by gloo alone, between the same two buffers.
`extra_megabytes`: what the writer holds beside the model at its peak, and what lies in /dev/shm.
One JSON object; quote the shares of memcpy.
"""

import argparse
import asyncio
import base64
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peak import peak_resident, reset_peak
from safetensors.torch import load_file, save_file

from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.weight_updates import GroupAddress, Readers, StreamedWeights
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.native.model.config import engine_architecture, weight_shapes
from rlrun.runner.engines.native.model.fused_weights import fuse
from rlrun.runner.weights.carriers.broadcast.sender import BroadcastGroup
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights, attach
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.runner.weights.rank_weights import RankWeights, Stages
from rlrun.runner.weights.tensor_slots import num_bytes, tensors_in
from rlrun.runner.weights.writer import Writer
from tests.resolved_specs import resolved

SHAPE = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""A Qwen3-0.6B with a smaller vocabulary; as many layers as the size asks for."""

ROUNDS = 7

CARRIERS: dict[str, dict[str, object]] = {
    "tensor": {"weight_sync": "tensor"},
    "tensor in buckets": {"weight_sync": "tensor", "weight_bucket": None},
    "broadcast": {"weight_sync": "broadcast", "weight_bucket": None},
    "disk": {"weight_sync": "disk", "weight_bucket": None},
}
"""Keys of `[engine]`; None: what --bucket says."""


def main() -> None:
    """Print one JSON object."""
    options = arguments()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        tensors = make_model(Path(folder), options.megabytes * 1e6, getattr(torch, options.dtype))
        size = sum(tensor.nbytes for tensor in tensors.values())
        copy = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        shared = SharedWeights(
            f"benchmark-{os.getpid()}", {n: t.shape for n, t in tensors.items()}, options.dtype
        )
        try:
            rates = {
                "memcpy": rate(size, lambda _: [copy[n].copy_(t) for n, t in tensors.items()]),
                "write": rate(size, lambda version: shared.write(tensors.items(), version)),
                **with_reader(folder, size, shared, tensors),
                **with_engine(folder, size, shared, tensors, options),
                "gloo": with_gloo(size, options.bucket << 20),
            }
        finally:
            shared.close()
        extra = {}
        for name, fields in CARRIERS.items():
            keys = {key: options.bucket if value is None else value for key, value in fields.items()}
            rates[name], extra[name] = with_carrier(Path(folder), size, tensors, options.dtype, keys)
    report = {"megabytes": round(size / 1e6), "dtype": options.dtype, "threads": options.threads}
    report["gigabytes_per_second"] = {name: round(value, 2) for name, value in rates.items()}
    report["share_of_memcpy"] = {name: round(value / rates["memcpy"], 3) for name, value in rates.items()}
    report["extra_megabytes"] = extra
    print(json.dumps(report))


def arguments() -> argparse.Namespace:
    """Reads the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bucket", type=int, default=64, help="MiB")
    return parser.parse_args()


def make_model(folder: Path, size: float, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Weights of about `size` bytes, also written to `folder`."""
    layers = 0
    total = 0.0
    while total < size:
        layers += 1
        (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        shapes = weight_shapes(engine_architecture(folder))
        total = sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
    tensors = {name: torch.randn(shape, dtype=dtype) * 0.02 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def rate(size: int, action: Callable[[int], object]) -> float:
    """Gigabytes a second: the median after two warm-ups, which touch both segments' pages."""
    times = []
    for version in range(ROUNDS):
        began = time.perf_counter()
        action(version)
        times.append(time.perf_counter() - began)
    return size / statistics.median(times[2:]) / 1e9


def with_reader(
    folder: str, size: int, shared: SharedWeights, tensors: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """Writing and adopting in another process, end to end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=read, args=(theirs, folder))
    process.start()

    def update(version: int) -> None:
        ours.send(shared.write(tensors.items(), version))
        if not ours.poll(120):
            raise TimeoutError("the reader did not adopt the weights within 120 s")
        assert ours.recv() == version

    try:
        return {"write and adopt": rate(size, update)}
    finally:
        ours.send(None)
        process.join(30)


def read(pipe: Connection, folder: str) -> None:
    """The reader's process: adopt each manifest, then let go of the one before."""
    config = engine_architecture(folder)
    held = None
    while (manifest := pipe.recv()) is not None:
        assert isinstance(manifest, WeightManifest)
        attached = attach(manifest)
        fuse(attached.tensors, config)
        if held is not None:
            held.close()
        held = attached
        pipe.send(manifest.version)


def with_carrier(
    folder: Path, size: int, tensors: Mapping[str, torch.Tensor], dtype: str, keys: Mapping[str, object]
) -> tuple[float, dict[str, int]]:
    """Rate of a carrier to a process that copies, and the writer's extra memory at its peak."""
    writer = make_writer(folder, tensors, dtype, keys)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=take, args=(theirs, {n: t.shape for n, t in tensors.items()}, dtype))
    process.start()
    free, resident = shared_memory_free(), reset_peak()
    try:
        found = rate(size, lambda version: hand_over(writer, ours, version))
        peak = {"process": peak_resident() - resident, "/dev/shm": free - shared_memory_free()}
        return found, {name: round(value / 1e6) for name, value in peak.items()}
    finally:
        ours.send(None)
        process.join(30)
        writer.close()


def make_writer(
    folder: Path, tensors: Mapping[str, torch.Tensor], dtype: str, keys: Mapping[str, object]
) -> Writer:
    """What a trainer of one rank has."""
    engine = {"type": "sglang", "dtype": dtype, "weight_check": "none", **keys}
    model = read_architecture(folder)
    names = [tensor.name for tensor in hf_tensors(model)]
    turns = itertools.cycle([tensors, {name: -tensor for name, tensor in tensors.items()}])
    gather = partial(next_weights, turns, names)
    spec = resolved({"model": {"path": str(folder)}, "data": {}, "engine": engine})
    return carrier_for(spec).writer(
        spec,
        RankWeights(
            rank=0,
            model=model,
            shapes={name: tuple(tensors[name].shape) for name in names},
            gather=gather,
            gather_stage=gather,
            stages=Stages(dict.fromkeys(names, 0)),
            device=torch.device("cpu"),
            host="127.0.0.1",
            job="benchmark",
            folder=Path(f"/dev/shm/rlrun-benchmark-{os.getpid()}"),
            model_folder=folder,
        ),
    )


def next_weights(
    turns: Iterator[Mapping[str, torch.Tensor]], names: Sequence[str], dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The next set of weights, as a trainer gathers it."""
    del dtype
    weights = next(turns)
    return ((name, weights[name]) for name in names)


def hand_over(writer: Writer, pipe: Connection, version: int) -> None:
    """One update, as the driver goes through it: a bucket is gathered while the one before is loaded."""
    update = writer.write(version)
    if not isinstance(update, StreamedWeights):
        pipe.send(update)
        return hear(pipe)
    member = writer.begin(Readers((0,), (0,), 1))
    if member.group is not None:
        pipe.send(member.group)
    bucket = writer.next_bucket()
    while bucket is not None and bucket.tensors:
        pipe.send(bucket)
        following = writer.next_bucket()
        hear(pipe)
        bucket = following
    assert bucket is not None, "rank 0 has buckets"
    assert bucket.error is None, bucket.error
    return None


def hear(pipe: Connection) -> None:
    """Wait until the other side has taken over what it was sent."""
    if not pipe.poll(120):
        raise TimeoutError("the reader did not take over the weights within 120 s")
    assert pipe.recv() == "done"


def take(pipe: Connection, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    """The reader's process: copy what comes into weights of its own."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    own = {name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, shape in shapes.items()}
    group = name = None
    while (item := pipe.recv()) is not None:
        if isinstance(item, GroupAddress):
            group, name = (group, name) if item.name == name else (join(item), item.name)
            continue
        if isinstance(item, FolderWeights):
            for file in sorted(Path(item.folder).glob("*.safetensors")):
                copy(own, load_file(file))
        elif item.payloads:
            held = pickle.loads(base64.b64decode(item.payloads[0]))
            copy(own, flattened(held["flattened_tensor"], held["metadata"]))
        else:
            assert group is not None
            buffer = torch.empty(sum(map(num_bytes, item.tensors)), dtype=torch.uint8)
            group.broadcast([buffer], torch.distributed.BroadcastOptions()).wait()
            copy(own, tensors_in(buffer, item.tensors))
        pipe.send("done")


def with_gloo(size: int, bucket: int) -> float:
    """Gigabytes a second from one process to another, and nothing else done to them."""
    group = BroadcastGroup("bare", "127.0.0.1", 1, torch.device("cpu"), 120)
    pieces = [bucket] * (size // bucket)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=drain, args=(group.address, bucket, len(pieces) * ROUNDS))
    process.start()
    buffer = torch.ones(bucket, dtype=torch.uint8)
    try:
        return rate(sum(pieces), lambda _: [group.send(buffer).result() for _ in pieces])
    finally:
        process.join(30)
        group.close()


def drain(address: GroupAddress, bucket: int, count: int) -> None:
    """The reader's process: take `count` buffers."""
    group, buffer = join(address), torch.ones(bucket, dtype=torch.uint8)
    for _ in range(count):
        group.broadcast([buffer], torch.distributed.BroadcastOptions()).wait()


def flattened(buffer: torch.Tensor, metadata: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Tensors of a bucket, as a server finds them in it."""
    return {
        one.name: buffer[one.start_idx : one.end_idx].view(one.dtype).reshape(one.shape) for one in metadata
    }


def join(address: GroupAddress) -> torch.distributed.ProcessGroup:
    """Rank 1 of a group, with the keys that torch gives it."""
    dist = torch.distributed
    store = dist.TCPStore(address.host, address.port, address.size, is_master=False)
    store = dist.PrefixStore(f"{address.name}/", dist.PrefixStore(address.name, store))
    return dist.ProcessGroupGloo(dist.PrefixStore("cpu/", store), 1, address.size)


def copy(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """As a server's loaders do."""
    for name, tensor in given.items():
        own[name].copy_(tensor)


def shared_memory_free() -> int:
    """Returns the free bytes of shared memory."""
    return shutil.disk_usage("/dev/shm").free


def with_engine(
    folder: str,
    size: int,
    shared: SharedWeights,
    tensors: Mapping[str, torch.Tensor],
    options: argparse.Namespace,
) -> dict[str, float]:
    """Updating an idle engine over HTTP, and what its first pass costs above its second."""
    setup = EngineSetup(folder, dtype=options.dtype, max_running=4, threads=options.threads, job="benchmark")
    server = NativeServer(setup)
    url = server.start()
    token = GenerateRequest("0", np.array([5], np.int32), (0,), Sampling(max_new_tokens=1))

    async def measure() -> tuple[float, float]:
        async with EngineClient(url) as client:
            marks = []
            for version in range(1, 7):
                marks.append([time.perf_counter()])
                assert await client.update_weights(shared.write(tensors.items(), version)) == version
                marks[-1].append(time.perf_counter())
                for _ in range(2):
                    await client.generate(token)
                    marks[-1].append(time.perf_counter())
            updates = statistics.median(mark[1] - mark[0] for mark in marks[2:])
            passes = statistics.median(2 * mark[2] - mark[1] - mark[3] for mark in marks[2:])
            return updates, passes

    update, first_pass = asyncio.run(measure())
    server.stop()
    return {"engine": size / update / 1e9, "engine's first pass": size / first_pass / 1e9}


if __name__ == "__main__":
    main()
