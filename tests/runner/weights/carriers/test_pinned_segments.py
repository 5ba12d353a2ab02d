"""Segments of shared memory are registered with CUDA once; its runtime is replaced, since there is no GPU."""

from collections.abc import Iterator

import pytest
import torch

from rlrun.runner.weights.carriers.native.pinned_segments import PinnedSegments
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights, attach
from tests.runner.weights.cuda_runtime import Runtime, replace_runtime

SHAPES = {"a": (3, 4), "b": (5,)}


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    return replace_runtime(monkeypatch)


@pytest.fixture
def weights() -> Iterator[SharedWeights]:
    shared = SharedWeights("pinned-test", SHAPES, "bfloat16")
    yield shared
    shared.close()


def update(weights: SharedWeights, pinned: PinnedSegments, version: int) -> dict[str, torch.Tensor]:
    """Writes weights of the version's value, and returns copies of what the engine reads."""
    manifest = weights.write(((name, torch.full(shape, version)) for name, shape in SHAPES.items()), version)
    attached = attach(manifest)
    try:
        return {name: tensor.clone() for name, tensor in pinned.tensors(attached).items()}
    finally:
        attached.close()


def test_each_segment_is_registered_once_and_shows_what_was_written_last(
    weights: SharedWeights, runtime: Runtime
) -> None:
    pinned = PinnedSegments()
    for version in range(1, 6):
        tensors = update(weights, pinned, version)
        assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == SHAPES
        assert all((tensor == version).all() for tensor in tensors.values())
    assert runtime.registrations == 2
    pinned.close()
    assert not runtime.registered


def test_segments_of_a_trainer_that_was_started_again_replace_the_old_ones(
    weights: SharedWeights, runtime: Runtime
) -> None:
    pinned = PinnedSegments()
    for version in (1, 2):
        update(weights, pinned, version)
    weights.close()
    again = SharedWeights("pinned-test", SHAPES, "bfloat16")
    for version in (3, 4):
        assert (update(again, pinned, version)["a"] == version).all()
    again.close()
    assert (runtime.registrations, len(runtime.registered)) == (4, 2)


def test_memory_that_cuda_does_not_register_is_an_error_with_a_cure(
    weights: SharedWeights, runtime: Runtime
) -> None:
    runtime.error = 2
    with pytest.raises(ValueError, match=r'error 2; use engine.type = "sglang"'):
        update(weights, PinnedSegments(), 1)
