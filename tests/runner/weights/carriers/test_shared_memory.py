"""Segments: readers get what was written, never a part of it, and no segment remains afterwards."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlrun.runner.host.segment_files import FOLDER
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights, attach
from rlrun.runner.weights.carriers.native.updates import WeightManifest
from rlrun.runner.weights.tensor_slots import SegmentError
from tests.waiting import PATIENCE

SHAPES = {
    "a.q_proj.weight": (3, 5),
    "a.k_proj.weight": (2, 5),
    "a.v_proj.weight": (2, 5),
    "norm.weight": (5,),
}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[str]:
    """A name of its own; whatever it leaves in /dev/shm is a failure."""
    name = f"test {os.getpid()} {tmp_path.name}"
    yield name
    left = segments(name)
    for path in left:
        path.unlink()
    assert left == []


def segments(job: str) -> list[Path]:
    return sorted(FOLDER.glob(f"rlrun-{job.replace(' ', '_')}*"))


def weights(value: float, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {
        name: torch.arange(torch.Size(shape).numel(), dtype=dtype).view(shape) + value
        for name, shape in SHAPES.items()
    }


def test_what_is_written_is_read(job: str) -> None:
    shared = SharedWeights(job, SHAPES, "float32")
    for version in range(1, 5):
        manifest = shared.write(reversed(weights(version).items()), version)
        assert (manifest.version, len(manifest.tensors)) == (version, 4)
        attached = attach(manifest)
        for name, tensor in weights(version).items():
            assert torch.equal(attached.tensors[name], tensor)
        assert attached.tensors["a.q_proj.weight"].data_ptr() % 64 == 0
        attached.close()
    assert len(segments(job)) == 2
    shared.close()


def test_tensors_are_converted_as_they_are_copied(job: str) -> None:
    shared = SharedWeights(job, SHAPES, "bfloat16")
    attached = attach(shared.write(weights(0.123).items(), 1))
    assert torch.equal(attached.tensors["norm.weight"], weights(0.123)["norm.weight"].bfloat16())
    attached.close()
    shared.close()


def test_a_segment_in_use_is_not_written(job: str) -> None:
    shared = SharedWeights(job, SHAPES, "float32", wait=0.05)
    held = attach(shared.write(weights(1).items(), 1))
    shared.write(weights(2).items(), 2)
    with pytest.raises(TimeoutError, match=r"an engine still reads segment .* after 0.05 s"):
        shared.write(weights(3).items(), 3)
    assert torch.equal(held.tensors["norm.weight"], weights(1)["norm.weight"])
    held.close()
    attach(shared.write(weights(3).items(), 3)).close()
    shared.close()


def test_views_outlive_the_writer(job: str) -> None:
    shared = SharedWeights(job, SHAPES, "float32")
    attached = attach(shared.write(weights(1).items(), 1))
    shared.close()
    assert segments(job) == []
    assert torch.equal(attached.tensors["norm.weight"], weights(1)["norm.weight"])
    attached.close()


def test_a_failed_write_is_never_read(job: str) -> None:
    shared = SharedWeights(job, SHAPES, "float32")
    good = shared.write(weights(1).items(), 1)
    with pytest.raises(SegmentError, match=r"1 of 4 tensors missing, the first: norm.weight"):
        shared.write(list(weights(2).items())[:3], 2)
    (other,) = (path for path in segments(job) if path.name != good.segment)
    half = dataclasses.replace(good, segment=other.name, version=2)
    with pytest.raises(SegmentError, match=r"holds weights -1, not 2"):
        attach(half)
    attach(good).close()
    attach(shared.write(weights(3).items(), 3)).close()
    shared.close()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.ones(1)}, "x: not among the weights"),
        (
            {"norm.weight": torch.ones(6)},
            r"norm.weight has shape \(6,\); the segment was laid out for \(5,\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(job: str, tensors: dict[str, torch.Tensor], message: str) -> None:
    shared = SharedWeights(job, SHAPES, "float32")
    with pytest.raises(SegmentError, match=message):
        shared.write(tensors.items(), 1)
    shared.close()


def test_manifests_that_lie_are_refused(job: str) -> None:
    shared = SharedWeights(job, SHAPES, "float32")
    manifest = shared.write(weights(1).items(), 7)
    slot = manifest.tensors[0]
    lies: list[tuple[WeightManifest, str]] = [
        (dataclasses.replace(manifest, version=8), "holds weights 7, not 8"),
        (dataclasses.replace(manifest, segment="rlrun-nobody"), "cannot be opened"),
        (dataclasses.replace(manifest, segment="rlrun-/../x"), "is not a segment's name"),
        (dataclasses.replace(manifest, size=manifest.size * 100), "is shorter than"),
        (dataclasses.replace(manifest, size=manifest.size - 1), "does not hold weights of"),
        (
            dataclasses.replace(manifest, tensors=(dataclasses.replace(slot, offset=manifest.size - 4),)),
            "is outside segment",
        ),
    ]
    for lie, message in lies:
        with pytest.raises(SegmentError, match=message):
            attach(lie)
    shared.write(weights(2).items(), 8)
    shared.write(weights(3).items(), 9)  # no refused reader holds a lock
    shared.close()


def test_a_killed_writer_s_segments_are_removed_by_the_next(job: str) -> None:
    code = (
        "import os, signal, torch;"
        "from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights;"
        f"SharedWeights({job!r}, {{'w': (4,)}}, 'float32').write([('w', torch.ones(4))], 1);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    living = SharedWeights(job, SHAPES, "float32")
    living.write(weights(1).items(), 1)
    subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE)
    assert len(segments(job)) == 4
    elsewhere = FOLDER / f"{segments(job)[0].name.rpartition('-')[0].rpartition('-')[0]}-1.999999999-0"
    elsewhere.touch()
    SharedWeights("another job", SHAPES, "float32")
    assert elsewhere in segments(job)
    elsewhere.unlink()
    assert len(segments(job)) == 2
    living.close()


def test_no_room_is_an_error_that_leaves_nothing(job: str) -> None:
    shared = SharedWeights(job, {"w": (1 << 50,)}, "bfloat16")
    with pytest.raises(SegmentError, match=r"no room for .* MB of shared weights"):
        shared.write([], 1)
    shared.close()
