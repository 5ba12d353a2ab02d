"""Real checkpoints of torch's writer, damaged in every way that a disk, a copy or a person may."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rlrun.runner.checkpoints.reading import DamagedCheckpoint, open_checkpoint
from rlrun.runner.checkpoints.saving import Checkpoints, trainer_folder
from tests.runner.real_trainer import DRIVER, RealTrainer

FILES = [
    "checksums.txt",
    "driver.json",
    "trainer/.metadata",
    "trainer/__0_0.distcp",
    "trainer/critic/.metadata",
    "trainer/critic/__0_0.distcp",
]


@pytest.fixture(scope="module")
async def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's `checkpoints/` with the steps 2 and 4."""
    folder = tmp_path_factory.mktemp("written")
    checkpoints = Checkpoints(folder, keep=2)
    for step in (2, 4):
        await checkpoints.save(RealTrainer(step), step, DRIVER)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def checkpoint(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "checkpoints")) / "step-4"


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def opened(checkpoint: Path) -> dict[str, Any]:
    return await open_checkpoint(checkpoint, RealTrainer(0))  # type: ignore[arg-type]


async def refusal(checkpoint: Path) -> str:
    with pytest.raises(DamagedCheckpoint) as refused:
        await opened(checkpoint)
    return str(refused.value)


def flip(path: Path, share: float) -> None:
    """Flips the lowest bit of the byte at a share of the file's length."""
    data = bytearray(path.read_bytes())
    data[min(int(share * len(data)), len(data) - 1)] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def add(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


DAMAGES = {
    "its first bit": lambda path: flip(path, 0.0),
    "a bit in the first third": lambda path: flip(path, 0.3),
    "a bit in the middle": lambda path: flip(path, 0.5),
    "a bit in the last third": lambda path: flip(path, 0.8),
    "its last byte": lambda path: flip(path, 1.0),
    "cut short": cut,
    "a byte more": add,
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


async def test_a_checkpoint_in_order_is_opened(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert files_of(checkpoint) == FILES
    assert await opened(checkpoint) == DRIVER
    assert not caplog.records
    trainer = RealTrainer(0)
    await trainer.load(trainer_folder(checkpoint))
    assert torch.equal(trainer.weights["w"], RealTrainer(4).weights["w"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_damage_is_refused_with_the_file_and_the_checkpoint_before(
    name: str, damage: Any, checkpoint: Path
) -> None:
    damage(checkpoint / name)
    message = await refusal(checkpoint)
    assert f"step-4/{name} is damaged: " in message
    assert "--resume continues from step 2, the one before" in message
    assert message.endswith(f"mv {checkpoint} {checkpoint}.damaged")


async def test_files_of_another_step_are_noticed(checkpoint: Path) -> None:
    for name in FILES:
        other = checkpoint.with_name("step-2") / name
        mine = (checkpoint / name).read_bytes()
        if mine == other.read_bytes():
            continue  # the driver's part of this test's two steps is the same
        shutil.copy(other, checkpoint / name)
        assert "is damaged: its checksum is not the one" in await refusal(checkpoint)
        (checkpoint / name).write_bytes(mine)
    assert await opened(checkpoint) == DRIVER


async def test_files_that_changed_places_are_both_named(checkpoint: Path) -> None:
    one, other = checkpoint / FILES[3], checkpoint / FILES[2]
    one.rename(checkpoint / "aside")
    other.rename(one)
    (checkpoint / "aside").rename(other)
    message = await refusal(checkpoint)
    assert all(f"{name} is damaged" in message for name in FILES[2:4])


async def test_a_file_without_a_checksum_is_ignored(checkpoint: Path) -> None:
    (checkpoint / "trainer" / "__9_0.distcp").write_bytes(b"stray")
    assert await opened(checkpoint) == DRIVER


async def test_without_an_earlier_one_the_run_begins_again(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint.with_name("step-2"))
    cut(checkpoint / "driver.json")
    assert "Without this checkpoint --resume starts the run again" in await refusal(checkpoint)


async def test_a_job_without_a_trainer_reads_the_driver_s_part_alone(checkpoint: Path) -> None:
    cut(checkpoint / FILES[3])
    assert await open_checkpoint(checkpoint, None) == DRIVER
    cut(checkpoint / "driver.json")
    with pytest.raises(DamagedCheckpoint, match=r"driver\.json is damaged"):
        await open_checkpoint(checkpoint, None)


async def test_one_of_an_earlier_rlrun_is_loaded_with_a_warning(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (checkpoint / "checksums.txt").unlink()
    (checkpoint / "driver.json").write_text(json.dumps(DRIVER))
    with caplog.at_level(logging.WARNING):
        assert await opened(checkpoint) == DRIVER
    assert "step-4 has no checksums.txt, because an earlier rlrun wrote it" in caplog.text
    (checkpoint / "driver.json").write_text('{"progress": {"step": 4,,}}')
    assert "step-4/driver.json is damaged: it is not JSON (" in await refusal(checkpoint)
