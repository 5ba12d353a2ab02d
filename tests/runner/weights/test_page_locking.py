"""The trainer registers every buffer that its GPU copies weights into once, and releases it in the end.

CUDA's runtime is replaced; tensors are in host memory.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rlrun.runner.contracts.weight_updates import Readers
from rlrun.runner.weights.buckets import WeightSet, plan_buckets
from rlrun.runner.weights.carriers.disk.folder_writer import FolderWriter
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights, attach
from rlrun.runner.weights.carriers.tensor.buffer_sender import SharedBufferSender
from rlrun.runner.weights.carriers.tensor.serialized import SerializedWriter
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.page_locking import HOST
from tests.runner.weights.cuda_runtime import replace_runtime

GPU = torch.device("cuda", 0)
SHAPES = {"a": (3, 4), "b": (5,)}
FORM = Form(torch.bfloat16)


def tensors() -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, torch.ones(shape)) for name, shape in SHAPES.items())


Writer = tuple[Callable[[int], object], Callable[[], None]]
"""What writes an update, by its version, and what ends the writer."""


def native(folder: Path, device: torch.device) -> Writer:
    shared = SharedWeights("locking-test", SHAPES, "bfloat16", device=device)
    return lambda version: shared.write(tensors(), version), shared.close


def whole(folder: Path, device: torch.device) -> Writer:
    [bucket] = plan_buckets(SHAPES, FORM, None)
    writer = SerializedWriter(bucket, 1, device)
    return lambda version: writer.write(WeightSet(tensors(), FORM), version), writer.close


def streamed(folder: Path, device: torch.device) -> Writer:
    [bucket] = plan_buckets(SHAPES, FORM, None)
    sender = SharedBufferSender(bucket.size, HOST, source=device)
    sender.begin(Readers((0,), (0,), 1))
    return lambda version: sender.send(bucket, WeightSet(tensors(), FORM)), sender.close


def disk(folder: Path, device: torch.device) -> Writer:
    buckets = plan_buckets(SHAPES, FORM, 20)
    writer = FolderWriter(folder / "weights", buckets, changed_only=False, source=device)
    return lambda version: writer.write(WeightSet(tensors(), FORM), version), writer.close


@pytest.mark.parametrize("make, buffers", [(native, 2), (whole, 1), (streamed, 2), (disk, 1)])
def test_buffers_stay_registered_from_the_first_update_to_the_end(
    make: Callable[[Path, torch.device], Writer],
    buffers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = replace_runtime(monkeypatch)
    write, close = make(tmp_path, GPU)
    for version in (1, 2, 3):
        write(version)
    assert (runtime.registrations, len(runtime.registered)) == (buffers, buffers)
    close()
    assert not runtime.registered


def test_a_rank_on_a_cpu_registers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = replace_runtime(monkeypatch)
    write, close = native(tmp_path, HOST)
    write(1)
    close()
    assert runtime.registrations == 0


def test_where_cuda_refuses_weights_are_copied_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = replace_runtime(monkeypatch)
    runtime.error = 2
    shared = SharedWeights("locking-test", SHAPES, "bfloat16", device=GPU)
    with pytest.warns(UserWarning, match="CUDA cannot register 0.0 GB of shared memory: error 2"):
        manifest = shared.write(tensors(), 1)
    attached = attach(manifest)
    assert all((tensor == 1).all() for tensor in attached.tensors.values())
    attached.close()
    shared.close()
