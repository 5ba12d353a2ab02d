"""Weights from a trainer process to an engine process on one host, against memcpy in the same run.

    python benchmarks/weight_sync.py [--megabytes 1000] [--dtype bfloat16]

`write`: a whole model copied into shared memory. `write and adopt`: and taken over by another process,
which fuses q, k, v and gate, up without a copy. `engine`: writing, and a running native engine that takes
over, over HTTP. `engine's first pass`: packing for oneDNN, which the engine does before it generates with new
weights. One JSON object; quote the shares of memcpy.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from rlrun.runner.carriers import GenerateRequest, Sampling, WeightManifest
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.native.config import read_config, weight_shapes
from rlrun.runner.engines.native.server import NativeServer
from rlrun.runner.engines.native.weights import fuse
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.weights.shared_memory import SharedWeights, attach

SHAPE = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""A Qwen3-0.6B with a smaller vocabulary; as many layers as the size asks for."""


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
            }
        finally:
            shared.close()
    report = {"megabytes": round(size / 1e6), "dtype": options.dtype, "threads": options.threads}
    report["gigabytes_per_second"] = {name: round(value, 2) for name, value in rates.items()}
    report["share_of_memcpy"] = {name: round(value / rates["memcpy"], 3) for name, value in rates.items()}
    print(json.dumps(report))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def make_model(folder: Path, size: float, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Weights of about `size` bytes, also written to `folder`."""
    layers = 0
    total = 0.0
    while total < size:
        layers += 1
        (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        shapes = weight_shapes(read_config(folder))
        total = sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
    tensors = {name: torch.randn(shape, dtype=dtype) * 0.02 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def rate(size: int, action: Callable[[int], object], repeats: int = 5) -> float:
    """Gigabytes a second: the median after two warm-ups, which touch both segments' pages."""
    times = []
    for version in range(repeats + 2):
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
    config = read_config(folder)
    held = None
    while (manifest := pipe.recv()) is not None:
        assert isinstance(manifest, WeightManifest)
        attached = attach(manifest)
        fuse(attached.tensors, config)
        if held is not None:
            held.close()
        held = attached
        pipe.send(manifest.version)


def with_engine(
    folder: str,
    size: int,
    shared: SharedWeights,
    tensors: Mapping[str, torch.Tensor],
    options: argparse.Namespace,
) -> dict[str, float]:
    """Updating an idle engine over HTTP, and what its first pass costs above its second."""
    server = NativeServer(EngineSetup(folder, options.dtype, max_running=4, threads=options.threads))
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
