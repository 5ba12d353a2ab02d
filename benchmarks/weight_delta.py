"""Weight updates as the elements that changed, against whole models, in one run.

    python benchmarks/weight_delta.py [--megabytes 200] [--folder /dev/shm] [--lr 1e-6 1e-5 5e-5]

Weights are normal with a standard deviation of 0.02, and move by the learning rate in a random direction,
about as by Adam. `share`: bytes of an update, as a share of the whole model's. `write`: seconds of the
trainer's first rank, which compares all weights and writes what changed. `read`: seconds in which a native
engine on a CPU changes its weights, or reads all of them. One JSON object; quote the ratios to `whole`. With
a folder in memory, the times say nothing about a disk: add the bytes divided by its speed.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlrun.runner.contracts.weight_updates import Recipient
from rlrun.runner.weights.buckets import WeightSet, plan_buckets
from rlrun.runner.weights.carriers.disk.folder_writer import FolderWriter
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.runner.weights.deltas.applying import DeltaFiles, apply_deltas
from rlrun.runner.weights.deltas.delta_folder import DeltaFolderWriter
from rlrun.runner.weights.form import Form

ROUNDS = 5
FORM = Form(torch.bfloat16)
Write = Callable[[WeightSet, int], FolderWeights]
Tensors = dict[str, torch.Tensor]


def main() -> None:
    """Prints the figures of every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-6, 1e-5, 5e-5])
    arguments = parser.parse_args()
    rows = [measure(arguments.folder, arguments.megabytes, lr) for lr in (None, *arguments.lr)]
    print(json.dumps({"megabytes": arguments.megabytes, "threads": torch.get_num_threads(), "updates": rows}))


def measure(parent: Path, megabytes: int, lr: float | None) -> dict[str, object]:
    """Returns the medians of updates at a learning rate; None: of whole models."""
    shapes = {f"model.layers.{layer}.mlp.up_proj.weight": (1024, 1024) for layer in range(megabytes // 2)}
    buckets = plan_buckets(shapes, FORM, 64 << 20)
    folder = Path(tempfile.mkdtemp(dir=parent)) / "weights"
    whole = FolderWriter(folder, buckets, changed_only=False)
    writer = whole if lr is None else DeltaFolderWriter(folder, buckets)
    engine: Tensors = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    writes, reads, shares = [], [], []
    try:
        for version, weights in enumerate(moving(shapes, lr or 1e-6)):
            begin = time.perf_counter()
            update = writer.write(WeightSet(iter(weights.items()), FORM), version)
            written = time.perf_counter()
            read(update.for_engine(Recipient(0, 1, version - 1)), engine)
            done = time.perf_counter()
            writes.append(written - begin)
            reads.append(done - written)
            shares.append(update.size / sum(tensor.nbytes for tensor in engine.values()))
        assert all(torch.equal(engine[name], tensor.bfloat16()) for name, tensor in weights.items())
    finally:
        shutil.rmtree(folder.parent)
    medians = {
        name: statistics.median(values[1:])  # the first update is whole
        for name, values in (("share", shares), ("write", writes), ("read", reads))
    }
    return {"lr": "whole" if lr is None else lr, **medians}


def moving(shapes: dict[str, tuple[int, int]], lr: float) -> Iterator[Tensors]:
    """Yields weights in float32, each time moved a little."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.02 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for _ in range(ROUNDS + 1):
        for tensor in weights.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator).sign(), alpha=lr)
        yield weights


def read(update: FolderWeights, engine: Tensors) -> None:
    """Changes the weights of an engine."""
    if update.folder is not None:
        for file in Path(update.folder).glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                engine[name].copy_(tensor)
    apply_deltas([DeltaFiles(delta.since, delta.files) for delta in update.deltas], engine)


if __name__ == "__main__":
    main()
